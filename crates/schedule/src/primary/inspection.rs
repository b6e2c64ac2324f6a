//! Inspection of a complete C: which tiles are suspect, who recomputes them, how often, and which machines are
//! accused.
//!
//! Place in the flow: when all tiles are complete and `Primary::inspected` was asked for, each action
//! `Inspection` gives the shell one task, and the shell answers with one `InspectionEvent`: C is checked; if it
//! is wrong, the wrong tiles are located and digested, other workers recompute them (`recompute`), they are
//! digested again, and C is checked anew. `Over` is the last task.
//!
//! Invariants: a machine is accused for a tile only if another machine computed the tile differently and C then
//! passed; where kernels differ, so that right tiles may differ in bits, too, only if the check has shown that
//! very tile to be wrong. A machine that may have made a suspect tile recomputes none. If the recomputed tiles
//! are the same, C stays wrong. The number of rounds is limited.
//!
//! Deliberately absent: the check, the search for wrong tiles and the digests, which need the elements; checks
//! while the product runs (`spot_check`).

use super::{Primary, PrimaryAction};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use bramble_base::Digest128;
use bramble_base::number::to_u64;
use core::mem::take;
use core::time::Duration;

/// Rounds beyond one for each peer: with levels of Strassen's method one machine's faults take two rounds to
/// locate.
const MORE_ROUNDS: usize = 3;

/// A task of the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectionTask {
    /// Check C with random vectors of this round, then report `Checked`.
    Check {
        /// Number of times that tiles were recomputed.
        round: u64,
    },
    /// Find the wrong tiles of C with random vectors of this round, then report `Located`.
    Locate {
        /// Number of this recomputation, from 1.
        round: u64,
    },
    /// Compute the digests of these tiles, by region and number, then report `Digested`.
    Digest(Vec<(usize, u64)>),
    /// Tiles are being recomputed, and their contents are void. No report: `Finished` comes when they are complete.
    Recompute(Recomputation),
    /// The inspection has ended.
    Over(InspectionVerdict),
}

/// Tiles that are being recomputed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputation {
    /// The tiles, by region and number.
    pub tiles: Vec<(usize, u64)>,
    /// The peers that may have made them, which get no more work.
    pub makers: Vec<usize>,
    /// The peer that made the wrong element, if one peer did.
    pub suspect: Option<usize>,
}

/// The answer to a task.
#[derive(Clone, Debug)]
pub enum InspectionEvent {
    /// C was checked.
    Checked {
        /// Row and column of a wrong element; `None` if C is right.
        fault: Option<(u64, u64)>,
        /// Whether one kernel computes at all machines: then a right tile has the same bits wherever it is
        /// computed.
        is_one_kernel: bool,
    },
    /// The wrong tiles were located.
    Located {
        /// All tiles that may be wrong, by region and number.
        tiles: Vec<(usize, u64)>,
        /// Tiles that were checked one by one and are wrong.
        proven_wrong: BTreeSet<(usize, u64)>,
    },
    /// The digests of the requested tiles.
    Digested(BTreeMap<(usize, u64), Digest128>),
}

/// Result of an inspection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectionVerdict {
    /// Why the inspection ended.
    pub end: InspectionEnd,
    /// If C is wrong: the peer that made the wrong element, if that is known.
    pub suspect: Option<usize>,
    /// If C is right: tiles that were wrong before, by the peers that made them.
    pub wrong: Vec<WrongResults>,
}

/// Why an inspection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectionEnd {
    /// C is right.
    Right,
    /// C is wrong, and no tile was found that could be recomputed.
    NotLocated,
    /// C is wrong, and only peers that may have made wrong tiles are left.
    NoOtherWorker,
    /// C is wrong, and other peers computed the same tiles: no single machine can be blamed.
    SameResult,
    /// C is wrong after the last round.
    RoundsUsedUp,
}

/// Wrong tiles of the same peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongResults {
    /// The peers that computed each of the tiles together; none for tiles of an earlier run.
    pub makers: Vec<usize>,
    /// How many tiles.
    pub tiles: u64,
    /// The first round, from 1, that recomputed one of these tiles.
    pub round: u64,
}

/// State of the inspection.
#[derive(Debug, Default)]
pub(super) struct Inspection {
    /// Whether C is inspected before the product is over.
    pub(super) is_on: bool,
    waits_for: Step,
    /// The suspect tiles of each round so far.
    rounds: Vec<SuspectTiles>,
    rounds_max: usize,
    /// The tile with the wrong element of the last check, and the peer that made it, if one peer did.
    faulty: Option<(usize, u64)>,
    suspect: Option<usize>,
    is_one_kernel: bool,
}

