//! What a walk has yet to do, for those who look at it from outside: stealing, which may take some of it, and those who watch.
//!
//! Invariants: only what was not sent is taken (`trim`), and only where `free_from` says so.

use super::{OutBlock, Walk, block_ids, tile_number};
use crate::primary::relay::Loss;
use crate::primary::standing::Next;
use crate::primary::work::Work;
use bramble_matrix::number::{nearest_f64, to_usize};
use bramble_matrix::{Rect, Span};
use bramble_plan::{Order, Plan, Recipe};

impl Walk {
    /// What the next message waits for, as far as the walk knows without taking a step.
    pub(in crate::primary) fn next_waits_for(&self) -> Next {
        if !self.rest.is_empty()
            || !self.ready.is_empty()
            || (self.sending.is_some() && self.refused.is_none())
        {
            Next::Link
        } else if self.refused.is_some() {
            Next::Credit
        } else if self.waits_for_sum {
            Next::Sum
        } else if !self.out.is_empty() {
            Next::Tiles
        } else {
            Next::Nothing
        }
    }

    /// Whether every panel that was begun has been sent whole.
    pub(in crate::primary) fn is_between_panels(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether the credit did not cover what comes next.
    pub(in crate::primary) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// What this machine has to do yet: region, tile and steps. What came back is left out.
    pub(in crate::primary) fn tasks(&self, plan: &Plan) -> Vec<(usize, u64, Span)> {
        let mut tasks = Vec::new();
        let mut add = |work: &Work, tiles: &mut dyn Iterator<Item = u32>| {
            let region = &plan.regions[work.block.region];
            for at in tiles {
                let (tile, i, j, ..) = tile_number(region, &work.block, at);
                tasks.push((work.block.region, tile, work.steps_of(i, j)));
            }
        };
        for out in &self.out {
            let is_back = |at: &u32| out.back[to_usize(at / 64)] >> (at % 64) & 1 == 1;
            add(&out.work, &mut (0..out.tiles).filter(|at| !is_back(at) && !out.work.skips(*at)));
        }
        for work in self.lots.iter().flat_map(|lot| lot.works(plan)) {
            let region = &plan.regions[work.block.region];
            let (tiles, _, _) = block_ids(region, &Recipe::new(region.levels), &work.block);
            add(&work, &mut (0..tiles).filter(|at| !work.skips(*at)));
        }
        tasks
    }

    /// The block that is being sent, if others may have cells of it: each cell one tile, whose sum of the first steps
    /// lands in C.
    pub(in crate::primary) fn divisible(&self, plan: &Plan) -> Option<&Work> {
        let (_, OutBlock { work, .. }) = self.sending.as_ref().zip(self.out.last())?;
        let simple = plan.regions[work.block.region].levels == 0
            && matches!(work.block.order, Order::Steps | Order::Ending(_));
        (simple && work.lands_in_c() && !work.together).then_some(work)
    }

    /// Bytes of tiles that have not come back of the blocks that were begun, edges taken for whole.
    pub(in crate::primary) fn owed_bytes(&self, plan: &Plan) -> f64 {
        let tile_bytes = |out: &OutBlock| {
            let grid = &plan.regions[out.work.block.region].grid;
            grid.tile_rows.saturating_mul(grid.tile_cols).saturating_mul(plan.problem.element_bytes())
        };
        let of = |out: &OutBlock| f64::from(out.tiles_left) * nearest_f64(tile_bytes(out));
        self.out.iter().map(of).sum()
    }

    /// From which step on the block that is being sent can do with the cells `kept`: no job of the step before was sent
    /// for the others, so that the last one they get can ask for their sums. `None` where that is past what it does step by step.
    pub(in crate::primary) fn free_from(&self, kept: Rect) -> Option<u64> {
        let (sending, out) = self.sending.as_ref().zip(self.out.last())?;
        let cells = out.work.cells_left();
        let (rows, cols) = (sending.a_sent, sending.b_sent);
        let sent = |kept: Span, all: Span, done: u64| kept.len() < all.len() && done > kept.len();
        let some = rows > 0 && cols > 0;
        let begun = some && (sent(kept.rows, cells.rows, rows) || sent(kept.cols, cells.cols, cols));
        let from = (sending.step + if begun { 2 } else { 1 }).max(out.work.cut_from());
        (from < out.work.block.by_columns_from()).then_some(from)
    }

    /// Work of the block that is being sent in its steps before `from` that was not sent yet.
    pub(in crate::primary) fn work_before(&self, plan: &Plan, from: u64) -> f64 {
        let Some((sending, out)) = self.sending.as_ref().zip(self.out.last()) else { return 0.0 };
        let (region, step) = (out.work.block.region, sending.step);
        let cells = out.work.cells_at(step);
        let whole = nearest_f64(cells.rows.len() * cells.cols.len()).max(1.0);
        let sent = nearest_f64(sending.a_sent * sending.b_sent) / whole;
        let this = plan.work(region, cells, Span::new(step, step + 1)) * (1.0 - sent);
        this + plan.work(region, out.work.cells_at(step + 1), Span::new(step + 1, from.max(step + 1)))
    }

    /// Takes cells from the block that is being sent: from a step on (see `free_from`) it has only `kept`.
    /// What that is of the plan, where it is one of the member's own.
    pub(in crate::primary) fn trim(&mut self, from: u64, kept: Rect) -> Option<Loss> {
        let (sending, out) = self.sending.as_ref().zip(self.out.last_mut())?;
        out.work.cut(from, kept);
        // The panel that comes next may have jobs that now are the last of their tiles.
        self.refused = None;
        let wave = sending.wave?;
        Some(Loss { waves: Span::new(wave, wave + 1), from, kept })
    }
}
