//! Strategies: from a region and machines to each machine's boxes, cut into blocks that fit it.
//!
//! Place in the flow: `decide` asks for each strategy and team, and lets the cost model judge.
//!
//! Invariants: the boxes of all machines are disjoint and cover the region's cells and steps. A machine may get none, or
//! several. Pure functions of their arguments.

mod boxes;
mod level;
mod mesh;
mod partition;

pub use partition::partition;

use crate::memory::{CellCharges, EDGE_MAX, largest_block};
use crate::{Base, BlockSize, Machine, Order, Region, Share};
use boxes::{Cells3, cuboid};
use bramble_matrix::Span;
use level::level;
use mesh::mesh;

/// A machine for planning: how large its part shall be, and what it can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// Relative size of its part.
    pub(crate) weight: f64,
    /// Bytes of matrices.
    pub(crate) memory_bytes: u64,
    /// How much of them one block may take.
    pub(crate) block_bytes: u64,
    pub(crate) threads: u32,
}

impl Seat {
    pub(crate) fn of(machine: &Machine) -> Self {
        let (memory_bytes, threads) = (machine.memory_bytes, machine.threads);
        Self { weight: machine.gflops, memory_bytes, block_bytes: memory_bytes, threads }
    }
}

/// What is cut, and how.
#[derive(Clone, Copy)]
pub(crate) struct Cutting<'a> {
    pub(crate) base: Base,
    pub(crate) region: &'a Region,
    pub(crate) charges: &'a CellCharges,
    /// Everybody shall have a share, as far as there are cells: the user has asked for all workers.
    pub(crate) everyone: bool,
    /// Cells go from machines with more than their part to others, where k is whole.
    pub(crate) levels_out: bool,
}

/// The shares of each seat in region number `at`; the seats that have no room for a block of their share, if there are any.
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
        // No two machines then wait for each other where sums are chained.
        mine.sort_by_key(|s| s.steps.start);
        all.push(mine);
    }
    if without_room.is_empty() { Ok(all) } else { Err(without_room) }
}

/// Seats whose weights can be reckoned with: where none is known, all are equal.
fn with_weights(seats: &[Seat]) -> Vec<Seat> {
    let known = |s: &Seat| s.weight.is_finite() && s.weight > 0.0;
    let least = seats.iter().filter(|s| known(s)).map(|s| s.weight).fold(f64::INFINITY, f64::min);
    let unknown = if least.is_finite() { least * 1e-3 } else { 1.0 };
    seats.iter().map(|s| Seat { weight: if known(s) { s.weight } else { unknown }, ..*s }).collect()
}

/// Which box of the region is whose.
fn boxes_of(cutting: &Cutting<'_>, seats: &[Seat]) -> Vec<Vec<Cells3>> {
    let Cutting { base, region, charges, everyone, .. } = *cutting;
    let weights: Vec<f64> = seats.iter().map(|s| s.weight).collect();
    match base {
        Base::Naive | Base::Row(_) | Base::Square(_) | Base::Reuse => {
            let cells = region.cells();
            let (height, width) = (region.grid.whole_rows() as f64, region.grid.whole_cols() as f64);
            let rects = partition(cells.rows.len(), cells.cols.len(), height, width, &weights, everyone);
            let steps = Span::new(0, region.steps());
            rects.into_iter().map(|r| r.map(|cells| Cells3 { cells, steps }).into_iter().collect()).collect()
        }
        Base::Cuboid => cuboid(region, charges, seats, everyone),
        Base::Box3(a, b, c) => mesh(region, &weights, [a, b, c], everyone),
        Base::Summa(r, c) => mesh(region, &weights, [r, c, 1], everyone),
    }
}

/// How a box is cut into blocks.
fn block_of(cutting: &Cutting<'_>, part: &Cells3, seat: &Seat) -> Option<(BlockSize, Order)> {
    let Cutting { base, region, charges, .. } = *cutting;
    let (rows, cols, steps) = (part.cells.rows.len(), part.cells.cols.len(), part.steps.len());
    let fixed = |block: BlockSize, order: Order| {
        (charges.need(block, order) <= seat.memory_bytes).then_some((block, order))
    };
    match base {
        Base::Naive => fixed(BlockSize { rows: 1, cols: 1, steps: 1 }, Order::Steps),
        Base::Row(n) => {
            let block =
                BlockSize { rows: 1, cols: cols.min(EDGE_MAX), steps: u64::from(n).min(steps.max(1)) };
            fixed(block, Order::Columns(1))
        }
        Base::Square(n) => {
            let n = u64::from(n);
            fixed(
                BlockSize { rows: n.min(rows), cols: n.min(cols), steps: n.min(steps.max(1)) },
                Order::Steps,
            )
        }
        Base::Reuse | Base::Cuboid | Base::Box3(..) | Base::Summa(..) => {
            let block = largest_block(region, charges, part.cells, steps, seat.block_bytes)
                .or_else(|| largest_block(region, charges, part.cells, steps, seat.memory_bytes))?;
            Some((block, Order::Steps))
        }
    }
}
