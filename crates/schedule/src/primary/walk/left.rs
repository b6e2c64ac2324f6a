//! What a machine that is gone had not given back: the lots that others will do.
//!
//! Place in the flow: asked once, when a link has ended (`life`).
//!
//! Invariants: what is back stays, also sums that wait; each tile that is not back is in one of the lots, with the steps that
//! this machine owed of it. Lots of blocks that were begun come first, in the order in which they were begun: sums of others
//! wait for them. They are done step by step: the kernel calls for a tile are the same in each order.
//!
//! Deliberately absent: who will do it.

use super::{OutBlock, Walk};
use crate::primary::pace::Pace;
use crate::primary::work::{Lot, Work};
use bramble_matrix::number::to_usize;
use bramble_matrix::{Rect, Span};
use bramble_plan::Plan;
use std::collections::{BTreeMap, VecDeque};

impl Walk {
    /// All that is left to do.
    pub(in crate::primary) fn left(&self, plan: &Plan) -> VecDeque<Lot> {
        let begun = self.out.iter().flat_map(|out| out.left(plan)).map(Lot::One);
        begun.chain(self.lots.iter().filter(|lot| lot.first(plan).is_some()).cloned()).collect()
    }

    /// The same; this walk has nothing more.
    pub(in crate::primary) fn abandon(&mut self, plan: &Plan) -> VecDeque<Lot> {
        let left = self.left(plan);
        self.out.clear();
        self.lots.clear();
        self.sending = None;
        self.refused = None;
        self.waits_for_sum = false;
        self.ready.clear();
        self.relayed.clear();
        self.rest.clear();
        self.pace = Pace::default();
        left
    }

    /// Whether there is nothing to do, and nothing out.
    pub(in crate::primary) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.has_sent_all()
    }

    /// Whether nothing is left to be sent.
    pub(in crate::primary) fn has_sent_all(&self) -> bool {
        let no_messages = self.ready.is_empty() && self.rest.is_empty() && self.relayed.is_empty();
        self.lots.is_empty() && self.sending.is_none() && no_messages
    }
}

impl OutBlock {
    /// Its tiles that are not back, as works.
    fn left(&self, plan: &Plan) -> Vec<Work> {
        self.work.left(plan, |tile| self.back[to_usize(tile / 64)] >> (tile % 64) & 1 == 1)
    }
}

impl Work {
    /// Its tiles that are not there, by their numbers in the block, as works. A cell of several tiles is made by one recipe, as
    /// a whole; those of them that are there are skipped.
    pub(in crate::primary) fn left(&self, plan: &Plan, is_there: impl Fn(u32) -> bool) -> Vec<Self> {
        let q = plan.regions[self.block.region].q();
        let cells = self.block.cells;
        // Which of some tiles (64 at most) are in C or wait, or were there before.
        let there = |first: u64, count: u64| {
            let is_one = |at: u64| {
                let tile = u32::try_from(first + at).unwrap_or(u32::MAX);
                is_there(tile) || self.skips(tile)
            };
            (0..count).filter(|at| is_one(*at)).fold(0u64, |bits, at| bits | 1 << at)
        };
        // Whole cells by the step at which others took them, if they did; cells of which some tiles are back.
        let mut whole: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut parts = Vec::new();
        let places = cells.rows.iter().flat_map(|i| cells.cols.iter().map(move |j| (i, j)));
        for (at, (i, j)) in (0..).zip(places) {
            let end = self.steps_of(i, j).end;
            let there = there(at * q * q, q * q);
            if there == 0 {
                whole.entry(end).or_default().push((i, j));
            } else if there.count_ones() != u32::try_from(q * q).unwrap_or(u32::MAX) {
                let cell = Rect::new(Span::new(i, i + 1), Span::new(j, j + 1));
                parts.push(self.again(cell, end, there));
            }
        }
        let whole = whole.into_iter().flat_map(|(end, cells)| {
            rectangles(&cells).into_iter().map(move |cells| self.again(cells, end, 0))
        });
        whole.chain(parts).collect()
    }
}

/// Cells, which come row by row, as rectangles: runs of each row, joined with equal ones of the row before.
fn rectangles(cells: &[(u64, u64)]) -> Vec<Rect> {
    let mut found: Vec<Rect> = Vec::new();
    // The last of them with these columns.
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
