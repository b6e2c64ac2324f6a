//! What faults do to the machines and links of a trial.
//!
//! Invariants: the primary's own threads have none. A fault at a machine that has no part, or that is gone, does nothing. It
//! stays where it began: a machine that comes in again meanwhile has nothing of it.

use super::{Happening, Trial};
use crate::fault::{At, Fault, FaultKind, Site};
use std::time::Duration;

/// A link that takes so many seconds for a ping may seem dead.
const PING_MAX_S: f64 = 1.0;

/// A primary that says nothing for longer may be given up.
const QUIET_MAX: Duration = Duration::from_secs(12);

/// What a fault is at.
#[derive(Clone, Debug, Default)]
pub(super) struct Struck {
    peer: Option<usize>,
    lanes: Vec<usize>,
}

impl Trial {
    /// A fault begins.
    pub(super) fn begin_fault(&mut self, number: usize) {
        let fault = self.faults[number];
        if let Some(to) = fault.to {
            let seconds = to.saturating_sub(fault.from).as_secs_f64();
            self.agenda.add(seconds, Happening::Over(number));
        }
        let lanes =
            if fault.kind.is_on_a_link() { self.lanes_at(fault.kind, fault.site) } else { Vec::new() };
        self.struck[number] = Struck { peer: self.peer_at(fault.site), lanes };
        if fault.site == Site::Primary {
            return self.begin_at_the_primary(fault);
        }
        match (fault.kind, self.struck[number].peer) {
            (FaultKind::Cut, _) => self.sever(fault.site),
            (FaultKind::Stall | FaultKind::Slow(_) | FaultKind::Delay(_) | FaultKind::Late(_), _) => {
                for lane in self.struck[number].lanes.clone() {
                    self.lanes[lane].suffer(number, fault.kind);
                    self.blame(lane, fault.kind);
                }
            }
            (FaultKind::Join, _) => self.come(fault.site),
            (_, None) => {}
            (FaultKind::Kill | FaultKind::Restart, Some(peer)) => {
                self.checks.dies(peer, self.clock.passed());
                self.stop(peer, None);
            }
            (FaultKind::Memory, Some(peer)) => {
                self.checks.dies(peer, self.clock.passed());
                self.stop(peer, Some("there is no memory for a matrix".into()));
            }
            (FaultKind::Off, Some(peer)) => {
                self.checks.dies(peer, self.clock.passed());
                self.silence(peer);
                for lane in self.lanes_of(peer) {
                    self.lanes[lane].suffer(number, FaultKind::Stall);
                }
            }
            (FaultKind::Pause, Some(peer)) => {
                self.checks.suffers(peer);
                self.stand(peer, true);
            }
            (FaultKind::Lie, Some(peer)) => self.nodes[peer].lies += 1,
            (kind @ FaultKind::Busy(_), Some(peer)) => self.be_busy(peer, number, Some(kind)),
            (FaultKind::Leap(by), Some(peer)) => {
                self.seen.odd_clocks += 1;
                self.nodes[peer].watch.leap(self.agenda.now(), by);
                self.blame_a_leap(Some(peer));
            }
            (FaultKind::Still, Some(peer)) => {
                self.seen.odd_clocks += 1;
                self.nodes[peer].watch.stand(self.agenda.now(), true);
            }
        }
    }

    /// A fault is over.
    pub(super) fn end_fault(&mut self, number: usize) {
        let fault = self.faults[number];
        match (fault.kind, self.struck[number].peer) {
            (FaultKind::Restart, _) => self.come(fault.site),
            (FaultKind::Pause, Some(peer)) => self.stand(peer, false),
            (FaultKind::Busy(_), Some(peer)) => self.be_busy(peer, number, None),
            (FaultKind::Lie, Some(peer)) => self.nodes[peer].lies -= 1,
            (FaultKind::Still, Some(peer)) => self.nodes[peer].watch.stand(self.agenda.now(), false),
            _ if fault.site == Site::Primary => self.end_at_the_primary(fault),
            _ => {
                for lane in self.struck[number].lanes.clone() {
                    self.lanes[lane].recover((lane, number), &mut self.agenda);
                    self.pump(lane);
                }
            }
        }
    }

    /// The peer that a machine is, or was last.
    pub(super) fn peer_of(&self, at: At) -> Option<usize> {
        let At::Worker(worker) = at else { return None };
        self.machines.iter().rposition(|machine| *machine == worker && worker > 0)
    }

    fn peer_at(&self, site: Site) -> Option<usize> {
        match site {
            Site::Worker(worker) => self.peer_of(At::Worker(worker)),
            Site::Link { .. } | Site::Primary => None,
        }
    }

    /// The lanes that a fault of links is on.
    fn lanes_at(&self, kind: FaultKind, site: Site) -> Vec<usize> {
        let (from, to, both) = match site {
            Site::Link { from, to, both } => (from, to, both),
            Site::Worker(worker) => (At::Worker(worker), At::Primary, !matches!(kind, FaultKind::Late(_))),
            Site::Primary => return Vec::new(),
        };
        let lane = |from: At, to: At| match (from, to) {
            (At::Primary, to) => self.peer_of(to).map(|peer| self.out(peer)),
            (from, At::Primary) => self.peer_of(from).map(|peer| self.back(peer)),
            (from, to) => Some(self.across(self.peer_of(from)?, self.peer_of(to)?)),
        };
        let ways = [lane(from, to), lane(to, from).filter(|_| both)];
        ways.into_iter().flatten().collect()
    }