/// The event that comes next.
#[derive(Debug, Default)]
enum Step {
    /// None: tiles are being computed, or the inspection has ended.
    #[default]
    Nothing,
    Checked,
    Located,
    /// Digests of suspect tiles; these were proven wrong.
    BeforeRecomputing(BTreeSet<(usize, u64)>),
    AfterRecomputing,
    /// Digests of all tiles that were recomputed, of a C that is right.
    Right,
}

/// The suspect tiles of one round: their contents before they were recomputed, and the peers that may have made
/// each.
#[derive(Debug)]
struct SuspectTiles {
    before: BTreeMap<(usize, u64), Digest128>,
    makers: BTreeMap<(usize, u64), Vec<usize>>,
    /// Tiles that the check has shown to be wrong.
    proven_wrong: BTreeSet<(usize, u64)>,
}

impl Primary {
    /// All tiles are complete, for the first time or again: the first task.
    pub(super) fn inspect(&mut self, actions: &mut Vec<PrimaryAction>) {
        match self.inspection.rounds.last() {
            None => {
                self.inspection.rounds_max = self.peers.len() + MORE_ROUNDS;
                self.ask(Step::Checked, InspectionTask::Check { round: 0 }, actions);
            }
            Some(last) => {
                let tiles = last.before.keys().copied().collect();
                self.ask(Step::AfterRecomputing, InspectionTask::Digest(tiles), actions);
            }
        }
    }

    /// The shell has carried out a task.
    pub(super) fn inspection_event(
        &mut self,
        event: InspectionEvent,
        now: Duration,
        actions: &mut Vec<PrimaryAction>,
    ) {
        match (take(&mut self.inspection.waits_for), event) {
            (Step::Checked, InspectionEvent::Checked { fault, is_one_kernel }) => {
                self.inspection.is_one_kernel = is_one_kernel;
                match fault {
                    Some(place) => self.c_is_wrong(place, actions),
                    None => self.c_is_right(actions),
                }
            }
            (Step::Located, InspectionEvent::Located { tiles, proven_wrong }) => {
                self.digest_suspects(tiles, proven_wrong, actions);
            }
            (Step::BeforeRecomputing(proven_wrong), InspectionEvent::Digested(before)) => {
                self.recompute_suspects(before, proven_wrong, now, actions);
            }
            (Step::AfterRecomputing, InspectionEvent::Digested(after)) => {
                if self.inspection.rounds.last().is_some_and(|last| last.before == after) {
                    self.inspection.suspect = None;
                    return self.end_inspection(InspectionEnd::SameResult, actions);
                }
                let round = to_u64(self.inspection.rounds.len());
                self.ask(Step::Checked, InspectionTask::Check { round }, actions);
            }
            (Step::Right, InspectionEvent::Digested(right)) => {
                let wrong = self.wrong_results(&right);
                self.end_right(wrong, actions);
            }
            (step, event) => unreachable!("the inspection waits for {step:?} and gets {event:?}"),
        }
    }

    fn ask(&mut self, waits_for: Step, task: InspectionTask, actions: &mut Vec<PrimaryAction>) {
        self.inspection.waits_for = waits_for;
        actions.push(PrimaryAction::Inspection(task));
    }

    fn c_is_right(&mut self, actions: &mut Vec<PrimaryAction>) {
        let tiles: BTreeSet<(usize, u64)> =
            self.inspection.rounds.iter().flat_map(|round| round.before.keys().copied()).collect();
        if tiles.is_empty() {
            return self.end_right(Vec::new(), actions);
        }
        self.ask(Step::Right, InspectionTask::Digest(tiles.into_iter().collect()), actions);
    }

    /// C has a wrong element: a round begins, if one is left.
    fn c_is_wrong(&mut self, (row, col): (u64, u64), actions: &mut Vec<PrimaryAction>) {
        self.inspection.faulty = self.plan.tile_at(row, col);
        self.inspection.suspect = self.owner_of(row, col);
        if self.inspection.rounds.len() >= self.inspection.rounds_max {
            return self.end_inspection(InspectionEnd::RoundsUsedUp, actions);
        }
        if self.plan.strategy.levels > 0 {
            // The check cannot tell which tiles are wrong.
            let tiles = self.mixed_suspects();
            return self.digest_suspects(tiles, BTreeSet::new(), actions);
        }
        let round = to_u64(self.inspection.rounds.len()) + 1;
        self.ask(Step::Located, InspectionTask::Locate { round }, actions);
    }

