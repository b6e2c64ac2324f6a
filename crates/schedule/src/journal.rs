//! The journal of a product: which tiles of C are complete, so that a later run can resume.
//!
//! Place in the flow: the primary's journal writer reports complete tiles and carries out the actions: append
//! to the journal and, once per interval, sync the data and then the journal (docs/journal.md). A resumed run
//! begins with `read`.
//!
//! Invariants: a tile is recorded only when it is complete, with the digest of its elements. Records are
//! appended soon after that, so nearly all tiles survive a killed process. A watermark record states how many
//! of the first records have their data on disk; it is appended only after a sync of the data that began when
//! these records were in the journal. So a power failure loses at most one interval, and a resumed run
//! detects missing data by the digests. At most one interval is under way.
//!
//! Deliberately absent: files, clocks, elements, and withdrawing records: a tile that is damaged later is
//! recomputed, with the same digest.

pub use bramble_wire::journal::{Head, Journal, RECORD_BYTES, complete, read, seal};

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::number::to_u64;
use bramble_base::{Digest128, Digester};
use bramble_wire::journal::{TileRecord, append, mark};
use core::time::Duration;

/// Minimum length of an interval.
pub const INTERVAL_MIN: Duration = Duration::from_secs(2);
/// Minimum length of an interval as a multiple of the last sync: so syncing takes at most 5 % of the time.
pub const SYNCS: u32 = 20;
/// How long a complete tile waits for further ones before it is recorded.
pub const APPEND_EVERY: Duration = Duration::from_millis(50);

/// Something that happened. The reporting thread carries out one action after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEvent {
    /// A tile is complete and written.
    Committed {
        /// Its region in the plan.
        region: usize,
        /// Its number in the region.
        tile: u64,
        /// Digest of its elements.
        digest: Digest128,
    },
    /// All data written before `SyncData` was returned are on disk.
    DataSynced,
    /// All bytes appended to the journal are on disk.
    LogSynced,
    /// Time has passed.
    Tick,
    /// No further tiles will come: record and sync everything as soon as possible.
    Stop,
}

/// Something to do; actions are carried out in order, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalAction {
    /// Sync the data, then report `DataSynced`.
    SyncData,
    /// Append these bytes to the journal.
    Append(Vec<u8>),
    /// Sync the journal, then report `LogSynced`.
    SyncLog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No sync is under way.
    Idle,
    SyncsData,
    SyncsLog,
}

/// State of a journal that is being written.
#[derive(Debug)]
pub struct JournalLog {
    /// Digest of all appended bytes.
    digester: Digester,
    /// Number of appended end and watermark records, and of appended tile records.
    ends: u32,
    records: u64,
    /// Number of leading tile records whose data are on disk.
    durable: u64,
    /// The value of `durable` once the current sync is done.
    pending: u64,
    /// The next watermark. It does not grow while tiles are missing, because then the data of an early record
    /// are not on disk.
    marked: u64,
    /// Recorded tiles whose data were missing at the start of this run, and that are not yet recomputed.
    missing: BTreeSet<(usize, u64)>,
    /// Complete tiles that are not recorded yet.
    fresh: Vec<TileRecord>,
    phase: Phase,
    /// When the current sync began, and the earliest time of the next one.
    began: Duration,
    next: Duration,
    least: Duration,
    /// Earliest time of the next append.
    appends: Duration,
    stops: bool,
}

impl JournalLog {
    /// A new journal, and its first bytes, which must be on disk before anything is appended.
    pub fn new(head: &Head, now: Duration) -> (Self, Vec<u8>) {
        let bytes = head.encode();
        let mut digester = Digester::default();
        digester.update(&bytes);
        (Self::of(digester, (0, 0, 0), now), bytes)
    }

    /// Continues a journal after its valid part; the caller has truncated the file to that.
    pub fn resumed(journal: &Journal, now: Duration) -> Self {
        let log = Self::of(journal.digester.clone(), (journal.ends, journal.records, journal.durable), now);
        Self { missing: journal.missing.clone(), ..log }
    }

    /// The same with another minimum interval.
    pub fn every(mut self, least: Duration) -> Self {
        self.next = self.next.saturating_sub(self.least) + least;
        self.least = least;
        self
    }

    fn of(digester: Digester, (ends, records, durable): (u32, u64, u64), now: Duration) -> Self {
        Self {
            digester,
            ends,
            records,
            durable,
            pending: durable,
            marked: durable,
            missing: BTreeSet::new(),
            fresh: Vec::new(),
            phase: Phase::Idle,
            began: now,
            next: now + INTERVAL_MIN,
            least: INTERVAL_MIN,
            appends: now,
            stops: false,
        }
    }

    /// Handles one event and returns the actions. `now` never decreases.
    pub fn handle(&mut self, event: JournalEvent, now: Duration) -> Vec<JournalAction> {
        match event {
            JournalEvent::Committed { region, tile, digest } => {
                self.missing.remove(&(region, tile));
                let Ok(region) = u8::try_from(region) else { panic!("a plan with {region} regions") };
                self.fresh.push(TileRecord { region, tile, digest });
            }
            JournalEvent::DataSynced => {
                assert_eq!(self.phase, Phase::SyncsData, "DataSynced without a SyncData action");
                self.phase = Phase::SyncsLog;
                let bytes = mark(&mut self.digester, self.ends, self.marked);
                self.ends += 1;
                return vec![JournalAction::Append(bytes), JournalAction::SyncLog];
            }
            JournalEvent::LogSynced => {
                assert_eq!(self.phase, Phase::SyncsLog, "LogSynced without a SyncLog action");
                self.phase = Phase::Idle;
                self.durable = self.pending;
                self.next = now + self.least.max(now.saturating_sub(self.began) * SYNCS);
            }
            JournalEvent::Tick => {}
            JournalEvent::Stop => self.stops = true,
        }
        if self.phase == Phase::Idle { self.written(now) } else { Vec::new() }
    }

    /// Records complete tiles and begins a sync, if either is due.
    fn written(&mut self, now: Duration) -> Vec<JournalAction> {
        let mut actions = Vec::new();
        let is_due = self.stops || now >= self.next;
        if !self.fresh.is_empty() && (is_due || now >= self.appends) {
            self.records += to_u64(self.fresh.len());
            actions.push(JournalAction::Append(append(
                &mut self.digester,
                &self.fresh,
                self.ends,
                self.records,
            )));
            self.fresh.clear();
            self.ends += 1;
            self.appends = now + APPEND_EVERY;
        }
        if is_due && self.records > self.durable {
            self.phase = Phase::SyncsData;
            (self.began, self.pending) = (now, self.records);
            self.marked = if self.missing.is_empty() { self.records } else { self.marked };
            actions.push(JournalAction::SyncData);
        }
        actions
    }

    /// Number of records on disk with their data; a recomputed tile has several.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether everything reported so far is on disk.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Idle && self.fresh.is_empty() && self.durable == self.records
    }

    /// When the next `Tick` is needed; `None` while the journal waits for a tile or a sync.
    pub fn wakes(&self) -> Option<Duration> {
        match self.phase {
            Phase::Idle if !self.fresh.is_empty() => Some(self.next.min(self.appends)),
            Phase::Idle if self.records > self.durable => Some(self.next),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
