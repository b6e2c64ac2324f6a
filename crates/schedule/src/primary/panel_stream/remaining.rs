//! Queries about the rest of a panel stream: for stealing, which may take some of it, and for logs.
//!
//! Invariants: only unsent work is taken (`trim`), and only from the step that `free_from` returns.

use super::{ActiveBlock, PanelStream, block_ids, tile_number};
use crate::primary::peer_status::WaitsFor;
use crate::primary::relay::ReassignedWork;
use crate::primary::work::BlockWork;
use alloc::vec::Vec;
use bramble_base::number::{nearest_f64, to_usize};
use bramble_base::{Rect, Span};
use bramble_plan::{PanelOrder, Plan, Recipe};

impl PanelStream {
    /// What the next message waits for, as far as this can be told without a change of state.
    pub(in crate::primary) fn next_waits_for(&self) -> WaitsFor {
        if !self.relayed.rest.is_empty()
            || !self.ready.is_empty()
            || (self.progress.is_some() && self.waiting_panel.is_none())
        {
            WaitsFor::Link
        } else if self.waiting_panel.is_some() {
            WaitsFor::Credit
        } else if self.waits_for_sum {
            WaitsFor::Sum
        } else if !self.active.is_empty() {
            WaitsFor::Tiles
        } else {
            WaitsFor::Nothing
        }
    }

    /// Whether every panel that was begun has been sent completely.
    pub(in crate::primary) fn is_between_panels(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether the next panel waits for credit.
    pub(in crate::primary) fn waits_for_credit(&self) -> bool {
        self.waiting_panel.is_some()
    }

    /// All work that the worker has not returned: (region, tile, steps).
    pub(in crate::primary) fn tasks(&self, plan: &Plan) -> Vec<(usize, u64, Span)> {
        let mut tasks = Vec::new();
        let mut add = |work: &BlockWork, tiles: &mut dyn Iterator<Item = u32>| {
            let region = &plan.regions[work.block.region];
            for at in tiles {
                let (tile, i, j, ..) = tile_number(region, &work.block, at);
                tasks.push((work.block.region, tile, work.steps_of(i, j)));
            }
        };
        for out in &self.active {
            let is_back = |at: &u32| out.back[to_usize(at / 64)] >> (at % 64) & 1 == 1;
            add(&out.work, &mut (0..out.tiles).filter(|at| !is_back(at) && !out.work.is_committed(*at)));
        }
        for work in self.items.iter().flat_map(|item| item.works(plan)) {
            let region = &plan.regions[work.block.region];
            let (tiles, _, _) = block_ids(region, &Recipe::new(region.levels), &work.block);
            add(&work, &mut (0..tiles).filter(|at| !work.is_committed(*at)));
        }
        tasks
    }

    /// The block that is being sent, if cells of it can be stolen: each cell must be one tile whose first
    /// sums land in C.
    pub(in crate::primary) fn divisible(&self, plan: &Plan) -> Option<&BlockWork> {
        let (_, ActiveBlock { work, .. }) = self.progress.as_ref().zip(self.active.last())?;
        let simple = plan.regions[work.block.region].levels == 0
            && matches!(work.block.order, PanelOrder::Steps | PanelOrder::Ending(_));
        (simple && work.lands_in_c() && !work.moves_as_unit).then_some(work)
    }

    /// Bytes of tiles that active blocks have yet to return; edge tiles count as whole ones.
    pub(in crate::primary) fn owed_bytes(&self, plan: &Plan) -> f64 {
        let tile_bytes = |out: &ActiveBlock| {
            let grid = &plan.regions[out.work.block.region].grid;
            grid.tile_rows.saturating_mul(grid.tile_cols).saturating_mul(plan.problem.element_bytes())
        };
        let of = |out: &ActiveBlock| f64::from(out.tiles_left) * nearest_f64(tile_bytes(out));
        self.active.iter().map(of).sum()
    }

    /// The first step from which the current block can be reduced to the cells `kept`: no job of the step
    /// before was sent for the other cells, so their last job can still ask for their sums. `None` if that
    /// step is past the part that is sent step by step.
    pub(in crate::primary) fn free_from(&self, kept: Rect) -> Option<u64> {
        let (progress, out) = self.progress.as_ref().zip(self.active.last())?;
        let cells = out.work.cells_left();
        let (rows, cols) = (progress.a_sent, progress.b_sent);
        let sent = |kept: Span, all: Span, done: u64| kept.len() < all.len() && done > kept.len();
        let some = rows > 0 && cols > 0;
        let begun = some && (sent(kept.rows, cells.rows, rows) || sent(kept.cols, cells.cols, cols));
        let from = (progress.step + if begun { 2 } else { 1 }).max(out.work.truncated_from());
        (from < out.work.block.by_columns_from()).then_some(from)
    }

    /// Unsent work of the current block in its steps before `from`.
    pub(in crate::primary) fn work_before(&self, plan: &Plan, from: u64) -> f64 {
        let Some((progress, out)) = self.progress.as_ref().zip(self.active.last()) else { return 0.0 };
        let (region, step) = (out.work.block.region, progress.step);
        let cells = out.work.cells_at(step);
        let whole = nearest_f64(cells.rows.len() * cells.cols.len()).max(1.0);
        let sent = nearest_f64(progress.a_sent * progress.b_sent) / whole;
        let this = plan.work(region, cells, Span::new(step, step + 1)) * (1.0 - sent);
        this + plan.work(region, out.work.cells_at(step + 1), Span::new(step + 1, from.max(step + 1)))
    }

    /// Takes cells from the current block: from a step on (see `free_from`) it keeps only `kept`. Returns the
    /// part of the member's own share that this is, if the block is its own.
    pub(in crate::primary) fn trim(&mut self, from: u64, kept: Rect) -> Option<ReassignedWork> {
        let (progress, out) = self.progress.as_ref().zip(self.active.last_mut())?;
        out.work.truncate(from, kept);
        // The prepared panel may contain jobs that are now the last ones of their tiles.
        self.waiting_panel = None;
        let wave = progress.wave?;
        Some(ReassignedWork { waves: Span::new(wave, wave + 1), from, kept })
    }
}
