//! Work of the owners of parts of a placed operand, which read its panels where they lie.
//!
//! Place in the flow: stealing, reassignment and recomputing ask here before they give a peer work. Without a placed
//! operand, every peer can do everything.
//!
//! Invariants: work stays with an owner of its part as long as one is there. Of a lost part, the primary sends the
//! panels to other peers, if it can read the operand (`Operands::unplaced`); otherwise the product fails. A peer that is
//! no member of the plan holds nothing.
//!
//! Deliberately absent: putting a lost part on another machine.

use super::Primary;
use super::peer_state::PeerState;
use super::work::{BlockWork, WorkItem};
use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::Rect;
use bramble_base::number::{nearest_f64, to_u64};
use bramble_plan::{Block, OperandSource, Plan, Region};

/// A product that failed because an owner was lost whose part no other machine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLost {
    /// The lost peer, which owned unfinished tiles.
    pub peer: usize,
}

impl Primary {
    /// The lost owner because of which the product failed, if that is why.
    pub fn part_lost(&self) -> Option<PartLost> {
        self.losses.iter().find(|lost| lost.part_is_lost).map(|lost| PartLost { peer: lost.peer })
    }

    /// Whether a peer holds all parts that this work needs.
    pub(super) fn is_owner(&self, peer: usize, item: &WorkItem) -> bool {
        self.plan.ownership.is_none()
            || item.works(&self.plan).all(|work| owns(&self.plan, peer, &work.block))
    }

    /// The rates of the workers among which the work of a lost part is divided, the largest first: as many as finish it soonest.
    /// The primary's link sends the panels of the shorter side to each of them, those of the longer side once, beside what is
    /// left of the sent operand for their own work.
    pub(super) fn rates_for_part(&self, items: &VecDeque<WorkItem>, work: f64) -> Vec<f64> {
        let sides =
            items.iter().flat_map(|item| item.works(&self.plan)).map(|work| self.panel_bytes(&work.block));
        let (shorter, longer) =
            sides.fold((0.0, 0.0), |sum, (a, b)| (sum.0 + f64::min(a, b), sum.1 + f64::max(a, b)));
        let active = || self.peers.iter().filter(|peer| peer.state == PeerState::Active);
        let link = active().filter_map(|peer| peer.info.link_bytes_per_s).fold(0.0, f64::max);
        let mut peers: Vec<(f64, f64)> =
            active().map(|peer| (peer.known_rate(), peer.stream.speed.left())).collect();
        peers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let own_work: f64 = peers.iter().map(|peer| peer.1).sum();
        let copies = if self.plan.relay { 1.0 } else { nearest_f64(to_u64(peers.len())) };
        let own = self.plan.problem.operand_bytes() * copies * own_work / self.all_work();
        let seconds = |count: usize| {
            let lost = shorter * nearest_f64(to_u64(count)) + longer;
            let sent = if link > 0.0 { (own + lost) / link } else { 0.0 };
            let (rate, left) =
                peers[..count].iter().fold((0.0, work), |sum, peer| (sum.0 + peer.0, sum.1 + peer.1));
            f64::max(sent, left / rate)
        };
        let best = (1..=peers.len()).rev().min_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
        peers.iter().take(best.unwrap_or(0)).map(|peer| peer.0).collect()
    }

    /// Bytes of the panels of A and of B for a block, at a worker that holds no part.
    fn panel_bytes(&self, block: &Block) -> (f64, f64) {
        let region = &self.plan.regions[block.region];
        let line = region.depth_of(block.steps).saturating_mul(self.plan.problem.element_bytes());
        let side = |is_b: bool, length: u64| match self.operands.panels(is_b, false).1 {
            OperandSource::Sent => nearest_f64(length.saturating_mul(line)),
            OperandSource::Generated | OperandSource::Resident => 0.0,
        };
        let Rect { rows, cols } = block.cells;
        (side(false, region.grid.rows_of(rows)), side(true, region.grid.cols_of(cols)))
    }

    /// Whether a peer can be sent the panels of placed operands, of any part, and has memory for those of a cell.
    pub(super) fn can_be_sent_parts(&self, peer: usize) -> bool {
        let cell = |(at, region): (usize, &Region)| {
            self.plan.cell_bytes(at, region.steps(), &self.recipes[at], false)
        };
        let need = self.plan.regions.iter().enumerate().map(cell).max();
        self.operands.can_be_sent() && need.is_some_and(|need| need <= self.peers[peer].info.credit_bytes)
    }

    /// Whether a peer can do all that another one can.
    pub(super) fn can_replace(&self, peer: usize, other: usize) -> bool {
        let Some(ownership) = &self.plan.ownership else { return true };
        let is_owner = |at: usize| {
            let member = self.plan.members.get(at);
            member.is_some_and(|member| ownership.machines().contains(&member.machine))
        };
        peer == other || ownership.is_replicated() && is_owner(peer) && is_owner(other)
    }

    /// Records that the last lost worker owned unfinished tiles that need its part, and says so.
    pub(super) fn fail_for_part(&mut self) -> String {
        let Some(lost) = self.losses.last_mut() else {
            return "no other machine holds the part of a placed operand that the rest of the product needs"
                .to_owned();
        };
        lost.part_is_lost = true;
        format!(
            "worker {} was lost ({}); its unfinished tiles need its part of a placed operand, and no other machine holds that \
             part, or can be sent it; place the operand again",
            self.peers[lost.peer].info.name, lost.why
        )
    }
}

/// Unfinished work of a lost part, with adjacent blocks as one: their common panels are sent once.
pub(super) fn coalesced(plan: &Plan, items: VecDeque<WorkItem>) -> VecDeque<WorkItem> {
    let mut all: Vec<BlockWork> = Vec::new();
    for work in items.iter().flat_map(|item| item.works(plan)) {
        let both = all.last().and_then(|last| last.coalesced_with(&work));
        match (both, all.last_mut()) {
            (Some(both), Some(last)) => *last = both,
            _ => all.push(work),
        }
    }
    all.into_iter().map(WorkItem::Part).collect()
}

/// Whether a member holds the parts of placed operands that a block needs.
pub(super) fn owns(plan: &Plan, member: usize, block: &Block) -> bool {
    let Some(ownership) = &plan.ownership else { return true };
    let planned = plan.members.get(member);
    planned.is_some_and(|member| ownership.may_compute(member.machine, &plan.regions[block.region], block))
}

#[cfg(test)]
mod tests;
