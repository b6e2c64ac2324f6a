//! The inspection of C, as by the primary's shell when all tiles are committed.
//!
//! Place in the flow: replaces `crates/primary/src/run/inspection.rs`; the model replaces the check. The inspection
//! takes time, in which machines may still be lost and join.
//!
//! Invariants: only tiles that a lying machine made are wrong, and other machines recompute all of them.

use super::trial_data::{GARBAGE, places};
use super::{Trial, TrialEvent};
use bramble_matrix::{Rect, Span};
use bramble_schedule::primary::PrimaryEvent;
use std::collections::{BTreeMap, BTreeSet};

/// Why the product failed, if no machine is left that did not make wrong tiles.
pub(super) const NO_OTHER_MACHINE: &str = "C is wrong, and no other machine is connected";
/// Longest duration of an inspection, in seconds.
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
    /// Tiles whose digests differ from the journal of an earlier run.
    damaged: BTreeSet<(usize, u64)>,
    /// Machines that may have made wrong tiles: they get no more work.
    pub(super) suspects: BTreeSet<usize>,
    /// Recomputed tiles, and the suspects when each was last recomputed.
    again: BTreeMap<(usize, u64), BTreeSet<usize>>,
    /// Steps of these tiles, each time.
    pub(super) steps_again: u64,
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
    /// All tiles are committed.
    pub(super) fn begin_inspection(&mut self) {
        let seconds = self.random.between(0.0, 1.0).powi(4) * INSPECTION_MAX_S;
        self.event_queue.add(seconds, TrialEvent::Looked);
        // Nothing may land while C is read.
        self.shell.lease(self.all_of_c());
    }

    /// A tile is complete: whether it is wrong; then one of its makers must have lied.
    pub(super) fn is_lie(&mut self, rect: Rect) -> bool {
        let is_wrong =
            places(rect, self.data.p.n).any(|at| self.shell.c[at].to_bits() != self.expected[at].to_bits());
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
        let is_wrong =
            places(rect, self.data.p.n).any(|at| self.shell.c[at].to_bits() != self.expected[at].to_bits());
        let seconds = self.random.between(0.0, 1.0).powi(4) * SPOT_CHECK_MAX_S;
        self.event_queue.add(seconds, TrialEvent::Spotted(is_wrong));
    }

    /// A worker may be excluded only if it returned a wrong result.
    pub(super) fn check_exclusion(&mut self, peer: usize) {
        assert!(self.inspection.liars.contains(&peer), "w{peer} is excluded, and has returned nothing wrong");
        self.checks.may_look_lost(peer);
    }

    fn all_of_c(&self) -> Rect {
        Rect::new(Span::new(0, self.data.p.m), Span::new(0, self.data.p.n))
    }

    /// Accepts C if it is right, else has other machines recompute the wrong tiles.
    pub(super) fn inspect(&mut self) {
        self.shell.take_back(self.all_of_c());
        let again: Vec<(usize, u64)> = self.inspection.again.keys().copied().collect();
        for ((tile, left_out), makers) in self.inspection.again.iter().zip(self.primary.makers(&again)) {
            let were_trusted = !makers.iter().any(|maker| left_out.contains(maker));
            assert!(were_trusted, "{tile:?} was recomputed by an excluded machine");
        }
        if self.inspection.wrong.is_empty() {
            self.shell.finished = true;
            return self.dispatch(PrimaryEvent::Accepted);
        }
        let tiles: Vec<(usize, u64)> = self.inspection.wrong.keys().copied().collect();
        let makers = self.primary.makers(&tiles).concat();
        if !self.primary.has_workers_besides(&makers) {
            self.shell.failed = Some(NO_OTHER_MACHINE.to_owned());
            return self.dispatch(PrimaryEvent::Accepted);
        }
        self.inspection.suspects.extend(&makers);
        for ((region, tile), rect) in std::mem::take(&mut self.inspection.wrong) {
            for place in places(rect, self.data.p.n) {
                (self.shell.c[place], self.shell.committed[place]) = (GARBAGE, false);
            }
            self.inspection.again.insert((region, tile), self.inspection.suspects.clone());
            self.inspection.steps_again += self.primary.plan().regions[region].steps();
            self.seen.mended += 1;
        }
        self.checks.goes_back();
        self.moved_last = self.event_queue.now();
        self.dispatch(PrimaryEvent::Wrong { tiles, makers });
    }
}
