//! Effects of faults on the machines and links of a trial.
//!
//! Invariants: the primary's own threads have no faults. A fault at a machine that has no part, or that is gone, does nothing. A
//! fault stays with the session where it began: a machine that joins again meanwhile is free of it.

use super::{Trial, TrialEvent};
use crate::fault::{FaultKind, FaultSite, LinkEnd, SimFault};
use std::time::Duration;

/// A link on which a ping takes longer than this may look lost.
const PING_MAX_S: f64 = 1.0;

/// A primary that is silent for longer may be given up.
const QUIET_MAX: Duration = Duration::from_secs(12);

/// What a fault has struck.
#[derive(Clone, Debug, Default)]
pub(super) struct Struck {
    peer: Option<usize>,
    lanes: Vec<usize>,
}

impl Trial {
    /// A fault begins.
    pub(super) fn begin_fault(&mut self, number: usize) {
        let fault = self.faults.all[number];
        if let Some(to) = fault.to {
            let seconds = to.saturating_sub(fault.from).as_secs_f64();
            self.event_queue.add(seconds, TrialEvent::Over(number));
        }
        let lanes =
            if fault.kind.is_on_a_link() { self.lanes_at(fault.kind, fault.site) } else { Vec::new() };
        self.faults.struck[number] = Struck { peer: self.peer_at(fault.site), lanes };
        if fault.site == FaultSite::Primary {
            return self.begin_at_the_primary(fault);
        }
        match (fault.kind, self.faults.struck[number].peer) {
            (FaultKind::Cut, _) => self.sever(fault.site),
            (FaultKind::Stall | FaultKind::Slow(_) | FaultKind::Delay(_) | FaultKind::Late(_), _) => {
                for lane in self.faults.struck[number].lanes.clone() {
                    self.lanes[lane].suffer(number, fault.kind);
                    self.blame(lane, fault.kind);
                }
            }
            (FaultKind::Join, _) => self.join(fault.site),
            (_, None) => {}
            (FaultKind::Kill | FaultKind::Restart, Some(peer)) => {
                self.checks.machine_died(peer, self.process.clock.passed());
                self.stop(peer, None);
            }
            (FaultKind::Memory, Some(peer)) => {
                self.checks.machine_died(peer, self.process.clock.passed());
                self.stop(peer, Some("there is no memory for a matrix".into()));
            }
            (FaultKind::Off, Some(peer)) => {
                self.checks.machine_died(peer, self.process.clock.passed());
                self.nodes[peer].machine.die();
                for lane in self.lanes_of(peer) {
                    self.lanes[lane].suffer(number, FaultKind::Stall);
                }
            }
            (FaultKind::Pause, Some(peer)) => {
                self.checks.may_look_lost(peer);
                self.suspend(peer, true);
            }
            (FaultKind::Lie, Some(peer)) => self.nodes[peer].lies += 1,
            (kind @ FaultKind::Busy(_), Some(peer)) => self.set_busy(peer, number, Some(kind)),
            (FaultKind::Leap(by), Some(peer)) => {
                self.record.seen.odd_clocks += 1;
                self.nodes[peer].session.watch.leap(self.event_queue.now(), by);
                self.blame_a_leap(Some(peer));
            }
            (FaultKind::Still, Some(peer)) => {
                self.record.seen.odd_clocks += 1;
                self.nodes[peer].session.watch.stand(self.event_queue.now(), true);
            }
        }
    }

    /// A fault ends.
    pub(super) fn end_fault(&mut self, number: usize) {
        let fault = self.faults.all[number];
        match (fault.kind, self.faults.struck[number].peer) {
            (FaultKind::Restart, _) => self.join(fault.site),
            (FaultKind::Pause, Some(peer)) => self.suspend(peer, false),
            (FaultKind::Busy(_), Some(peer)) => self.set_busy(peer, number, None),
            (FaultKind::Lie, Some(peer)) => self.nodes[peer].lies -= 1,
            (FaultKind::Still, Some(peer)) => {
                self.nodes[peer].session.watch.stand(self.event_queue.now(), false)
            }
            _ if fault.site == FaultSite::Primary => self.end_at_the_primary(fault),
            _ => {
                for lane in self.faults.struck[number].lanes.clone() {
                    self.lanes[lane].recover((lane, number), &mut self.event_queue);
                    self.pump(lane);
                }
            }
        }
    }

    /// The current or last peer of a machine.
    pub(super) fn peer_of(&self, at: LinkEnd) -> Option<usize> {
        let LinkEnd::Worker(worker) = at else { return None };
        self.members.machines.iter().rposition(|machine| *machine == worker && worker > 0)
    }

    fn peer_at(&self, site: FaultSite) -> Option<usize> {
        match site {
            FaultSite::Worker(worker) => self.peer_of(LinkEnd::Worker(worker)),
            FaultSite::Link { .. } | FaultSite::Primary => None,
        }
    }

    /// The lanes that a fault of a link affects.
    fn lanes_at(&self, kind: FaultKind, site: FaultSite) -> Vec<usize> {
        let (from, to, both) = match site {
            FaultSite::Link { from, to, both } => (from, to, both),
            FaultSite::Worker(worker) => {
                (LinkEnd::Worker(worker), LinkEnd::Primary, !matches!(kind, FaultKind::Late(_)))
            }
            FaultSite::Primary => return Vec::new(),
        };
        let lane = |from: LinkEnd, to: LinkEnd| match (from, to) {
            (LinkEnd::Primary, to) => self.peer_of(to).map(|peer| self.out(peer)),
            (from, LinkEnd::Primary) => self.peer_of(from).map(|peer| self.back(peer)),
            (from, to) => Some(self.across(self.peer_of(from)?, self.peer_of(to)?)),
        };
        let ways = [lane(from, to), lane(to, from).filter(|_| both)];
        ways.into_iter().flatten().collect()
    }

