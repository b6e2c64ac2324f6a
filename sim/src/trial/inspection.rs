//! The inspection of C, as the primary's state machine decides it (`schedule/src/primary/inspection.rs`).
//!
//! Place in the flow: replaces the primary's shell (crates/primary/src/run/inspection.rs): carries out one task after another,
//! each of which takes time, in which machines may still be lost and join. The model replaces the check.
//!
//! Invariants checked: tiles are suspect only if some tile is wrong, each once in a round; a machine that may have made a wrong
//! tile recomputes none; there are no more rounds than the peers and three; of the machines that are accused together one has
//! lied; C is given up only when it is wrong and the reason holds.

use super::journal_writer::{digest, rect_of};
use super::trial_data::{GARBAGE, places};
use super::{Trial, TrialEvent};
use bramble_matrix::{Digest128, Rect, Span};
use bramble_schedule::primary::{
    InspectionEnd, InspectionEvent, InspectionTask, InspectionVerdict, PrimaryEvent, Recomputation,
};
use std::collections::{BTreeMap, BTreeSet};

/// Why the product failed, if C could not be repaired.
pub(super) const C_IS_WRONG: &str = "C is wrong";
/// Rounds of recomputing beyond one for each peer.
const MORE_ROUNDS: u64 = 3;
/// Longest duration of a task of an inspection, in seconds.
const INSPECTION_MAX_S: f64 = 12.0;

/// Longest duration of a spot check, in seconds.
const SPOT_CHECK_MAX_S: f64 = 2.0;

/// Findings of inspections and spot checks.
#[derive(Default)]
pub(super) struct InspectionState {
    /// Machines that have returned a wrong result.
    pub(super) liars: BTreeSet<usize>,
    /// Tiles that are wrong now, by region and number.
    wrong: BTreeMap<(usize, u64), Rect>,
    /// Tiles below the watermark of an earlier run's journal that had other digests.
    damaged: BTreeSet<(usize, u64)>,
    /// Machines that may have made wrong tiles: they get no more work.
    pub(super) suspects: BTreeSet<usize>,
    /// Recomputed tiles, and the suspects when each was last recomputed.
    again: BTreeMap<(usize, u64), BTreeSet<usize>>,
    /// Steps of these tiles, each time.
    pub(super) steps_again: u64,
    /// The task that is next or under way.
    pub(super) task: Option<InspectionTask>,
    /// The last digests of tiles, those before, and how often tiles were recomputed.
    digests: [BTreeMap<(usize, u64), Digest128>; 2],
    rounds: u64,
    rounds_max: u64,
    /// The machines that had made the last tiles that were digested.
    makers: BTreeSet<usize>,
    /// The result.
    pub(super) verdict: Option<InspectionVerdict>,
}

impl InspectionState {
    /// Wrong and damaged tiles of an earlier life.
    pub(super) fn of_before(wrong: BTreeMap<(usize, u64), Rect>, damaged: BTreeSet<(usize, u64)>) -> Self {
        Self { wrong, damaged, ..Self::default() }
    }

    /// Whether an earlier life was recomputing a tile when it died: it is not valid until this life has recorded it.
    pub(super) fn was_damaged(&self, tile: (usize, u64)) -> bool {
        self.damaged.contains(&tile)
    }

    pub(super) fn wrong(&self) -> &BTreeMap<(usize, u64), Rect> {
        &self.wrong
    }

    /// Tiles that have been recomputed.
    pub(super) fn recomputed(&self) -> impl Iterator<Item = (usize, u64)> {
        self.again.keys().copied()
    }

    /// Whether a tile has been recomputed.
    pub(super) fn is_again(&self, tile: (usize, u64)) -> bool {
        self.again.contains_key(&tile)
    }

    /// Whether a tile is known to be wrong, or to have been.
    pub(super) fn is_known(&self, tile: (usize, u64)) -> bool {
        self.wrong.contains_key(&tile) || self.is_again(tile)
    }
}

impl Trial {
    /// All tiles are committed, and the state machine has given a task.
    pub(super) fn begin_inspection(&mut self) {
        // Nothing may land while C is read.
        self.shell.lease(self.all_of_c());
        self.begin_task();
    }

