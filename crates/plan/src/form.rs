//! The form of all plans: regions of C, and for each machine its blocks, in order.
//!
//! Place in the flow: strategies make it, the cost model sums over it, the schedule walks it, `bramble plan` draws
//! it.
//!
//! Invariants: every (tile, step) of C is in exactly one block. The blocks of a machine are made on demand, so a
//! plan of a million blocks takes no more memory than one of ten. If sums are chained, the order of blocks rules
//! out deadlocks: either each share covers the whole of k, with rising steps for each tile, or each share has one
//! span of k and a machine's shares are in the order of k.

mod bytes;

pub use bytes::InvalidPlan;

use crate::memory::CellCharges;
use crate::{Bound, Ownership, Prediction, Problem, Recipe, Region, Strategy};
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// Tiles (cells) and steps of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Rows of cells.
    pub rows: u64,
    /// Columns of cells.
    pub cols: u64,
    /// Steps of k.
    pub steps: u64,
}

/// The order in which the panels of a block are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelOrder {
    /// Step by step: the cells stay, the panels stream past.
    Steps,
    /// In groups of this many columns of cells: the panels of A stay, those of B stream past, and each group is
    /// returned when it is complete, while the next one is computed. Step by step within a group.
    Columns(u64),
    /// From a corner: alternately all panels of a row of cells and all of a column. All panels stay, and a tile is
    /// returned as soon as its row and its column have arrived.
    Corner,
    /// Step by step until this many steps are left, and these column by column, so that only the last column is
    /// returned after the end of the computation. The steps before them can be divided as in `Steps`.
    Ending(u64),
}

/// How sums over parts of k are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Each machine sums its own steps from zero, and the primary adds the partial sums in the order of k.
    Merged,
    /// The machine with later steps is sent the sum of the earlier ones and continues it: the bits are those of one
    /// machine.
    Chained,
}

/// A rectangle of C with one owner until it is returned, over a span of steps of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the region.
    pub region: usize,
    /// Cells of the region's grid.
    pub cells: Rect,
    /// Steps of k that are summed.
    pub steps: Span,
    /// The order in which its panels are sent.
    pub order: PanelOrder,
}

impl Block {
    /// Number of cells.
    pub fn count(&self) -> u64 {
        self.cells.rows.len().saturating_mul(self.cells.cols.len())
    }

    /// The step from which on it goes column by column; its end if it never does.
    pub fn by_columns_from(&self) -> u64 {
        let last = match self.order {
            PanelOrder::Steps | PanelOrder::Corner => 0,
            PanelOrder::Columns(_) => self.steps.len(),
            PanelOrder::Ending(last) => last.min(self.steps.len()),
        };
        self.steps.end - last
    }
}

/// A box of a region, cut into blocks that its machine computes one after another: by rows of blocks, in these by
/// parts of k, in these by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the region.
    pub region: usize,
    /// Cells of the region's grid.
    pub cells: Rect,
    /// Steps of k.
    pub steps: Span,
    /// Size of one block; blocks at the ends may be smaller.
    pub block: BlockSize,
    /// The order in which the panels of a block are sent.
    pub order: PanelOrder,
}

impl Share {
    /// Blocks down, across, and along k.
    pub fn blocks_each_way(&self) -> (u64, u64, u64) {
        let count = |span: Span, each: u64| span.len().div_ceil(each.max(1));
        (
            count(self.cells.rows, self.block.rows),
            count(self.cells.cols, self.block.cols),
            count(self.steps, self.block.steps),
        )
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        let (down, across, deep) = self.blocks_each_way();
        down.saturating_mul(across).saturating_mul(deep)
    }

    /// Block number `index`.
    pub fn block(&self, index: u64) -> Option<Block> {
        if index >= self.blocks() {
            return None;
        }
        let (_, across, deep) = self.blocks_each_way();
        let (row, depth, col) = (index / across / deep, index / across % deep, index % across);
        let part = |span: Span, at: u64, each: u64| {
            let start = span.start + at * each;
            Span::new(start, (start + each).min(span.end))
        };
        let rows = part(self.cells.rows, row, self.block.rows);
        let cols = part(self.cells.cols, col, self.block.cols);
        let steps = part(self.steps, depth, self.block.steps);
        Some(Block { region: self.region, cells: Rect::new(rows, cols), steps, order: self.order })
    }
}