    /// The suspect tiles where levels of Strassen's method mix tiles: those of the cell with the wrong element.
    /// Only one fault at a time can be located so: so all other tiles of a machine that is a suspect for the
    /// second time are suspect, too.
    fn mixed_suspects(&self) -> Vec<(usize, u64)> {
        let Some((region, tile)) = self.inspection.faulty else { return Vec::new() };
        let together = self.plan.regions[region].q() * self.plan.regions[region].q();
        let first = tile / together * together;
        let mut tiles: BTreeSet<(usize, u64)> =
            (first..first + together).map(|tile| (region, tile)).collect();
        let makers: BTreeSet<usize> = self.makers(&[(region, tile)]).concat().into_iter().collect();
        let mut suspects = self.inspection.rounds.iter().flat_map(|round| round.makers.values().flatten());
        let is_known = suspects.any(|suspect| makers.contains(suspect))
            || makers.is_empty() && !self.inspection.rounds.is_empty();
        if is_known {
            tiles.extend(self.tiles_of(&makers));
        }
        tiles.into_iter().collect()
    }

    fn digest_suspects(
        &mut self,
        tiles: Vec<(usize, u64)>,
        mut proven_wrong: BTreeSet<(usize, u64)>,
        actions: &mut Vec<PrimaryAction>,
    ) {
        if tiles.is_empty() {
            return self.end_inspection(InspectionEnd::NotLocated, actions);
        }
        proven_wrong.extend(self.inspection.faulty);
        self.ask(Step::BeforeRecomputing(proven_wrong), InspectionTask::Digest(tiles), actions);
    }

    /// Has other workers recompute the suspect tiles.
    fn recompute_suspects(
        &mut self,
        before: BTreeMap<(usize, u64), Digest128>,
        proven_wrong: BTreeSet<(usize, u64)>,
        now: Duration,
        actions: &mut Vec<PrimaryAction>,
    ) {
        let tiles: Vec<(usize, u64)> = before.keys().copied().collect();
        let by_tile = self.makers(&tiles);
        let makers: BTreeSet<usize> = by_tile.iter().flatten().copied().collect();
        let makers: Vec<usize> = makers.into_iter().collect();
        if !self.has_workers_besides(&makers) {
            return self.end_inspection(InspectionEnd::NoOtherWorker, actions);
        }
        let by_tile = tiles.iter().copied().zip(by_tile).collect();
        self.inspection.rounds.push(SuspectTiles { before, makers: by_tile, proven_wrong });
        let suspect = self.inspection.suspect;
        let recomputation = Recomputation { tiles: tiles.clone(), makers: makers.clone(), suspect };
        self.ask(Step::Nothing, InspectionTask::Recompute(recomputation), actions);
        self.reopen(&tiles, &makers, now, actions);
    }

    /// Compares the tiles of a C that is right with their contents before, and counts the formerly wrong ones by
    /// their makers.
    fn wrong_results(&self, right: &BTreeMap<(usize, u64), Digest128>) -> Vec<WrongResults> {
        let has_same_bits = self.inspection.is_one_kernel || !self.plan.problem.dtype.is_float();
        let mut found: BTreeMap<&[usize], WrongResults> = BTreeMap::new();
        for (round, suspects) in (1..).zip(&self.inspection.rounds) {
            for (tile, before) in &suspects.before {
                let is_judged = has_same_bits || suspects.proven_wrong.contains(tile);
                if is_judged && right.get(tile) != Some(before) {
                    let makers = suspects.makers.get(tile).map_or(&[][..], Vec::as_slice);
                    let none = WrongResults { makers: makers.to_vec(), tiles: 0, round };
                    found.entry(makers).or_insert(none).tiles += 1;
                }
            }
        }
        found.into_values().collect()
    }

    fn end_right(&mut self, wrong: Vec<WrongResults>, actions: &mut Vec<PrimaryAction>) {
        let verdict = InspectionVerdict { end: InspectionEnd::Right, suspect: None, wrong };
        self.ask(Step::Nothing, InspectionTask::Over(verdict), actions);
    }

    /// C stays wrong.
    fn end_inspection(&mut self, end: InspectionEnd, actions: &mut Vec<PrimaryAction>) {
        let verdict = InspectionVerdict { end, suspect: self.inspection.suspect, wrong: Vec::new() };
        self.ask(Step::Nothing, InspectionTask::Over(verdict), actions);
    }
}
