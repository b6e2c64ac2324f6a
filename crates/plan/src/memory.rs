//! The memory that a block needs at its machine, and the size of blocks.
//!
//! Invariants: the machine's memory holds everything that a block needs to complete: its tiles with the panels of
//! two whole steps (one computing, one arriving); or in column order all panels of A and those of B of a column (or
//! of two columns, if only the last steps go by columns). One whole step is the least that cannot deadlock: a panel
//! is freed only when every panel that it meets in that step has arrived. All sizes are charged bytes
//! (`charged_bytes`), so the plan and the schedule count alike.
//!
//! `reuse` makes blocks as large as memory allows, about square: the maximum re-use scheme of Pineau, Robert,
//! Vivien and Dongarra (INRIA RR-6053, 2006), where the words moved per multiply-add fall as 2/√memory.

use crate::winograd::Recipe;
use crate::{
    BlockSize, OperandSource, PanelOrder, Problem, ProductSide, Region, Share, USE_BYTES, charged_bytes,
};
use bramble_base::Rect;

/// Most cells of a block in either direction, and most steps of a column: uses are counted in 16 bits.
pub(crate) const EDGE_MAX: u64 = 1024;
/// Steps of panels that a machine with enough memory is sent ahead.
const STEPS_AHEAD: u64 = 3;
/// Groups of columns that a machine with enough memory is sent ahead, in column order.
const GROUPS_AHEAD: u64 = 6;
/// Tiles per thread that a machine should have at once, so that no thread waits for the link.
const TILES_A_THREAD: u64 = 4;
/// Most blocks at a machine at once.
const BLOCKS_MAX: u64 = 64;

/// The charges of the matrices of one cell of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellCharges {
    /// Panels and sums of one cell row of A in one step, without their uses.
    a: u64,
    /// Panels and sums of one cell column of B in one step, without their uses.
    b: u64,
    /// Tiles, products and their sums of one cell of C.
    c: u64,
    /// Uses of one cell's operands on each side, for one cell on the other side.
    products: u64,
    a_sums: u64,
    b_sums: u64,
    /// Whether A, and B, are placed: their panels are not sent, however many blocks need them.
    is_resident: [bool; 2],
}

/// How many blocks a machine has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Whole blocks.
    pub(crate) blocks: u64,
    /// Steps, or in column order columns, of one block.
    pub(crate) units: u64,
    /// The fraction of a second block.
    pub(crate) spare: f64,
}

impl CellCharges {
    pub(crate) fn of(region: &Region, problem: &Problem, recipe: &Recipe) -> Self {
        let (grid, element_bytes) = (&region.grid, problem.element_bytes());
        let charge =
            |rows: u64, cols: u64| charged_bytes(rows.saturating_mul(cols).saturating_mul(element_bytes), 0);
        let panels = region.q() * region.q();
        let count = |n: usize| n as u64;
        let (a_sums, b_sums) = (count(recipe.left.sums.len()), count(recipe.right.sums.len()));
        let (products, c_sums) = (count(recipe.products()), count(recipe.results.sums.len()));
        // Without levels the product is the tile; with levels all products and sums are separate, and some of these
        // are the tiles.
        let parts = if region.levels == 0 { 1 } else { products + c_sums };
        let c = parts
            .saturating_mul(charge(grid.tile_rows, grid.tile_cols))
            .saturating_add(2 * c_sums * USE_BYTES);
        // Each panel may be retained for another machine, which counts as one more use.
        let kept = panels * USE_BYTES;
        // A panel of a placed operand is read where it lies: only its entry is charged.
        let side = |source: OperandSource, sums: u64, each: u64| {
            let panel = if source == OperandSource::Resident { charged_bytes(0, 0) } else { each };
            panels.saturating_mul(panel).saturating_add(sums.saturating_mul(each)).saturating_add(kept)
        };
        Self {
            a: side(problem.a_source, a_sums, charge(grid.tile_rows, grid.depth)),
            b: side(problem.b_source, b_sums, charge(grid.depth, grid.tile_cols)),
            is_resident: [problem.a_source, problem.b_source].map(|source| source == OperandSource::Resident),
            c,
            products,
            a_sums,
            b_sums,
        }
    }

