//! What a block needs at its machine, and how large blocks may be.
//!
//! Invariants: a block is never larger than what lets it end: its tiles, and the panels of two whole steps (one
//! computing, one arriving), or in column order all panels of A and a column's of B, fit the machine's memory
//! together. One whole step is the least that cannot deadlock: a panel is freed only when every panel that it meets in
//! that step has come. All sizes are as they are charged (`charged_bytes`), so what is planned is what is counted.
//!
//! `reuse` takes blocks as large as memory allows, about square: the maximum re-use scheme of Pineau, Robert, Vivien and
//! Dongarra (INRIA RR-6053, 2006), where the words moved for each multiply-add fall as 2/√memory.

use crate::winograd::Recipe;
use crate::{BlockSize, Order, Region, USE_BYTES, charged_bytes};
use bramble_matrix::Rect;

/// Most cells a block has in either direction, and most steps a column has: uses are counted in 16 bits.
pub(crate) const EDGE_MAX: u64 = 1024;
/// Steps of panels that a machine with enough memory is sent ahead.
const STEPS_AHEAD: u64 = 3;
/// Tiles for each thread that a machine should have at once, so that none waits for the link.
const TILES_A_THREAD: u64 = 4;
/// Most blocks at a machine at once.
const BLOCKS_MAX: u64 = 64;

/// What the matrices of one cell count for, for one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellCharges {
    /// Panels and sums of one cell row of A in one step, without their uses.
    a: u64,
    /// The same of one cell column of B.
    b: u64,
    /// Tiles, products and their sums of one cell of C.
    c: u64,
    /// Uses of one cell's operands on each side, for one cell on the other side.
    products: u64,
    a_sums: u64,
    b_sums: u64,
}

impl CellCharges {
    pub(crate) fn of(region: &Region, element_bytes: u64) -> Self {
        let recipe = Recipe::new(region.levels);
        Self::with(region, element_bytes, &recipe)
    }

    fn with(region: &Region, element_bytes: u64, recipe: &Recipe) -> Self {
        let grid = &region.grid;
        let charge =
            |rows: u64, cols: u64| charged_bytes(rows.saturating_mul(cols).saturating_mul(element_bytes), 0);
        let panels = region.q() * region.q();
        let count = |n: usize| n as u64;
        let (a_sums, b_sums) = (count(recipe.left.sums.len()), count(recipe.right.sums.len()));
        let (products, c_sums) = (count(recipe.products()), count(recipe.results.sums.len()));
        // Without levels the product is the tile; with them all products and sums, some of which are the tiles.
        let parts = if region.levels == 0 { 1 } else { products + c_sums };
        let c = parts
            .saturating_mul(charge(grid.tile_rows, grid.tile_cols))
            .saturating_add(2 * c_sums * USE_BYTES);
        Self {
            a: (panels + a_sums).saturating_mul(charge(grid.tile_rows, grid.depth)),
            b: (panels + b_sums).saturating_mul(charge(grid.depth, grid.tile_cols)),
            c,
            products,
            a_sums,
            b_sums,
        }
    }

    /// (one step's panels of A, of B, all tiles) of a block with so many rows and columns of cells.
    fn block(&self, rows: u64, cols: u64) -> (u64, u64, u64) {
        let uses = |sums: u64, others: u64| USE_BYTES * (self.products.saturating_mul(others) + 2 * sums);
        let a = rows.saturating_mul(self.a.saturating_add(uses(self.a_sums, cols)));
        let b = cols.saturating_mul(self.b.saturating_add(uses(self.b_sums, rows)));
        (a, b, rows.saturating_mul(cols).saturating_mul(self.c))
    }

    /// The least memory in which a block of that size can run.
    pub(crate) fn need(&self, size: BlockSize, order: Order) -> u64 {
        let (a, b, c) = self.block(size.rows, size.cols);
        match order {
            Order::Steps => c.saturating_add(a.saturating_add(b).saturating_mul(size.steps.min(2))),
            Order::Columns => {
                let (all_a, column) = self.columns(size);
                all_a.saturating_add(column.saturating_mul(size.cols.min(2)))
            }
        }
    }

