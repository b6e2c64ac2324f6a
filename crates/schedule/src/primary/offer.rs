//! What a machine can spare for another: which blocks, or which cells of one, come nearest to what is wanted.
//!
//! Place in the flow: stealing (`steal`) says who would best take how much from whom; this file looks through the
//! victim's walk for it and says what moving it costs.
//!
//! Invariants: what is offered was not begun, fits the memory of who takes it, and keeps together what has to stay so.
//!
//! Deliberately absent: time, and whether it is worth it.

use super::walk::Walk;
use super::work::{Lot, Work};
use bramble_matrix::number::nearest_f64;
use bramble_matrix::{Rect, Span};
use bramble_plan::{Plan, Recipe};

/// Units of blocks that move at once.
const UNITS_MAX: usize = 4096;

/// What a victim can spare.
pub(super) struct Offer {
    pub(super) take: Take,
    /// How much work that is.
    pub(super) work: f64,
    /// The seconds after which it can be begun.
    pub(super) ready_s: f64,
    /// Bytes of its panels, and of the sums that come from the victim and go to the thief, which goes on from them.
    pub(super) panel_bytes: f64,
    pub(super) sum_bytes: f64,
    /// Bytes of its tiles when they come home.
    pub(super) home_bytes: f64,
}

/// Where in a victim's walk.
pub(super) enum Take {
    /// The blocks of a lot from this number on.
    Blocks { lot: usize, first: u64 },
    /// A whole lot.
    Lot(usize),
    /// Cells of the last block of a lot.
    Part { lot: usize, kept: Rect, taken: Rect },
    /// Cells of the block that is being sent, from a step on.
    Cells { from: u64, kept: Rect, taken: Rect },
}

impl Offer {
    /// What nobody has begun comes from nobody and can be begun at once.
    fn unbegun(take: Take, work: f64, home_bytes: f64) -> Self {
        Self { take, work, ready_s: 0.0, panel_bytes: 0.0, sum_bytes: 0.0, home_bytes }
    }
}

/// Who would take something.
pub(super) struct Buyer<'a> {
    pub(super) plan: &'a Plan,
    pub(super) recipes: &'a [Recipe],
    /// Its memory.
    pub(super) credit: u64,
    /// Work that it would best be given.
    pub(super) wanted: f64,
}

