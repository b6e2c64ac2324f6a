//! Machines that are lost: what they had to do goes to others.
//!
//! Place in the flow: a link ends, or the primary has one ended (`Action::Cut`); the shell drops what was landing and says
//! `Lost`. The walk says what is left (`Walk::abandon`), the other peers get it as lots, and stealing moves these as any.
//!
//! Invariants: a peer is a session. Its number is not used again, ids of tiles are its own, and after `Lost` nothing of it
//! counts: so what comes late cannot be added twice. What is back stays. When an event has been handled nobody's lots are
//! with a machine that is gone.
//!
//! Who joins is a new peer, whoever it was before: one without a part in the plan, which takes work from others as who is done.
//!
//! Deliberately absent: finding out. Threads of the primary's own process are never lost: what they were
//! lent cannot be taken back.

use super::peer::Peer;
use super::work::Lot;
use super::{Action, Event, PeerInfo, Primary, send_orders};
use bramble_matrix::number::{nearest_f64, to_u64};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Into how many parts for each machine lost work is cut.
const PARTS_EACH: f64 = 4.0;
/// Work that was begun so often at machines that were then lost is done in the primary's own memory, if anybody does any there.
const ATTEMPTS_MAX: u32 = 4;

/// Whether a peer has a part in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It is given work.
    Works,
    /// It is given work when nobody else can do it.
    Reserve,
    /// It may have made tiles that are wrong: it is heard, and given nothing more.
    Suspect,
    /// The shell was told to close its link: nothing that it says counts any more.
    Cut,
    /// Its link has ended.
    Gone,
}

impl Life {
    /// Whether what it says counts.
    pub(super) fn is_heard(self) -> bool {
        matches!(self, Self::Works | Self::Reserve | Self::Suspect)
    }

    /// Whether it may be given work.
    pub(super) fn is_trusted(self) -> bool {
        matches!(self, Self::Works | Self::Reserve)
    }
}

/// A machine that was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// Which.
    pub peer: usize,
    /// Why.
    pub why: String,
    /// When.
    pub at: Duration,
    /// In how many lots its work was given to others.
    pub lots: u64,
    /// How much that is of all work, 0 to 1.
    pub part: f64,
    /// It is there, and its link too slow: it would not help if it came back.
    pub too_slow: bool,
    /// Its results were wrong: it must not come back.
    pub is_wrong: bool,
}

impl Primary {
    /// The same, where others do what a machine that is lost has not given back.
    pub fn recovering(mut self) -> Self {
        self.recovers = true;
        self.peers.iter_mut().for_each(|p| p.stages = !p.info.shares_memory);
        self
    }

    /// Machines that were lost, in this order.
    pub fn losses(&self) -> &[Lost] {
        &self.losses
    }

    /// Whether an event is of a peer that has no part in the product any more.
    pub(super) fn is_stale(&self, event: &Event) -> bool {
        let life = |peer: &usize| self.peers[*peer].life;
        match event {
            Event::Start
            | Event::Stop
            | Event::Tick
            | Event::Joined(_)
            | Event::Wrong { .. }
            | Event::Looked(_)
            | Event::Accepted => false,
            Event::Lost { peer, .. } => life(peer) == Life::Gone,
            Event::Sent { peer, .. }
            | Event::Credit { peer, .. }
            | Event::Landed { peer, .. }
            | Event::Alive { peer }
            | Event::Flow { peer, .. }
            | Event::Missing { peer, .. }
            | Event::Parted { peer, .. } => !life(peer).is_heard(),
        }
    }

    /// A peer broke a rule, or is silent.
    pub(super) fn cut(&mut self, peer: usize, why: &str, actions: &mut Vec<Action>) {
        if !self.recovers || self.peers[peer].info.shares_memory {
            return self.fail(peer, why, actions);
        }
        self.peers[peer].life = Life::Cut;
        actions.push(Action::Cut { peer, why: why.to_owned() });
    }

    /// Who comes when all is over has a number all the same, by which its shell asks, and no part.
    pub(super) fn enlist_late(&mut self, event: Event) {
        if let Event::Joined(info) = event {
            let peer = self.enlist(info);
            self.peers[peer].life = Life::Gone;
        }
    }

    /// A machine gets the next number.
    fn enlist(&mut self, info: PeerInfo) -> usize {
        // No member of the plan has that number.
        let mut peer = Peer::new(&self.plan, self.plan.members.len() + self.peers.len(), info);
        peer.stages = self.recovers && !peer.info.shares_memory;
        self.board.joined();
        self.peers.push(peer);
        self.peers.len() - 1
    }

    /// A machine has come. It has nothing yet, so it is the first to take from others.
    pub(super) fn join(&mut self, info: PeerInfo, now: Duration, actions: &mut Vec<Action>) {
        let peer = self.enlist(info);
        let peer = &mut self.peers[peer];
        peer.heard(now);
        peer.walk.pace.pass(now);
        self.stealing.next_look = now;
        self.balance(now, actions);
    }