    /// The side of C along which only panels of the operand that is sent are cut, if the other operand is placed.
    pub(crate) fn sent_side(&self) -> Option<ProductSide> {
        match self.is_resident {
            [false, true] => Some(ProductSide::Rows),
            [true, false] => Some(ProductSide::Cols),
            _ => None,
        }
    }

    /// (One step's panels of A, those of B, all tiles) of a block with that many rows and columns of cells.
    fn block(&self, rows: u64, cols: u64) -> (u64, u64, u64) {
        let uses = |sums: u64, others: u64| USE_BYTES * (self.products.saturating_mul(others) + 2 * sums);
        let a = rows.saturating_mul(self.a.saturating_add(uses(self.a_sums, cols)));
        let b = cols.saturating_mul(self.b.saturating_add(uses(self.b_sums, rows)));
        (a, b, rows.saturating_mul(cols).saturating_mul(self.c))
    }

    /// The least memory in which a block of that size can run.
    pub(crate) fn need(&self, size: BlockSize, order: PanelOrder) -> u64 {
        let (a, b, c) = self.block(size.rows, size.cols);
        match order {
            PanelOrder::Steps => c.saturating_add(a.saturating_add(b).saturating_mul(size.steps.min(2))),
            PanelOrder::Columns(group) => {
                let (all_a, column) = self.columns(size);
                all_a.saturating_add(column.saturating_mul(size.cols.min(group.saturating_mul(2))))
            }
            PanelOrder::Corner => c.saturating_add(a.saturating_add(b).saturating_mul(size.steps)),
            PanelOrder::Ending(last) => {
                let by_steps = a.saturating_add(b).saturating_mul(size.steps.min(2));
                c.saturating_add(by_steps.max(self.last_steps(size, last, 2)))
            }
        }
    }

    /// Panels of the last steps in column order: all of A, and of B those of that many columns.
    fn last_steps(&self, size: BlockSize, last: u64, columns: u64) -> u64 {
        let (a, _, _) = self.block(size.rows, size.cols);
        let (_, b, _) = self.block(size.rows, 1);
        a.saturating_add(b.saturating_mul(columns.min(size.cols))).saturating_mul(last.min(size.steps))
    }

    /// Most columns of a block with that many rows that fit the memory, step by step.
    fn most_cols(&self, rows: u64, steps: u64, memory_bytes: u64) -> u64 {
        let need = |cols: u64| self.need(BlockSize { rows, cols, steps }, PanelOrder::Steps);
        let (none, one) = (need(0), need(1));
        if one > memory_bytes || one == u64::MAX { 0 } else { (memory_bytes - none) / (one - none).max(1) }
    }

    /// In column order: (all panels of A, the addition of one column).
    fn columns(&self, size: BlockSize) -> (u64, u64) {
        let (a, _, _) = self.block(size.rows, size.cols);
        let (_, b, c) = self.block(size.rows, 1);
        (a.saturating_mul(size.steps), b.saturating_mul(size.steps).saturating_add(c))
    }

    /// The number of blocks for which a machine with that much memory has room.
    pub(crate) fn room(&self, size: BlockSize, order: PanelOrder, memory_bytes: u64) -> Room {
        let need = self.need(size, order).max(1);
        let (fixed, unit, units) = match order {
            PanelOrder::Steps | PanelOrder::Ending(_) => {
                let (a, b, c) = self.block(size.rows, size.cols);
                (c, a.saturating_add(b), size.steps)
            }
            PanelOrder::Columns(group) => {
                let (all_a, column) = self.columns(size);
                (all_a, column.saturating_mul(group), size.cols.div_ceil(group.max(1)))
            }
            PanelOrder::Corner => {
                let lines = size.rows.min(size.cols).max(1);
                (0, need.div_ceil(lines), lines)
            }
        };
        let spare = memory_bytes.saturating_sub(need) as f64 / need as f64;
        Room {
            blocks: (memory_bytes / need).max(1),
            units: (memory_bytes.saturating_sub(fixed) / unit.max(1)).clamp(1, units.max(1)),
            spare: spare.min(1.0),
        }
    }

    /// Products that can run at once for that many cells.
    pub(crate) fn products_of(&self, cells: u64) -> u64 {
        self.products.saturating_mul(cells)
    }

