//! Estimates a peer's speed: the work whose operands came back as credit, over the time in which the peer had
//! work; and the rate of its link: the bytes that it accepted, over the time in which it had bytes to send.
//!
//! Place in the flow: the panel stream reports what it begins, the peer what comes back; stealing asks how
//! long the rest will take.
//!
//! Invariants: operands are assumed to be used up in the order in which they were sent; credit for a tile's
//! own memory is no progress. The size is bounded by the peer's credit.
//!
//! Units: work is elements of C times depth; rates are per second.

use alloc::collections::VecDeque;
use bramble_base::number::nearest_f64;
use core::time::Duration;

/// A rate is measured over at least this many steps, and at most about twice as many.
const WINDOW: f64 = 12.0;
/// The planned rate counts as if it had been observed for this part of a step.
const TRUST: f64 = 0.75;
/// Operands come back at the ends of steps: this many steps may be done before any credit shows it.
const UNHEARD: f64 = 1.5;

/// A link that is busy for this fraction of the time is the bottleneck of its peer.
const LINK_BOUND: f64 = 0.9;
/// With smaller frames than this on average, overhead at the ends dominates the time on the link.
const FRAME_BYTES: u64 = 16 << 10;

/// Observed speed of one peer and its link.
#[derive(Clone, Debug, Default)]
pub(super) struct RateEstimator {
    /// Work that the peer was given, done or not.
    pub(super) given: f64,
    /// Work whose panels were begun.
    pub(super) sent: f64,
    /// Work whose operands came back.
    pub(super) done: f64,
    /// Work per second that the plan predicts.
    planned: f64,
    /// Operands under way or at the peer: their charge in bytes, and the work that they enabled.
    out: VecDeque<(u64, f64)>,
    /// Returned bytes of the first of them.
    freed_bytes: u64,
    /// Bytes of tiles that came back and whose credit is still to come.
    tile_bytes: u64,
    /// Seconds in which `out` was not empty, up to `seen`.
    busy_s: f64,
    seen: Duration,
    marks: RateMarks,
    /// Whether the first step has arrived and the first window has begun.
    first_step_arrived: bool,
    /// Bytes of the first step.
    first_bytes: u64,
    /// Work of the step that was begun last, and the maximum over all steps.
    step: f64,
    step_max: f64,
    link: Link,
}

/// `busy_s` and `done` of an estimator at earlier times.
#[derive(Clone, Copy, Debug, Default)]
struct RateMarks {
    /// At the beginning of this window and of the one before.
    window: (f64, f64),
    before: (f64, f64),
    /// When the last completed step came back.
    last_return: (f64, f64),
}

/// Bytes that a link has accepted.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    bytes: u64,
    frames: u64,
    busy_s: f64,
    is_busy: bool,
}

impl RateEstimator {
    pub(super) fn new(given: f64, planned: f64) -> Self {
        Self { given, planned, ..Self::default() }
    }

