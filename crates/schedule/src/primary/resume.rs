//! Resuming a product after an earlier run ended: the same plan without the complete tiles, with today's
//! workers.
//!
//! Place in the flow: replaces `Primary::new` if a journal says which tiles are complete. The rest of the
//! plan is reassigned like the work of lost workers (`peer_state`).
//!
//! Invariants: no peer is a member of the plan, so peers have only work that is reassigned to them. A
//! complete tile is not computed again; every other tile uses the steps of the plan, so it gets the bits of
//! the earlier run. Panels are not relayed.
//!
//! Deliberately absent: contents of C in incomplete tiles. Their sums begin anew.

use super::panel_stream::tile_number;
use super::recompute::RECOMPUTED;
use super::work::{BlockWork, WorkItem};
use super::{Operands, PeerInfo, Primary};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::Span;
use bramble_plan::{Plan, Share};

/// Owner of the work that a resumed product begins with: none of the peers.
pub(super) const EARLIER_RUN: usize = usize::MAX;

/// How many tiles of some blocks are complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Completion {
    None,
    Some,
    All,
}

/// Whether a tile, by region and number, is complete.
pub(super) type IsComplete<'a> = &'a dyn Fn(usize, u64) -> bool;

impl Primary {
    /// The rest of a product, on these peers. An error if none of them has memory for a part of it.
    pub fn resumed(
        plan: Plan,
        operands: Operands,
        peers: Vec<PeerInfo>,
        is_complete: IsComplete<'_>,
    ) -> Result<Self, String> {
        let plan = Plan { relay: false, ..plan };
        let first = plan.members.len();
        let mut this = Self::of(plan, operands, peers, first).recovering();
        let tiles = this.plan.regions.iter().enumerate().map(|(at, region)| (at, region.tiles()));
        this.stealing.is_resumed = true;
        this.tiles_left = tiles
            .flat_map(|(at, all)| (0..all).map(move |tile| (at, tile)))
            .fold(0, |left, tile| left + u64::from(!is_complete(tile.0, tile.1)));
        // Panels of complete tiles count as used up.
        let (all, left) = (this.plan.tiles().max(1), this.tiles_left);
        let freed = u128::from(this.used_up.stored_bytes) * u128::from(all - left) / u128::from(all);
        this.used_up.freed_bytes = u64::try_from(freed).unwrap_or(u64::MAX);
        let left = this.unfinished(is_complete);
        this.reassign(EARLIER_RUN, left)?;
        Ok(this)
    }

    /// The incomplete part of the plan. Members that own the first steps come first, because the sums of the
    /// others wait for theirs.
    pub(super) fn unfinished(&self, is_complete: IsComplete<'_>) -> VecDeque<WorkItem> {
        let plan = &self.plan;
        let mut members: Vec<usize> = (0..plan.members.len()).collect();
        members.sort_by_key(|member| plan.members[*member].shares.first().map_or(0, |s| s.steps.start));
        members.into_iter().flat_map(|member| incomplete_blocks(plan, member, is_complete)).collect()
    }

    /// Work from an earlier run, and work that recomputes wrong tiles, by the peer that took it, as fractions
    /// of the whole product.
    pub fn reassigned_parts(&self) -> Vec<(usize, f64)> {
        let all = self.all_work();
        let moves = self.stealing.moves.iter().filter(|moved| moved.0 >= RECOMPUTED);
        moves.map(|(_, to, item)| (*to, item.amount(&self.plan) / all)).collect()
    }
}

/// The incomplete blocks of a member, in their order: runs of untouched blocks, and parts of the others.
fn incomplete_blocks(plan: &Plan, member: usize, is_complete: IsComplete<'_>) -> Vec<WorkItem> {
    let mut items = Vec::new();
    let mut first = 0;
    for share in &plan.members[member].shares {
        let (_, across, deep) = share.blocks_each_way();
        let has_all = share.steps == Span::new(0, plan.regions[share.region].steps());
        // Rows of blocks whose sums wait for each other stay together.
        let unit = if has_all && deep > 1 { (across * deep).max(1) } else { 1 };
        let mut run = first;
        for at in (0..share.blocks()).step_by(usize::try_from(unit).unwrap_or(usize::MAX)) {
            let numbers = Span::new(first + at, first + at + unit);
            let completed = completion(plan, share, at..at + across.min(unit), is_complete);
            if completed == Completion::None {
                continue;
            }
            items.extend(blocks(member, run, numbers.start));
            run = numbers.end;
            if completed == Completion::Some {
                let (across, deep) = if unit > 1 { (across, deep) } else { (1, 1) };
                items.extend(parts(plan, member, numbers.start, (across, deep), is_complete));
            }
        }
        first += share.blocks();
        items.extend(blocks(member, run, first));
    }
    items
}

fn blocks(member: usize, start: u64, end: u64) -> Option<WorkItem> {
    (start < end).then(|| WorkItem::Blocks { member, numbers: Span::new(start, end) })
}

/// How many tiles of some blocks of a share are complete.
fn completion(
    plan: &Plan,
    share: &Share,
    blocks: core::ops::Range<u64>,
    is_complete: IsComplete<'_>,
) -> Completion {
    let (mut all, mut none) = (true, true);
    let region = &plan.regions[share.region];
    let q = region.q();
    for block in blocks.filter_map(|at| share.block(at)) {
        let cells = block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j)));
        for tile in
            cells.flat_map(|(i, j)| (0..q * q).map(move |at| region.tile_number(i, j, at / q, at % q)))
        {
            let is_here = is_complete(share.region, tile);
            (all, none) = (all && is_here, none && !is_here);
            if !all && !none {
                return Completion::Some;
            }
        }
    }
    // No tiles at all count as complete.
    if all { Completion::All } else { Completion::None }
}

/// Work items for the incomplete part of a unit with `across` blocks side by side and `deep` along k: for
/// each rectangle of cells, its parts of k in order.
fn parts(
    plan: &Plan,
    member: usize,
    first: u64,
    (across, deep): (u64, u64),
    is_complete: IsComplete<'_>,
) -> Vec<WorkItem> {
    let mut items = Vec::new();
    for col in 0..across {
        let left = |depth: u64| {
            let number = first + depth * across + col;
            let work = WorkItem::Blocks { member, numbers: Span::new(number, number + 1) }.first(plan);
            work.map_or_else(Vec::new, |work| unfinished(plan, &work, is_complete))
        };
        // The same tiles are complete at every depth, so these lists differ only in their steps.
        let by_depth: Vec<Vec<BlockWork>> = (0..deep).map(left).collect();
        let count = by_depth.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..count {
            items.extend(by_depth.iter().filter_map(|works| works.get(at)).cloned().map(WorkItem::Part));
        }
    }
    items
}

fn unfinished(plan: &Plan, work: &BlockWork, is_complete: IsComplete<'_>) -> Vec<BlockWork> {
    let block = work.block;
    let region = &plan.regions[block.region];
    work.unfinished(plan, |at| is_complete(block.region, tile_number(region, &block, at).0))
}
