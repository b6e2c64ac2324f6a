//! The `reuse` strategy's block size: the maximum re-use scheme of Pineau, Robert, Vivien and Dongarra
//! (INRIA RR-6053, 2006): μ² tiles of C stay while μ tiles of A and μ of B stream past, so that the words
//! moved per multiply-add fall as 2/√memory.
//!
//! Invariant: the tiles of a block, and the panels of two whole steps (one computing, one arriving), fit
//! the machine's memory together. One whole step is the least that cannot deadlock: a panel is freed only
//! when every panel that it meets in that step has come.

use crate::{Grid, Problem, charged_bytes};
use bramble_matrix::Rect;

/// Tiles of one block, down and across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Tile rows.
    pub rows: u64,
    /// Tile columns.
    pub cols: u64,
}

/// Most tiles a block has in either direction, so that the jobs behind one panel fit one control message.
const EDGE_MAX: u64 = 1024;

/// What the panels of one step of a block, and its tiles, count for (`charged_bytes`).
pub(crate) fn block_bytes(problem: &Problem, grid: &Grid, size: BlockSize) -> (u64, u64) {
    let charge =
        |elements: u64, uses| charged_bytes(elements.saturating_mul(problem.dtype.size_bytes() as u64), uses);
    let a = size.rows.saturating_mul(charge(grid.tile_rows * grid.depth, size.cols));
    let b = size.cols.saturating_mul(charge(grid.tile_cols * grid.depth, size.rows));
    let tiles = size.rows.saturating_mul(size.cols);
    (a.saturating_add(b), tiles.saturating_mul(charge(grid.tile_rows * grid.tile_cols, 0)))
}

/// The most memory that any one worker could use for a product: |C| + 2(|A| + |B|), in whole tiles and panels as
/// they are charged. Enough, because a worker has two blocks at most at any time: their tiles are different
/// tiles of C, and each panel is there once for each of the two. And no block that `block_size` could choose
/// needs more, so that who asks for this much and gets it plans as if it had all the memory there is.
pub fn memory_wanted(problem: &Problem, grid: &Grid) -> u64 {
    let (step, tiles) = block_bytes(problem, grid, BlockSize { rows: grid.rows(), cols: grid.cols() });
    step.saturating_mul(grid.steps()).saturating_mul(2).saturating_add(tiles)
}

/// Whether a block of that size can run in `memory_bytes`.
fn fits(problem: &Problem, grid: &Grid, size: BlockSize, memory_bytes: u64) -> bool {
    let (step, tiles) = block_bytes(problem, grid, size);
    tiles.saturating_add(step.saturating_mul(2)) <= memory_bytes
}

/// The block size for a share of `tiles` on a machine with `memory_bytes` for matrices: grown alternately
/// in the direction that is shorter in elements, since a square block needs the fewest bytes a flop.
/// `None` where not even one tile fits.
pub fn block_size(problem: &Problem, grid: &Grid, tiles: Rect, memory_bytes: u64) -> Option<BlockSize> {
    let most = BlockSize { rows: tiles.rows.len().min(EDGE_MAX), cols: tiles.cols.len().min(EDGE_MAX) };
    let mut size = BlockSize { rows: most.rows.min(1), cols: most.cols.min(1) };
    if !fits(problem, grid, size, memory_bytes) {
        return None;
    }
    loop {
        let taller = BlockSize { rows: size.rows + 1, ..size };
        let wider = BlockSize { cols: size.cols + 1, ..size };
        let can_grow_down = taller.rows <= most.rows && fits(problem, grid, taller, memory_bytes);
        let can_grow_across = wider.cols <= most.cols && fits(problem, grid, wider, memory_bytes);
        let rows_shorter = size.rows * grid.tile_rows <= size.cols * grid.tile_cols;
        size = match (can_grow_down, can_grow_across) {
            (true, true) if rows_shorter => taller,
            (true, true) => wider,
            (true, false) => taller,
            (false, true) => wider,
            (false, false) => return Some(evened(size, tiles)),
        };
    }
}

/// The same number of blocks, but of even sizes: 10 rows in blocks of at most 4 are 4 + 3 + 3, not 4 + 4 + 2.
fn evened(size: BlockSize, tiles: Rect) -> BlockSize {
    let even = |total: u64, each: u64| total.div_ceil(total.div_ceil(each.max(1)).max(1));
    BlockSize { rows: even(tiles.rows.len(), size.rows), cols: even(tiles.cols.len(), size.cols) }
}
