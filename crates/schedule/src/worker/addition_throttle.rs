//! Addition throttle: chooses which of the additions that could run the compute threads get.
//!
//! Place in the flow: an addition that makes a new matrix waits here when its operands are complete, and
//! starts when the compute threads have few additions before them. Only then the shell takes memory for its
//! result. All other jobs start at once.
//!
//! Invariants: the waiting addition of highest priority goes first. As long as additions wait, the compute
//! threads have as many before them as the limit allows, and never more than one beyond it: so a
//! multiplication that becomes possible finds few additions before it.
//!
//! Why: all sums of panels that have arrived could be computed at once. If each got its memory as soon as it
//! could run, a worker would hold most sums long before a multiplication needs them; a few reused buffers
//! stay in the cache.
//!
//! Deliberately absent: threads, the backpressure of the link (`send_backpressure`), and multiplications: one
//! that reads a sum waits for that sum only.

use super::{Priority, PriorityQueue, RunnableJob, TaskLength};
use bramble_wire::limits::{BRIEF_ADDITIONS_PER_THREAD, LONG_ADDITIONS_PER_THREAD};

/// Additions that could run.
#[derive(Debug)]
pub(super) struct AdditionThrottle {
    waiting: PriorityQueue<(RunnableJob, TaskLength)>,
    /// Limit of `started`.
    started_max: usize,
    /// Additions that have started and not finished, in units of brief ones; one of unknown length counts for
    /// several.
    started: usize,
}

impl AdditionThrottle {
    pub(super) fn new(started_max: usize) -> Self {
        Self { waiting: PriorityQueue::default(), started_max, started: 0 }
    }

    /// Adds an addition that could run.
    pub(super) fn put(&mut self, run: RunnableJob, length: TaskLength) {
        self.waiting.put((run, length), Priority::of(&run.job));
    }

    /// The next addition, if it may start now.
    pub(super) fn next(&mut self) -> Option<RunnableJob> {
        if self.started >= self.started_max {
            return None;
        }
        let (run, length) = self.waiting.take()?;
        self.started += weight(length);
        Some(run)
    }

    /// An addition that `next` returned is done.
    pub(super) fn done(&mut self, length: TaskLength) {
        self.started -= weight(length);
    }

    /// How many jobs wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.count()
    }

    /// Checks the invariants after an event.
    pub(super) fn validate(&self) {
        let is_full = self.started >= self.started_max;
        assert!(is_full || self.waiting.count() == 0, "an addition waits though threads could take it");
        let most = self.started_max + weight(TaskLength::Any);
        assert!(self.started < most, "{} additions have started, at most {most}", self.started);
    }
}

const fn weight(length: TaskLength) -> usize {
    match length {
        TaskLength::Brief => 1,
        TaskLength::Any => BRIEF_ADDITIONS_PER_THREAD / LONG_ADDITIONS_PER_THREAD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::StartLimits;
    use bramble_wire::message::{Job, Operation, Then};

    fn sum(c: u32) -> RunnableJob {
        let job = Job { operation: Operation::Add, c, a: 1, b: 2, step: 0, epoch: 0, then: Then::Close };
        RunnableJob { job, reads_tile: false, scales_tile: false }
    }

    fn started(throttle: &mut AdditionThrottle) -> Vec<u32> {
        let started = core::iter::from_fn(|| throttle.next()).map(|run| run.job.c).collect();
        throttle.validate();
        started
    }

    #[test]
    fn few_additions_start_and_the_highest_priority_goes_first() {
        let mut throttle = AdditionThrottle::new(StartLimits::for_threads(2).additions);
        (0..100).rev().for_each(|c| throttle.put(sum(c), TaskLength::Any));
        assert_eq!(started(&mut throttle), (0..8).collect::<Vec<_>>());
        throttle.done(TaskLength::Any);
        throttle.put(sum(3), TaskLength::Any);
        assert_eq!(started(&mut throttle), [3]);
    }

    #[test]
    fn more_brief_additions_start() {
        let mut throttle = AdditionThrottle::new(StartLimits::for_threads(2).additions);
        let most = 2 * BRIEF_ADDITIONS_PER_THREAD;
        (0..100).for_each(|c| throttle.put(sum(c), TaskLength::Brief));
        assert_eq!(started(&mut throttle).len(), most);
        (0..most).for_each(|_| throttle.done(TaskLength::Brief));
        assert_eq!(started(&mut throttle).len(), 100 - most);
        assert_eq!(throttle.next(), None);
    }
}
