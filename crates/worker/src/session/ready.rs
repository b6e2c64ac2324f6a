//! Sums that may be made, and which of them the compute threads are given.
//!
//! Place in the flow: an addition that makes something new comes here when it may run, and goes on to the pool when that has
//! few of its kind before it. There it gets the memory for what it makes. All other jobs go to the pool at once.
//!
//! Invariants: of those that are here the one whose turn it is goes first; the pool has more of them than it does until the
//! owner of the session hears of it again, as long as there are some.
//!
//! Why: all sums of panels that have come may be made at once. With memory for each of them from the moment when it may be
//! made, a worker has most of them in memory long before a product needs them; a few buffers, used again, are in a cache.
//!
//! Deliberately absent: threads (`pool`), what waits for the link (`ahead`), and products: those of sums come when these are
//! there, and the others have no sums to wait for.

use crate::pool::{KEPT_MAX, Length};
use bramble_schedule::worker::{Run, Turn, Turns};

/// Brief ones for each compute thread: as many as it does before it says so, and as many again while the owner is busy.
const BRIEF_AHEAD: usize = 2 * KEPT_MAX;
/// Those of any length: the one that is made, and three while the owner is busy.
const LONG_AHEAD: usize = 4;

/// Sums that may be made.
#[derive(Debug)]
pub(super) struct Ready {
    waiting: Turns<Run>,
    threads: usize,
    /// Those in the pool; a long one is as many as there may be brief ones in its place.
    in_pool: usize,
}

impl Ready {
    pub(super) fn new(threads: usize) -> Self {
        Self { waiting: Turns::default(), threads: threads.max(1), in_pool: 0 }
    }

    /// One more.
    pub(super) fn put(&mut self, run: Run) {
        self.waiting.put(run, Turn::of(&run.job));
    }

    /// The next one for the pool, if that may have more; `gone` is to be told of it.
    pub(super) fn next(&mut self) -> Option<Run> {
        if self.in_pool >= self.threads * BRIEF_AHEAD {
            return None;
        }
        self.waiting.take()
    }

    /// It has gone to the pool.
    pub(super) fn gone(&mut self, length: Length) {
        self.in_pool += weight(length);
    }

    /// It is done.
    pub(super) fn done(&mut self, length: Length) {
        self.in_pool -= weight(length);
    }
}

const fn weight(length: Length) -> usize {
    match length {
        Length::Brief => 1,
        Length::Any => BRIEF_AHEAD / LONG_AHEAD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_schedule::message::{Job, Operation, Then};

    fn sum(c: u32) -> Run {
        let job = Job { operation: Operation::Add, c, a: 1, b: 2, step: 0, epoch: 0, then: Then::Close };
        Run { job, reads_tile: false, scales_tile: false }
    }

    fn given(ready: &mut Ready, length: Length) -> Vec<u32> {
        std::iter::from_fn(|| ready.next().inspect(|_| ready.gone(length))).map(|run| run.job.c).collect()
    }

    #[test]
    fn the_pool_has_little_more_than_it_needs_and_the_least_turns_first() {
        let mut ready = Ready::new(2);
        (0..100).rev().for_each(|c| ready.put(sum(c)));
        assert_eq!(given(&mut ready, Length::Any), (0..8).collect::<Vec<_>>());
        ready.done(Length::Any);
        ready.put(sum(3));
        assert_eq!(given(&mut ready, Length::Any), [3]);
        (0..8).for_each(|_| ready.done(Length::Any));
        assert_eq!(given(&mut ready, Length::Brief).len(), 2 * BRIEF_AHEAD);
        (0..2 * BRIEF_AHEAD).for_each(|_| ready.done(Length::Brief));
        assert_eq!(given(&mut ready, Length::Brief).len(), 100 - 8 - 2 * BRIEF_AHEAD);
        assert_eq!(ready.next(), None);
    }
}
