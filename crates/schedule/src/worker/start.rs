//! Whether a job whose operands are complete starts now or waits, although nothing is missing.
//!
//! Place in the flow: between the state of the matrices (`mod.rs`) and `WorkerAction::Start`. Two rules hold
//! jobs back: `send_backpressure` and `addition_throttle`.
//!
//! Invariants: a job that waits here counts as running for its target, so no other job of that target starts.
//! Waiting jobs are bounded by the grant, like queued ones.
//!
//! Deliberately absent: memory and threads. The shell takes memory for a matrix that only jobs write when its
//! first job starts.

use super::stored::Stored;
use super::{RunnableJob, Worker, WorkerAction};
use alloc::vec::Vec;
use bramble_wire::limits::{BRIEF_ADDITIONS_PER_THREAD, UNSENT_BYTES_MAX, UNSENT_TILES_PER_THREAD};
use bramble_wire::message::{Job, MatrixHeader, Operation, Then};

/// How far computing runs ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartLimits {
    /// Bytes of tiles that are computed in one job each and have not been sent.
    pub unsent_bytes: u64,
    /// Number of such tiles that may be unsent, however large they are; at least 1.
    pub unsent_tiles: usize,
    /// Additions that make new matrices, have started and have not finished; at least 1. One that is not brief
    /// counts for several.
    pub additions: usize,
}

impl StartLimits {
    /// The limits of a session with this many compute threads.
    pub fn for_threads(threads: usize) -> Self {
        let threads = threads.max(1);
        Self {
            unsent_bytes: UNSENT_BYTES_MAX,
            unsent_tiles: threads.saturating_mul(UNSENT_TILES_PER_THREAD),
            additions: threads.saturating_mul(BRIEF_ADDITIONS_PER_THREAD),
        }
    }
}

/// Multiply-adds of a brief multiplication: 200 µs at 40 Gflop/s.
const BRIEF_MULTIPLICATIONS: u64 = 1 << 22;
/// Elements of a brief addition: as long at 5 GB/s written.
const BRIEF_ELEMENTS: u64 = 1 << 17;

/// Duration of a task of the compute threads, as far as it is known in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLength {
    /// Well below a millisecond.
    Brief,
    /// Unknown.
    Any,
}

impl TaskLength {
    /// The length of a job whose operands have `rows` × `depth` and `depth` × `cols` elements, or the same
    /// shape if it adds.
    pub fn of(operation: Operation, rows: u64, depth: u64, cols: u64) -> Self {
        let is_brief = match operation {
            Operation::Multiply => rows.saturating_mul(depth).saturating_mul(cols) <= BRIEF_MULTIPLICATIONS,
            Operation::Add | Operation::Subtract => rows.saturating_mul(cols) <= BRIEF_ELEMENTS,
        };
        if is_brief { Self::Brief } else { Self::Any }
    }

    /// The length of an addition with this result.
    fn of_addition(result: &MatrixHeader) -> Self {
        Self::of(Operation::Add, result.rows.into(), result.cols.into(), result.cols.into())
    }
}

impl Worker {
    /// How many jobs could run, and wait for the link or for the compute threads.
    pub fn waiting(&self) -> (usize, usize) {
        (self.backpressure.waiting(), self.throttle.waiting())
    }

    /// Starts a job whose operands are complete, or lets it wait.
    pub(super) fn start_or_wait(&mut self, run: RunnableJob, actions: &mut Vec<WorkerAction>) {
        let Some(target) = self.matrices.get(&run.job.c) else { return };
        let (new_bytes, length) = (self.new_bytes(target), TaskLength::of_addition(&target.header));
        match self.backpressure.admit(run, new_bytes) {
            Some(run) if makes_sum(new_bytes, &run.job) => self.throttle.put(run, length),
            Some(run) => actions.push(WorkerAction::Start(run)),
            None => {}
        }
    }

    /// Starts waiting additions, as far as the throttle allows.
    pub(super) fn start_additions(&mut self, actions: &mut Vec<WorkerAction>) {
        actions.extend(core::iter::from_fn(|| self.throttle.next()).map(WorkerAction::Start));
    }

    /// A job is about to count as done.
    pub(super) fn release_start(&mut self, job: &Job) {
        let Some(target) = self.matrices.get(&job.c) else { return };
        if makes_sum(self.new_bytes(target), job) {
            self.throttle.done(TaskLength::of_addition(&target.header));
        }
        if job.then == Then::Return && !self.leased.contains(&job.c) {
            self.backpressure.handed_to_link(job.c, target.header.bytes());
        }
    }

    /// Bytes of memory that a target's next job takes: all of the target if it is new, else none.
    fn new_bytes(&self, target: &Stored) -> u64 {
        let is_new = target.is_new() && !self.leased.contains(&target.header.id);
        if is_new { target.header.bytes() } else { 0 }
    }

    /// A tile has been sent: jobs that waited for the link start.
    pub(super) fn tile_sent(&mut self, tile: u32, actions: &mut Vec<WorkerAction>) {
        self.backpressure.sent(tile);
        actions.extend(core::iter::from_fn(|| self.backpressure.next()).map(WorkerAction::Start));
    }
}

/// Whether a job that takes `new_bytes` of memory makes a new matrix by adding.
fn makes_sum(new_bytes: u64, job: &Job) -> bool {
    job.operation != Operation::Multiply && new_bytes > 0
}
