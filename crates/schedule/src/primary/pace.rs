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

/// A rate is measured over at least so many steps, and at most over twice as many.
const WINDOW: f64 = 12.0;
/// What was planned counts as if it had been seen for this part of a step.
const TRUST: f64 = 0.75;
/// Operands come back at the ends of steps: so many steps may have been done that nobody has heard of.
const UNHEARD: f64 = 1.5;

/// A link that is busy for this part of the time is what its peer waits for.
const LINK_BOUND: f64 = 0.9;
/// Frames of at least so many bytes take a link longer than its ends take for each.
const FRAME_BYTES: u64 = 16 << 10;

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
    /// The same when the last step that is done came back.
    heard: (f64, f64),
    /// The first step was there, and the first window began.
    is_there: bool,
    /// Bytes of the first step.
    first_bytes: u64,
    /// Work of the step that was begun last, and the most of one.
    step: f64,
    step_max: f64,
    link: Link,
}

/// What a link has taken.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    bytes: u64,
    frames: u64,
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

    /// What is begun next is not of the step before.
    pub(super) fn begin_step(&mut self) {
        self.step = 0.0;
    }

    /// A panel was begun that counts for so much and makes so much work possible.
    pub(super) fn begun(&mut self, bytes: u64, work: f64, now: Duration) {
        self.pass(now);
        if work == 0.0 {
            // The first panel of a step meets no other.
            self.begin_step();
        }
        self.step += work;
        self.step_max = self.step_max.max(self.step);
        if self.sent == 0.0 || self.step == self.sent + work {
            self.first_bytes += bytes;
        }
        self.out.push_back((bytes, work));
        self.sent += work;
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
        // In the middle of a step less has come back than was done.
        if self.done <= self.heard.1 || self.out.front().is_some_and(|(_, work)| *work > 0.0) {
            return;
        }
        self.first_is_there();
        self.heard = (self.busy_s, self.done);
        if self.done - self.window.1 > WINDOW * self.step_max {
            self.before = std::mem::replace(&mut self.window, self.heard);
        }
    }

    /// The link took bytes; some may be left in it.
    pub(super) fn link_took(&mut self, bytes: u64, is_busy: bool, now: Duration) {
        self.pass(now);
        self.link.bytes += bytes;
        self.link.frames += 1;
        self.link.is_busy = is_busy;
        if self.sent > self.step && (!is_busy || self.link.bytes >= self.first_bytes) {
            self.first_is_there();
        }
    }

    fn first_is_there(&mut self) {
        if !std::mem::replace(&mut self.is_there, true) {
            self.window = (self.busy_s, self.done);
            (self.before, self.heard) = (self.window, self.window);
        }
    }

    /// The link was given bytes.
    pub(super) fn link_given(&mut self, now: Duration) {
        self.pass(now);
        self.link.is_busy = true;
    }

    /// What operands that are at the peer, or on their way there, count for.
    pub(super) fn bytes_out(&self) -> u64 {
        self.out.iter().map(|(bytes, _)| bytes).sum::<u64>() - self.freed_bytes
    }

    /// Work that is not done.
    pub(super) fn left(&self) -> f64 {
        (self.given - self.done).max(0.0)
    }

    /// Work that is at the peer or on its way there.
    pub(super) fn in_flight(&self) -> f64 {
        (self.sent - self.done).max(0.0)
    }

    /// Work a second when something last came back, however long ago that is.
    pub(super) fn rate_at_work(&self) -> f64 {
        let trusted = TRUST * self.step_max;
        let (busy_s, done) = (self.heard.0 - self.before.0, self.heard.1 - self.before.1);
        if !self.is_there || self.planned <= 0.0 || busy_s + trusted <= 0.0 {
            return self.planned;
        }
        (done + trusted) / (busy_s + trusted / self.planned)
    }

    /// Work a second. What was planned fades as more is seen; where nothing comes back, the rate is at most what would
    /// have been if a step and a half had been done in silence.
    pub(super) fn rate(&self) -> f64 {
        let silent_s = self.busy_s - self.before.0;
        if !self.is_there || silent_s <= 0.0 || self.planned <= 0.0 {
            return self.planned;
        }
        let done = self.heard.1 - self.before.1;
        self.rate_at_work().min((done + UNHEARD * self.step_max) / silent_s)
    }

    /// Whether the link has been busy nearly all the time: more work would only be more to wait for.
    pub(super) fn is_link_bound(&self) -> bool {
        self.link.busy_s > LINK_BOUND * self.seen.as_secs_f64()
    }

    /// Bytes a second of the link, where any were seen. What descriptions of generated operands take, or panels of a few rows,
    /// says nothing of what the link could carry.
    pub(super) fn link_rate(&self) -> Option<f64> {
        let is_told = self.link.busy_s > 0.0 && self.link.bytes >= FRAME_BYTES * self.link.frames;
        is_told.then(|| nearest_f64(self.link.bytes) / self.link.busy_s)
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
        for _ in 0..3 {
            pace.begun(64, 0.0, at(5));
            pace.begun(64, 4.0, at(5));
            pace.link_given(at(5));
        }
        pace.link_took(130, true, at(6));
        assert_eq!(pace.rate(), 10.0);
        pace.pass(at(12));
        assert_eq!(pace.rate(), 1.0, "nothing came in six seconds, and 6 may have been done");
        pace.credit(128, at(14));
        assert_eq!((pace.done, pace.in_flight(), pace.left()), (4.0, 8.0, 96.0));
        let rate = pace.rate();
        assert!((0.5..1.0).contains(&rate), "4 in 8 s, with some trust: {rate}");
        pace.credit(256, at(30));
        let rate = pace.rate();
        assert!((0.5..0.7).contains(&rate), "12 in 24 s: {rate}");
        pace.pass(at(900));
        assert_eq!(pace.rate(), rate, "it had nothing to do");
    }

    #[test]
    fn frames_of_a_few_bytes_do_not_say_how_fast_a_link_is() {
        let took = |bytes: u64| {
            let mut pace = Pace::new(100.0, 10.0);
            for frame in 0..10 {
                pace.link_given(at(frame));
                pace.link_took(bytes, false, at(frame + 1));
            }
            pace.link_rate()
        };
        assert_eq!(took(200), None);
        assert_eq!(took(1 << 20), Some(f64::from(1 << 20)));
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