    fn begin_task(&mut self) {
        let seconds = self.random.between(0.0, 1.0).powi(4) * INSPECTION_MAX_S;
        self.event_queue.add(seconds, TrialEvent::Looked);
    }

    /// A tile is complete: whether it is wrong; then one of its makers must have lied.
    pub(super) fn is_lie(&mut self, rect: Rect) -> bool {
        let is_wrong = places(rect, self.model.data.p.n)
            .any(|at| self.shell.c[at].to_bits() != self.model.expected[at].to_bits());
        if !is_wrong || self.inspection.liars.is_empty() {
            return false;
        }
        let tile = self.primary.plan().tile_at(rect.rows.start, rect.cols.start);
        let tile = tile.unwrap_or_else(|| panic!("{rect} is no tile"));
        let makers = self.primary.makers(&[tile]).concat();
        let is_lie = makers.iter().any(|maker| self.inspection.liars.contains(maker));
        assert!(is_lie, "{rect} is wrong, and none of {makers:?} has lied");
        self.inspection.wrong.insert(tile, rect);
        true
    }

    /// Starts a spot check, of the elements that are in C now.
    pub(super) fn begin_spot_check(&mut self, rect: Rect) {
        let is_wrong = places(rect, self.model.data.p.n)
            .any(|at| self.shell.c[at].to_bits() != self.model.expected[at].to_bits());
        let seconds = self.random.between(0.0, 1.0).powi(4) * SPOT_CHECK_MAX_S;
        self.event_queue.add(seconds, TrialEvent::Spotted(is_wrong));
    }

    /// A worker may be excluded only if it returned a wrong result.
    pub(super) fn check_exclusion(&mut self, peer: usize) {
        assert!(self.inspection.liars.contains(&peer), "w{peer} is excluded, and has returned nothing wrong");
        self.checks.may_look_lost(peer);
    }

    fn all_of_c(&self) -> Rect {
        Rect::new(Span::new(0, self.model.data.p.m), Span::new(0, self.model.data.p.n))
    }

    /// The current task has ended.
    pub(super) fn inspect(&mut self) {
        self.record.moved_last = self.event_queue.now();
        let event = match self.inspection.task.take() {
            Some(InspectionTask::Check { round }) => {
                assert_eq!(round, self.inspection.rounds, "the number of the round");
                let fault = self.wrong_element();
                assert_eq!(fault.is_none(), self.inspection.wrong.is_empty(), "C has a wrong element");
                InspectionEvent::Checked { fault, is_one_kernel: true }
            }
            Some(InspectionTask::Locate { round }) => {
                assert_eq!(round, self.inspection.rounds + 1, "the number of the round");
                let tiles: Vec<(usize, u64)> = self.inspection.wrong.keys().copied().collect();
                InspectionEvent::Located { proven_wrong: tiles.iter().copied().collect(), tiles }
            }
            Some(InspectionTask::Digest(tiles)) => {
                let plan = self.primary.plan();
                let of = |tile| digest(&self.shell.c, rect_of(plan, tile), self.model.data.p.n);
                let digests: BTreeMap<_, _> = tiles.iter().map(|tile| (*tile, of(*tile))).collect();
                assert_eq!(digests.len(), tiles.len(), "a tile is suspect twice in a round: {tiles:?}");
                self.inspection.digests.swap(0, 1);
                self.inspection.digests[1].clone_from(&digests);
                self.inspection.makers = self.primary.makers(&tiles).concat().into_iter().collect();
                InspectionEvent::Digested(digests)
            }
            task => unreachable!("{task:?} takes no time"),
        };
        self.dispatch(PrimaryEvent::Inspection(event));
        match self.inspection.task.take() {
            Some(InspectionTask::Over(verdict)) => {
                self.end_inspection(&verdict);
                self.inspection.verdict = Some(verdict);
            }
            Some(InspectionTask::Recompute(recomputation)) => {
                unreachable!("{recomputation:?} began when the state machine said so")
            }
            Some(task) => {
                self.inspection.task = Some(task);
                self.begin_task();
            }
            // Tiles are being recomputed.
            None => {}
        }
    }

