//! States of a peer, and reassignment of the work of lost workers.
//!
//! Place in the flow: a link ends, or the primary asks the shell to end it (`PrimaryAction::Disconnect`). The
//! shell drops partial receives and reports `Lost`. The peer's panel stream returns its unfinished work
//! (`PanelStream::abandon`), other peers get it as work items, and stealing may move these like any others.
//!
//! Invariants: a peer is one session; its number is never reused and its tile ids are its own. No event of a
//! peer counts after `Lost`, so a late result cannot be added twice. Returned tiles stay. After each event,
//! every work item belongs to a connected peer.
//!
//! A worker that connects again is a new peer: it has no share in the plan, and gets work by stealing, like
//! an idle peer.
//!
//! Deliberately absent: detecting the loss. Threads of the primary's own process are never lost: memory that
//! was leased to them cannot be revoked.

use super::peer::Peer;
use super::pinned::coalesced;
use super::units::gathered;
use super::work::WorkItem;
use super::{PeerInfo, Primary, PrimaryAction, PrimaryEvent, send_orders};
use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::number::{nearest_f64, to_u64};
use core::time::Duration;

/// Lost work is split into about this many parts per active worker.
const PARTS_EACH: f64 = 4.0;
/// Work whose owners were lost this many times goes to a worker that shares the primary's memory, if there is
/// one.
const ATTEMPTS_MAX: u32 = 4;

/// Whether a peer takes part in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// It is given work.
    Active,
    /// It gets work only if no active peer can take it.
    Reserve,
    /// It may have computed wrong tiles: its messages count, but it gets no more work.
    Suspect,
    /// The shell was told to close its link: its messages no longer count.
    Disconnecting,
    /// Its link has ended.
    Gone,
}

impl PeerState {
    /// Whether its messages count.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, Self::Active | Self::Reserve | Self::Suspect)
    }

    /// Whether it may be given work.
    pub(super) fn accepts_work(self) -> bool {
        matches!(self, Self::Active | Self::Reserve)
    }
}

/// A worker that was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// Its number.
    pub peer: usize,
    /// Reason, for messages.
    pub why: String,
    /// Time of the loss.
    pub at: Duration,
    /// Number of work items in which its work was reassigned.
    pub items: u64,
    /// That work as a fraction of the whole product, 0 to 1.
    pub part: f64,
    /// It was disconnected because its link is too slow: reconnecting would not help.
    pub too_slow: bool,
    /// Its results were wrong: it must not come back.
    pub is_wrong: bool,
    /// Its unfinished tiles need its part of a placed operand, which no other machine holds: the product failed.
    pub part_is_lost: bool,
}

impl Primary {
    /// The same primary, which reassigns the unfinished work of lost workers.
    pub fn recovering(mut self) -> Self {
        self.recovers = true;
        self.peers.iter_mut().for_each(|p| p.stages = !p.info.shares_memory);
        self
    }

    /// Lost workers, in the order of their losses.
    pub fn losses(&self) -> &[Lost] {
        &self.losses
    }

    /// Whether an event comes from a peer whose messages no longer count.
    pub(super) fn is_stale(&self, event: &PrimaryEvent) -> bool {
        let state = |peer: &usize| self.peers[*peer].state;
        match event {
            PrimaryEvent::Start
            | PrimaryEvent::Stop
            | PrimaryEvent::Tick
            | PrimaryEvent::Joined(_)
            | PrimaryEvent::Inspection(_)
            | PrimaryEvent::SpotChecked(_)
            | PrimaryEvent::Accepted => false,
            PrimaryEvent::Lost { peer, .. } => state(peer) == PeerState::Gone,
            PrimaryEvent::Sent { peer, .. }
            | PrimaryEvent::Credit { peer, .. }
            | PrimaryEvent::Landed { peer, .. }
            | PrimaryEvent::Alive { peer }
            | PrimaryEvent::Flow { peer, .. }
            | PrimaryEvent::Missing { peer, .. }
            | PrimaryEvent::Parted { peer, .. } => !state(peer).is_connected(),
        }
    }

