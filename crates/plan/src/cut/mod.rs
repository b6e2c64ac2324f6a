//! Strategies: from a region and machines to each machine's boxes, cut into blocks that fit its memory.
//!
//! Place in the flow: `decide` calls it for each strategy and team, and the cost model compares the results.
//!
//! Invariants: the boxes of all machines are disjoint and cover the region's cells and steps. A machine may get
//! none, or several. Pure functions of their arguments.

mod boxes;
mod level;
mod mesh;
mod partition;

pub use partition::partition;

use crate::memory::{CellCharges, EDGE_MAX, largest_block};
use crate::{Base, BlockSize, Machine, PanelOrder, ProductSide, Region, Share};
use alloc::vec;
use alloc::vec::Vec;
pub(crate) use boxes::Cells3;
use boxes::cuboid;
use bramble_base::Span;
use level::level;
use mesh::mesh;

/// A machine for planning: the size of its part, and its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// Relative size of its part.
    pub(crate) weight: f64,
    /// Its memory for matrices.
    pub(crate) memory_bytes: u64,
    /// The part of it that one block may take.
    pub(crate) block_bytes: u64,
    /// Least number of bands of blocks into which a box is cut across the side of the operand that is sent.
    pub(crate) bands: u64,
    pub(crate) threads: u32,
}

impl Seat {
    pub(crate) fn of(machine: &Machine) -> Self {
        let (memory_bytes, threads) = (machine.memory_bytes, machine.threads);
        Self { weight: machine.gflops, memory_bytes, block_bytes: memory_bytes, bands: 1, threads }
    }
}

/// What is cut, and how.
#[derive(Clone, Copy)]
pub(crate) struct Cutting<'a> {
    pub(crate) base: Base,
    pub(crate) region: &'a Region,
    pub(crate) charges: &'a CellCharges,
    /// Every machine gets a share, if there are enough cells: the user has asked for all workers.
    pub(crate) everyone: bool,
    /// Cells move from machines with more than their part to others, if k is not cut.
    pub(crate) levels_out: bool,
    /// One machine computes the product alone, and adds the sums over parts of k itself.
    pub(crate) sums_here: bool,
    /// The boxes of each seat, if they are given: by the parts of a placed operand.
    pub(crate) owned: Option<&'a [Vec<Cells3>]>,
}

/// The shares of each seat in region number `at`; or the seats without room for a block of their share.
pub(crate) fn shares(
    cutting: &Cutting<'_>,
    at: usize,
    seats: &[Seat],
) -> Result<Vec<Vec<Share>>, Vec<usize>> {
    let seats_known = with_weights(seats);
    let mut boxes = boxes_of(cutting, &seats_known);
    if cutting.levels_out {
        level(&mut boxes, &seats_known.iter().map(|s| s.weight).collect::<Vec<f64>>());
    }
    let mut all = Vec::with_capacity(seats.len());
    let mut without_room = Vec::new();
    for (number, (seat, boxes)) in seats.iter().zip(boxes).enumerate() {
        let mut mine = Vec::with_capacity(boxes.len());
        for cells in boxes.into_iter().filter(|b| !b.is_empty()) {
            let Some((block, order)) = block_of(cutting, &cells, seat) else {
                without_room.push(number);
                break;
            };
            mine.push(Share { region: at, cells: cells.cells, steps: cells.steps, block, order });
        }
        // In this order machines with chained sums cannot deadlock.
        mine.sort_by_key(|s| s.steps.start);
        all.push(mine);
    }
    if without_room.is_empty() { Ok(all) } else { Err(without_room) }
}

/// Seats with usable weights: if none is known, all are equal.
fn with_weights(seats: &[Seat]) -> Vec<Seat> {
    let known = |s: &Seat| s.weight.is_finite() && s.weight > 0.0;
    let least = seats.iter().filter(|s| known(s)).map(|s| s.weight).fold(f64::INFINITY, f64::min);
    let unknown = if least.is_finite() { least * 1e-3 } else { 1.0 };
    seats.iter().map(|s| Seat { weight: if known(s) { s.weight } else { unknown }, ..*s }).collect()
}

/// The boxes of each seat in the region.
fn boxes_of(cutting: &Cutting<'_>, seats: &[Seat]) -> Vec<Vec<Cells3>> {
    let Cutting { base, region, charges, everyone, .. } = *cutting;
    if let Some(owned) = cutting.owned {
        return owned.to_vec();
    }
    let weights: Vec<f64> = seats.iter().map(|s| s.weight).collect();
    match base {
        Base::Naive | Base::Row(_) | Base::Square(_) | Base::Reuse => {
            let cells = region.cells();
            let (height, width) = (region.grid.whole_rows() as f64, region.grid.whole_cols() as f64);
            let rects = partition(cells.rows.len(), cells.cols.len(), height, width, &weights, everyone);
            let steps = Span::new(0, region.steps());
            rects.into_iter().map(|r| r.map(|cells| Cells3 { cells, steps }).into_iter().collect()).collect()
        }
        // Its parts of k are blocks of one share, of a size that does not depend on the number of threads.
        Base::Cuboid if cutting.sums_here => {
            let one = Cells3 { cells: region.cells(), steps: Span::new(0, region.steps()) };
            vec![vec![one]]
        }
        Base::Cuboid => cuboid(region, charges, seats, everyone),
        Base::Box3(a, b, c) => mesh(region, &weights, [a, b, c], everyone),
        Base::Summa(r, c) => mesh(region, &weights, [r, c, 1], everyone),
    }
}

/// How a box is cut into blocks.
fn block_of(cutting: &Cutting<'_>, part: &Cells3, seat: &Seat) -> Option<(BlockSize, PanelOrder)> {
    let Cutting { base, region, charges, .. } = *cutting;
    let (rows, cols, steps) = (part.cells.rows.len(), part.cells.cols.len(), part.steps.len());
    let fixed = |block: BlockSize, order: PanelOrder| {
        (charges.need(block, order) <= seat.memory_bytes).then_some((block, order))
    };
    match base {
        Base::Naive => fixed(BlockSize { rows: 1, cols: 1, steps: 1 }, PanelOrder::Steps),
        Base::Row(n) => {
            let block =
                BlockSize { rows: 1, cols: cols.min(EDGE_MAX), steps: u64::from(n).min(steps.max(1)) };
            fixed(block, PanelOrder::Columns(1))
        }
        Base::Square(n) => {
            let n = u64::from(n);
            fixed(
                BlockSize { rows: n.min(rows), cols: n.min(cols), steps: n.min(steps.max(1)) },
                PanelOrder::Steps,
            )
        }
        Base::Reuse | Base::Cuboid | Base::Box3(..) | Base::Summa(..) => {
            let block = largest_block(region, charges, part.cells, steps, seat.block_bytes)
                .or_else(|| largest_block(region, charges, part.cells, steps, seat.memory_bytes))?;
            let block = match charges.sent_side() {
                Some(ProductSide::Rows) => {
                    BlockSize { rows: block.rows.min(rows.div_ceil(seat.bands)), ..block }
                }
                Some(ProductSide::Cols) => {
                    BlockSize { cols: block.cols.min(cols.div_ceil(seat.bands)), ..block }
                }
                Some(ProductSide::Depth) | None => block,
            };
            let most = if cutting.sums_here { region.grid.steps_of_a_sum() } else { block.steps };
            Some((BlockSize { steps: block.steps.min(most), ..block }, PanelOrder::Steps))
        }
    }
}
