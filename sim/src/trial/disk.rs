//! The primary's disk in a trial: the unfinished C, and its journal. Unsynced data may or may not survive a crash.
//!
//! Invariants: synced data survives. If only the process is killed, all written data survives, because the system has it.

use super::trial_data::GARBAGE;
use crate::random::SeededRandom;

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// C as it is on the disk for certain.
    data: Vec<f64>,
    /// The journal as written, and how much of it is on the disk for certain.
    pub(super) log: Vec<u8>,
    pub(super) log_synced: usize,
}

/// Longest run of elements, or of bytes of the journal, that survives or is lost as a unit.
const PAGE_MAX: u64 = 24;

impl Disk {
    pub(super) fn empty(elements: usize) -> Self {
        Self { data: vec![GARBAGE; elements], log: Vec::new(), log_synced: 0 }
    }

    /// Syncs C.
    pub(super) fn sync_data(&mut self, c: Vec<f64>) {
        self.data = c;
    }

    pub(super) fn sync_log(&mut self) {
        self.log_synced = self.log.len();
    }

    /// What the next run finds, if `c` was C in memory: after a crash of the machine, or only of the process.
    pub(super) fn left(
        mut self,
        c: &[f64],
        machine_too: bool,
        random: &mut SeededRandom,
    ) -> (Vec<f64>, Vec<u8>) {
        if !machine_too {
            return (c.to_vec(), self.log);
        }
        // The system may have written some of C by itself.
        let mut at = 0;
        while at < c.len() {
            let end = (at + 1 + random.below(PAGE_MAX) as usize).min(c.len());
            if random.chance(0.5) {
                self.data[at..end].copy_from_slice(&c[at..end]);
            }
            at = end;
        }
        let unsynced = self.log.len() - self.log_synced;
        self.log.truncate(self.log_synced + random.below(unsynced as u64 + 1) as usize);
        // Reserved space that was never written, or the rest of a page that was.
        self.log.extend(vec![0; random.below(3) as usize * 20]);
        (self.data, self.log)
    }
}
