//! How far a worker computes ahead, as its shell sees it: an account of started jobs and unsent tiles.
//!
//! Place in the flow: a machine reports each job that its state machine starts, each finished job and each tile that has been
//! sent. The limits are those of the state machine (`schedule/src/worker/start.rs`); the account is kept apart from it.
//!
//! Invariants checked: tiles of one job that are not sent have at most the limit's bytes, or are at most the limit's number;
//! additions that make new matrices and run are at most the limit's.
//!
//! Deliberately absent: a job that never starts; `trial/check.rs` notices a product that makes no progress.

use bramble_schedule::worker::{RunnableJob, StartLimits};
use bramble_wire::message::{MatrixHeader, MatrixSource, Operation, Then};
use std::collections::{BTreeMap, BTreeSet};

/// See the head of this file.
pub(crate) struct JobsAhead {
    limits: StartLimits,
    /// Bytes of tiles that one job makes, from the start of the job until they are sent.
    unsent: BTreeMap<u32, u64>,
    /// New matrices that additions are making.
    additions: BTreeSet<u32>,
}

impl JobsAhead {
    pub(crate) fn new(limits: StartLimits) -> Self {
        Self { limits, unsent: BTreeMap::new(), additions: BTreeSet::new() }
    }

    /// The same limits, and nothing that has started.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    pub(crate) fn limits(&self) -> StartLimits {
        self.limits
    }

    /// A job starts; `target` is the matrix that it writes, `is_leased` whether that is in the primary's memory.
    pub(crate) fn started(&mut self, run: &RunnableJob, target: &MatrixHeader, is_leased: bool) {
        let is_new = !run.reads_tile && !is_leased && target.source == MatrixSource::Vacant;
        match run.job.operation {
            Operation::Multiply if is_new && run.job.then == Then::Return => {
                self.unsent.insert(target.id, target.bytes());
                let (bytes, tiles) = (self.unsent.values().sum::<u64>(), self.unsent.len());
                assert!(
                    bytes <= self.limits.unsent_bytes || tiles <= self.limits.unsent_tiles,
                    "{tiles} tiles of {bytes} bytes are ahead of the link, which is more than {:?}",
                    self.limits
                );
            }
            Operation::Add | Operation::Subtract if is_new => {
                self.additions.insert(target.id);
                let running = self.additions.len();
                assert!(running <= self.limits.additions, "{running} additions of new matrices run at once");
            }
            _ => {}
        }
    }

    /// A job has finished.
    pub(crate) fn finished(&mut self, run: &RunnableJob) {
        self.additions.remove(&run.job.c);
    }

    /// A tile has been sent.
    pub(crate) fn sent(&mut self, tile: u32) {
        self.unsent.remove(&tile);
    }

    /// How many jobs are counted now.
    pub(crate) fn count(&self) -> usize {
        self.unsent.len() + self.additions.len()
    }
}
