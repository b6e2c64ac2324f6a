//! The journal writer, modelled on the primary's thread (`crates/record/src/journal`): one step after another,
//! each of which takes time; after each the primary may die.
//!
//! Place in the flow: gets each committed tile; its `Log` decides, and this file applies the actions to the trial's disk.
//!
//! Invariants: the journal's bytes and decisions are the real ones. Only trials in which the primary will die have one.
//!
//! Deliberately absent: reserving disk space, and names of files.

use super::disk::Disk;
use super::trial_data::places;
use super::{Trial, TrialEvent};
use crate::fault::FaultKind;
use crate::random::SeededRandom;
use bramble_matrix::{Digest128, Rect, Shape};
use bramble_plan::Plan;
use bramble_schedule::journal::{Head, Journal, JournalAction, JournalEvent, JournalLog};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A tile: region, and number in it.
pub(super) type TileKey = (usize, u64);

/// Current step of the thread.
#[derive(Clone, Debug)]
enum Step {
    /// Waits before the first interval, then digests the operands.
    Begins,
    /// The head is written; then it is synced.
    Head,
    HeadSynced,
    /// Idle.
    Waits,
    Digests(TileKey),
    SyncsData(Vec<f64>),
    /// Writes the second half of an append.
    Appends(Vec<u8>),
    SyncsLog,
}

/// Tiles of the current interval, of the interval being synced, and of synced intervals: those must not be lost.
#[derive(Default)]
struct IntervalTiles {
    said: Vec<TileKey>,
    syncing: Vec<TileKey>,
    promised: BTreeSet<TileKey>,
}

/// See the head of this file.
pub(super) struct TrialJournalWriter {
    pub(super) disk: Disk,
    head: Head,
    log: Option<JournalLog>,
    step: Step,
    actions: VecDeque<JournalAction>,
    /// Tiles that are committed and not digested.
    tiles: BTreeSet<TileKey>,
    /// When each tile was committed, by the primary's clock.
    since: BTreeMap<TileKey, Duration>,
    intervals: IntervalTiles,
    every: Duration,
    began: Duration,
    longest_sync: Duration,
    /// When the journal had its head, by the primary's clock.
    writing: Option<Duration>,
    /// How the primary will die, and after how many more steps.
    dies: Option<(FaultKind, u64)>,
    /// All tiles are committed: the thread finishes its step and ends.
    is_ending: bool,
    is_over: bool,
}

impl TrialJournalWriter {
    /// With the journal of an earlier run, it continues that journal, cut to its valid bytes.
    pub(super) fn new(head: Head, disk: Disk, before: Option<&Journal>, every: Duration) -> Self {
        let log = before.map(|journal| JournalLog::resumed(journal, Duration::ZERO).every(every));
        Self {
            step: if log.is_some() { Step::Waits } else { Step::Begins },
            writing: log.as_ref().map(|_| Duration::ZERO),
            intervals: IntervalTiles {
                promised: before.map(|journal| journal.tiles.keys().copied().collect()).unwrap_or_default(),
                ..IntervalTiles::default()
            },
            disk,
            head,
            log,
            actions: VecDeque::new(),
            tiles: BTreeSet::new(),
            since: BTreeMap::new(),
            every,
            began: Duration::ZERO,
            longest_sync: Duration::ZERO,
            dies: None,
            is_ending: false,
            is_over: false,
        }
    }

    /// Whether the thread can end at once: pending writes must be finished, and if an old C is read, the head must
    /// be written.
    fn ends_at_once(&self) -> bool {
        let is_idle = match self.step {
            Step::Begins => self.head.old_c.is_none(),
            Step::Waits => true,
            _ => false,
        };
        is_idle && self.actions.is_empty()
    }

    /// Duration of the current step in seconds; disk steps are long enough for other events to happen meanwhile.
    fn seconds(&self, random: &mut SeededRandom) -> f64 {
        let every = self.every.as_secs_f64();
        match self.step {
            Step::Begins => every * random.between(0.5, 0.7),
            Step::Waits => every / 8.0,
            Step::Digests(_) | Step::Head | Step::Appends(_) => every * random.between(0.0, 0.002),
            Step::HeadSynced | Step::SyncsData(_) | Step::SyncsLog => every * random.between(0.001, 0.2),
        }
    }

