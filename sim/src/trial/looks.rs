//! Looking at C, as the primary's shell does when all tiles are there.
//!
//! Place in the flow: what `crates/primary/src/run/inspection.rs` does, where the model takes the place of the check. Looking
//! takes a while, in which machines may still come and go.
//!
//! Invariants: only what a machine that lied has made is wrong, and all of that is made again by others.

use super::matter::{GARBAGE, places};
use super::{Happening, Trial};
use bramble_matrix::{Rect, Span};
use bramble_schedule::primary::Event;
use std::collections::{BTreeMap, BTreeSet};

/// Why there is no C, where nobody is left who did not make what is wrong.
pub(super) const NOBODY_ELSE: &str = "C is wrong, and nobody else is here";
/// Longest that looking takes, in seconds.
const LOOKING_MAX_S: f64 = 12.0;

/// Longest that looking at one tile takes.
const SPOT_MAX_S: f64 = 2.0;

/// What was found.
#[derive(Default)]
pub(super) struct Looks {
    /// Machines that have sent something wrong.
    pub(super) liars: BTreeSet<usize>,
    /// Tiles that are wrong now, by region and number.
    wrong: BTreeMap<(usize, u64), Rect>,
    /// Tiles that the journal of a run before names and that were not what it says.
    damaged: BTreeSet<(usize, u64)>,
    /// Who may have made what was wrong: nobody of them is given anything any more.
    pub(super) suspects: BTreeSet<usize>,
    /// Tiles that were made again, and who was under suspicion when they last were.
    again: BTreeMap<(usize, u64), BTreeSet<usize>>,
    /// Their steps, each time.
    pub(super) steps_again: u64,
}

impl Looks {
    /// Where tiles of a run before are wrong, or are not what its journal says.
    pub(super) fn of_before(wrong: BTreeMap<(usize, u64), Rect>, damaged: BTreeSet<(usize, u64)>) -> Self {
        Self { wrong, damaged, ..Self::default() }
    }

    /// Whether a run before was making a tile again when it died: until this one has said of it that it is there, it is not.
    pub(super) fn was_damaged(&self, tile: (usize, u64)) -> bool {
        self.damaged.contains(&tile)
    }

    pub(super) fn wrong(&self) -> &BTreeMap<(usize, u64), Rect> {
        &self.wrong
    }

    /// Whether a tile has been made again.
    pub(super) fn is_again(&self, tile: (usize, u64)) -> bool {
        self.again.contains_key(&tile)
    }

    /// Whether it is known that a tile is wrong, or has been.
    pub(super) fn is_known(&self, tile: (usize, u64)) -> bool {
        self.wrong.contains_key(&tile) || self.is_again(tile)
    }
}

impl Trial {
    /// All tiles are there.
    pub(super) fn begin_to_look(&mut self) {
        let seconds = self.random.between(0.0, 1.0).powi(4) * LOOKING_MAX_S;
        self.agenda.add(seconds, Happening::Looked);
        // Nothing lands while it is read.
        self.shell.lend(self.all_of_c());
    }

    /// A tile is complete: whether it is wrong, and somebody who made a part of it has lied.
    pub(super) fn may_be_wrong(&mut self, rect: Rect) -> bool {
        let is_wrong =
            places(rect, self.matter.p.n).any(|at| self.shell.c[at].to_bits() != self.expected[at].to_bits());
        if !is_wrong || self.looks.liars.is_empty() {
            return false;
        }
        let tile = self.primary.plan().tile_at(rect.rows.start, rect.cols.start);
        let tile = tile.unwrap_or_else(|| panic!("{rect} is no tile"));
        let makers = self.primary.makers(&[tile]).concat();
        let is_lie = makers.iter().any(|maker| self.looks.liars.contains(maker));
        assert!(is_lie, "{rect} is wrong, and none of {makers:?} has lied");
        self.looks.wrong.insert(tile, rect);
        true
    }

    /// A tile is looked at by itself, while the product runs: what lies there now counts.
    pub(super) fn begin_a_spot(&mut self, rect: Rect) {
        let is_wrong =
            places(rect, self.matter.p.n).any(|at| self.shell.c[at].to_bits() != self.expected[at].to_bits());
        let seconds = self.random.between(0.0, 1.0).powi(4) * SPOT_MAX_S;
        self.agenda.add(seconds, Happening::Spotted(is_wrong));
    }

    /// Only who has sent something wrong is left out for that.
    pub(super) fn check_liar(&mut self, peer: usize) {
        assert!(self.looks.liars.contains(&peer), "w{peer} is left out, and has sent nothing wrong");
        self.checks.suffers(peer);
    }

    fn all_of_c(&self) -> Rect {
        Rect::new(Span::new(0, self.matter.p.m), Span::new(0, self.matter.p.n))
    }

    /// C is right, or others make again what is wrong.
    pub(super) fn look(&mut self) {
        self.shell.take_back(self.all_of_c());
        let again: Vec<(usize, u64)> = self.looks.again.keys().copied().collect();
        for ((tile, left_out), makers) in self.looks.again.iter().zip(self.primary.makers(&again)) {
            let were_trusted = !makers.iter().any(|maker| left_out.contains(maker));
            assert!(were_trusted, "{tile:?} was made again by who was left out");
        }
        if self.looks.wrong.is_empty() {
            self.shell.finished = true;
            return self.tell(Event::Accepted);
        }
        let tiles: Vec<(usize, u64)> = self.looks.wrong.keys().copied().collect();
        let makers = self.primary.makers(&tiles).concat();
        if !self.primary.has_others_than(&makers) {
            self.shell.failed = Some(NOBODY_ELSE.to_owned());
            return self.tell(Event::Accepted);
        }
        self.looks.suspects.extend(&makers);
        for ((region, tile), rect) in std::mem::take(&mut self.looks.wrong) {
            for place in places(rect, self.matter.p.n) {
                (self.shell.c[place], self.shell.committed[place]) = (GARBAGE, false);
            }
            self.looks.again.insert((region, tile), self.looks.suspects.clone());
            self.looks.steps_again += self.primary.plan().regions[region].steps();
            self.seen.mended += 1;
        }
        self.checks.goes_back();
        self.moved_last = self.agenda.now();
        self.tell(Event::Wrong { tiles, makers });
    }
}
