//! The journal of a product: which tiles of C are complete, so that another run can go on from there.
//!
//! Place in the flow: the primary's keeper says which tiles are complete and does what comes out: append to the journal, and once
//! an interval sync the data and then the journal (docs/journal.md). `read` is where a run that goes on begins.
//!
//! Invariants: a tile is recorded only when it was complete, with the digest of its elements. Records are appended soon after
//! that, so a process that is killed leaves nearly all of its tiles to the next one. A mark says how many of the first records
//! have their data on the disk; it is appended only after a sync of the data that began when they were in the journal. So a
//! machine that goes down loses at most an interval, and whoever goes on finds by the digests what is missing. At most one
//! interval is under way.
//!
//! Deliberately absent: files, clocks, elements, and taking back what was said: a tile that was damaged later is made again, and
//! then has the digest that it had.

mod bytes;

pub use bytes::{Head, Journal, RECORD_BYTES, complete, read, seal};

use bramble_matrix::number::to_u64;
use bramble_matrix::{Digest128, Digester};
use bytes::{Record, append, mark};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long an interval is at least.
pub const INTERVAL_MIN: Duration = Duration::from_secs(2);
/// How many times the last sync it is at least: so syncing takes 5 % of the time at most.
pub const SYNCS: u32 = 20;
/// How long a tile waits for others before it is recorded.
pub const APPEND_EVERY: Duration = Duration::from_millis(50);

/// What happened. The one who says it does one action after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A tile is complete, and this is the digest of what was written of it.
    Committed {
        /// Its region in the plan.
        region: usize,
        /// Its number there.
        tile: u64,
        /// Of its elements.
        digest: Digest128,
    },
    /// All of the data that had been written when `SyncData` came out is on the disk.
    DataSynced,
    /// All that was appended to the journal is on the disk.
    LogSynced,
    /// Time has passed.
    Tick,
    /// There will be no more tiles: all is recorded and synced as soon as it can be.
    Stop,
}

/// What has to be done, in this order, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring the data to the disk; then say `DataSynced`.
    SyncData,
    /// Write these bytes after all that is in the journal.
    Append(Vec<u8>),
    /// Bring the journal to the disk; then say `LogSynced`.
    SyncLog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No interval is being written.
    Idle,
    SyncsData,
    SyncsLog,
}

/// The state of a journal that is being written.
#[derive(Debug)]
pub struct Log {
    /// Of all that was appended.
    digester: Digester,
    /// Ends of intervals and marks, and records of tiles, that were appended.
    ends: u32,
    records: u64,
    /// Records whose data are on the disk.
    durable: u64,
    /// Records whose data are being synced, with those before.
    pending: u64,
    /// What the next mark says. It does not grow while tiles are missing: one of the first records is then not true.
    marked: u64,
    /// Tiles that are recorded, and were not found on the disk; they are made again.
    missing: BTreeSet<(usize, u64)>,
    /// Tiles that are complete and not recorded yet.
    fresh: Vec<Record>,
    phase: Phase,
    /// When this interval was begun to be written, and when the next may be.
    began: Duration,
    next: Duration,
    least: Duration,
    /// When the next records may be appended.
    appends: Duration,
    stops: bool,
}

impl Log {
    /// A new one, and the bytes that it begins with: they have to be on the disk before anything is appended.
    pub fn new(head: &Head, now: Duration) -> (Self, Vec<u8>) {
        let bytes = head.encode();
        let mut digester = Digester::default();
        digester.update(&bytes);
        (Self::of(digester, (0, 0, 0), now), bytes)
    }

    /// One that goes on after what was read; what comes after that in the file has been cut off.
    pub fn resumed(journal: &Journal, now: Duration) -> Self {
        let log = Self::of(journal.digester.clone(), (journal.ends, journal.records, journal.durable), now);
        Self { missing: journal.missing.clone(), ..log }
    }

    /// The same with intervals of another least length.
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

    /// One event in, actions out. `now` only grows.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Committed { region, tile, digest } => {
                self.missing.remove(&(region, tile));
                let Ok(region) = u8::try_from(region) else { panic!("a plan with {region} regions") };
                self.fresh.push(Record { region, tile, digest });
            }
            Event::DataSynced => {
                assert_eq!(self.phase, Phase::SyncsData, "data that nobody asked for were synced");
                self.phase = Phase::SyncsLog;
                let bytes = mark(&mut self.digester, self.ends, self.marked);
                self.ends += 1;
                return vec![Action::Append(bytes), Action::SyncLog];
            }
            Event::LogSynced => {
                assert_eq!(self.phase, Phase::SyncsLog, "a journal that nobody wrote was synced");
                self.phase = Phase::Idle;
                self.durable = self.pending;
                self.next = now + self.least.max(now.saturating_sub(self.began) * SYNCS);
            }
            Event::Tick => {}
            Event::Stop => self.stops = true,
        }
        if self.phase == Phase::Idle { self.written(now) } else { Vec::new() }
    }

    /// Records what is complete, and begins to sync, where it is time for that.
    fn written(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        let is_due = self.stops || now >= self.next;
        if !self.fresh.is_empty() && (is_due || now >= self.appends) {
            self.records += to_u64(self.fresh.len());
            actions.push(Action::Append(append(&mut self.digester, &self.fresh, self.ends, self.records)));
            self.fresh.clear();
            self.ends += 1;
            self.appends = now + APPEND_EVERY;
        }
        if is_due && self.records > self.durable {
            self.phase = Phase::SyncsData;
            (self.began, self.pending) = (now, self.records);
            self.marked = if self.missing.is_empty() { self.records } else { self.marked };
            actions.push(Action::SyncData);
        }
        actions
    }

    /// Records of tiles that are on the disk with their data; more than tiles where some were made again.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether all that it was told is on the disk.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Idle && self.fresh.is_empty() && self.durable == self.records
    }

    /// When it next wants to be told that time has passed; never while it waits for a tile or a sync.
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