impl Buyer<'_> {
    /// What a walk can spare for it: blocks that were not begun, which cost least to move, and cells of the one that is sent.
    pub(super) fn offers(&self, walk: &Walk) -> impl Iterator<Item = Offer> {
        let wants = self.wanted > 0.0;
        let lots = (0..walk.lots.len()).rev().filter(|_| wants);
        let unbegun = lots.filter_map(|at| self.of_lot(&walk.lots[at], at)).next();
        let cut = if wants { self.of_sending(walk) } else { None };
        unbegun.into_iter().chain(cut)
    }

    fn of_lot(&self, lot: &Lot, at: usize) -> Option<Offer> {
        let last = lot.last(self.plan)?;
        let fits = self.fits(&last);
        // Blocks of a lot are alike.
        let bytes_a_work = self.elements(last.block.cells, &last) / last.amount(self.plan).max(1.0);
        let offer = |take, work| Some(Offer::unbegun(take, work, work * bytes_a_work));
        match lot {
            Lot::One(work) if fits && !work.together && work.amount(self.plan) <= self.wanted => {
                offer(Take::Lot(at), work.amount(self.plan))
            }
            Lot::Blocks { numbers, .. } if fits => {
                let (mut first, mut work) = lot.last_unit(self.plan)?;
                if work > self.wanted && !last.together {
                    let part = self.of_block(&last, at);
                    if part.is_some() {
                        return part;
                    }
                }
                for _ in 0..UNITS_MAX {
                    let Lot::Blocks { member, .. } = lot else { break };
                    let rest = Lot::Blocks { member: *member, numbers: Span::new(numbers.start, first) };
                    let fitting = rest.last(self.plan).filter(|w| self.fits(w));
                    match fitting.and_then(|_| rest.last_unit(self.plan)) {
                        Some((next, more)) if work + more <= self.wanted => {
                            (first, work) = (next, work + more)
                        }
                        _ => break,
                    }
                }
                offer(Take::Blocks { lot: at, first }, work)
            }
            Lot::One(_) | Lot::Blocks { .. } if !last.together => self.of_block(&last, at),
            Lot::One(_) | Lot::Blocks { .. } => None,
        }
    }

    /// Some cells of a block that was not begun.
    fn of_block(&self, work: &Work, lot: usize) -> Option<Offer> {
        let cells = work.block.cells;
        let parts = parts(cells).filter(|(kept, _)| !kept.rows.is_empty());
        let pieces = parts.map(|(kept, taken)| (work.piece(taken, work.block.steps.start), kept));
        let (piece, kept) = self.nearest(pieces)?;
        let (work, taken) = (piece.amount(self.plan), piece.block.cells);
        let take = Take::Part { lot, kept, taken };
        Some(Offer::unbegun(take, work, self.elements(taken, &piece)))
    }

    /// Some cells of the block that is being sent.
    fn of_sending(&self, walk: &Walk) -> Option<Offer> {
        let work = walk.divisible(self.plan)?;
        let parts = parts(work.cells_left());
        let pieces = parts.filter_map(|(kept, taken)| Some((work.piece(taken, walk.free_from(kept)?), kept)));
        let (piece, kept) = self.nearest(pieces)?;
        let (from, taken) = (piece.block.steps.start, piece.block.cells);
        let rate = walk.pace.rate();
        let before = walk.pace.in_flight() + walk.work_before(self.plan, from);
        Some(Offer {
            work: piece.amount(self.plan),
            ready_s: if rate > 0.0 { before / rate } else { 0.0 },
            panel_bytes: self.panel_bytes(&piece),
            sum_bytes: self.elements(taken, &piece),
            home_bytes: self.elements(taken, &piece),
            take: Take::Cells { from, kept, taken },
        })
    }

    /// The piece that is nearest to what is wanted, of those that fit; of equals the one with the smaller panels.
    fn nearest(&self, pieces: impl Iterator<Item = (Work, Rect)>) -> Option<(Work, Rect)> {
        let mut best: Option<(f64, f64, (Work, Rect))> = None;
        for (piece, kept) in pieces.filter(|(piece, _)| self.fits(piece)) {
            let off = (piece.amount(self.plan) - self.wanted).abs();
            let panels = self.panel_bytes(&piece);
            if best.as_ref().is_none_or(|b| off < b.0 || off == b.0 && panels < b.1) {
                best = Some((off, panels, (piece, kept)));
            }
        }
        best.map(|b| b.2)
    }

    fn fits(&self, work: &Work) -> bool {
        self.plan.block_bytes(&work.block, &self.recipes[work.block.region]) <= self.credit
    }

    /// Bytes of the panels of a piece that travel.
    fn panel_bytes(&self, piece: &Work) -> f64 {
        let (problem, block) = (&self.plan.problem, &piece.block);
        let region = &self.plan.regions[block.region];
        let side = |travels: bool, length: u64| if travels { nearest_f64(length * region.q()) } else { 0.0 };
        let sides = side(problem.sends_a, region.grid.rows_of(block.cells.rows))
            + side(problem.sends_b, region.grid.cols_of(block.cells.cols));
        sides * nearest_f64(region.depth_of(block.steps) * problem.element_bytes())
    }

    /// Bytes of the tiles of some cells.
    fn elements(&self, cells: Rect, piece: &Work) -> f64 {
        let region = &self.plan.regions[piece.block.region];
        nearest_f64(region.elements(cells) * self.plan.problem.element_bytes())
    }
}

/// All ways to take the last rows or the last columns of some cells: (what is left, what is taken).
pub(super) fn parts(cells: Rect) -> impl Iterator<Item = (Rect, Rect)> {
    let Rect { rows, cols } = cells;
    let cut = |span: Span, at: u64| (Span::new(span.start, at), Span::new(at, span.end));
    let by_rows = (rows.start..rows.end).map(move |at| {
        let (kept, taken) = cut(rows, at);
        (Rect::new(kept, cols), Rect::new(taken, cols))
    });
    let by_cols = (cols.start + 1..cols.end).map(move |at| {
        let (kept, taken) = cut(cols, at);
        (Rect::new(rows, kept), Rect::new(rows, taken))
    });
    let some = !rows.is_empty() && !cols.is_empty();
    by_rows.chain(by_cols).filter(move |_| some)
}