    /// The ideal memory of a machine with that many threads and `blocks` such blocks in all: (blocks at once, bytes
    /// of each).
    pub(crate) fn ideal(&self, size: BlockSize, order: PanelOrder, blocks: u64, threads: u32) -> (u64, u64) {
        let products = self.products_of(size.rows.saturating_mul(size.cols)).max(1);
        let ahead =
            (TILES_A_THREAD * u64::from(threads)).div_ceil(products).clamp(2, BLOCKS_MAX).min(blocks.max(1));
        let one = match order {
            PanelOrder::Steps => {
                let (a, b, c) = self.block(size.rows, size.cols);
                c.saturating_add(a.saturating_add(b).saturating_mul(size.steps.min(STEPS_AHEAD)))
            }
            PanelOrder::Columns(group) => {
                let (all_a, column) = self.columns(size);
                let columns = (TILES_A_THREAD * u64::from(threads))
                    .div_ceil(size.rows.max(1))
                    .max(GROUPS_AHEAD * group)
                    .min(size.cols);
                all_a.saturating_add(column.saturating_mul(columns))
            }
            PanelOrder::Corner => self.need(size, order),
            PanelOrder::Ending(last) => {
                let (a, b, c) = self.block(size.rows, size.cols);
                let by_steps = a.saturating_add(b).saturating_mul(size.steps.min(STEPS_AHEAD));
                c.saturating_add(by_steps.max(self.last_steps(size, last, GROUPS_AHEAD)))
            }
        };
        (ahead, one)
    }
}

/// Bytes of memory that one block of that share needs at its machine.
pub fn memory_needed(share: &Share, region: &Region, problem: &Problem) -> u64 {
    CellCharges::of(region, problem, &Recipe::new(region.levels)).need(share.block, share.order)
}

/// The most memory that any one worker could use for a product: as if it had all of C in one block, with all
/// panels. No plan gives a machine more at once.
pub fn memory_wanted(regions: &[Region], problem: &Problem) -> u64 {
    let of = |region: &Region| {
        let charges = CellCharges::of(region, problem, &Recipe::new(region.levels));
        let (a, b, c) = charges.block(region.grid.rows(), region.grid.cols());
        // Small blocks do not share panels, so some panels exist several times.
        a.saturating_add(b).saturating_mul(region.steps()).saturating_mul(2).saturating_add(c)
    };
    regions.iter().map(of).fold(0, u64::saturating_add)
}

/// The block size for a box of cells and `steps` on a machine with `memory_bytes` for matrices: of all that fit,
/// the one that sends the panels of the box least often. That is about a square in elements, with a whole number of
/// blocks in the box. `None` if not even one cell fits.
pub(crate) fn largest_block(
    region: &Region,
    charges: &CellCharges,
    cells: Rect,
    steps: u64,
    memory_bytes: u64,
) -> Option<BlockSize> {
    let (all_rows, all_cols) = (cells.rows.len(), cells.cols.len());
    let (height, width) = (region.grid.rows_of(cells.rows) as f64, region.grid.cols_of(cells.cols) as f64);
    let side = |at: usize, sent: f64| if charges.is_resident[at] { 0.0 } else { sent };
    let mut best: Option<(f64, BlockSize)> = None;
    let mut most = all_rows.min(EDGE_MAX);
    while most > 0 {
        // Even blocks: 10 rows in blocks of at most 4 are 4 + 3 + 3, not 4 + 4 + 2.
        let down = all_rows.div_ceil(most);
        let rows = all_rows.div_ceil(down);
        let cols = charges.most_cols(rows, steps, memory_bytes).min(all_cols).min(EDGE_MAX);
        if cols > 0 {
            let across = all_cols.div_ceil(cols);
            let sent = side(0, height * across as f64) + side(1, width * down as f64);
            if best.is_none_or(|b| sent < b.0) {
                best = Some((sent, BlockSize { rows, cols: all_cols.div_ceil(across), steps }));
            }
            // Flatter blocks would only send the panels of B more often.
            if across == 1 {
                break;
            }
        }
        most = rows - 1;
    }
    best.map(|b| b.1)
}
