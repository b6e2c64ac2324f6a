//! Which rows, columns or depth indices (lines) levels of Strassen–Winograd add to each other.
//!
//! Place: used by the statistical test, which spreads tolerances and NaNs over the lines that were mixed, and by the bound
//! of single elements (`strassen`).
//!
//! Invariant: a line's class holds every line whose numbers may have been added to its own. Levels in a plan mix the lines
//! at the same offset in equal parts of the whole side; levels in a kernel do so within each piece of a tile.

use super::TileLevels;
use super::recompute::VerifyProblem;
use bramble_matrix::{Shape, Span, Winograd};

/// A stretch of a side, cut into equal parts.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// The first index of the first part.
    start: u64,
    /// The number of parts.
    pub(super) q: u64,
    /// The length of each part.
    pub(super) len: u64,
}

impl Parts {
    pub(super) fn of(stretch: Span, levels: u32) -> Self {
        Self { start: stretch.start, q: 1 << levels, len: stretch.len() >> levels }
    }

    /// The part that holds an index, and the offset in that part; `None` beyond the parts.
    pub(super) fn place(self, index: u64) -> Option<(u64, u64)> {
        let from = index.checked_sub(self.start)?;
        (from < self.q * self.len).then(|| (from / self.len, from % self.len))
    }

    /// The index at offset `at` of a part.
    pub(super) fn index(self, part: u64, at: u64) -> u64 {
        self.start + part * self.len + at
    }

    /// The class of an offset: the indices at that offset in every part.
    fn class(self, at: u64) -> impl Iterator<Item = u64> {
        (0..self.q).map(move |part| self.index(part, at))
    }

    /// Replaces each value by `factor` times the root of the sum of squares of its class. Values beyond the parts stay.
    fn spread(self, values: &mut [f64], factor: f64) {
        for at in 0..self.len {
            // Dividing by the largest value keeps squares in range; a NaN must not be lost.
            let of_class = || self.class(at).map(|i| values[i as usize]);
            let largest = of_class().fold(0.0, f64::max);
            let sum: f64 = of_class().map(|x| if x == 0.0 { 0.0 } else { (x / largest).powi(2) }).sum();
            let size = factor * largest * sum.sqrt();
            self.class(at).for_each(|i| values[i as usize] = size);
        }
    }
}

impl TileLevels {
    /// The most levels used in any tile of C.
    pub(super) fn most(&self, c: Shape, depth: u64) -> u32 {
        let side = |side: u64, tile: u64| Winograd::longest(side.min(tile));
        let (rows, cols) = (side(c.rows, self.tile_rows), side(c.cols, self.tile_cols));
        self.rules.levels(rows, cols, side(depth, self.depth))
    }

    /// An upper bound of the number of pieces that the depth is cut into.
    pub(super) fn steps(&self, depth: u64) -> u64 {
        depth.div_ceil(self.depth.max(1)) * self.depth.div_ceil(Winograd::PIECE).max(1)
    }

    /// All pieces of a side that is cut into tiles of length `tile`.
    pub(super) fn pieces(&self, side: u64, tile: u64) -> Vec<Span> {
        let tiles = (0..side).step_by(usize::try_from(tile.max(1)).unwrap_or(usize::MAX));
        let within = |start: u64| {
            let len = tile.min(side - start);
            Winograd::pieces(len).map(move |p| Span::new(start + p.start, start + p.end))
        };
        tiles.flat_map(within).collect()
    }

    /// The piece of a side that holds an index.
    pub(super) fn piece(&self, side: u64, tile: u64, index: u64) -> Span {
        let start = index - index % tile.max(1);
        let len = tile.max(1).min(side - start);
        let within =
            Winograd::pieces(len).find(|p| p.end > index - start).unwrap_or_else(|| Span::new(0, len));
        Span::new(start + within.start, start + within.end)
    }
}

/// A side of a product.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Rows,
    Cols,
    Depth,
}

/// How the lines of one side may have been mixed.
pub(super) struct Mixing {
    /// Every way of cutting the side that a kernel may have used: stretches in order, each cut into parts. The last way
    /// has the most levels.
    ways: Vec<Vec<Parts>>,
}

impl Mixing {
    pub(super) fn of(problem: &VerifyProblem, side: Side) -> Self {
        let shape = problem.c.shape();
        let len = match side {
            Side::Rows => shape.rows,
            Side::Cols => shape.cols,
            Side::Depth => problem.depth,
        };
        if problem.levels > 0 {
            return Self { ways: vec![vec![Parts::of(Span::new(0, len), problem.levels)]] };
        }
        let mut ways: Vec<(u32, Vec<Parts>)> = Vec::new();
        for tiles in &problem.tiles {
            let tile = match side {
                Side::Rows => tiles.tile_rows,
                Side::Cols => tiles.tile_cols,
                Side::Depth => tiles.depth,
            };
            let pieces = tiles.pieces(len, tile);
            // Tiles at the edge of C may have fewer levels.
            for levels in 1..=tiles.most(shape, problem.depth) {
                ways.push((levels, pieces.iter().map(|piece| Parts::of(*piece, levels)).collect()));
            }
        }
        ways.sort_by_key(|(levels, _)| *levels);
        Self { ways: ways.into_iter().map(|(_, parts)| parts).collect() }
    }

    /// Replaces each value by `factor` times the root of the sum of squares of its class, with classes from the way with the
    /// most levels. Without levels, and beyond the parts, values stay.
    pub(super) fn spread(&self, values: &mut [f64], factor: f64) {
        for parts in self.ways.last().into_iter().flatten() {
            parts.spread(values, factor);
        }
    }

    /// The given indices and all indices that may have been mixed with one of them.
    pub(super) fn touched(&self, list: &[u64]) -> Vec<u64> {
        let mut all = list.to_vec();
        for way in &self.ways {
            for index in list {
                let next = way.partition_point(|parts| parts.start <= *index);
                let Some(parts) = next.checked_sub(1).and_then(|at| way.get(at)) else { continue };
                if let Some((_, at)) = parts.place(*index) {
                    all.extend(parts.class(at));
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}