    /// Whether a tile that is missing in the journal was committed so long ago that its interval must have been synced.
    fn is_too_old(&self, tile: &TileKey, now: Duration) -> bool {
        let (Some(since), Some(writing)) = (self.since.get(tile), self.writing) else { return false };
        // A sync that had just begun, an interval, its own sync; and the sleeps and digests between them.
        let most = (self.longest_sync * 22).max(self.every + self.longest_sync * 2) + self.every;
        now.saturating_sub((*since).max(writing)) > most
    }
}

/// The digest of a tile of C.
pub(super) fn digest(c: &[f64], rect: Rect, cols: u64) -> Digest128 {
    let bytes: Vec<u8> = places(rect, cols).flat_map(|place| c[place].to_le_bytes()).collect();
    let line = (rect.cols.len() * 8) as usize;
    Digest128::of(Shape::new(rect.rows.len(), rect.cols.len()), bytes.chunks(line.max(1)))
}

/// The rectangle of a tile.
pub(super) fn rect_of(plan: &Plan, (region, tile): TileKey) -> Rect {
    plan.regions[region].tile_of(tile).unwrap_or_else(|| panic!("tile {tile} is none of region {region}"))
}

impl Trial {
    /// A tile is committed, and no other lease of it exists.
    pub(super) fn journal_tile(&mut self, rect: Rect) {
        let now = self.process.watch.shows(self.event_queue.now());
        let tile = self.primary.plan().tile_at(rect.rows.start, rect.cols.start);
        let (Some(journal_writer), Some(tile)) = (&mut self.process.journal_writer, tile) else { return };
        if journal_writer.is_ending {
            return;
        }
        journal_writer.tiles.insert(tile);
        journal_writer.since.insert(tile, now);
    }

    /// Schedules the end of the journal writer's current step.
    pub(super) fn begin_step(&mut self) {
        if let Some(journal_writer) = &self.process.journal_writer {
            let seconds = journal_writer.seconds(&mut self.random);
            self.event_queue.add(seconds, TrialEvent::Kept);
        }
    }

    /// The journal writer ends a step and begins the next; unless the primary dies between the two.
    pub(super) fn end_journal_step(&mut self) {
        let now = self.process.watch.shows(self.event_queue.now());
        let Some(mut journal_writer) =
            self.process.journal_writer.take_if(|journal_writer| !journal_writer.is_over)
        else {
            return;
        };
        let waited = matches!(journal_writer.step, Step::Waits);
        journal_writer.end_step(&self.shell.c, (self.primary.plan(), self.model.data.p.n), now);
        journal_writer.next_step(&self.shell.c, now);
        let dies = journal_writer.dies.as_mut().filter(|_| !waited).and_then(|(kind, left)| {
            *left = left.saturating_sub(1);
            (*left == 0).then_some(*kind)
        });
        let is_over = journal_writer.is_ending && journal_writer.ends_at_once();
        self.process.journal_writer = Some(journal_writer);
        match dies {
            Some(kind) => self.die(kind),
            None if is_over => self.journal_writer_is_over(),
            None => self.begin_step(),
        }
    }

    /// The primary will die: now, or after some more steps of the journal writer.
    pub(super) fn begin_to_die(&mut self, kind: FaultKind) {
        let (is_now, steps) = (self.random.chance(0.4), 1 + self.random.below(6));
        match &mut self.process.journal_writer {
            Some(journal_writer)
                if !is_now && journal_writer.writing.is_some() && !journal_writer.is_over =>
            {
                journal_writer.dies = Some((kind, steps));
            }
            _ => self.die(kind),
        }
    }

    /// All tiles are committed: the journal writer finishes its step, then C is inspected. From then on the journal does not
    /// change.
    pub(super) fn end_journal_writer(&mut self) {
        let Some(journal_writer) = &mut self.process.journal_writer else { return self.begin_inspection() };
        journal_writer.is_ending = true;
        journal_writer.tiles.clear();
        journal_writer.since.clear();
        if journal_writer.is_over || journal_writer.ends_at_once() {
            self.journal_writer_is_over();
        }
    }

    /// Ends the journal writer. If the primary was to die after some more steps, it dies now.
    fn journal_writer_is_over(&mut self) {
        let Some(journal_writer) = &mut self.process.journal_writer else { return };
        journal_writer.is_over = true;
        match journal_writer.dies.take() {
            Some((kind, _)) => self.die(kind),
            None => self.begin_inspection(),
        }
    }