    /// Asks the shell to close the link of a peer that broke the protocol, is silent or must not go on.
    /// Without recovery this fails the product.
    pub(super) fn disconnect(&mut self, peer: usize, why: &str, actions: &mut Vec<PrimaryAction>) {
        if !self.recovers || self.peers[peer].info.shares_memory {
            return self.fail(peer, why, actions);
        }
        self.peers[peer].state = PeerState::Disconnecting;
        actions.push(PrimaryAction::Disconnect { peer, why: why.to_owned() });
    }

    /// Gives a number to a worker that joins after the product is over, because its shell will use one. It
    /// gets no work.
    pub(super) fn register_late(&mut self, event: PrimaryEvent) {
        if let PrimaryEvent::Joined(info) = event {
            let peer = self.register(info);
            self.peers[peer].state = PeerState::Gone;
        }
    }

    /// Adds a peer with the next number.
    fn register(&mut self, info: PeerInfo) -> usize {
        // This number is beyond all members of the plan, so the plan gives this peer no share.
        let mut peer = Peer::new(&self.plan, self.plan.members.len() + self.peers.len(), info);
        peer.stages = self.recovers && !peer.info.shares_memory;
        self.directory.add_member();
        self.peers.push(peer);
        self.peers.len() - 1
    }

    /// A worker has joined. It is idle, so it is the first thief.
    pub(super) fn join(&mut self, info: PeerInfo, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let peer = self.register(info);
        let peer = &mut self.peers[peer];
        peer.heard(now);
        peer.stream.speed.advance_to(now);
        self.stealing.next_balance = now;
        self.balance(now, actions);
    }

    /// A peer is lost: other peers take over its unfinished work.
    pub(super) fn lose(&mut self, peer: usize, why: String, now: Duration, actions: &mut Vec<PrimaryAction>) {
        if self.tiles_left == 0 {
            // All tiles are complete, so the loss does not matter.
            return drop(self.peers[peer].abandon(&self.plan));
        }
        if !self.recovers || self.peers[peer].info.shares_memory {
            return self.fail(peer, &why, actions);
        }
        let unowned = self.peers[peer].abandon(&self.plan);
        let neighbours =
            self.directory.remove_member(peer).into_iter().filter(|o| self.peers[*o].state.is_connected());
        actions.extend(neighbours.map(|other| PrimaryAction::Parted { peer: other, other: peer }));
        send_orders(&mut self.directory, &mut self.peers, self.next_peer, actions);
        let (too_slow, is_wrong) =
            (self.peers[peer].flow.is_too_slow(), self.peers[peer].spot_checks.is_wrong);
        self.losses.push(Lost {
            peer,
            why,
            at: now,
            items: 0,
            part: 0.0,
            too_slow,
            is_wrong,
            part_is_lost: false,
        });
        for other in &mut self.peers {
            other.stream.speed.advance_to(now);
        }
        match self.reassign(peer, unowned) {
            Ok(reassigned) => {
                if let Some(lost) = self.losses.last_mut() {
                    (lost.items, lost.part) = reassigned;
                }
            }
            Err(why) => {
                self.over = true;
                return actions.push(PrimaryAction::Fail(why));
            }
        }
        self.stealing.next_balance = now;
        self.serve(now, actions);
    }