    /// A link breaks: what is on it is lost, and both ends see it.
    fn sever(&mut self, site: Site) {
        for lane in self.lanes_at(FaultKind::Cut, site) {
            if self.lanes[lane].is_over() {
                continue;
            }
            self.lanes[lane].end();
            let peer = match (self.sender(lane), self.receiver(lane)) {
                (None, Some(peer)) | (Some(peer), None) => Some(peer),
                _ => None,
            };
            if let Some(peer) = peer.filter(|peer| self.nodes[*peer].lives) {
                self.checks.dies(peer, self.clock.passed());
            }
            let seconds = self.random.between(0.0, 0.2);
            self.agenda.add(seconds, Happening::Broken(lane));
        }
    }

    /// What can have an end seem dead that is not, or too slow.
    fn blame(&mut self, lane: usize, kind: FaultKind) {
        // No real link takes seconds for a ping alone; while C is looked at nothing else is on it.
        let is_dead = kind == FaultKind::Stall || self.lanes[lane].ping_s() > PING_MAX_S;
        if let (None, Some(peer)) | (Some(peer), None) = (self.sender(lane), self.receiver(lane)) {
            if is_dead {
                self.checks.suffers(peer);
            }
            if matches!(kind, FaultKind::Stall | FaultKind::Slow(_)) {
                self.checks.slows(peer);
            }
        }
    }

    /// A frame whose end is timed by a clock that has leapt may seem to stand still.
    fn blame_a_leap(&mut self, end: Option<usize>) {
        for lane in 0..self.lanes.len() {
            if self.receiver(lane) == end
                && self.lanes[lane].is_in_a_frame()
                && let Some(peer) = end.or_else(|| self.sender(lane))
            {
                self.checks.suffers(peer);
            }
        }
    }

    fn begin_at_the_primary(&mut self, fault: Fault) {
        let now = self.agenda.now();
        let long = fault.to.unwrap_or(fault.from).saturating_sub(fault.from);
        match fault.kind {
            FaultKind::Kill | FaultKind::Off => return self.begin_to_die(fault.kind),
            FaultKind::Pause => self.stand_still(true),
            FaultKind::Leap(by) => {
                self.watch.leap(now, by);
                self.blame_a_leap(None);
            }
            _ => self.watch.stand(now, true),
        }
        self.seen.odd_clocks += 1;
        self.checks.clock_goes_wrong();
        if long > QUIET_MAX {
            (0..self.count).for_each(|peer| self.checks.suffers(peer));
        }
    }

    fn end_at_the_primary(&mut self, fault: Fault) {
        match fault.kind {
            FaultKind::Pause => self.stand_still(false),
            FaultKind::Still => self.watch.stand(self.agenda.now(), false),
            _ => {}
        }
        self.moved_last = self.agenda.now();
        (0..self.count).for_each(|peer| {
            let out = self.out(peer);
            self.lanes[out].held_last = Some(self.moved_last);
        });
    }

    /// The primary's process is suspended, or goes on.
    fn stand_still(&mut self, stands: bool) {
        self.stands = if stands { self.stands + 1 } else { self.stands.saturating_sub(1) };
        for lane in 0..self.lanes.len() {
            let (is_from, is_to) = (self.sender(lane).is_none(), self.receiver(lane).is_none());
            if is_from || is_to {
                self.lanes[lane].stand(lane, (is_from, stands), &mut self.agenda);
            }
        }
        for peer in (0..self.count).filter(|peer| self.nodes[*peer].shares_memory).collect::<Vec<_>>() {
            self.stand(peer, stands);
        }
        if self.stands == 0 {
            let deferred = std::mem::take(&mut self.deferred);
            deferred.into_iter().for_each(|happening| self.agenda.add(0.0, happening));
            (0..self.lanes.len()).for_each(|lane| self.pump(lane));
        }
    }

    /// Whether something happens at the primary, which is suspended.
    pub(super) fn is_for_later(&self, happening: &Happening) -> bool {
        let at_the_primary = |number: usize, kind| {
            let fault = self.faults[number];
            fault.kind == kind || fault.site == Site::Primary && fault.kind != FaultKind::Pause
        };
        self.stands > 0
            && match happening {
                Happening::Reader(_) | Happening::Looked | Happening::Kept | Happening::Spotted(_) => true,
                Happening::Broken(lane) => self.receiver(*lane).is_none(),
                // Only a primary that runs lets machines in.
                Happening::Fault(number) => at_the_primary(*number, FaultKind::Join),
                Happening::Over(number) => at_the_primary(*number, FaultKind::Restart),
                Happening::Link(..) | Happening::Done(..) | Happening::Tick => false,
            }
    }
}