    /// In column order: (all panels of A, what one column adds).
    fn columns(&self, size: BlockSize) -> (u64, u64) {
        let (a, _, _) = self.block(size.rows, size.cols);
        let (_, b, c) = self.block(size.rows, 1);
        (a.saturating_mul(size.steps), b.saturating_mul(size.steps).saturating_add(c))
    }

    /// Products that can run at once for so many cells.
    pub(crate) fn products_of(&self, cells: u64) -> u64 {
        self.products.saturating_mul(cells)
    }

    /// What a machine of so many threads that has `blocks` blocks in all would best be given of such ones: (blocks at
    /// once, bytes).
    pub(crate) fn ideal(&self, size: BlockSize, order: Order, blocks: u64, threads: u32) -> (u64, u64) {
        let products = self.products_of(size.rows.saturating_mul(size.cols)).max(1);
        let ahead =
            (TILES_A_THREAD * u64::from(threads)).div_ceil(products).clamp(2, BLOCKS_MAX).min(blocks.max(1));
        let one = match order {
            Order::Steps => {
                let (a, b, c) = self.block(size.rows, size.cols);
                c.saturating_add(a.saturating_add(b).saturating_mul(size.steps.min(STEPS_AHEAD)))
            }
            Order::Columns => {
                let (all_a, column) = self.columns(size);
                let columns =
                    (TILES_A_THREAD * u64::from(threads)).div_ceil(size.rows.max(1)).max(2).min(size.cols);
                all_a.saturating_add(column.saturating_mul(columns))
            }
        };
        (ahead, one.saturating_mul(ahead))
    }
}

/// The most memory that any one worker could use for a product: as if it had all of C in one block, with all panels
/// there. Enough, because no plan gives a machine more at once.
pub fn memory_wanted(regions: &[Region], element_bytes: u64) -> u64 {
    let of = |region: &Region| {
        let charges = CellCharges::of(region, element_bytes);
        let (a, b, c) = charges.block(region.grid.rows(), region.grid.cols());
        // Small blocks have their panels to themselves, so some are there several times.
        a.saturating_add(b).saturating_mul(region.steps()).saturating_mul(2).saturating_add(c)
    };
    regions.iter().map(of).fold(0, u64::saturating_add)
}

/// The block size for a box of cells and `steps` on a machine with `memory_bytes` for matrices, about square in
/// elements, since a square block needs the fewest bytes a flop. `None` where not even one cell fits.
pub(crate) fn largest_block(
    region: &Region,
    charges: &CellCharges,
    cells: Rect,
    steps: u64,
    memory_bytes: u64,
) -> Option<BlockSize> {
    let most = (cells.rows.len().min(EDGE_MAX), cells.cols.len().min(EDGE_MAX));
    let fits =
        |rows: u64, cols: u64| charges.need(BlockSize { rows, cols, steps }, Order::Steps) <= memory_bytes;
    if fits(most.0, most.1) {
        return Some(evened(BlockSize { rows: most.0, cols: most.1, steps }, cells));
    }
    let of_side = |side: u64| {
        let rows = (side / region.grid.tile_rows.max(1)).clamp(1, most.0.max(1));
        (rows, (side / region.grid.tile_cols.max(1)).clamp(1, most.1.max(1)))
    };
    if !fits(most.0.min(1), most.1.min(1)) {
        return None;
    }
    let (mut low, mut high) = (0u64, EDGE_MAX * region.grid.tile_rows.max(region.grid.tile_cols));
    while low + 1 < high {
        let side = low + (high - low) / 2;
        let (rows, cols) = of_side(side);
        if fits(rows, cols) { low = side } else { high = side }
    }
    let (mut rows, mut cols) = of_side(low);
    // The last tiles, alternately where there is room.
    while rows < most.0 && fits(rows + 1, cols) {
        rows += 1;
    }
    while cols < most.1 && fits(rows, cols + 1) {
        cols += 1;
    }
    Some(evened(BlockSize { rows, cols, steps }, cells))
}

/// The same number of blocks, but of even sizes: 10 rows in blocks of at most 4 are 4 + 3 + 3, not 4 + 4 + 2.
fn evened(size: BlockSize, cells: Rect) -> BlockSize {
    let even = |total: u64, each: u64| total.div_ceil(total.div_ceil(each.max(1)).max(1));
    BlockSize { rows: even(cells.rows.len(), size.rows), cols: even(cells.cols.len(), size.cols), ..size }
}