/// A participating machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Index into the machines that the plan was made for.
    pub machine: usize,
    /// Its shares, in this order.
    pub shares: Vec<Share>,
    /// Most bytes of matrices that it is given at once, in charged bytes.
    pub memory_bytes: u64,
    /// Most blocks that it is given at once.
    pub blocks_at_once: usize,
}

impl Member {
    /// Whether two members can need the same panels: those of a common row or column of cells.
    pub fn may_share(&self, other: &Self) -> bool {
        let overlap = |x: Span, y: Span| x.start < y.end && y.start < x.end;
        let meet = |a: Rect, b: Rect| overlap(a.rows, b.rows) || overlap(a.cols, b.cols);
        let mut pairs = self.shares.iter().flat_map(|a| other.shares.iter().map(move |b| (a, b)));
        pairs.any(|(a, b)| a.region == b.region && meet(a.cells, b.cells))
    }
}

impl Member {
    /// Number of its blocks.
    pub fn block_count(&self) -> u64 {
        self.shares.iter().map(Share::blocks).fold(0, u64::saturating_add)
    }

    /// The share with block number `number`, and the block's number within it.
    pub fn share_of(&self, number: u64) -> Option<(&Share, u64)> {
        let mut index = number;
        for share in &self.shares {
            let blocks = share.blocks();
            if index < blocks {
                return Some((share, index));
            }
            index -= blocks;
        }
        None
    }

    /// Block number `number` of all its blocks, in its order.
    pub fn block_at(&self, number: u64) -> Option<Block> {
        let (share, index) = self.share_of(number)?;
        share.block(index)
    }

    /// All its blocks, one at a time.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.shares.iter().flat_map(|share| (0..share.blocks()).filter_map(|index| share.block(index)))
    }
}

/// The assignment of blocks to machines, their order, and the predicted cost. Plain data: it can be printed, costed
/// and simulated without a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The product.
    pub problem: Problem,
    /// The strategy that made it.
    pub strategy: Strategy,
    /// How sums over parts of k are combined.
    pub sums: Sums,
    /// Whether members relay panels that several of them need, so that the primary sends each of these once: to the
    /// first member that reaches it, among those whose blocks of the same number (in their own order), region and
    /// order both cover it. Members in the primary's own memory never relay.
    pub relay: bool,
    /// Parts of C, disjoint, that cover it.
    pub regions: Vec<Region>,
    /// The participating machines.
    pub members: Vec<Member>,
    /// If an operand is placed on the workers: which part of the product each machine can compute.
    pub ownership: Option<Ownership>,
    /// Predicted seconds and bytes.
    pub predicted: Prediction,
    /// The physical lower bound for these machines.
    pub bound: Bound,
    /// Summed peak of the participating machines, Gflop/s.
    pub peak_gflops: f64,
}

impl Plan {
    /// Whether a block has all steps of its cells.
    pub fn is_whole(&self, block: &Block) -> bool {
        block.steps.start == 0 && block.steps.end == self.regions[block.region].steps()
    }

    /// Whether C has the bits of one machine that walks the same grid: always if sums are chained or elements are
    /// integers; otherwise if k is not cut and Strassen's method is not used.
    pub fn keeps_bits(&self) -> bool {
        // The parts of k that one machine sums alone are determined by the grid.
        let alone = self.members.iter().all(|m| m.machine == 0);
        let whole = |s: &Share| {
            let all = self.regions[s.region].steps();
            let least = if alone { self.regions[s.region].grid.steps_of_a_sum() } else { all };
            s.steps.start == 0 && s.steps.end == all && s.block.steps >= least
        };
        let is_classical = self.strategy.levels == 0;
        !self.problem.dtype.is_float()
            || (is_classical
                && (self.sums == Sums::Chained || self.members.iter().flat_map(|m| &m.shares).all(whole)))
    }