    /// A link breaks: frames on it are lost, and both ends notice.
    pub(super) fn sever(&mut self, site: FaultSite) {
        for lane in self.lanes_at(FaultKind::Cut, site) {
            if self.lanes[lane].is_over() {
                continue;
            }
            self.lanes[lane].end();
            let peer = match (self.sender(lane), self.receiver(lane)) {
                (None, Some(peer)) | (Some(peer), None) => Some(peer),
                _ => None,
            };
            if let Some(peer) = peer.filter(|peer| self.nodes[*peer].machine.lives) {
                self.checks.machine_died(peer, self.process.clock.passed());
            }
            let seconds = self.random.between(0.0, 0.2);
            self.event_queue.add(seconds, TrialEvent::Broken(lane));
        }
    }

    /// Records machines that a fault of a link may make look lost, or too slow.
    fn blame(&mut self, lane: usize, kind: FaultKind) {
        // No real link takes seconds for a ping alone; during the inspection of C only pings are on it.
        let is_dead = kind == FaultKind::Stall || self.lanes[lane].ping_s() > PING_MAX_S;
        if let (None, Some(peer)) | (Some(peer), None) = (self.sender(lane), self.receiver(lane)) {
            if is_dead {
                self.checks.may_look_lost(peer);
            }
            if matches!(kind, FaultKind::Stall | FaultKind::Slow(_)) {
                self.checks.slows(peer);
            }
        }
    }

    /// Records that a frame in transit may look stalled to an end whose clock has jumped.
    fn blame_a_leap(&mut self, end: Option<usize>) {
        for lane in 0..self.lanes.len() {
            if self.receiver(lane) == end
                && self.lanes[lane].is_in_a_frame()
                && let Some(peer) = end.or_else(|| self.sender(lane))
            {
                self.checks.may_look_lost(peer);
            }
        }
    }

    fn begin_at_the_primary(&mut self, fault: SimFault) {
        let now = self.event_queue.now();
        let long = fault.to.unwrap_or(fault.from).saturating_sub(fault.from);
        match fault.kind {
            FaultKind::Kill | FaultKind::Off => return self.begin_to_die(fault.kind),
            FaultKind::Pause => self.suspend_primary(true),
            FaultKind::Leap(by) => {
                self.process.watch.leap(now, by);
                self.blame_a_leap(None);
            }
            _ => self.process.watch.stand(now, true),
        }
        self.record.seen.odd_clocks += 1;
        self.checks.clock_goes_wrong();
        if long > QUIET_MAX {
            (0..self.members.count).for_each(|peer| self.checks.may_look_lost(peer));
        }
    }

    fn end_at_the_primary(&mut self, fault: SimFault) {
        match fault.kind {
            FaultKind::Pause => self.suspend_primary(false),
            FaultKind::Still => self.process.watch.stand(self.event_queue.now(), false),
            _ => {}
        }
        self.record.moved_last = self.event_queue.now();
        (0..self.members.count).for_each(|peer| {
            let out = self.out(peer);
            self.lanes[out].held_last = Some(self.record.moved_last);
        });
    }

    /// Suspends or resumes the primary's process.
    fn suspend_primary(&mut self, stands: bool) {
        self.process.stands =
            if stands { self.process.stands + 1 } else { self.process.stands.saturating_sub(1) };
        for lane in 0..self.lanes.len() {
            let (is_from, is_to) = (self.sender(lane).is_none(), self.receiver(lane).is_none());
            if is_from || is_to {
                self.lanes[lane].stand(lane, (is_from, stands), &mut self.event_queue);
            }
        }
        for peer in
            (0..self.members.count).filter(|peer| self.nodes[*peer].machine.shares_memory).collect::<Vec<_>>()
        {
            self.suspend(peer, stands);
        }
        if self.process.stands == 0 {
            let deferred = std::mem::take(&mut self.process.deferred);
            deferred.into_iter().for_each(|event| self.event_queue.add(0.0, event));
            (0..self.lanes.len()).for_each(|lane| self.pump(lane));
        }
    }

    /// Whether an event needs the primary, which is suspended.
    pub(super) fn is_for_later(&self, event: &TrialEvent) -> bool {
        let at_the_primary = |number: usize, kind| {
            let fault = self.faults.all[number];
            fault.kind == kind || fault.site == FaultSite::Primary && fault.kind != FaultKind::Pause
        };
        self.process.stands > 0
            && match event {
                TrialEvent::Reader(_) | TrialEvent::Looked | TrialEvent::Kept | TrialEvent::Spotted(_) => {
                    true
                }
                TrialEvent::Broken(lane) => self.receiver(*lane).is_none(),
                // Only a running primary admits machines.
                TrialEvent::Fault(number) => at_the_primary(*number, FaultKind::Join),
                TrialEvent::Over(number) => at_the_primary(*number, FaultKind::Restart),
                TrialEvent::Link(..) | TrialEvent::Done(..) | TrialEvent::Tick => false,
            }
    }
}
