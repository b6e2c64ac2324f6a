//! What faults do to machines in the timing mode: they die, stand still, get slow, are given up, and come in.
//!
//! Place in the flow: faults begin and end by the clock; the primary hears of them as its shell does: a link that ends is seen at
//! once, one that says nothing is given up by the state machine (`schedule/src/limits.rs`).
//!
//! Invariants: the primary's own threads have no faults. A fault stays with the session that it struck. Of who dies arrives what
//! has left it. Who is given up is gone: it comes in again when it goes on, as a new session, as the program would dial it.
//!
//! Deliberately absent: links that break, stall or delay frames; trials have those.

use super::{Happening, World, people};
use crate::fault::{FaultKind, Site};
use crate::report::Coming;
use bramble_schedule::primary::Event;
use std::collections::VecDeque;

impl World<'_> {
    /// A fault begins.
    pub(super) fn begin_fault(&mut self, number: usize) {
        let fault = self.faults[number];
        if let Some(to) = fault.to {
            let seconds = to.saturating_sub(fault.from).as_secs_f64();
            self.agenda.add(seconds, Happening::Over(number));
        }
        let session = self.peer_at(fault.site);
        if let (FaultKind::Kill | FaultKind::Off | FaultKind::Restart, Some(peer)) = (fault.kind, session) {
            self.ends[peer].stays_away = true;
        }
        let peer = session.filter(|peer| self.ends[*peer].lives);
        self.struck[number] = peer;
        match (fault.kind, peer) {
            (FaultKind::Join, _) => self.come(fault.site),
            (_, None) => {}
            (FaultKind::Kill | FaultKind::Restart, Some(peer)) => self.die(peer),
            (FaultKind::Off, Some(peer)) => self.switch_off(peer),
            (FaultKind::Pause, Some(peer)) => self.stand(peer, true),
            (FaultKind::Busy(times), Some(peer)) => drop(self.ends[peer].busy.insert(number, times)),
            (FaultKind::Slow(times), Some(peer)) => self.slow(peer, number, Some(times)),
            (kind, Some(_)) => unreachable!("{kind:?} was refused"),
        }
    }

    /// A fault is over.
    pub(super) fn end_fault(&mut self, number: usize) {
        let fault = self.faults[number];
        match (fault.kind, self.struck[number]) {
            (FaultKind::Restart, _) => self.come(fault.site),
            (FaultKind::Pause, Some(peer)) if self.ends[peer].lives => self.stand(peer, false),
            (FaultKind::Pause, Some(peer)) if !self.ends[peer].stays_away => self.come(fault.site),
            (FaultKind::Busy(_), Some(peer)) => drop(self.ends[peer].busy.remove(&number)),
            (FaultKind::Slow(_), Some(peer)) => self.slow(peer, number, None),
            _ => {}
        }
    }

    /// The session that a worker has, or had last.
    fn peer_at(&self, site: Site) -> Option<usize> {
        let Site::Worker(worker) = site else { return None };
        self.ends.iter().rposition(|end| worker > 0 && end.report.machine == worker)
    }

    fn slow(&mut self, peer: usize, number: usize, times: Option<f64>) {
        self.out.slow(peer, number, times);
        self.back.slow(peer, number, times);
    }

    /// The process ends: its system closes all its links, which the other ends see.
    fn die(&mut self, peer: usize) {
        let latency_s = self.out.latency(peer);
        self.end(peer);
        self.out.end(peer);
        self.why[peer].get_or_insert_with(|| "it closed the connection".to_owned());
        self.agenda.add(latency_s, Happening::Gone(peer));
        for other in self.neighbours[peer].iter().copied() {
            let seconds = latency_s + self.out.latency(other);
            self.agenda.add(seconds, Happening::Parts(other, peer));
        }
    }

    /// The plug is pulled: nobody is told.
    fn switch_off(&mut self, peer: usize) {
        self.end(peer);
        self.hold(peer, true);
    }

    /// A machine is not there any more; what has left it arrives.
    fn end(&mut self, peer: usize) {
        self.ends[peer].die();
        self.inboxes[peer].clear();
        self.across.end(peer);
        self.back.close(peer);
    }

    /// Nothing reaches or leaves a machine but what its system has, or it does again.
    fn hold(&mut self, peer: usize, holds: bool) {
        self.across.hold(peer, holds);
        self.out.hold(peer, holds, &mut self.agenda);
        self.back.hold(peer, holds, &mut self.agenda);
    }

    /// A machine stands still, or goes on.
    fn stand(&mut self, peer: usize, stands: bool) {
        let count = &mut self.ends[peer].stands;
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        let goes_on = self.ends[peer].stands == 0;
        self.hold(peer, stands);
        if goes_on {
            for task in std::mem::take(&mut self.ends[peer].deferred) {
                self.agenda.add(0.0, Happening::Done(peer, task));
            }
            for message in std::mem::take(&mut self.inboxes[peer]) {
                self.stored(peer, message);
            }
            (0..self.ends.len()).for_each(|peer| self.go_on(peer));
        }
    }

    /// The primary's link to a machine has ended.
    pub(super) fn gone(&mut self, peer: usize) {
        if std::mem::replace(&mut self.is_gone[peer], true) {
            return;
        }
        self.is_cut[peer] = true;
        self.end(peer);
        self.out.end(peer);
        self.back.end(peer);
        self.drop_halves(peer);
        let why = self.why[peer].take().unwrap_or_default();
        self.tell(Event::Lost { peer, why });
    }

    /// A machine has no link to another any more; `says_so`: the primary is told.
    pub(super) fn part(&mut self, peer: usize, other: usize, says_so: bool) {
        let end = &mut self.ends[peer];
        if !end.lives || !end.parted.insert(other) {
            return;
        }
        for forward in self.across.part(peer, other) {
            end.passed(&forward);
        }
        if says_so {
            end.say_parted(other);
        }
        end.part(other);
        self.go_on(peer);
    }

    /// A machine comes in, unless it is there.
    fn come(&mut self, site: Site) {
        let Site::Worker(machine) = site else { return };
        if self.peer_at(site).is_some_and(|peer| self.ends[peer].lives) {
            return;
        }
        let is = &self.machines[machine];
        let info = people::info(is, is.memory_bytes);
        let (bytes_per_s, latency_s) = people::link(is);
        let end = people::end((machine, info.credit_bytes), self.machines, self.setting);
        if end.on_host {
            self.on_host.push(self.ends.len());
        }
        self.ends.push(end);
        self.out.add(bytes_per_s, latency_s);
        self.back.add(bytes_per_s, latency_s);
        self.across.add();
        self.inboxes.push(VecDeque::new());
        self.is_cut.push(false);
        self.is_gone.push(false);
        self.why.push(None);
        self.neighbours.push(Vec::new());
        self.comings.push(Coming { machine, at_s: self.agenda.now().seconds() });
        self.tell(Event::Joined(info));
    }
}