    /// Whether a block continues the sum of the steps before it, which other members have computed.
    pub fn continues(&self, block: &Block) -> bool {
        self.sums == Sums::Chained && block.steps.start > 0
    }

    /// The least memory in which a block can run, in charged bytes. `is_owner`: whether the machine holds the parts of placed
    /// operands that the block needs; otherwise panels of these take memory, too.
    pub fn block_bytes(&self, block: &Block, recipe: &Recipe, is_owner: bool) -> u64 {
        let region = &self.regions[block.region];
        let (rows, cols) = (block.cells.rows.len(), block.cells.cols.len());
        let size = BlockSize { rows, cols, steps: block.steps.len() };
        let problem = if is_owner { self.problem } else { self.problem.without_resident() };
        CellCharges::of(region, &problem, recipe).need(size, block.order)
    }

    /// The least memory in which a single cell of a region can run over that many steps.
    pub fn cell_bytes(&self, region: usize, steps: u64, recipe: &Recipe, is_owner: bool) -> u64 {
        let cells = Rect::new(Span::new(0, 1), Span::new(0, 1));
        let block = Block { region, cells, steps: Span::new(0, steps), order: PanelOrder::Steps };
        self.block_bytes(&block, recipe, is_owner)
    }

    /// The work of some cells over some steps: elements of C times depth.
    pub fn work(&self, region: usize, cells: Rect, steps: Span) -> f64 {
        let region = &self.regions[region];
        region.elements(cells) as f64 * region.depth_of(steps) as f64
    }

    /// Tiles of C in all regions.
    pub fn tiles(&self) -> u64 {
        self.regions.iter().map(|r| r.grid.tiles() * r.q() * r.q()).sum()
    }

    /// Tiles, or partial sums of them, that are returned.
    pub fn results(&self) -> u64 {
        let share = |s: &Share| {
            let region = &self.regions[s.region];
            let tiles = s.cells.rows.len() * s.cells.cols.len() * region.q() * region.q();
            tiles.saturating_mul(s.blocks_each_way().2)
        };
        self.members.iter().flat_map(|m| &m.shares).map(share).fold(0, u64::saturating_add)
    }

    /// About the total charge of all matrices that workers will have been given, sent or generated: the part of it
    /// that they have freed shows the progress of the product.
    pub fn stored_bytes(&self) -> u64 {
        crate::cost::stored_bytes(&self.problem, &self.regions, &self.members)
    }

    /// A member's share of the work: elements of C (times parts of k) of that member, relative to all.
    pub fn part_of_work(&self, member: usize) -> f64 {
        let work =
            |m: &Member| -> f64 { m.shares.iter().map(|s| self.work(s.region, s.cells, s.steps)).sum() };
        let all: f64 = self.members.iter().map(work).sum();
        if all > 0.0 { work(&self.members[member]) / all } else { 0.0 }
    }

    /// The member that computes tile (row, col) of C, unless several members compute parts of it.
    pub fn owner_of(&self, row: u64, col: u64) -> Option<usize> {
        let mut owners = (0..self.members.len())
            .filter(|m| self.members[*m].shares.iter().any(|s| self.has(s.region, s.cells, row, col)));
        let first = owners.next();
        if owners.next().is_some() { None } else { first }
    }

    /// Whether an element of C is in some cells of a region.
    pub fn has(&self, region: usize, cells: Rect, row: u64, col: u64) -> bool {
        let region = &self.regions[region];
        let (Some(row), Some(col)) = (row.checked_sub(region.row), col.checked_sub(region.col)) else {
            return false;
        };
        let (part_rows, part_cols) = (region.grid.whole_rows(), region.grid.whole_cols());
        let inside = row < part_rows * region.q() && col < part_cols * region.q();
        let (i, j) =
            (row % part_rows.max(1) / region.grid.tile_rows, col % part_cols.max(1) / region.grid.tile_cols);
        inside && cells.rows.contains(i) && cells.cols.contains(j)
    }
}
