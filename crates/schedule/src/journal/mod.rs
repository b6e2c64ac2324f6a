//! The journal of a product: which tiles of C are on the disk for certain, so that another run can go on from there.
//!
//! Place in the flow: the primary's keeper says which tiles are complete and does what comes out: sync the data, append to
//! the journal, sync that (docs/journal.md). `read` is where a run that goes on begins.
//!
//! Invariants: a tile is in an interval only if it was complete, and its digest taken, before the sync of the data began; the
//! records of an interval are appended only after that sync, its end with them. So what comes before the last valid end is
//! on the disk and right, however the run ends: what was not synced of either file may be there or not. At most one interval
//! is under way. What waits is one record a tile.
//!
//! Deliberately absent: files, clocks, elements, and taking back what was said: a tile that was damaged later is made again, and
//! then has the digest that it had.

mod bytes;

pub use bytes::{Head, Journal, RECORD_BYTES, complete, read, seal};

use bramble_matrix::number::to_u64;
use bramble_matrix::{Digest128, Digester};
use bytes::{Record, append};
use std::time::Duration;

/// How long an interval is at least.
pub const INTERVAL_MIN: Duration = Duration::from_secs(2);
/// How many times the last sync it is at least: so syncing takes 5 % of the time at most.
pub const SYNCS: u32 = 20;

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
    /// There will be no more tiles: the last interval ends as soon as it can.
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
    /// Intervals, and records of tiles, that were appended.
    intervals: u32,
    records: u64,
    /// Records that are on the disk.
    durable: u64,
    /// Tiles that are complete and in no interval yet.
    fresh: Vec<Record>,
    /// Tiles of the interval whose data are being synced.
    pending: Vec<Record>,
    phase: Phase,
    /// When this interval was begun to be written, and when the next may be.
    began: Duration,
    next: Duration,
    least: Duration,
    stops: bool,
}

impl Log {
    /// A new one, and the bytes that it begins with: they have to be on the disk before anything is appended.
    pub fn new(head: &Head, now: Duration) -> (Self, Vec<u8>) {
        let bytes = head.encode();
        let mut digester = Digester::default();
        digester.update(&bytes);
        (Self::of(digester, 0, 0, now), bytes)
    }

    /// One that goes on after what was read; what comes after that in the file has been cut off.
    pub fn resumed(journal: &Journal, now: Duration) -> Self {
        Self::of(journal.digester.clone(), journal.intervals, journal.records, now)
    }

    /// The same with intervals of another least length.
    pub fn every(mut self, least: Duration) -> Self {
        self.next = self.next.saturating_sub(self.least) + least;
        self.least = least;
        self
    }

    fn of(digester: Digester, intervals: u32, records: u64, now: Duration) -> Self {
        Self {
            digester,
            intervals,
            records,
            durable: records,
            fresh: Vec::new(),
            pending: Vec::new(),
            phase: Phase::Idle,
            began: now,
            next: now + INTERVAL_MIN,
            least: INTERVAL_MIN,
            stops: false,
        }
    }

    /// One event in, actions out. `now` only grows.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Committed { region, tile, digest } => {
                let Ok(region) = u8::try_from(region) else { panic!("a plan with {region} regions") };
                self.fresh.push(Record { region, tile, digest });
            }
            Event::DataSynced => {
                assert_eq!(self.phase, Phase::SyncsData, "data that nobody asked for were synced");
                self.phase = Phase::SyncsLog;
                self.records += to_u64(self.pending.len());
                let bytes = append(&mut self.digester, &self.pending, self.intervals, self.records);
                self.pending.clear();
                self.intervals += 1;
                return vec![Action::Append(bytes), Action::SyncLog];
            }
            Event::LogSynced => {
                assert_eq!(self.phase, Phase::SyncsLog, "a journal that nobody wrote was synced");
                self.phase = Phase::Idle;
                self.durable = self.records;
                self.next = now + self.least.max(now.saturating_sub(self.began) * SYNCS);
            }
            Event::Tick => {}
            Event::Stop => self.stops = true,
        }
        if self.phase == Phase::Idle && !self.fresh.is_empty() && (self.stops || now >= self.next) {
            self.phase = Phase::SyncsData;
            self.began = now;
            std::mem::swap(&mut self.fresh, &mut self.pending);
            return vec![Action::SyncData];
        }
        Vec::new()
    }

    /// Records of tiles that are on the disk with their data; more than tiles where some were made again.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether all that it was told is on the disk.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Idle && self.fresh.is_empty()
    }

    /// When it next wants to be told that time has passed; never while it waits for a tile or a sync.
    pub fn wakes(&self) -> Option<Duration> {
        (self.phase == Phase::Idle && !self.fresh.is_empty()).then_some(self.next)
    }
}

#[cfg(test)]
mod tests;