    /// Divides unowned work among the peers; all that is left of a unit goes to one peer. Returns the number of
    /// work items and their fraction of the whole product, or an error if no peer has room for them.
    pub(super) fn reassign(
        &mut self,
        from: usize,
        unowned: VecDeque<WorkItem>,
    ) -> Result<(u64, f64), String> {
        let all: f64 = unowned.iter().map(|item| item.amount(&self.plan)).sum();
        let is_part = self.plan.ownership.as_ref().is_some_and(|ownership| !ownership.is_replicated());
        let unowned = if is_part { coalesced(&self.plan, unowned) } else { unowned };
        let rates = if is_part { self.rates_for_part(&unowned, all) } else { Vec::new() };
        let works = self.peers.iter().filter(|p| p.state == PeerState::Active).count();
        let equal = all / (PARTS_EACH * nearest_f64(to_u64(works.max(1))));
        let sum: f64 = rates.iter().sum();
        // The last takes the rest: a cell that rounding leaves over would take its panels to one more peer.
        let mut portions = rates.iter().skip(1).rev().map(|rate| all * rate / sum);
        let rest = if is_part { f64::INFINITY } else { equal };
        let mut taken: BTreeMap<usize, Vec<WorkItem>> = BTreeMap::new();
        for mut group in gathered(&self.plan, unowned) {
            while !group.is_empty() {
                let mut parts = core::mem::take(&mut group);
                if let [single] = &parts[..] {
                    let wanted = portions.next().unwrap_or(rest);
                    let (part, rest) = single.split_off(&self.plan, wanted);
                    (parts, group) = (vec![part], rest.into_iter().collect());
                }
                let to = self.new_owner(&parts)?;
                for part in parts {
                    self.peers[to].stream.speed.given += part.amount(&self.plan);
                    self.stealing.moves.push((from, to, part.clone()));
                    taken.entry(to).or_default().push(part);
                }
            }
        }
        let reassigned = (taken.values().map(|items| to_u64(items.len())).sum(), all / self.all_work());
        for (to, parts) in taken {
            let items = &mut self.peers[to].stream.items;
            if self.plan.relay {
                // The peer's own blocks stay first, in step with those of the members that retain panels for
                // it.
                items.extend(parts);
            } else {
                // Other work may wait for these sums, so they come first.
                parts.into_iter().rev().for_each(|part| items.push_front(part));
            }
        }
        Ok(reassigned)
    }

    /// The peer that would finish `parts` first, among active peers with memory for a cell of each, or else
    /// among the reserve.
    fn new_owner(&mut self, parts: &[WorkItem]) -> Result<usize, String> {
        let accepts = |at: usize| self.peers[at].state.accepts_work();
        let owners: Vec<bool> = (0..self.peers.len())
            .map(|at| accepts(at) && parts.iter().all(|part| self.is_owner(at, part)))
            .collect();
        let has_owner = owners.contains(&true);
        let can_be_sent = self.operands.can_be_sent();
        let able: Vec<bool> =
            (0..owners.len()).map(|at| owners[at] || !has_owner && can_be_sent && accepts(at)).collect();
        let least = |part: &WorkItem| part.least_bytes(&self.plan, &self.recipes, has_owner);
        let need = parts.iter().map(least).max().unwrap_or(0);
        let has_room = |at: usize| able[at] && self.peers[at].info.credit_bytes >= need;
        let is_safe = |at: usize| has_room(at) && self.peers[at].info.shares_memory;
        let is_tried = parts.iter().any(|part| part.attempt() >= ATTEMPTS_MAX);
        let only_safe = is_tried && (0..able.len()).any(is_safe);
        let can = |at: usize| if only_safe { is_safe(at) } else { has_room(at) };
        let work: f64 = parts.iter().map(|part| part.amount(&self.plan)).sum();
        let seconds = |peer: &Peer| (peer.stream.speed.left() + work) / peer.known_rate();
        let soonest = |state: PeerState| {
            let peers = self.peers.iter().enumerate().filter(|(at, peer)| peer.state == state && can(*at));
            peers.map(|(at, peer)| (at, seconds(peer))).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
        };
        if let Some(to) = soonest(PeerState::Active).or_else(|| soonest(PeerState::Reserve)) {
            self.peers[to].state = PeerState::Active;
            return Ok(to);
        }
        if self.plan.ownership.is_some() && !has_owner && (!can_be_sent || able.contains(&true)) {
            return Err(self.fail_for_part());
        }
        let (name, why) = match self.losses.last() {
            Some(lost) => (self.peers[lost.peer].info.name.as_str(), lost.why.as_str()),
            None => ("", ""),
        };
        if self.losses.is_empty() {
            return Err(format!(
                "no machine has the {need} bytes of memory that the rest of the product needs"
            ));
        }
        Err(match self.peers.iter().any(|peer| peer.state.accepts_work()) {
            true => format!(
                "worker {name} was lost ({why}), and no remaining machine has the {need} bytes of memory that its work \
                 needs"
            ),
            false => format!("every machine was lost, worker {name} as the last: {why}"),
        })
    }
}
