//! The keeper of the journal, as the primary's thread of that name is (`crates/primary/src/keeper`): one thing after another,
//! each of which takes a while, and after each of which the primary may die.
//!
//! Place in the flow: hears of tiles that are complete; its log decides, and this does what it says to the disk of the trial.
//!
//! Invariants: the journal's bytes and decisions are the real ones. Only where the primary is to die in a trial is there one.
//!
//! Deliberately absent: taking space, and files' names.

use super::disk::Disk;
use super::matter::places;
use super::{Happening, Trial};
use crate::fault::FaultKind;
use crate::random::Random;
use bramble_matrix::{Digest128, Rect, Shape};
use bramble_plan::Plan;
use bramble_schedule::journal::{Action, Event, Head, Journal, Log};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A tile: region, and number there.
pub(super) type Tile = (usize, u64);

/// What the thread is at.
#[derive(Clone, Debug)]
enum Step {
    /// It waits before it begins, and digests the operands.
    Begins,
    /// The head is written, and then synced.
    Head,
    HeadSynced,
    /// Nothing to do.
    Waits,
    Digests(Tile),
    SyncsData(Vec<f64>),
    /// The second half of what is appended.
    Appends(Vec<u8>),
    SyncsLog,
}

/// See the head of this file.
pub(super) struct Keeper {
    pub(super) disk: Disk,
    head: Head,
    log: Option<Log>,
    step: Step,
    actions: VecDeque<Action>,
    /// Tiles that are complete and not digested.
    tiles: BTreeSet<Tile>,
    /// When each tile was complete, by the clock.
    since: BTreeMap<Tile, Duration>,
    /// Tiles of the interval that is written, and those whose interval has ended: they may not be lost.
    said: Vec<Tile>,
    in_interval: Vec<Tile>,
    promised: BTreeSet<Tile>,
    every: Duration,
    began: Duration,
    longest_sync: Duration,
    /// When there was a journal, by the clock.
    writing: Option<Duration>,
    /// How it is to die, and after how many steps more.
    dies: Option<(FaultKind, u64)>,
    /// All tiles are there: it ends what it is at, and then is over.
    is_ending: bool,
    is_over: bool,
}

impl Keeper {
    /// Where a run before left some tiles it goes on with its journal, which is all that is valid in the file.
    pub(super) fn new(head: Head, disk: Disk, before: Option<&Journal>, every: Duration) -> Self {
        let log = before.map(|journal| Log::resumed(journal, Duration::ZERO).every(every));
        Self {
            step: if log.is_some() { Step::Waits } else { Step::Begins },
            writing: log.as_ref().map(|_| Duration::ZERO),
            promised: before.map(|journal| journal.tiles.keys().copied().collect()).unwrap_or_default(),
            disk,
            head,
            log,
            actions: VecDeque::new(),
            tiles: BTreeSet::new(),
            since: BTreeMap::new(),
            said: Vec::new(),
            in_interval: Vec::new(),
            every,
            began: Duration::ZERO,
            longest_sync: Duration::ZERO,
            dies: None,
            is_ending: false,
            is_over: false,
        }
    }

    /// Whether an end that is asked for is at once: what is on its way to the disk has to be there first, and where an old C
    /// is read there has to be a head.
    fn ends_at_once(&self) -> bool {
        let is_idle = match self.step {
            Step::Begins => self.head.old_c.is_none(),
            Step::Waits => true,
            _ => false,
        };
        is_idle && self.actions.is_empty()
    }

    /// How long a step takes, in seconds: those with the disk long enough that something happens meanwhile.
    fn seconds(&self, random: &mut Random) -> f64 {
        let every = self.every.as_secs_f64();
        match self.step {
            Step::Begins => every * random.between(0.5, 0.7),
            Step::Waits => every / 8.0,
            Step::Digests(_) | Step::Head | Step::Appends(_) => every * random.between(0.0, 0.002),
            Step::HeadSynced | Step::SyncsData(_) | Step::SyncsLog => every * random.between(0.001, 0.2),
        }
    }