    /// The first wrong element of C: its row and column.
    fn wrong_element(&self) -> Option<(u64, u64)> {
        let mut all = self.shell.c.iter().zip(&self.model.expected);
        let at = all.position(|(is, should)| is.to_bits() != should.to_bits())? as u64;
        Some((at / self.model.data.p.n, at % self.model.data.p.n))
    }

    /// The state machine gives a task of the inspection. Recomputing begins at once: messages for it follow.
    pub(super) fn take_inspection_task(&mut self, task: InspectionTask) {
        match task {
            InspectionTask::Recompute(recomputation) => self.recompute(&recomputation),
            task => {
                if self.inspection.rounds == 0 {
                    self.inspection.rounds_max = self.members.count as u64 + MORE_ROUNDS;
                }
                self.inspection.task = Some(task);
            }
        }
    }

    fn recompute(&mut self, recomputation: &Recomputation) {
        self.shell.take_back(self.all_of_c());
        let Recomputation { tiles, makers, suspect } = recomputation;
        self.inspection.rounds += 1;
        let (round, most) = (self.inspection.rounds, self.inspection.rounds_max);
        assert!(round <= most, "tiles are recomputed {round} times, at most {most}");
        let named: BTreeSet<usize> = makers.iter().copied().collect();
        assert_eq!((&named, makers.len()), (&self.inspection.makers, named.len()), "the makers of {tiles:?}");
        assert!(suspect.is_none_or(|suspect| named.contains(&suspect)), "w{suspect:?} made no suspect tile");
        let wrong = tiles.iter().filter(|tile| self.inspection.wrong.contains_key(tile)).count();
        assert!(wrong > 0, "none of the suspect tiles is wrong: {tiles:?}");
        self.record.seen.mended += wrong as u64;
        self.inspection.suspects.extend(makers);
        for tile in tiles {
            for place in places(rect_of(self.primary.plan(), *tile), self.model.data.p.n) {
                (self.shell.c[place], self.shell.committed[place]) = (GARBAGE, false);
            }
            self.inspection.wrong.remove(tile);
            self.inspection.again.insert(*tile, self.inspection.suspects.clone());
            self.inspection.steps_again += self.primary.plan().regions[tile.0].steps();
        }
        self.checks.goes_back();
        self.record.moved_last = self.event_queue.now();
    }

    /// The inspection has ended: C is right, or it cannot be repaired.
    fn end_inspection(&mut self, verdict: &InspectionVerdict) {
        self.shell.take_back(self.all_of_c());
        let again: Vec<(usize, u64)> = self.inspection.again.keys().copied().collect();
        for ((tile, left_out), makers) in self.inspection.again.iter().zip(self.primary.makers(&again)) {
            let were_trusted = !makers.iter().any(|maker| left_out.contains(maker));
            assert!(were_trusted, "{tile:?} was recomputed by an excluded machine");
        }
        let has_lied = |machines: &[usize]| machines.iter().any(|at| self.inspection.liars.contains(at));
        for results in &verdict.wrong {
            // Tiles of an earlier run have no makers.
            let is_just = results.makers.is_empty() || has_lied(&results.makers);
            assert!(is_just, "w{:?} are accused, and none of them has lied", results.makers);
        }
        if let Some(suspect) = verdict.suspect {
            assert!(has_lied(&[suspect]), "w{suspect} is accused, and has not lied");
        }
        let is_right = verdict.end == InspectionEnd::Right;
        assert_eq!(is_right, self.inspection.wrong.is_empty(), "{:?}", verdict.end);
        match verdict.end {
            InspectionEnd::Right => self.shell.finished = true,
            InspectionEnd::NotLocated => panic!("a wrong tile was not located"),
            InspectionEnd::NoOtherWorker => {
                let makers: Vec<usize> = self.inspection.makers.iter().copied().collect();
                assert!(!self.primary.has_workers_besides(&makers), "a machine could recompute tiles");
            }
            InspectionEnd::SameResult => {
                assert_eq!(self.inspection.digests[0], self.inspection.digests[1], "other machines agree");
            }
            InspectionEnd::RoundsUsedUp => {
                assert_eq!(self.inspection.rounds, self.inspection.rounds_max, "there are more rounds");
            }
        }
        if !is_right {
            self.shell.failed = Some(C_IS_WRONG.to_owned());
        }
        self.dispatch(PrimaryEvent::Accepted);
    }
}
