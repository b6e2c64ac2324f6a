//! Unfinished work of a peer, as work items for other peers.
//!
//! Place in the flow: when a link has ended (`peer_state`), and to estimate the cost of recomputing
//! (`slow_link`).
//!
//! Invariants: returned tiles stay, also partial sums that wait; every other tile is in exactly one work
//! item, with the steps that the peer owed of it. Items for active blocks come first, in the order in which
//! these were begun, because other sums wait for them. They use the order of steps; the kernel calls for a
//! tile are the same in any order.
//!
//! Deliberately absent: which peers take the items.

use super::{ActiveBlock, PanelStream, RelayedMatrices};
use crate::primary::rate_estimator::RateEstimator;
use crate::primary::work::{BlockWork, WorkItem};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bramble_base::number::to_usize;
use bramble_base::{Rect, Span};
use bramble_plan::Plan;

impl PanelStream {
    /// All unfinished work.
    pub(in crate::primary) fn unfinished(&self, plan: &Plan) -> VecDeque<WorkItem> {
        let begun = self.active.iter().flat_map(|out| out.unfinished(plan)).map(WorkItem::Part);
        begun.chain(self.items.iter().filter(|item| item.first(plan).is_some()).cloned()).collect()
    }

    /// Takes all unfinished work and empties the stream.
    pub(in crate::primary) fn abandon(&mut self, plan: &Plan) -> VecDeque<WorkItem> {
        let left = self.unfinished(plan);
        self.active.clear();
        self.items.clear();
        self.progress = None;
        self.waiting_panel = None;
        self.waits_for_sum = false;
        self.ready.clear();
        self.relayed = RelayedMatrices::default();
        self.speed = RateEstimator::default();
        left
    }

    /// Whether nothing is left to send, and no tile is owed.
    pub(in crate::primary) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.has_sent_all()
    }

    /// Whether everything was sent.
    pub(in crate::primary) fn has_sent_all(&self) -> bool {
        let no_messages = self.ready.is_empty() && self.relayed.is_empty();
        self.items.is_empty() && self.progress.is_none() && no_messages
    }
}

impl ActiveBlock {
    /// The tiles that did not come back.
    fn unfinished(&self, plan: &Plan) -> Vec<BlockWork> {
        self.work.unfinished(plan, |tile| self.back[to_usize(tile / 64)] >> (tile % 64) & 1 == 1)
    }
}

impl BlockWork {
    /// The missing tiles of the block, given a predicate on tile numbers in the block. One recipe computes
    /// all tiles of a cell together, so a partly complete cell becomes one piece whose complete tiles are
    /// dropped.
    pub(in crate::primary) fn unfinished(&self, plan: &Plan, is_complete: impl Fn(u32) -> bool) -> Vec<Self> {
        let q = plan.regions[self.block.region].q();
        let cells = self.block.cells;
        // Bit set of the complete tiles among `count` (at most 64) from `first` on.
        let complete = |first: u64, count: u64| {
            let is_one = |at: u64| {
                let tile = u32::try_from(first + at).unwrap_or(u32::MAX);
                is_complete(tile) || self.is_committed(tile)
            };
            (0..count).filter(|at| is_one(*at)).fold(0u64, |bits, at| bits | 1 << at)
        };
        // Cells without a complete tile, by the step at which a thief took over (or the last); and pieces for
        // partly complete cells.
        let mut whole: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut parts = Vec::new();
        let places = cells.rows.iter().flat_map(|i| cells.cols.iter().map(move |j| (i, j)));
        for (at, (i, j)) in (0..).zip(places) {
            let end = self.steps_of(i, j).end;
            let complete = complete(at * q * q, q * q);
            if complete == 0 {
                whole.entry(end).or_default().push((i, j));
            } else if complete.count_ones() != u32::try_from(q * q).unwrap_or(u32::MAX) {
                let cell = Rect::new(Span::new(i, i + 1), Span::new(j, j + 1));
                parts.push(self.unfinished_piece(cell, end, complete));
            }
        }
        let whole = whole.into_iter().flat_map(|(end, cells)| {
            rectangles(&cells).into_iter().map(move |cells| self.unfinished_piece(cells, end, 0))
        });
        whole.chain(parts).collect()
    }
}

/// Covers cells, given row by row, with rectangles: runs of each row, merged with equal runs of the row
/// above.
fn rectangles(cells: &[(u64, u64)]) -> Vec<Rect> {
    let mut found: Vec<Rect> = Vec::new();
    // Index of the last rectangle with these columns.
    let mut latest: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for run in cells.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
        let (Some((row, first)), Some((_, last))) = (run.first(), run.last()) else { continue };
        let cols = Span::new(*first, last + 1);
        let above = latest.get(&(cols.start, cols.end)).and_then(|at| found.get_mut(*at));
        match above.filter(|above| above.rows.end == *row) {
            Some(above) => above.rows = Span::new(above.rows.start, row + 1),
            None => {
                latest.insert((cols.start, cols.end), found.len());
                found.push(Rect::new(Span::new(*row, row + 1), cols));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rect(rows: (u64, u64), cols: (u64, u64)) -> Rect {
        Rect::new(Span::new(rows.0, rows.1), Span::new(cols.0, cols.1))
    }

    #[test]
    fn an_l_of_cells_is_two_rectangles() {
        let cells: Vec<(u64, u64)> =
            (3..7).flat_map(|i| (2..9).map(move |j| (i, j))).filter(|(i, j)| *i >= 5 || *j >= 6).collect();
        assert_eq!(rectangles(&cells), [rect((3, 5), (6, 9)), rect((5, 7), (2, 9))]);
        assert!(rectangles(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn rectangles_hold_each_cell_once(wanted in proptest::collection::vec(any::<bool>(), 60)) {
            let cells: Vec<(u64, u64)> =
                (0..60u64).filter(|at| wanted[*at as usize]).map(|at| (at / 10, at % 10)).collect();
            let found = rectangles(&cells);
            let held = found.iter().flat_map(|r| r.rows.iter().flat_map(|i| r.cols.iter().map(move |j| (i, j))));
            let mut held: Vec<(u64, u64)> = held.collect();
            held.sort_unstable();
            prop_assert_eq!(held, cells);
        }
    }
}
