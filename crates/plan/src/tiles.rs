//! Numbers of the tiles of C, by which a journal identifies them.
//!
//! Invariants: number and rectangle are inverse to each other, and depend on the regions only, not on the
//! assignment of work. The tiles of a cell have consecutive numbers, so numbers go by cells, row by row.

use crate::{Plan, Region};
use bramble_base::Rect;

impl Region {
    /// Number of tiles.
    pub fn tiles(&self) -> u64 {
        self.grid.tiles() * self.q() * self.q()
    }

    /// The number of tile (u, v) of cell (i, j).
    pub fn tile_number(&self, i: u64, j: u64, u: u64, v: u64) -> u64 {
        let q = self.q();
        (i * self.grid.cols() + j) * q * q + u * q + v
    }

    /// The rectangle of tile `number` in C; `None` if there is no such tile.
    pub fn tile_of(&self, number: u64) -> Option<Rect> {
        if number >= self.tiles() {
            return None;
        }
        let q = self.q();
        let (cell, inner) = (number / (q * q), number % (q * q));
        Some(self.tile(cell / self.grid.cols(), cell % self.grid.cols(), inner / q, inner % q))
    }
}

impl Plan {
    /// The region and the number of the tile that contains an element of C.
    pub fn tile_at(&self, row: u64, col: u64) -> Option<(usize, u64)> {
        self.regions.iter().enumerate().find_map(|(at, region)| {
            let (row, col) = (row.checked_sub(region.row)?, col.checked_sub(region.col)?);
            let grid = &region.grid;
            let (rows, cols) = (grid.whole_rows(), grid.whole_cols());
            let inside = row < rows * region.q() && col < cols * region.q();
            let cell = |x: u64, part: u64, edge: u64| (x % part.max(1) / edge, x / part.max(1));
            let ((i, u), (j, v)) = (cell(row, rows, grid.tile_rows), cell(col, cols, grid.tile_cols));
            inside.then(|| (at, region.tile_number(i, j, u, v)))
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{LinkRate, Machine, OperandSource, PlanOptions, Problem, Region, TileSize, decide};
    use bramble_base::DType;

    #[test]
    fn each_element_is_in_the_tile_of_its_number() {
        for (strategy, sides) in
            [("reuse", [50, 33, 7]), ("strassen:1", [51, 34, 9]), ("strassen:2", [47, 50, 40])]
        {
            let p = Problem {
                m: sides[0],
                n: sides[1],
                k: sides[2],
                dtype: DType::F32,
                reads_c: false,
                a_source: OperandSource::Sent,
                b_source: OperandSource::Sent,
            };
            let machine = Machine {
                name: "w".into(),
                threads: 1,
                gflops: 1.0,
                peak_gflops: 1.0,
                memory_bytes: 1 << 30,
                link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
                shares_cores: false,
                nic_bytes_per_s: None,
                memory_rate: None,
            };
            let options = PlanOptions { strategy: Some(strategy.parse().unwrap()), ..PlanOptions::AUTO };
            let cut = TileSize { tile: Some(8), depth: Some(4) };
            let plan = decide(&p, cut, &machine, core::slice::from_ref(&machine), &options).unwrap().plan;
            let mut elements = 0;
            for (at, region) in plan.regions.iter().enumerate() {
                for number in 0..region.tiles() {
                    let rect = region.tile_of(number).unwrap();
                    for (row, col) in rect.rows.iter().flat_map(|r| rect.cols.iter().map(move |c| (r, c))) {
                        assert_eq!(plan.tile_at(row, col), Some((at, number)), "{strategy}: ({row}, {col})");
                        elements += 1;
                    }
                }
                assert_eq!(Region::tile_of(region, region.tiles()), None);
            }
            assert_eq!(elements, p.m * p.n);
            assert_eq!(plan.tile_at(p.m, 0), None);
        }
    }
}