    /// Checks that the journal keeps its promises: it has all tiles of synced intervals and all that were committed longer
    /// than an interval ago, and each tile below the last watermark has the recorded elements. Of a tile above the last
    /// watermark the journal states only that it was committed: the next run compares digests.
    pub(super) fn check_journal(&self, journal: Option<&Journal>, c: &[f64]) {
        let Some(journal_writer) = &self.process.journal_writer else { return };
        let plan = self.primary.plan();
        let names = |tile: &TileKey| journal.is_some_and(|journal| journal.tiles.contains_key(tile));
        for tile in &journal_writer.intervals.promised {
            assert!(names(tile), "the interval of tile {tile:?} had ended, and it is lost");
        }
        let now = self.process.watch.shows(self.event_queue.now());
        for tile in journal_writer.since.keys().filter(|tile| !names(tile) && !self.checks.clock_is_odd()) {
            assert!(
                !journal_writer.is_too_old(tile, now),
                "tile {tile:?} was complete for longer than an interval, and is lost"
            );
        }
        for (tile, was) in journal.iter().flat_map(|journal| &journal.tiles) {
            // A recomputed tile has other elements; so may one that was being recomputed when an earlier run died.
            let is_again = self.inspection.is_again(*tile)
                || self.inspection.was_damaged(*tile) && !journal_writer.intervals.promised.contains(tile);
            let is_unsynced = journal.is_some_and(|journal| journal.unsynced.contains(tile))
                && !journal_writer.intervals.promised.contains(tile);
            let is = digest(c, rect_of(plan, *tile), self.model.data.p.n);
            assert!(
                is_again || is_unsynced || is == *was,
                "the journal says that tile {tile:?} is there, and it is not"
            );
        }
    }
}

impl TrialJournalWriter {
    fn end_step(&mut self, c: &[f64], (plan, cols): (&Plan, u64), now: Duration) {
        let event = match std::mem::replace(&mut self.step, Step::Waits) {
            Step::Begins => {
                let (log, bytes) = JournalLog::new(&self.head, now);
                self.log = Some(log.every(self.every));
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                self.disk.log.extend(first);
                self.actions.push_back(JournalAction::Append(rest.to_vec()));
                self.step = Step::Head;
                return;
            }
            Step::Head => {
                if let Some(JournalAction::Append(rest)) = self.actions.pop_front() {
                    self.disk.log.extend(rest);
                }
                self.step = Step::HeadSynced;
                return;
            }
            Step::HeadSynced => {
                self.disk.sync_log();
                self.writing = Some(now);
                return;
            }
            Step::Waits => JournalEvent::Tick,
            Step::Digests(tile) => {
                let digest = digest(c, rect_of(plan, tile), cols);
                self.intervals.said.push(tile);
                JournalEvent::Committed { region: tile.0, tile: tile.1, digest }
            }
            Step::SyncsData(synced) => {
                self.disk.sync_data(synced);
                JournalEvent::DataSynced
            }
            Step::Appends(rest) => {
                self.disk.log.extend(rest);
                return;
            }
            Step::SyncsLog => {
                self.disk.sync_log();
                self.intervals.promised.extend(self.intervals.syncing.drain(..));
                self.longest_sync = self.longest_sync.max(now.saturating_sub(self.began));
                JournalEvent::LogSynced
            }
        };
        let actions = self.log.as_mut().map(|log| log.handle(event, now)).unwrap_or_default();
        if actions.contains(&JournalAction::SyncData) {
            self.intervals.syncing = std::mem::take(&mut self.intervals.said);
        }
        self.actions.extend(actions);
    }

    fn next_step(&mut self, c: &[f64], now: Duration) {
        if !matches!(self.step, Step::Waits) {
            return;
        }
        self.step = match self.actions.pop_front() {
            Some(JournalAction::SyncData) => {
                self.began = now;
                Step::SyncsData(c.to_vec())
            }
            Some(JournalAction::Append(bytes)) => {
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                self.disk.log.extend(first);
                Step::Appends(rest.to_vec())
            }
            Some(JournalAction::SyncLog) => Step::SyncsLog,
            None => self.tiles.pop_first().map_or(Step::Waits, Step::Digests),
        };
    }
}
