//! Send backpressure: limits how far computing runs ahead of the link with tiles that take one job each.
//!
//! Place in the flow: a job whose operands are complete passes here before it starts; when a tile has been
//! sent, the next job may start.
//!
//! Invariants: a job waits only while other tiles are being computed or sent, so every waiting job starts
//! eventually. Unsent tiles that took one job each have at most `unsent_bytes` in all, or are at most
//! `unsent_tiles`. Jobs keep their order of arrival.
//!
//! Why: such a job only gives the link more to send. Where the link is the bottleneck, running further ahead
//! speeds up nothing, but takes fresh memory for each tile, where a few reused buffers would do.
//!
//! Deliberately absent: jobs of tiles with several jobs, which compute before there is anything to send, and
//! jobs whose result other jobs need. Tiles in the primary's own memory have no bytes to send.

use super::{RunnableJob, StartLimits};
use alloc::collections::{BTreeMap, VecDeque};
use bramble_wire::message::{Operation, Then};

/// Tiles that the link has not sent, and jobs that wait.
#[derive(Debug)]
pub(super) struct SendBackpressure {
    limits: StartLimits,
    /// Bytes of each tile that is being computed in one job, or is being sent.
    unsent: BTreeMap<u32, u64>,
    /// Sum of `unsent`.
    bytes: u64,
    waiting: VecDeque<(RunnableJob, u64)>,
}

impl SendBackpressure {
    pub(super) fn new(limits: StartLimits) -> Self {
        Self { limits, unsent: BTreeMap::new(), bytes: 0, waiting: VecDeque::new() }
    }

    /// Returns the job if it may start now, else queues it. Its tile takes `new_bytes` of memory.
    pub(super) fn admit(&mut self, run: RunnableJob, new_bytes: u64) -> Option<RunnableJob> {
        let makes_whole_tile = run.job.then == Then::Return && !run.reads_tile;
        if !makes_whole_tile || run.job.operation != Operation::Multiply {
            return Some(run);
        }
        self.waiting.push_back((run, new_bytes));
        self.next()
    }

    /// A tile is handed to the link, after any number of jobs.
    pub(super) fn handed_to_link(&mut self, tile: u32, bytes: u64) {
        if self.unsent.insert(tile, bytes).is_none() {
            self.bytes += bytes;
        }
    }

    /// A tile has been sent.
    pub(super) fn sent(&mut self, tile: u32) {
        self.bytes -= self.unsent.remove(&tile).unwrap_or_default();
    }

    /// The next waiting job, if it may start now.
    pub(super) fn next(&mut self) -> Option<RunnableJob> {
        let (_, new_bytes) = self.waiting.front()?;
        if self.is_full(*new_bytes) {
            return None;
        }
        let (run, new_bytes) = self.waiting.pop_front()?;
        self.handed_to_link(run.job.c, new_bytes);
        Some(run)
    }

    /// Whether a job has to wait whose tile takes `new_bytes`.
    fn is_full(&self, new_bytes: u64) -> bool {
        self.unsent.len() >= self.limits.unsent_tiles
            && self.bytes.saturating_add(new_bytes) > self.limits.unsent_bytes
    }

    /// How many jobs wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Checks the invariants after an event.
    pub(super) fn validate(&self) {
        assert_eq!(self.bytes, self.unsent.values().sum::<u64>(), "bytes of unsent tiles");
        let next = self.waiting.front();
        assert!(
            next.is_none_or(|(_, bytes)| self.is_full(*bytes)),
            "a job waits though the link needs tiles"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_wire::message::Job;

    const MIB: u64 = 1 << 20;

    fn run(c: u32) -> RunnableJob {
        let (operation, then) = (Operation::Multiply, Then::Return);
        let job = Job { operation, c, a: 1000, b: 1001, step: 0, epoch: 0, then };
        RunnableJob { job, reads_tile: false, scales_tile: false }
    }

    fn backpressure(threads: usize) -> SendBackpressure {
        SendBackpressure::new(StartLimits::for_threads(threads))
    }

    #[test]
    fn jobs_wait_for_the_link_and_go_in_their_order() {
        let mut backpressure = backpressure(2);
        let started: Vec<bool> = (0..100).map(|c| backpressure.admit(run(c), MIB).is_some()).collect();
        assert_eq!(started.iter().filter(|started| **started).count(), 16);
        assert!(started[..16].iter().all(|started| *started));
        for c in 0..84 {
            backpressure.validate();
            assert_eq!(backpressure.next(), None);
            backpressure.handed_to_link(c, MIB);
            backpressure.sent(c);
            assert_eq!(backpressure.next().map(|run| run.job.c), Some(16 + c));
        }
        (84..100).for_each(|c| backpressure.sent(c));
        assert_eq!((backpressure.bytes, backpressure.unsent.len(), backpressure.next()), (0, 0, None));
    }

    #[test]
    fn every_thread_has_work_however_large_tiles_are() {
        let mut backpressure = backpressure(2);
        assert_eq!((0..20).filter(|c| backpressure.admit(run(*c), 1000 * MIB).is_some()).count(), 8);
    }

    #[test]
    fn jobs_whose_tile_is_not_sent_at_once_never_wait() {
        let mut backpressure = backpressure(1);
        (0..20).for_each(|c| backpressure.handed_to_link(c, 1000 * MIB));
        let one = run(100);
        for job in [
            Job { then: Then::Continue, ..one.job },
            Job { then: Then::Close, ..one.job },
            Job { operation: Operation::Add, ..one.job },
        ] {
            assert!(backpressure.admit(RunnableJob { job, ..one }, MIB).is_some());
        }
        assert!(backpressure.admit(RunnableJob { reads_tile: true, ..one }, MIB).is_some());
        assert!(backpressure.admit(one, MIB).is_none());
    }
}
