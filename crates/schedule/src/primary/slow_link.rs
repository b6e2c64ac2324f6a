//! Disconnects a worker whose link is so slow that recomputing its work elsewhere is faster than waiting.
//!
//! Place in the flow: the shell reports how many bytes a link has carried (`PrimaryEvent::Flow`); each tick
//! compares the counters with those of a few seconds ago. Stealing already moves work that was not sent; this
//! file is about panels that wait in the link and tiles that have to come back. A disconnected worker is
//! handled like a lost one (`peer_state`).
//!
//! Invariants: only a link that moves data is judged, and only if it alone delays the product. That is: the
//! data that waited in the link when a window began has not all left when the window ends; or everything was
//! sent, the worker has had twice the time for its work, no more work gets done, and its results arrive
//! without a pause. Silent machines and slow processors are left to the heartbeat and to stealing. The link
//! must be slower than its measured or earlier rate, and twice in a row too slow beyond doubt. Another worker
//! must have memory for the work. One worker is disconnected at a time; then all others are judged anew.
//! Links that share memory are not judged.
//!
//! Deliberately absent: links between workers. A machine with a bad network has a bad link to the primary,
//! too.

use super::peer::Peer;
use super::peer_state::PeerState;
use super::{Primary, PrimaryAction};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::number::{nearest_f64, to_u64};
use core::time::Duration;

/// Length of the window over which a link is measured.
const WINDOW: Duration = Duration::from_secs(2);
/// A link that delays the product has no pause as long as this.
const PAUSE_MIN: Duration = Duration::from_millis(450);
/// Fewer bytes than this in a window may be heartbeats only.
const WINDOW_BYTES_MIN: f64 = 1024.0;
/// A link that carries more than this fraction of its possible rate (or of its part of the primary's network
/// card) is not slow.
const SLOW_FRACTION: f64 = 0.25;
/// Number of consecutive slow windows before the worker is disconnected.
const STRIKES: u8 = 2;
/// The wait must exceed the time of recomputing by this factor ...
const RECOMPUTE_FACTOR: f64 = 2.0;
/// ... and by this many seconds.
const RECOMPUTE_MARGIN_S: f64 = 2.0;

/// Measurements of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkFlow {
    /// Bytes received, and bytes acknowledged by the peer's system.
    received: u64,
    acknowledged: u64,
    /// Bytes in this system's send buffers.
    buffered: u64,
    /// Highest rate in any window, in one direction, bytes per second.
    best: f64,
    start: WindowStart,
    pause_probe: PauseProbe,
    strikes: u8,
    is_too_slow: bool,
}

/// State of the link at the beginning of a window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowStart {
    at: Duration,
    received: u64,
    acknowledged: u64,
    /// Bytes that waited to be sent.
    waiting: f64,
    /// Set if everything had been sent: the work done until then, and since when that has not grown.
    all_sent: Option<(f64, Duration)>,
}

/// Detects pauses: the bytes received by a time.
#[derive(Clone, Copy, Debug, Default)]
struct PauseProbe {
    at: Duration,
    received: u64,
    /// Intervals of this window in which nothing arrived.
    pauses: u32,
}

impl LinkFlow {
    /// Updates the counters, which never decrease, and the bytes under way.
    pub(super) fn moved(&mut self, received: u64, acknowledged: u64, buffered: u64) {
        self.received = self.received.max(received);
        self.acknowledged = self.acknowledged.max(acknowledged);
        self.buffered = buffered;
    }

    /// Whether the worker was disconnected because of this link.
    pub(super) fn is_too_slow(&self) -> bool {
        self.is_too_slow
    }

    /// Begins the next window.
    fn renew(&mut self, start: WindowStart) {
        let seconds = start.at.saturating_sub(self.start.at).as_secs_f64();
        let most = (start.received - self.start.received).max(start.acknowledged - self.start.acknowledged);
        // The counters from before the first window have no start time, so they give no rate.
        if self.start.at > Duration::ZERO && seconds > 0.0 {
            self.best = self.best.max(nearest_f64(most) / seconds);
        }
        (self.start, self.pause_probe.pauses) = (start, 0);
    }

    /// Counts an interval without received bytes as a pause.
    fn note_pauses(&mut self, now: Duration) {
        if now.saturating_sub(self.pause_probe.at) >= PAUSE_MIN {
            let pauses = self.pause_probe.pauses + u32::from(self.received == self.pause_probe.received);
            self.pause_probe = PauseProbe { at: now, received: self.received, pauses };
        }
    }
}

impl Peer {
    fn window_start(&self, now: Duration) -> WindowStart {
        let done = self.stream.speed.done;
        let since =
            self.flow.start.all_sent.filter(|(before, _)| *before == done).map_or(now, |(_, since)| since);
        WindowStart {
            at: now,
            received: self.flow.received,
            acknowledged: self.flow.acknowledged,
            waiting: self.in_link_bytes() + nearest_f64(self.flow.buffered),
            all_sent: (self.link_is_empty() && self.stream.has_sent_all()).then_some((done, since)),
        }
    }

