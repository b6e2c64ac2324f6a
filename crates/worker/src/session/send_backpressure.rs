//! Send backpressure: limits how far computing runs ahead of the link with tiles that take one job each.
//!
//! Place in the flow: a job passes here on its way to the compute threads; when a tile has been sent, the next job may start.
//!
//! Invariants: a job waits only while other tiles are being computed or sent, so every waiting job is started eventually;
//! jobs keep their order of arrival.
//!
//! Why: such a job only gives the link more to send. Where the link is the bottleneck, running further ahead
//! speeds up nothing, but takes fresh memory for each tile, where a few reused buffers would do.
//!
//! Deliberately absent: jobs of tiles with several jobs, which compute before there is anything to send, and jobs whose result
//! other jobs need.

use bramble_schedule::message::{Operation, Then};
use bramble_schedule::worker::RunnableJob;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of tiles that may be ahead of the link: an eighth of a second of 1 Gbit/s, and about what a large cache may still
/// hold when the tile is sent.
const AHEAD_BYTES: u64 = 16 << 20;
/// Tiles for each compute thread that may be ahead, however large they are.
const AHEAD_TILES: usize = 4;

/// Tiles ahead of the link, and jobs that wait.
#[derive(Debug)]
pub(super) struct SendBackpressure {
    tiles_min: usize,
    /// Bytes of each tile that is being computed in one job, or is being sent.
    tiles: BTreeMap<u32, u64>,
    /// Sum of `tiles`.
    bytes: u64,
    waiting: VecDeque<(RunnableJob, u64)>,
}

impl SendBackpressure {
    pub(super) fn new(threads: usize) -> Self {
        let tiles_min = threads.saturating_mul(AHEAD_TILES).max(1);
        Self { tiles_min, tiles: BTreeMap::new(), bytes: 0, waiting: VecDeque::new() }
    }

    /// Returns the job if it may start now, else queues it. Its tile has `bytes`.
    pub(super) fn admit(&mut self, run: RunnableJob, bytes: u64) -> Option<RunnableJob> {
        let whole = run.job.then == Then::Return && !run.reads_tile;
        if !whole || run.job.operation != Operation::Multiply {
            return Some(run);
        }
        self.waiting.push_back((run, bytes));
        self.next()
    }

    /// A tile is handed to the link, after however many jobs.
    pub(super) fn leaves(&mut self, tile: u32, bytes: u64) {
        if self.tiles.insert(tile, bytes).is_none() {
            self.bytes += bytes;
        }
    }

    /// A tile has been sent.
    pub(super) fn left(&mut self, tile: u32) {
        self.bytes -= self.tiles.remove(&tile).unwrap_or_default();
    }

    /// The next waiting job, if it may start now.
    pub(super) fn next(&mut self) -> Option<RunnableJob> {
        let (_, bytes) = self.waiting.front()?;
        if self.tiles.len() >= self.tiles_min && self.bytes + bytes > AHEAD_BYTES {
            return None;
        }
        let (run, bytes) = self.waiting.pop_front()?;
        self.leaves(run.job.c, bytes);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_schedule::message::Job;

    const MIB: u64 = 1 << 20;

    fn run(c: u32) -> RunnableJob {
        let (operation, then) = (Operation::Multiply, Then::Return);
        let job = Job { operation, c, a: 1000, b: 1001, step: 0, epoch: 0, then };
        RunnableJob { job, reads_tile: false, scales_tile: false }
    }

    #[test]
    fn jobs_wait_for_the_link_and_go_in_their_order() {
        let mut backpressure = SendBackpressure::new(2);
        let started: Vec<bool> = (0..100).map(|c| backpressure.admit(run(c), MIB).is_some()).collect();
        assert_eq!(started.iter().filter(|started| **started).count(), 16);
        assert!(started[..16].iter().all(|started| *started));
        for c in 0..84 {
            assert_eq!(backpressure.next(), None);
            backpressure.leaves(c, MIB);
            backpressure.left(c);
            assert_eq!(backpressure.next().map(|run| run.job.c), Some(16 + c));
        }
        (84..100).for_each(|c| backpressure.left(c));
        assert_eq!((backpressure.bytes, backpressure.tiles.len(), backpressure.next()), (0, 0, None));
    }

    #[test]
    fn every_thread_has_work_however_large_tiles_are() {
        let mut backpressure = SendBackpressure::new(2);
        assert_eq!((0..20).filter(|c| backpressure.admit(run(*c), 1000 * MIB).is_some()).count(), 8);
    }

    #[test]
    fn jobs_whose_tile_is_not_sent_at_once_never_wait() {
        let mut backpressure = SendBackpressure::new(1);
        (0..20).for_each(|c| backpressure.leaves(c, 1000 * MIB));
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
