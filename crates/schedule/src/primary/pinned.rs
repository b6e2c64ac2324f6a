//! Work that only the owners of a part of a placed operand can do.
//!
//! Place in the flow: stealing, reassignment and recomputing ask here before they give a peer work. Without a placed
//! operand, every peer can do everything.
//!
//! Invariant: a peer gets only work whose panels of the placed operand are all in its part. A peer that is no member
//! of the plan holds nothing.
//!
//! Deliberately absent: putting a lost part on another machine.

use super::Primary;
use super::work::WorkItem;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

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

    /// Whether a peer can do this work.
    pub(super) fn can_do(&self, peer: usize, item: &WorkItem) -> bool {
        let Some(ownership) = &self.plan.ownership else { return true };
        let Some(member) = self.plan.members.get(peer) else { return false };
        let regions = &self.plan.regions;
        item.works(&self.plan)
            .all(|work| ownership.may_compute(member.machine, &regions[work.block.region], &work.block))
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
            "worker {} was lost ({}), and no other machine holds its part of a placed operand, which its unfinished tiles \
             need; place the operand again",
            self.peers[lost.peer].info.name, lost.why
        )
    }
}

#[cfg(test)]
mod tests;