    /// Work per second as last observed, or else as reported by the worker.
    fn rate_at_work(&self) -> f64 {
        match self.stream.speed.rate_at_work() {
            seen if seen > 0.0 => seen,
            _ => self.info.work_per_s,
        }
    }

    /// Seconds until the waiting data has moved, at the rate of the window that ends now. `None` if the link
    /// does not delay the product, if nothing moves, or if it carries its part of the primary's card, which
    /// `sharing` workers share.
    fn waits_s(&self, now: WindowStart, owed_bytes: f64, sharing: f64) -> Option<f64> {
        let before = self.flow.start;
        let seconds = now.at.saturating_sub(before.at).as_secs_f64();
        let (acknowledged, received) = (
            nearest_f64(now.acknowledged - before.acknowledged),
            nearest_f64(now.received - before.received),
        );
        let could = self.info.link_bytes_per_s.unwrap_or(0.0).max(self.flow.best);
        let moves = WINDOW_BYTES_MIN..SLOW_FRACTION * could / sharing * seconds;
        let of = |bytes: f64, moved: f64| moves.contains(&moved).then(|| bytes * seconds / moved);
        let was_busy = acknowledged < before.waiting;
        let outgoing = if was_busy { of(now.waiting, acknowledged) } else { None };
        // Progress shows in returned operands. A block of one step returns them all at its end.
        let is_done = |since: Duration| {
            let in_flight_s = self.stream.speed.in_flight() / self.rate_at_work();
            now.at.saturating_sub(since).as_secs_f64() > RECOMPUTE_FACTOR * in_flight_s
        };
        let only_comes = now.all_sent.is_some_and(|(_, since)| is_done(since))
            && now.all_sent == before.all_sent
            && self.flow.pause_probe.pauses == 0;
        let incoming = if only_comes { of(owed_bytes, received) } else { None };
        outgoing.into_iter().chain(incoming).reduce(f64::max)
    }
}

impl Primary {
    /// Disconnects the worker whose link is too slow, if there is one.
    pub(super) fn disconnect_slow_link(&mut self, now: Duration, actions: &mut Vec<PrimaryAction>) {
        if !self.recovers || self.stealing.is_off || self.stops || self.over || self.tiles_left == 0 {
            return;
        }
        let sharing =
            nearest_f64(to_u64(self.peers.iter().filter(|p| p.state.is_connected()).count().max(1)));
        for at in 0..self.peers.len() {
            self.peers[at].flow.note_pauses(now);
            let peer = &self.peers[at];
            let is_due = now.saturating_sub(peer.flow.start.at) >= WINDOW;
            if peer.state != PeerState::Active || peer.info.shares_memory || !is_due {
                continue;
            }
            let (peer, start) = (&self.peers[at], self.peers[at].window_start(now));
            // With Strassen's method, computing continues for long after the operands of a cell are used up,
            // so a slow return proves nothing.
            let is_plain = self.plan.strategy.levels == 0;
            let owed_bytes = if is_plain { peer.stream.owed_bytes(&self.plan) } else { 0.0 };
            let waits_s = peer.waits_s(start, owed_bytes, sharing);
            let recompute_s = waits_s.filter(|s| *s > RECOMPUTE_MARGIN_S).and_then(|_| self.recompute_s(at));
            let too_slow = waits_s.zip(recompute_s).filter(|(waits_s, recompute_s)| {
                *waits_s > RECOMPUTE_FACTOR * recompute_s + RECOMPUTE_MARGIN_S
            });
            let flow = &mut self.peers[at].flow;
            flow.renew(start);
            flow.strikes = if too_slow.is_some() { flow.strikes + 1 } else { 0 };
            if let Some((waits_s, recompute_s)) = too_slow.filter(|_| flow.strikes >= STRIKES) {
                let why = format!(
                    "its link has become too slow: its data would arrive in {waits_s:.0} s, and other machines recompute \
                     the work in {recompute_s:.1} s"
                );
                flow.is_too_slow = true;
                self.disconnect(at, &why, actions);
                let anew = |peer: &mut Peer| peer.flow.strikes = 0;
                return self.peers.iter_mut().for_each(anew);
            }
        }
    }

    /// Seconds in which the other peers would finish their own work and the unfinished work of this one.
    /// `None` if none has the memory.
    pub(super) fn recompute_s(&self, at: usize) -> Option<f64> {
        let left = self.peers[at].stream.unfinished(&self.plan);
        let others = || {
            self.peers
                .iter()
                .enumerate()
                .filter(|(other, p)| *other != at && p.state.accepts_work() && self.can_replace(*other, at))
        };
        let need = left.iter().map(|item| item.least_bytes(&self.plan, &self.recipes, true)).max()?;
        if !others().any(|(_, peer)| peer.info.credit_bytes >= need) {
            return None;
        }
        let work: f64 = left.iter().map(|item| item.amount(&self.plan)).sum();
        let (all, rates) = others().fold((work, 0.0), |(all, rates), (_, peer)| {
            (all + peer.stream.speed.left(), rates + peer.rate_at_work())
        });
        (rates > 0.0).then(|| all / rates)
    }
}
