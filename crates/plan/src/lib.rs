//! How a product is cut: from shapes, machines and their memory to a `Plan` that is plain data.
//!
//! Place in the flow: after the operands are known and the workers have said what they are, before the
//! first byte is sent. The schedule walks the plan; the cost model walks the same plan.
//!
//! Invariants: the tile grid depends on m, n, k and the element type only, never on the machines, so C
//! has the same bits however many workers there are. Every tile of C belongs to exactly one block. A
//! block's memory need is known before anything is sent, and fits its machine.
//!
//! Deliberately absent: sockets, files, threads, clocks, randomness. Speeds and memory are arguments.

mod charge;
mod cost;
mod decide;
mod grid;
mod partition;
mod reuse;

pub use charge::{MATRIX_BYTES_MIN, USE_BYTES, charged_bytes};
pub use cost::{Binding, Bound, Prediction};
pub use decide::{Decision, LeftOut, PlanError, Preference, decide};
pub use grid::{Cut, Grid, GridError};
pub use partition::partition;
pub use reuse::{BlockSize, block_size, memory_wanted};

use bramble_matrix::{DType, Rect, Shape, Span};

/// The product C = αAB + βC as far as planning cares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Element type of all three.
    pub dtype: DType,
    /// Whether the old C is needed (β ≠ 0).
    pub reads_c: bool,
    /// Whether A's bytes travel (false where a worker can generate them).
    pub sends_a: bool,
    /// Whether B's bytes travel.
    pub sends_b: bool,
}

impl Problem {
    /// Floating-point (or integer) operations: 2mnk.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes of operands that have to leave the primary once: |A| + |B|, and |C| where β ≠ 0.
    pub fn operand_bytes(&self) -> f64 {
        let size = self.dtype.size_bytes() as f64;
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let a = if self.sends_a { m * k } else { 0.0 };
        let b = if self.sends_b { k * n } else { 0.0 };
        let c = if self.reads_c { m * n } else { 0.0 };
        (a + b + c) * size
    }

    /// Bytes of C.
    pub fn result_bytes(&self) -> f64 {
        self.m as f64 * self.n as f64 * self.dtype.size_bytes() as f64
    }

    /// Shape of C.
    pub fn result_shape(&self) -> Shape {
        Shape::new(self.m, self.n)
    }
}

/// The link to a machine, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// Payload bytes a second, one direction.
    pub bytes_per_s: f64,
    /// Round trip of a small frame.
    pub round_trip_s: f64,
}

/// A machine that may compute, as it described and measured itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What to call it in messages.
    pub name: String,
    /// Compute threads.
    pub threads: u32,
    /// Speed of its kernel on this element type, all threads together, Gflop/s.
    pub gflops: f64,
    /// What its cores could do at most (fused multiply-adds from registers), Gflop/s.
    pub peak_gflops: f64,
    /// Bytes of matrices that it will hold.
    pub memory_bytes: u64,
    /// The way there; `None` for threads of the primary's own process.
    pub link: Option<LinkRate>,
}

/// A rectangle of C, in tiles, with one owner until it is returned, over a range of steps of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the owner in the plan's shares.
    pub owner: usize,
    /// Tile rows.
    pub tile_rows: Span,
    /// Tile columns.
    pub tile_cols: Span,
    /// Steps of k that are summed.
    pub steps: Span,
}

impl Block {
    /// Number of tiles.
    pub fn tiles(&self) -> u64 {
        self.tile_rows.len() * self.tile_cols.len()
    }
}

/// What one machine does: a rectangle of tiles, cut into blocks that fit its memory one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index into the machines that the plan was made for.
    pub machine: usize,
    /// The rectangle, in tiles.
    pub tiles: Rect,
    /// Tiles of one block, down and across.
    pub block: BlockSize,
    /// Matrix bytes that the machine may hold at once.
    pub memory_bytes: u64,
}

impl Share {
    /// How many blocks it is cut into.
    pub fn blocks(&self) -> u64 {
        let (down, across) = self.blocks_each_way();
        down * across
    }

    pub(crate) fn blocks_each_way(&self) -> (u64, u64) {
        let shape = self.tiles.shape();
        (shape.rows.div_ceil(self.block.rows.max(1)), shape.cols.div_ceil(self.block.cols.max(1)))
    }

    /// Number of the block that tile (i, j) is in.
    pub fn block_of(&self, i: u64, j: u64) -> u64 {
        let (_, across) = self.blocks_each_way();
        let (down, right) = (i - self.tiles.rows.start, j - self.tiles.cols.start);
        down / self.block.rows * across + right / self.block.cols
    }

    /// Block number `index`, made on demand so that a plan of millions costs no memory.
    pub fn block(&self, owner: usize, index: u64, steps: Span) -> Option<Block> {
        let (down, across) = self.blocks_each_way();
        if index >= down * across {
            return None;
        }
        let (i, j) = (index / across, index % across);
        let row = self.tiles.rows.start + i * self.block.rows;
        let col = self.tiles.cols.start + j * self.block.cols;
        Some(Block {
            owner,
            tile_rows: Span::new(row, (row + self.block.rows).min(self.tiles.rows.end)),
            tile_cols: Span::new(col, (col + self.block.cols).min(self.tiles.cols.end)),
            steps,
        })
    }
}

/// Who computes what, in which order, and what that will cost. Plain data: it can be printed, costed and
/// simulated without a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The product.
    pub problem: Problem,
    /// The canonical tiles and steps.
    pub grid: Grid,
    /// `reuse`: blocks of C stay at their worker over the whole of k.
    pub strategy: &'static str,
    /// One share for each machine that takes part.
    pub shares: Vec<Share>,
    /// Seconds and bytes to expect.
    pub predicted: Prediction,
    /// The physical lower bound for these machines.
    pub bound: Bound,
    /// Summed peak of the machines that take part, Gflop/s.
    pub peak_gflops: f64,
}

impl Plan {
    /// All steps of k.
    pub fn steps(&self) -> Span {
        Span::new(0, self.grid.steps())
    }

    /// What all matrices that the workers will have stored by the end count for, whether sent or generated: what
    /// they have given back of it says how far the product is.
    pub fn stored_bytes(&self) -> u64 {
        self.shares.iter().map(|s| cost::share_stored_bytes(&self.problem, &self.grid, s)).sum()
    }

    /// Block `index` of share `owner`.
    pub fn block(&self, owner: usize, index: u64) -> Option<Block> {
        self.shares[owner].block(owner, index, self.steps())
    }
}

#[cfg(test)]
mod tests;
