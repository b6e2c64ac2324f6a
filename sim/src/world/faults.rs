//! Effects of faults on machines in the timing mode: they die, are suspended, slow down, are lost, and join.
//!
//! Place in the flow: faults begin and end by the clock; the primary learns of them as its shell does: it sees a link end at
//! once, and its state machine gives up a silent one (`wire/src/limits.rs`).
//!
//! Invariants: the primary's own threads have no faults. A fault stays with the session that it struck. Frames that had left a
//! machine before its death arrive. A machine that was given up while suspended joins again as a new session when it resumes.
//!
//! Deliberately absent: links that break, stall or delay frames; trials have those.

use super::{SimSession, World, WorldEvent, end};
use crate::fault::{FaultKind, FaultSite};
use crate::participants;
use crate::report::SimJoin;
use bramble_schedule::primary::PrimaryEvent;

impl World<'_> {
    /// A fault begins.
    pub(super) fn begin_fault(&mut self, number: usize) {
        let fault = self.faults.faults[number];
        if let Some(to) = fault.to {
            let seconds = to.saturating_sub(fault.from).as_secs_f64();
            self.event_queue.add(seconds, WorldEvent::Over(number));
        }
        let session = self.peer_at(fault.site);
        if let (FaultKind::Kill | FaultKind::Off | FaultKind::Restart, Some(peer)) = (fault.kind, session) {
            self.ends[peer].stays_away = true;
        }
        let peer = session.filter(|peer| self.ends[*peer].lives);
        self.faults.struck[number] = peer;
        match (fault.kind, peer) {
            (FaultKind::Join, _) => self.join(fault.site),
            (_, None) => {}
            (FaultKind::Kill | FaultKind::Restart, Some(peer)) => self.die(peer),
            (FaultKind::Off, Some(peer)) => self.switch_off(peer),
            (FaultKind::Pause, Some(peer)) => self.suspend(peer, true),
            (FaultKind::Busy(times), Some(peer)) => drop(self.ends[peer].speed.busy.insert(number, times)),
            (FaultKind::Slow(times), Some(peer)) => self.slow(peer, number, Some(times)),
            (kind, Some(_)) => unreachable!("{kind:?} was refused"),
        }
    }

    /// A fault is over.
    pub(super) fn end_fault(&mut self, number: usize) {
        let fault = self.faults.faults[number];
        match (fault.kind, self.faults.struck[number]) {
            (FaultKind::Restart, _) => self.join(fault.site),
            (FaultKind::Pause, Some(peer)) if self.ends[peer].lives => self.suspend(peer, false),
            (FaultKind::Pause, Some(peer)) if !self.ends[peer].stays_away => self.join(fault.site),
            (FaultKind::Busy(_), Some(peer)) => drop(self.ends[peer].speed.busy.remove(&number)),
            (FaultKind::Slow(_), Some(peer)) => self.slow(peer, number, None),
            _ => {}
        }
    }

    /// The current or last session of a worker.
    fn peer_at(&self, site: FaultSite) -> Option<usize> {
        let FaultSite::Worker(worker) = site else { return None };
        self.ends.iter().rposition(|end| worker > 0 && end.report.machine == worker)
    }

    fn slow(&mut self, peer: usize, number: usize, times: Option<f64>) {
        self.links.out.slow(peer, number, times);
        self.links.back.slow(peer, number, times);
    }

    /// The process ends: its system closes all its links, which the other ends see.
    fn die(&mut self, peer: usize) {
        let latency_s = self.links.out.latency(peer);
        self.end(peer);
        self.links.out.end(peer);
        self.sessions[peer].link.why.get_or_insert_with(|| "it closed the connection".to_owned());
        self.event_queue.add(latency_s, WorldEvent::Gone(peer));
        for other in self.sessions[peer].neighbours.iter().copied() {
            let seconds = latency_s + self.links.out.latency(other);
            self.event_queue.add(seconds, WorldEvent::Parts(other, peer));
        }
    }

    /// The machine loses power: no peer is notified.
    fn switch_off(&mut self, peer: usize) {
        self.end(peer);
        self.hold(peer, true);
    }

    /// A machine is gone; frames that have left it arrive.
    fn end(&mut self, peer: usize) {
        self.ends[peer].die();
        self.sessions[peer].inbox.clear();
        self.links.across.end(peer);
        self.links.back.close(peer);
    }

    /// Stops all traffic of a machine, except frames that its system has, or resumes it.
    fn hold(&mut self, peer: usize, holds: bool) {
        self.links.across.hold(peer, holds);
        self.links.out.hold(peer, holds, &mut self.event_queue);
        self.links.back.hold(peer, holds, &mut self.event_queue);
    }

    /// Suspends or resumes a machine.
    fn suspend(&mut self, peer: usize, stands: bool) {
        let count = &mut self.ends[peer].stands;
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        let goes_on = self.ends[peer].stands == 0;
        self.hold(peer, stands);
        if goes_on {
            for task in std::mem::take(&mut self.ends[peer].tasks.deferred) {
                self.event_queue.add(0.0, WorldEvent::Done(peer, task));
            }
            for message in std::mem::take(&mut self.sessions[peer].inbox) {
                self.stored(peer, message);
            }
            (0..self.ends.len()).for_each(|peer| self.advance(peer));
        }
    }

    /// The primary's link to a machine has ended.
    pub(super) fn gone(&mut self, peer: usize) {
        let Some(why) = self.sessions[peer].link.reader_ends("") else { return };
        self.sessions[peer].link.is_cut = true;
        self.end(peer);
        self.links.out.end(peer);
        self.links.back.end(peer);
        self.pending.drop_incomplete(peer);
        self.dispatch(PrimaryEvent::Lost { peer, why });
    }

    /// The link from a machine to another is gone; `says_so`: it tells the primary.
    pub(super) fn part(&mut self, peer: usize, other: usize, says_so: bool) {
        let end = &mut self.ends[peer];
        if !end.lives || !end.parted.insert(other) {
            return;
        }
        for forward in self.links.across.part(peer, other) {
            end.passed(&forward);
        }
        if says_so {
            end.say_parted(other);
        }
        end.part(other);
        self.advance(peer);
    }

    /// A machine joins, unless it is connected.
    fn join(&mut self, site: FaultSite) {
        let FaultSite::Worker(machine) = site else { return };
        if self.peer_at(site).is_some_and(|peer| self.ends[peer].lives) {
            return;
        }
        let is = &self.machines[machine];
        let info = participants::joining(is);
        let (bytes_per_s, latency_s) = participants::link(is);
        let end = end((machine, info.credit_bytes), self.machines, self.setting);
        if end.on_host {
            self.host.peers.push(self.ends.len());
        }
        self.ends.push(end);
        self.links.out.add(bytes_per_s, latency_s);
        self.links.back.add(bytes_per_s, latency_s);
        self.links.across.add();
        self.sessions.push(SimSession::default());
        self.joins.push(SimJoin { machine, at_s: self.event_queue.now().seconds() });
        self.dispatch(PrimaryEvent::Joined(info));
    }
}
