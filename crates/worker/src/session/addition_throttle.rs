//! Addition throttle: chooses which of the additions that could run the compute threads get.
//!
//! Place in the flow: an addition that makes a new matrix waits here when it could run, and moves to the pool when the pool holds
//! few additions. Only then it gets memory for its result. All other jobs go to the pool at once.
//!
//! Invariants: the waiting addition of highest priority goes first; as long as additions wait, the pool has more of them than it
//! finishes before the session's event loop runs again.
//!
//! Why: all sums of panels that have arrived could be computed at once. If each got its memory as soon as it could run, a
//! worker would hold most sums long before a multiplication needs them; a few reused buffers stay in the cache.
//!
//! Deliberately absent: threads (`pool`), backpressure of the link (`send_backpressure`), and multiplications: those that read
//! sums start when the sums are done, and the others have no sums to wait for.

use crate::pool::{TaskLength, UNREPORTED_MAX};
use bramble_schedule::worker::{Priority, PriorityQueue, RunnableJob};

/// Brief additions in the pool for each compute thread: as many as a thread does between reports, and as many again while
/// the event loop is busy.
const BRIEF_AHEAD: usize = 2 * UNREPORTED_MAX;
/// Additions of unknown length: the one that runs, and three while the event loop is busy.
const LONG_AHEAD: usize = 4;

/// Additions that could run.
#[derive(Debug)]
pub(super) struct AdditionThrottle {
    waiting: PriorityQueue<RunnableJob>,
    threads: usize,
    /// Additions in the pool, in units of brief ones; one of unknown length counts for several.
    in_pool: usize,
}

impl AdditionThrottle {
    pub(super) fn new(threads: usize) -> Self {
        Self { waiting: PriorityQueue::default(), threads: threads.max(1), in_pool: 0 }
    }

    /// Adds one.
    pub(super) fn put(&mut self, run: RunnableJob) {
        self.waiting.put(run, Priority::of(&run.job));
    }

    /// The next addition for the pool, if there is room; the caller confirms it with `submitted`.
    pub(super) fn next(&mut self) -> Option<RunnableJob> {
        if self.in_pool >= self.threads * BRIEF_AHEAD {
            return None;
        }
        self.waiting.take()
    }

    /// An addition has gone to the pool.
    pub(super) fn submitted(&mut self, length: TaskLength) {
        self.in_pool += weight(length);
    }

    /// An addition in the pool is done.
    pub(super) fn done(&mut self, length: TaskLength) {
        self.in_pool -= weight(length);
    }
}

const fn weight(length: TaskLength) -> usize {
    match length {
        TaskLength::Brief => 1,
        TaskLength::Any => BRIEF_AHEAD / LONG_AHEAD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_schedule::message::{Job, Operation, Then};

    fn sum(c: u32) -> RunnableJob {
        let job = Job { operation: Operation::Add, c, a: 1, b: 2, step: 0, epoch: 0, then: Then::Close };
        RunnableJob { job, reads_tile: false, scales_tile: false }
    }

    fn given(throttle: &mut AdditionThrottle, length: TaskLength) -> Vec<u32> {
        std::iter::from_fn(|| throttle.next().inspect(|_| throttle.submitted(length)))
            .map(|run| run.job.c)
            .collect()
    }

    #[test]
    fn the_pool_holds_few_additions_and_the_highest_priority_goes_first() {
        let mut throttle = AdditionThrottle::new(2);
        (0..100).rev().for_each(|c| throttle.put(sum(c)));
        assert_eq!(given(&mut throttle, TaskLength::Any), (0..8).collect::<Vec<_>>());
        throttle.done(TaskLength::Any);
        throttle.put(sum(3));
        assert_eq!(given(&mut throttle, TaskLength::Any), [3]);
        (0..8).for_each(|_| throttle.done(TaskLength::Any));
        assert_eq!(given(&mut throttle, TaskLength::Brief).len(), 2 * BRIEF_AHEAD);
        (0..2 * BRIEF_AHEAD).for_each(|_| throttle.done(TaskLength::Brief));
        assert_eq!(given(&mut throttle, TaskLength::Brief).len(), 100 - 8 - 2 * BRIEF_AHEAD);
        assert_eq!(throttle.next(), None);
    }
}
