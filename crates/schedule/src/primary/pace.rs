//! What the primary sees of a peer's speed: the work whose operands have come back as credit, over the time in which
//! the peer had something to do; and the bytes that its link has taken, over the time in which it had some.
//!
//! Place in the flow: the walk says what it has begun, the peer what came back; stealing asks how long what is left
//! will take.
//!
//! Invariants: operands are taken to be used up in the order in which they were sent; a tile's own memory is no sign of
//! work. What is remembered is bounded by the peer's credit.
//!
//! Units: work is elements of C times depth; rates are a second.

use bramble_matrix::number::nearest_f64;
use std::collections::VecDeque;
use std::time::Duration;

/// A rate is measured over at least so many times what a peer has at once, and at most over twice that.
const WINDOWS: f64 = 4.0;
/// What was planned counts as if it had been seen for this part of what a peer has at once.
const TRUST: f64 = 0.25;

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Work that is the peer's, done or not.
    pub(super) given: f64,
    /// Work whose panels were begun.
    pub(super) sent: f64,
    /// Work whose operands came back.
    pub(super) done: f64,
    /// Work a second that the plan expects.
    planned: f64,
    /// Operands that are out: bytes as they are charged, and the work that they made possible.
    out: VecDeque<(u64, f64)>,
    /// Bytes that came back of the first of them.
    freed_bytes: u64,
    /// Bytes of tiles that came back and whose credit is to come.
    tile_bytes: u64,
    /// Seconds in which something was out, until `seen`.
    busy_s: f64,
    seen: Duration,
    /// `busy_s` and `done` at the beginnings of this window and the one before.
    window: (f64, f64),
    before: (f64, f64),
    /// Most work that was out at once.
    out_max: f64,
    link: Link,
}

/// What a link has taken.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    bytes: u64,
    busy_s: f64,
    is_busy: bool,
}

impl Pace {
    pub(super) fn new(given: f64, planned: f64) -> Self {
        Self { given, planned, ..Self::default() }
    }

    /// Time goes on.
    pub(super) fn pass(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.seen).as_secs_f64();
        self.seen = self.seen.max(now);
        if !self.out.is_empty() {
            self.busy_s += seconds;
        }
        if self.link.is_busy {
            self.link.busy_s += seconds;
        }
    }

    /// A panel was begun that counts for so much and makes so much work possible.
    pub(super) fn begun(&mut self, bytes: u64, work: f64, now: Duration) {
        self.pass(now);
        self.out.push_back((bytes, work));
        self.sent += work;
        self.out_max = self.out_max.max(self.sent - self.done);
    }

    /// A tile came back.
    pub(super) fn returned(&mut self, bytes: u64) {
        self.tile_bytes += bytes;
    }

    /// So much is free again.
    pub(super) fn credit(&mut self, bytes: u64, now: Duration) {
        self.pass(now);
        let tiles = bytes.min(self.tile_bytes);
        self.tile_bytes -= tiles;
        self.freed_bytes += bytes - tiles;
        while let Some((bytes, work)) = self.out.front().copied()
            && bytes <= self.freed_bytes
        {
            self.freed_bytes -= bytes;
            self.done += work;
            self.out.pop_front();
        }
        if self.done - self.window.1 > WINDOWS * self.out_max {
            self.before = std::mem::replace(&mut self.window, (self.busy_s, self.done));
        }
    }

    /// The link took bytes; some may be left in it.
    pub(super) fn link_took(&mut self, bytes: u64, is_busy: bool, now: Duration) {
        self.pass(now);
        self.link.bytes += bytes;
        self.link.is_busy = is_busy;
    }

    /// The link was given bytes.
    pub(super) fn link_given(&mut self, now: Duration) {
        self.pass(now);
        self.link.is_busy = true;
    }

    /// Work that is not done.
    pub(super) fn left(&self) -> f64 {
        (self.given - self.done).max(0.0)
    }

    /// Work that is at the peer or on its way there.
    pub(super) fn in_flight(&self) -> f64 {
        (self.sent - self.done).max(0.0)
    }

    /// Work a second. What was planned fades as more is seen; where nothing comes back, the rate is at most what would
    /// have been if all that is out came now.
    pub(super) fn rate(&self) -> f64 {
        let (busy_s, done) = (self.busy_s - self.before.0, self.done - self.before.1);
        let trusted = TRUST * self.out_max;
        if busy_s <= 0.0 || self.planned <= 0.0 {
            return self.planned;
        }
        let seen = (done + trusted) / (busy_s + trusted / self.planned);
        seen.min((done + self.in_flight()) / busy_s)
    }

    /// Bytes a second of the link, where any were seen.
    pub(super) fn link_rate(&self) -> Option<f64> {
        (self.link.busy_s > 0.0).then(|| nearest_f64(self.link.bytes) / self.link.busy_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_peer_is_as_fast_as_what_comes_back_and_idle_time_does_not_count() {
        let mut pace = Pace::new(100.0, 10.0);
        assert_eq!(pace.rate(), 10.0);
        pace.begun(64, 4.0, at(5));
        pace.pass(at(6));
        assert!(pace.rate() <= 4.0, "nothing came in a second: {}", pace.rate());
        pace.credit(64, at(9));
        assert_eq!((pace.done, pace.in_flight(), pace.left()), (4.0, 0.0, 96.0));
        let rate = pace.rate();
        assert!((1.0..1.3).contains(&rate), "{rate}");
        pace.pass(at(900));
        assert_eq!(pace.rate(), rate);
    }

    #[test]
    fn the_memory_of_tiles_is_no_work_done() {
        let mut pace = Pace::new(100.0, 10.0);
        pace.begun(64, 4.0, at(0));
        pace.returned(1000);
        pace.credit(1000, at(1));
        assert_eq!(pace.done, 0.0);
        pace.credit(64, at(1));
        assert_eq!(pace.done, 4.0);
    }
}
