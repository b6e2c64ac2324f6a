//! How far computing may run ahead of the link: tiles that are finished in one job, from its start until they have left.
//!
//! Place in the flow: a job goes through here on its way to the compute threads; a tile that has left lets the next one go.
//!
//! Invariants: a job waits only while tiles of others are on their way, so one that waits is always started; jobs go in the
//! order in which they came.
//!
//! Why: such a job gives the link more to send and nothing else. Where the link is what bounds, running further ahead
//! makes no product faster; it takes memory that nobody has touched for each tile, where a few buffers, used again, do.
//!
//! Deliberately absent: jobs of tiles with several, which have work to do before there is anything to send, and those that
//! others wait for.

use bramble_schedule::message::{Operation, Then};
use bramble_schedule::worker::Run;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of tiles that may be ahead of the link: an eighth of a second of 1 Gbit/s, and what a large cache may still have when it
/// leaves.
const AHEAD_BYTES: u64 = 16 << 20;
/// Tiles for each compute thread that may be, however large they are.
const AHEAD_TILES: usize = 4;

/// What is ahead of the link, and what waits for it.
#[derive(Debug)]
pub(super) struct Ahead {
    tiles_min: usize,
    /// Bytes of each tile that is being computed in one job, or is leaving.
    tiles: BTreeMap<u32, u64>,
    /// Their sum.
    bytes: u64,
    waiting: VecDeque<(Run, u64)>,
}

impl Ahead {
    pub(super) fn new(threads: usize) -> Self {
        let tiles_min = threads.saturating_mul(AHEAD_TILES).max(1);
        Self { tiles_min, tiles: BTreeMap::new(), bytes: 0, waiting: VecDeque::new() }
    }

    /// The job again, if it may start now; else it waits. Its tile has `bytes`.
    pub(super) fn admit(&mut self, run: Run, bytes: u64) -> Option<Run> {
        let whole = run.job.then == Then::Return && !run.reads_tile;
        if !whole || run.job.operation != Operation::Multiply {
            return Some(run);
        }
        self.waiting.push_back((run, bytes));
        self.next()
    }

    /// A tile is on its way, after however many jobs.
    pub(super) fn leaves(&mut self, tile: u32, bytes: u64) {
        if self.tiles.insert(tile, bytes).is_none() {
            self.bytes += bytes;
        }
    }

    /// A tile has left.
    pub(super) fn left(&mut self, tile: u32) {
        self.bytes -= self.tiles.remove(&tile).unwrap_or_default();
    }

    /// The next job that waited and may start now.
    pub(super) fn next(&mut self) -> Option<Run> {
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

    fn run(c: u32) -> Run {
        let (operation, then) = (Operation::Multiply, Then::Return);
        let job = Job { operation, c, a: 1000, b: 1001, step: 0, epoch: 0, then };
        Run { job, reads_tile: false, scales_tile: false }
    }

    #[test]
    fn jobs_wait_for_the_link_and_go_in_their_order() {
        let mut ahead = Ahead::new(2);
        let started: Vec<bool> = (0..100).map(|c| ahead.admit(run(c), MIB).is_some()).collect();
        assert_eq!(started.iter().filter(|started| **started).count(), 16);
        assert!(started[..16].iter().all(|started| *started));
        for c in 0..84 {
            assert_eq!(ahead.next(), None);
            ahead.leaves(c, MIB);
            ahead.left(c);
            assert_eq!(ahead.next().map(|run| run.job.c), Some(16 + c));
        }
        (84..100).for_each(|c| ahead.left(c));
        assert_eq!((ahead.bytes, ahead.tiles.len(), ahead.next()), (0, 0, None));
    }

    #[test]
    fn every_thread_has_work_however_large_tiles_are() {
        let mut ahead = Ahead::new(2);
        assert_eq!((0..20).filter(|c| ahead.admit(run(*c), 1000 * MIB).is_some()).count(), 8);
    }

    #[test]
    fn jobs_that_give_the_link_nothing_at_once_never_wait() {
        let mut ahead = Ahead::new(1);
        (0..20).for_each(|c| ahead.leaves(c, 1000 * MIB));
        let one = run(100);
        for job in [
            Job { then: Then::Continue, ..one.job },
            Job { then: Then::Close, ..one.job },
            Job { operation: Operation::Add, ..one.job },
        ] {
            assert!(ahead.admit(Run { job, ..one }, MIB).is_some());
        }
        assert!(ahead.admit(Run { reads_tile: true, ..one }, MIB).is_some());
        assert!(ahead.admit(one, MIB).is_none());
    }
}