    /// A peer is gone: others do what it has not given back.
    pub(super) fn lose(&mut self, peer: usize, why: String, now: Duration, actions: &mut Vec<Action>) {
        if self.tiles_left == 0 {
            // It did its part, and nobody waits for it.
            return drop(self.peers[peer].abandon(&self.plan));
        }
        if !self.recovers || self.peers[peer].info.shares_memory {
            return self.fail(peer, &why, actions);
        }
        let orphans = self.peers[peer].abandon(&self.plan);
        let neighbours = self.board.gone(peer).into_iter().filter(|o| self.peers[*o].life.is_heard());
        actions.extend(neighbours.map(|other| Action::Parted { peer: other, other: peer }));
        send_orders(&mut self.board, &mut self.peers, self.next_peer, actions);
        let (too_slow, is_wrong) = (self.peers[peer].flow.is_too_slow(), self.peers[peer].seen.is_wrong);
        self.losses.push(Lost { peer, why, at: now, lots: 0, part: 0.0, too_slow, is_wrong });
        for other in &mut self.peers {
            other.walk.pace.pass(now);
        }
        match self.adopt(peer, orphans) {
            Ok(adopted) => {
                if let Some(lost) = self.losses.last_mut() {
                    (lost.lots, lost.part) = adopted;
                }
            }
            Err(why) => {
                self.over = true;
                return actions.push(Action::Fail(why));
            }
        }
        self.stealing.next_look = now;
        self.serve(now, actions);
    }

    /// Others take what was a peer's: in how many lots, and how much that is of all work. An error where nobody can.
    pub(super) fn adopt(&mut self, from: usize, mut orphans: VecDeque<Lot>) -> Result<(u64, f64), String> {
        let works = self.peers.iter().filter(|p| p.life == Life::Works).count();
        let all: f64 = orphans.iter().map(|lot| lot.amount(&self.plan)).sum();
        let wanted = all / (PARTS_EACH * nearest_f64(to_u64(works.max(1))));
        let mut taken: BTreeMap<usize, Vec<Lot>> = BTreeMap::new();
        let mut before = None;
        while let Some(lot) = orphans.pop_front() {
            let (part, rest) = lot.cut_to(&self.plan, wanted);
            if let Some(rest) = rest {
                orphans.push_front(rest);
            }
            let to = self.taker(&part, before)?;
            before = part.is_together(&self.plan).then_some(to);
            self.peers[to].walk.pace.given += part.amount(&self.plan);
            self.stealing.moves.push((from, to, part.clone()));
            taken.entry(to).or_default().push(part);
        }
        let adopted = (taken.values().map(|lots| to_u64(lots.len())).sum(), all / self.all_work());
        for (to, parts) in taken {
            let lots = &mut self.peers[to].walk.lots;
            if self.plan.relay {
                // Its own blocks stay in step with those of the others, which keep panels for it.
                lots.extend(parts);
            } else {
                // Others may wait for these sums.
                parts.into_iter().rev().for_each(|part| lots.push_front(part));
            }
        }
        Ok(adopted)
    }

    /// Who would be done first with what it has and this: of those that have room for a cell of it, and that work; where none
    /// does, of the reserve. Sums that wait for each other stay with who has those before.
    fn taker(&mut self, part: &Lot, before: Option<usize>) -> Result<usize, String> {
        let need = part.least_bytes(&self.plan, &self.recipes);
        let has_room = |peer: &Peer| peer.life.is_trusted() && peer.info.credit_bytes >= need;
        let is_safe = |peer: &Peer| has_room(peer) && peer.info.shares_memory;
        let only_safe = part.attempt() >= ATTEMPTS_MAX && self.peers.iter().any(is_safe);
        let can = |peer: &Peer| if only_safe { is_safe(peer) } else { has_room(peer) };
        if let Some(to) =
            before.filter(|to| part.goes_with_the_one_before(&self.plan) && can(&self.peers[*to]))
        {
            return Ok(to);
        }
        let work = part.amount(&self.plan);
        let seconds = |peer: &Peer| {
            let seen = peer.walk.pace.rate();
            let rate = if seen > 0.0 { seen } else { peer.info.work_per_s.max(1.0) };
            (peer.walk.pace.left() + work) / rate
        };
        let soonest = |life: Life| {
            let peers = self.peers.iter().enumerate().filter(|(_, peer)| peer.life == life && can(peer));
            peers.map(|(at, peer)| (at, seconds(peer))).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
        };
        if let Some(to) = soonest(Life::Works).or_else(|| soonest(Life::Reserve)) {
            self.peers[to].life = Life::Works;
            return Ok(to);
        }
        let (name, why) = match self.losses.last() {
            Some(lost) => (self.peers[lost.peer].info.name.as_str(), lost.why.as_str()),
            None => ("", ""),
        };
        if self.losses.is_empty() {
            return Err(format!(
                "no machine has the {need} bytes of memory that what is left of the product takes"
            ));
        }
        Err(match self.peers.iter().any(|peer| peer.life.is_trusted()) {
            true => format!(
                "worker {name} was lost ({why}), and no machine that is left has the {need} bytes of memory that its work \
                 takes"
            ),
            false => format!("every machine was lost, worker {name} as the last: {why}"),
        })
    }
}