    /// Whether a tile that this journal does not name had to be in it, though nothing that was promised is missing.
    fn is_too_old(&self, tile: &Tile, now: Duration) -> bool {
        let (Some(since), Some(writing)) = (self.since.get(tile), self.writing) else { return false };
        // A sync that had just begun, an interval, its own sync; and the looks and digests between them.
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

/// Where a tile is.
pub(super) fn rect_of(plan: &Plan, (region, tile): Tile) -> Rect {
    plan.regions[region].tile_of(tile).unwrap_or_else(|| panic!("tile {tile} is none of region {region}"))
}

impl Trial {
    /// A tile is complete, and nobody has it.
    pub(super) fn keep(&mut self, rect: Rect) {
        let now = self.watch.shows(self.agenda.now());
        let tile = self.primary.plan().tile_at(rect.rows.start, rect.cols.start);
        let (Some(keeper), Some(tile)) = (&mut self.keeper, tile) else { return };
        if keeper.is_ending {
            return;
        }
        keeper.tiles.insert(tile);
        keeper.since.insert(tile, now);
    }

    /// Has the keeper's thread begin what it is at.
    pub(super) fn begin_step(&mut self) {
        if let Some(keeper) = &self.keeper {
            let seconds = keeper.seconds(&mut self.random);
            self.agenda.add(seconds, Happening::Kept);
        }
    }

    /// The keeper's thread is done with a step, and begins the next; unless the primary dies between the two.
    pub(super) fn kept(&mut self) {
        let now = self.watch.shows(self.agenda.now());
        let Some(mut keeper) = self.keeper.take_if(|keeper| !keeper.is_over) else { return };
        let waited = matches!(keeper.step, Step::Waits);
        keeper.end_step(&self.shell.c, (self.primary.plan(), self.matter.p.n), now);
        keeper.next_step(&self.shell.c, now);
        let dies = keeper.dies.as_mut().filter(|_| !waited).and_then(|(kind, left)| {
            *left = left.saturating_sub(1);
            (*left == 0).then_some(*kind)
        });
        let is_over = keeper.is_ending && keeper.ends_at_once();
        self.keeper = Some(keeper);
        match dies {
            Some(kind) => self.die(kind),
            None if is_over => self.keeper_is_over(),
            None => self.begin_step(),
        }
    }

    /// The primary dies: now, or after some steps of its keeper.
    pub(super) fn begin_to_die(&mut self, kind: FaultKind) {
        let (is_now, steps) = (self.random.chance(0.4), 1 + self.random.below(6));
        match &mut self.keeper {
            Some(keeper) if !is_now && keeper.writing.is_some() && !keeper.is_over => {
                keeper.dies = Some((kind, steps));
            }
            _ => self.die(kind),
        }
    }

    /// All tiles are there: the keeper ends what it is at, and then C is looked at. From there on the journal stays as it is.
    pub(super) fn end_keeper(&mut self) {
        let Some(keeper) = &mut self.keeper else { return self.begin_to_look() };
        keeper.is_ending = true;
        keeper.tiles.clear();
        keeper.since.clear();
        if keeper.is_over || keeper.ends_at_once() {
            self.keeper_is_over();
        }
    }

    /// Where the primary was to die a few steps later it dies now.
    fn keeper_is_over(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.is_over = true;
        match keeper.dies.take() {
            Some((kind, _)) => self.die(kind),
            None => self.begin_to_look(),
        }
    }

    /// What the journal says is there has to be: tiles whose interval ended, all that have been complete for longer than an
    /// interval, and each tile below a mark with the elements that it had. Of a tile above the last mark the journal says only
    /// that it was complete: the next run compares digests.
    pub(super) fn check_journal(&self, journal: Option<&Journal>, c: &[f64]) {
        let Some(keeper) = &self.keeper else { return };
        let plan = self.primary.plan();
        let names = |tile: &Tile| journal.is_some_and(|journal| journal.tiles.contains_key(tile));
        for tile in &keeper.promised {
            assert!(names(tile), "the interval of tile {tile:?} had ended, and it is lost");
        }
        let now = self.watch.shows(self.agenda.now());
        for tile in keeper.since.keys().filter(|tile| !names(tile) && !self.checks.clock_is_odd()) {
            assert!(
                !keeper.is_too_old(tile, now),
                "tile {tile:?} was complete for longer than an interval, and is lost"
            );
        }
        for (tile, was) in journal.iter().flat_map(|journal| &journal.tiles) {
            // A tile that is made again, since it was wrong, is not what it was; nor is one that was when a run before died.
            let is_again = self.looks.is_again(*tile)
                || self.looks.was_damaged(*tile) && !keeper.promised.contains(tile);
            let is_unsynced = journal.is_some_and(|journal| journal.unsynced.contains(tile))
                && !keeper.promised.contains(tile);
            let is = digest(c, rect_of(plan, *tile), self.matter.p.n);
            assert!(
                is_again || is_unsynced || is == *was,
                "the journal says that tile {tile:?} is there, and it is not"
            );
        }
    }
}

impl Keeper {
    fn end_step(&mut self, c: &[f64], (plan, cols): (&Plan, u64), now: Duration) {
        let event = match std::mem::replace(&mut self.step, Step::Waits) {
            Step::Begins => {
                let (log, bytes) = Log::new(&self.head, now);
                self.log = Some(log.every(self.every));
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                self.disk.log.extend(first);
                self.actions.push_back(Action::Append(rest.to_vec()));
                self.step = Step::Head;
                return;
            }
            Step::Head => {
                if let Some(Action::Append(rest)) = self.actions.pop_front() {
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
            Step::Waits => Event::Tick,
            Step::Digests(tile) => {
                let digest = digest(c, rect_of(plan, tile), cols);
                self.said.push(tile);
                Event::Committed { region: tile.0, tile: tile.1, digest }
            }
            Step::SyncsData(synced) => {
                self.disk.sync_data(synced);
                Event::DataSynced
            }
            Step::Appends(rest) => {
                self.disk.log.extend(rest);
                return;
            }
            Step::SyncsLog => {
                self.disk.sync_log();
                self.promised.extend(self.in_interval.drain(..));
                self.longest_sync = self.longest_sync.max(now.saturating_sub(self.began));
                Event::LogSynced
            }
        };
        let actions = self.log.as_mut().map(|log| log.handle(event, now)).unwrap_or_default();
        if actions.contains(&Action::SyncData) {
            self.in_interval = std::mem::take(&mut self.said);
        }
        self.actions.extend(actions);
    }

    fn next_step(&mut self, c: &[f64], now: Duration) {
        if !matches!(self.step, Step::Waits) {
            return;
        }
        self.step = match self.actions.pop_front() {
            Some(Action::SyncData) => {
                self.began = now;
                Step::SyncsData(c.to_vec())
            }
            Some(Action::Append(bytes)) => {
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                self.disk.log.extend(first);
                Step::Appends(rest.to_vec())
            }
            Some(Action::SyncLog) => Step::SyncsLog,
            None => self.tiles.pop_first().map_or(Step::Waits, Step::Digests),
        };
    }
}
