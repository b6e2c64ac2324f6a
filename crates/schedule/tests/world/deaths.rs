//! Workers that die, and what their last messages leave behind.

use super::joins::LIMITS;
use super::{End, Sent, World, places};
use bramble_base::{Rect, Span};
use bramble_schedule::message::{Missing, ResultHead};
use bramble_schedule::primary::{PeerInfo, PrimaryEvent, Referred, ResultPlace};
use bramble_schedule::worker::Worker;

/// Rows of a tile that do not land in C itself.
pub(super) struct Landing {
    pub(super) elements: Vec<i64>,
    pub(super) rect: Rect,
    pub(super) trace: u64,
    pub(super) steps: (u32, u32),
}

impl Landing {
    pub(super) fn is_whole(&self) -> bool {
        self.elements.len() as u64 == self.rect.rows.len() * self.rect.cols.len()
    }
}

/// A worker outside the plan, as large as the largest member.
pub(super) fn reserve(peers: &[PeerInfo]) -> PeerInfo {
    PeerInfo {
        name: "reserve".into(),
        credit_bytes: peers.iter().map(|p| p.credit_bytes).max().unwrap(),
        shares_memory: true,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e5,
        link_bytes_per_s: None,
        is_reserve: true,
    }
}

/// Sorted, the last one first.
pub(super) fn in_order(deaths: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut deaths = deaths.to_vec();
    deaths.sort_unstable_by(|a, b| b.cmp(a));
    deaths
}

impl End {
    /// All workers are gone.
    pub(super) fn stop(&mut self) {
        self.worker = Worker::new(0, LIMITS);
        self.passing.clear();
        self.running.clear();
        self.filling.clear();
        self.leaving.clear();
        self.held.clear();
    }
}

impl World {
    /// Kills a worker if one is due and one may die.
    pub(super) fn die_if_due(&mut self) {
        while let Some((_, how)) = self.deaths.pop_if(|(event, _)| *event <= self.events) {
            let living = |p: &usize| !self.dead.contains(p);
            let may: Vec<usize> = (0..self.ends.len()).filter(living).filter(|p| self.by_bytes[*p]).collect();
            if !may.is_empty() && self.ends.len() - self.dead.len() > 1 {
                self.kill(may[how as usize % may.len()], (how >> 8) as usize);
            }
        }
    }

    /// Kills a worker. Bits of `how`: bit 0: its sent messages still arrive; bit 1: of a tile on its way some
    /// rows arrive, and others are landing; more bits: which of its neighbours see that their links break
    /// before the primary tells them.
    pub(super) fn kill(&mut self, peer: usize, how: usize) {
        while how & 1 == 1
            && let Some(event) = self.ends[peer].outbox.pop_front()
        {
            self.primary(event);
        }
        if how & 2 == 2 {
            self.land_half(peer, how);
        }
        // The event may have been its last, and the primary has disconnected it.
        if self.failed.is_some() || !self.dead.insert(peer) {
            return;
        }
        self.ends[peer].stop();
        self.ends[peer].outbox.clear();
        self.partial_sums.retain(|(from, _), sum| *from != peer || sum.is_whole());
        self.staged.retain(|(from, _), _| *from != peer);
        for other in (0..self.ends.len()).filter(|o| *o != peer).collect::<Vec<_>>() {
            self.broken.insert((peer.min(other), peer.max(other)));
            if how >> (2 + other) & 1 == 1 && self.by_bytes[other] && !self.dead.contains(&other) {
                let parted = PrimaryEvent::Parted { peer: other, other: peer as u32 };
                self.ends[other].outbox.push_back(parted);
                self.parted(other, peer);
            }
        }
        self.ends[peer].outbox.push_back(PrimaryEvent::Lost { peer, why: "it died".into() });
    }

    /// Some rows of a returning tile arrive, and more have begun to land.
    fn land_half(&mut self, peer: usize, how: usize) {
        let Some(head) = self.ends[peer].leaving.pop() else { return };
        let held = self.ends[peer].held[&head.c].clone();
        let first = how as u32 % held.header.rows;
        if first > 0 {
            self.land(peer, &held, &ResultHead { lines: first, ..head });
            while let Some(event) = self.ends[peer].outbox.pop_front() {
                self.primary(event);
            }
        }
        let rest = ResultHead { first_line: first, lines: held.header.rows - first, ..head };
        let to = self.primary.expect(peer, &rest).unwrap();
        if to.place == ResultPlace::InC {
            let rows = Span::new(to.rect.rows.start + u64::from(first), to.rect.rows.end);
            for at in places(Rect::new(rows, to.rect.cols), self.p.n) {
                self.c[at] = -99_999;
            }
        }
    }

    /// Of a dead worker's link, bytes that it had accepted may arrive, and then its end.
    pub(super) fn step_of_the_dead(&mut self, peer: usize, what: usize) -> bool {
        match what {
            0 if !self.ends[peer].inbox.is_empty() => {
                if let Some(Sent::Store(message, ..)) = self.ends[peer].inbox.pop_front() {
                    self.primary(PrimaryEvent::Sent { peer, bytes: message.wire_bytes() });
                }
            }
            1 if !self.ends[peer].outbox.is_empty() => {
                let event = self.ends[peer].outbox.pop_front().unwrap();
                self.gone.insert(peer);
                self.primary(event);
                self.ends[peer].inbox.clear();
                self.check_that_nothing_comes_after_the_end(peer);
            }
            _ => return false,
        }
        true
    }

    fn check_that_nothing_comes_after_the_end(&mut self, peer: usize) {
        let head = ResultHead { c: 0, epoch: 0, step_start: 0, step_end: 1, first_line: 0, lines: 1 };
        let late = [
            PrimaryEvent::Sent { peer, bytes: 1 },
            PrimaryEvent::Credit { peer, bytes: 1 },
            PrimaryEvent::Landed { peer, head },
            PrimaryEvent::Alive { peer },
            PrimaryEvent::Missing { peer, missing: Missing { id: 0, lines: 0 } },
            PrimaryEvent::Parted { peer, other: 0 },
            PrimaryEvent::Lost { peer, why: "again".into() },
        ];
        let before = self.primary.losses().len();
        for event in late {
            assert!(self.primary.expect(peer, &head).is_err());
            assert!(self.primary.handle(event, self.clock).is_empty(), "an event of a lost peer counts");
        }
        assert_eq!(self.primary.losses().len(), before);
        self.primary.validate();
        if self.failed.is_none() && !self.finished {
            self.primary.validate_tiles();
        }
    }

    /// A staged tile is complete.
    pub(super) fn put(&mut self, peer: usize, tile: u32, rect: Rect) {
        let staged = self.staged.remove(&(peer, tile)).expect("a tile that was staged");
        assert!(staged.is_whole() && staged.rect == rect, "half a tile is put into C");
        assert!(self.leased.iter().all(|l| l.disjoint(rect)), "{rect} is leased");
        for (at, place) in places(rect, self.p.n).enumerate() {
            self.c[place] = staged.elements[at];
        }
        self.is_in_c(rect, staged.trace, staged.steps);
    }
}