    /// Advances the time.
    pub(super) fn advance_to(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.seen).as_secs_f64();
        self.seen = self.seen.max(now);
        if !self.out.is_empty() {
            self.busy_s += seconds;
        }
        if self.link.is_busy {
            self.link.busy_s += seconds;
        }
    }

    /// The next panel belongs to a new step.
    pub(super) fn begin_step(&mut self) {
        self.step = 0.0;
    }

    /// A panel was begun, with this charge and this amount of work.
    pub(super) fn begun(&mut self, bytes: u64, work: f64, now: Duration) {
        self.advance_to(now);
        if work == 0.0 {
            // The first panel of a step enables no work: the opposite side has none yet.
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

    /// The peer returned credit.
    pub(super) fn credit(&mut self, bytes: u64, now: Duration) {
        self.advance_to(now);
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
        // In the middle of a step, more is done than has come back.
        if self.done <= self.marks.last_return.1 || self.out.front().is_some_and(|(_, work)| *work > 0.0) {
            return;
        }
        self.first_step_has_arrived();
        self.marks.last_return = (self.busy_s, self.done);
        if self.done - self.marks.window.1 > WINDOW * self.step_max {
            self.marks.before = core::mem::replace(&mut self.marks.window, self.marks.last_return);
        }
    }

    /// The link accepted bytes; `is_busy` if more wait in it.
    pub(super) fn link_took(&mut self, bytes: u64, is_busy: bool, now: Duration) {
        self.advance_to(now);
        self.link.bytes += bytes;
        self.link.frames += 1;
        self.link.is_busy = is_busy;
        if self.sent > self.step && (!is_busy || self.link.bytes >= self.first_bytes) {
            self.first_step_has_arrived();
        }
    }

    fn first_step_has_arrived(&mut self) {
        if !core::mem::replace(&mut self.first_step_arrived, true) {
            self.marks.window = (self.busy_s, self.done);
            (self.marks.before, self.marks.last_return) = (self.marks.window, self.marks.window);
        }
    }

    /// The link was given bytes.
    pub(super) fn link_given(&mut self, now: Duration) {
        self.advance_to(now);
        self.link.is_busy = true;
    }

    /// Charge of the operands at the peer or under way.
    pub(super) fn bytes_out(&self) -> u64 {
        self.out.iter().map(|(bytes, _)| bytes).sum::<u64>() - self.freed_bytes
    }

    /// Work that is not done.
    pub(super) fn left(&self) -> f64 {
        (self.given - self.done).max(0.0)
    }

    /// Work at the peer or under way.
    pub(super) fn in_flight(&self) -> f64 {
        (self.sent - self.done).max(0.0)
    }

    /// Work per second at the time when operands last came back.
    pub(super) fn rate_at_work(&self) -> f64 {
        let trusted = TRUST * self.step_max;
        let (busy_s, done) =
            (self.marks.last_return.0 - self.marks.before.0, self.marks.last_return.1 - self.marks.before.1);
        if !self.first_step_arrived || self.planned <= 0.0 || busy_s + trusted <= 0.0 {
            return self.planned;
        }
        (done + trusted) / (busy_s + trusted / self.planned)
    }

    /// Work per second now. The planned rate fades as more is observed. While nothing comes back, the rate is
    /// at most what it would be if one and a half steps had been done since.
    pub(super) fn rate(&self) -> f64 {
        let silent_s = self.busy_s - self.marks.before.0;
        if !self.first_step_arrived || silent_s <= 0.0 || self.planned <= 0.0 {
            return self.planned;
        }
        let done = self.marks.last_return.1 - self.marks.before.1;
        self.rate_at_work().min((done + UNHEARD * self.step_max) / silent_s)
    }

    /// Whether the link has been busy nearly all the time, so that more work would only wait for it.
    pub(super) fn is_link_bound(&self) -> bool {
        self.link.busy_s > LINK_BOUND * self.seen.as_secs_f64()
    }

    /// Bytes per second of the link, if known. Descriptions of generated operands and panels of a few rows
    /// are too small to measure a link.
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
    fn the_rate_follows_returned_work_and_idle_time_does_not_count() {
        let mut speed = RateEstimator::new(100.0, 10.0);
        for _ in 0..3 {
            speed.begun(64, 0.0, at(5));
            speed.begun(64, 4.0, at(5));
            speed.link_given(at(5));
        }
        speed.link_took(130, true, at(6));
        assert_eq!(speed.rate(), 10.0);
        speed.advance_to(at(12));
        assert_eq!(speed.rate(), 1.0, "nothing came in six seconds, and 6 may have been done");
        speed.credit(128, at(14));
        assert_eq!((speed.done, speed.in_flight(), speed.left()), (4.0, 8.0, 96.0));
        let rate = speed.rate();
        assert!((0.5..1.0).contains(&rate), "4 in 8 s, with some trust: {rate}");
        speed.credit(256, at(30));
        let rate = speed.rate();
        assert!((0.5..0.7).contains(&rate), "12 in 24 s: {rate}");
        speed.advance_to(at(900));
        assert_eq!(speed.rate(), rate, "it had nothing to do");
    }

    #[test]
    fn frames_of_a_few_bytes_do_not_say_how_fast_a_link_is() {
        let took = |bytes: u64| {
            let mut speed = RateEstimator::new(100.0, 10.0);
            for frame in 0..10 {
                speed.link_given(at(frame));
                speed.link_took(bytes, false, at(frame + 1));
            }
            speed.link_rate()
        };
        assert_eq!(took(200), None);
        assert_eq!(took(1 << 20), Some(f64::from(1 << 20)));
    }

    #[test]
    fn the_memory_of_tiles_is_no_work_done() {
        let mut speed = RateEstimator::new(100.0, 10.0);
        speed.begun(64, 4.0, at(0));
        speed.returned(1000);
        speed.credit(1000, at(1));
        assert_eq!(speed.done, 0.0);
        speed.credit(64, at(1));
        assert_eq!(speed.done, 4.0);
    }
}
