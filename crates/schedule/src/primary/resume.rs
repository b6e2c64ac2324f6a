//! A product that goes on where another run ended: its plan, without the tiles that are there, by whoever is here today.
//!
//! Place in the flow: instead of `Primary::new`, where a journal says what is there. What is left of the plan is adopted
//! as the work of lost machines is (`life`); from there on all is as ever.
//!
//! Invariants: the members of the plan are gone before it begins, and no peer is one of them: peers have no part but what they
//! adopt. A tile that is there is made by nobody; every other by the steps of the plan, so its bits are those of the run
//! before. Nothing is relayed.
//!
//! Deliberately absent: what is in C of tiles that are not complete. Their sums begin anew.

use super::again::AGAIN;
use super::walk::tile_number;
use super::work::{Lot, Work};
use super::{Operands, PeerInfo, Primary};
use bramble_matrix::Span;
use bramble_plan::{Plan, Share};
use std::collections::VecDeque;

/// Whose the work was that a product goes on with: of nobody who is here.
pub(super) const BEFORE: usize = usize::MAX;

/// How much of some blocks is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    Nothing,
    Some,
    All,
}

/// Whether a tile, by region and number, is there.
pub(super) type IsThere<'a> = &'a dyn Fn(usize, u64) -> bool;

impl Primary {
    /// The rest of a product, by these peers. An error where none of them has the memory for a part of it.
    pub fn resumed(
        plan: Plan,
        operands: Operands,
        peers: Vec<PeerInfo>,
        is_there: IsThere<'_>,
    ) -> Result<Self, String> {
        let plan = Plan { relay: false, ..plan };
        let first = plan.members.len();
        let mut this = Self::of(plan, operands, peers, first).recovering();
        let tiles = this.plan.regions.iter().enumerate().map(|(at, region)| (at, region.tiles()));
        this.stealing.goes_on = true;
        this.tiles_left = tiles
            .flat_map(|(at, all)| (0..all).map(move |tile| (at, tile)))
            .fold(0, |left, tile| left + u64::from(!is_there(tile.0, tile.1)));
        // Panels of what is there count as given back.
        let (all, left) = (this.plan.tiles().max(1), this.tiles_left);
        let freed = u128::from(this.stored_bytes) * u128::from(all - left) / u128::from(all);
        this.freed_bytes = u64::try_from(freed).unwrap_or(u64::MAX);
        let left = this.left(is_there);
        this.adopt(BEFORE, left)?;
        Ok(this)
    }

    /// What the plan has of tiles that are not there. Those who begin with the first steps come first: the sums of the others
    /// wait for theirs.
    pub(super) fn left(&self, is_there: IsThere<'_>) -> VecDeque<Lot> {
        let plan = &self.plan;
        let mut members: Vec<usize> = (0..plan.members.len()).collect();
        members.sort_by_key(|member| plan.members[*member].shares.first().map_or(0, |s| s.steps.start));
        members.into_iter().flat_map(|member| left_of(plan, member, is_there)).collect()
    }

    /// What peers were given of a product that goes on, and of tiles that are made again, as parts of all work, 0 to 1.
    pub fn taken_up(&self) -> Vec<(usize, f64)> {
        let all = self.all_work();
        let moves = self.stealing.moves.iter().filter(|moved| moved.0 >= AGAIN);
        moves.map(|(_, to, lot)| (*to, lot.amount(&self.plan) / all)).collect()
    }
}

/// What is left of a member's blocks, in their order: runs of those of which nothing is there, and parts of the others.
fn left_of(plan: &Plan, member: usize, is_there: IsThere<'_>) -> Vec<Lot> {
    let mut lots = Vec::new();
    let mut first = 0;
    for share in &plan.members[member].shares {
        let (_, across, deep) = share.blocks_each_way();
        let has_all = share.steps == Span::new(0, plan.regions[share.region].steps());
        // Rows of blocks whose sums wait for each other stay together.
        let unit = if has_all && deep > 1 { (across * deep).max(1) } else { 1 };
        let mut run = first;
        for at in (0..share.blocks()).step_by(usize::try_from(unit).unwrap_or(usize::MAX)) {
            let numbers = Span::new(first + at, first + at + unit);
            let there = there(plan, share, at..at + across.min(unit), is_there);
            if there == There::Nothing {
                continue;
            }
            lots.extend(blocks(member, run, numbers.start));
            run = numbers.end;
            if there == There::Some {
                let (across, deep) = if unit > 1 { (across, deep) } else { (1, 1) };
                lots.extend(parts(plan, member, numbers.start, (across, deep), is_there));
            }
        }
        first += share.blocks();
        lots.extend(blocks(member, run, first));
    }
    lots
}

fn blocks(member: usize, start: u64, end: u64) -> Option<Lot> {
    (start < end).then(|| Lot::Blocks { member, numbers: Span::new(start, end) })
}

/// How many tiles of some blocks of a share are there.
fn there(plan: &Plan, share: &Share, blocks: std::ops::Range<u64>, is_there: IsThere<'_>) -> There {
    let (mut all, mut none) = (true, true);
    let region = &plan.regions[share.region];
    let q = region.q();
    for block in blocks.filter_map(|at| share.block(at)) {
        let cells = block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j)));
        for tile in
            cells.flat_map(|(i, j)| (0..q * q).map(move |at| region.tile_number(i, j, at / q, at % q)))
        {
            let is_here = is_there(share.region, tile);
            (all, none) = (all && is_here, none && !is_here);
            if !all && !none {
                return There::Some;
            }
        }
    }
    // Of no tiles all are there.
    if all { There::All } else { There::Nothing }
}

/// Works for what is left of a unit that has so many blocks across and along k: the parts of k of each rectangle of
/// cells one after another.
fn parts(
    plan: &Plan,
    member: usize,
    first: u64,
    (across, deep): (u64, u64),
    is_there: IsThere<'_>,
) -> Vec<Lot> {
    let mut lots = Vec::new();
    for col in 0..across {
        let left = |depth: u64| {
            let number = first + depth * across + col;
            let work = Lot::Blocks { member, numbers: Span::new(number, number + 1) }.first(plan);
            work.map_or_else(Vec::new, |work| left(plan, &work, is_there))
        };
        // The same tiles are there at every depth, so these lists are alike but for their steps.
        let by_depth: Vec<Vec<Work>> = (0..deep).map(left).collect();
        let count = by_depth.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..count {
            lots.extend(by_depth.iter().filter_map(|works| works.get(at)).cloned().map(Lot::One));
        }
    }
    lots
}

fn left(plan: &Plan, work: &Work, is_there: IsThere<'_>) -> Vec<Work> {
    let block = work.block;
    let region = &plan.regions[block.region];
    work.left(plan, |at| is_there(block.region, tile_number(region, &block, at).0))
}
