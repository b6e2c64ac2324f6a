//! Workers that join in the middle of a product.

use super::{End, World};
use bramble_schedule::primary::{PeerInfo, PrimaryEvent, Referred};
use bramble_schedule::worker::{StartLimits, Worker};
use std::collections::{BTreeMap, VecDeque};

/// Small limits, so that jobs wait for the link and for the compute threads.
pub(super) const LIMITS: StartLimits = StartLimits { unsent_bytes: 300, unsent_tiles: 2, additions: 2 };

impl End {
    pub(super) fn new(credit_bytes: u64) -> Self {
        Self {
            worker: Worker::new(credit_bytes, LIMITS),
            inbox: VecDeque::new(),
            passing: BTreeMap::new(),
            outbox: VecDeque::new(),
            running: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
            held: BTreeMap::new(),
        }
    }
}

/// Sorted, the last one first.
pub(super) fn in_order(joins: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut joins = joins.to_vec();
    joins.sort_unstable_by(|a, b| b.cmp(a));
    joins
}

impl World {
    /// Adds a worker if it is time.
    pub(super) fn join_if_due(&mut self) {
        while let Some((_, credit_bytes)) = self.joins.pop_if(|(event, _)| *event <= self.events) {
            self.ends.push(End::new(credit_bytes));
            self.by_bytes.push(true);
            self.primary(PrimaryEvent::Joined(PeerInfo {
                name: format!("comer {}", self.ends.len()),
                credit_bytes,
                shares_memory: false,
                referred: Referred::default(),
                neighbours: Vec::new(),
                work_per_s: 1e6,
                link_bytes_per_s: None,
                is_reserve: false,
            }));
        }
    }
}
