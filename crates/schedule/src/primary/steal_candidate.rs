//! Steal candidates: which blocks of a victim, or which cells of one, come closest to the amount that a thief
//! should get.
//!
//! Place in the flow: stealing (`steal`) chooses victim, thief and amount; this file searches the victim's
//! stream for work of that amount and computes what moving it costs.
//!
//! Invariants: a candidate was not begun, fits the thief's memory, and keeps blocks together that must move
//! as a unit.
//!
//! Deliberately absent: time, and whether a move pays.

use super::panel_stream::PanelStream;
use super::work::{BlockWork, WorkItem};
use bramble_base::number::nearest_f64;
use bramble_base::{Rect, Span};
use bramble_plan::{Plan, Recipe};

/// Maximum units of blocks in one move.
const UNITS_MAX: usize = 4096;

/// Work that a victim can give up.
pub(super) struct StealCandidate {
    pub(super) take: Steal,
    /// Amount of work.
    pub(super) work: f64,
    /// Seconds until it can be begun.
    pub(super) ready_s: f64,
    /// Bytes of its panels, and of the sums that travel from the victim to the thief, which continues them.
    pub(super) panel_bytes: f64,
    pub(super) sum_bytes: f64,
    /// Bytes of its tiles on their way back.
    pub(super) home_bytes: f64,
}

/// Position of the work in the victim's stream.
pub(super) enum Steal {
    /// The blocks of a work item from this number on.
    Blocks { item: usize, first: u64 },
    /// A whole work item.
    Item(usize),
    /// Cells of the last block of a work item.
    Part { item: usize, kept: Rect, taken: Rect },
    /// Cells of the block that is being sent, from a step on.
    Cells { from: u64, kept: Rect, taken: Rect },
}

impl StealCandidate {
    /// Work that no peer has begun has no sums to move, and can begin at once.
    fn unbegun(take: Steal, work: f64, home_bytes: f64) -> Self {
        Self { take, work, ready_s: 0.0, panel_bytes: 0.0, sum_bytes: 0.0, home_bytes }
    }
}

/// What a thief is looking for.
pub(super) struct StealRequest<'a> {
    pub(super) plan: &'a Plan,
    pub(super) recipes: &'a [Recipe],
    /// The thief's memory in bytes.
    pub(super) credit: u64,
    /// Amount of work that the thief should get.
    pub(super) wanted: f64,
}

impl StealRequest<'_> {
    /// Candidates from a stream: first blocks that were not begun, which are the cheapest to move, then cells
    /// of the current block.
    pub(super) fn candidates(&self, stream: &PanelStream) -> impl Iterator<Item = StealCandidate> {
        let wants = self.wanted > 0.0;
        let items = (0..stream.items.len()).rev().filter(|_| wants);
        let unbegun = items.filter_map(|at| self.of_lot(&stream.items[at], at)).next();
        let cut = if wants { self.of_sending(stream) } else { None };
        unbegun.into_iter().chain(cut)
    }

    fn of_lot(&self, item: &WorkItem, at: usize) -> Option<StealCandidate> {
        let last = item.last(self.plan)?;
        let fits = self.fits(&last);
        // The blocks of a work item are alike.
        let bytes_a_work = self.elements(last.block.cells, &last) / last.amount(self.plan).max(1.0);
        let candidate = |take, work| Some(StealCandidate::unbegun(take, work, work * bytes_a_work));
        match item {
            WorkItem::Part(work) if fits && !work.moves_as_unit && work.amount(self.plan) <= self.wanted => {
                candidate(Steal::Item(at), work.amount(self.plan))
            }
            WorkItem::Blocks { numbers, .. } if fits => {
                let (mut first, mut work) = item.last_unit(self.plan)?;
                if work > self.wanted && !last.moves_as_unit {
                    let part = self.of_block(&last, at);
                    if part.is_some() {
                        return part;
                    }
                }
                for _ in 0..UNITS_MAX {
                    let WorkItem::Blocks { member, .. } = item else { break };
                    let rest = WorkItem::Blocks { member: *member, numbers: Span::new(numbers.start, first) };
                    let fitting = rest.last(self.plan).filter(|w| self.fits(w));
                    match fitting.and_then(|_| rest.last_unit(self.plan)) {
                        Some((next, more)) if work + more <= self.wanted => {
                            (first, work) = (next, work + more)
                        }
                        _ => break,
                    }
                }
                candidate(Steal::Blocks { item: at, first }, work)
            }
            WorkItem::Part(_) | WorkItem::Blocks { .. } if !last.moves_as_unit => self.of_block(&last, at),
            WorkItem::Part(_) | WorkItem::Blocks { .. } => None,
        }
    }

    /// Some cells of a block that was not begun.
    fn of_block(&self, work: &BlockWork, item: usize) -> Option<StealCandidate> {
        let cells = work.block.cells;
        let parts = parts(cells).filter(|(kept, _)| !kept.rows.is_empty());
        let pieces = parts.map(|(kept, taken)| (work.piece(taken, work.block.steps.start), kept));
        let (piece, kept) = self.nearest(pieces)?;
        let (work, taken) = (piece.amount(self.plan), piece.block.cells);
        let take = Steal::Part { item, kept, taken };
        Some(StealCandidate::unbegun(take, work, self.elements(taken, &piece)))
    }

    /// Some cells of the block that is being sent.
    fn of_sending(&self, stream: &PanelStream) -> Option<StealCandidate> {
        let work = stream.divisible(self.plan)?;
        let parts = parts(work.cells_left());
        let pieces =
            parts.filter_map(|(kept, taken)| Some((work.piece(taken, stream.free_from(kept)?), kept)));
        let (piece, kept) = self.nearest(pieces)?;
        let (from, taken) = (piece.block.steps.start, piece.block.cells);
        let rate = stream.speed.rate();
        let before = stream.speed.in_flight() + stream.work_before(self.plan, from);
        Some(StealCandidate {
            work: piece.amount(self.plan),
            ready_s: if rate > 0.0 { before / rate } else { 0.0 },
            panel_bytes: self.panel_bytes(&piece),
            sum_bytes: self.elements(taken, &piece),
            home_bytes: self.elements(taken, &piece),
            take: Steal::Cells { from, kept, taken },
        })
    }

    /// The fitting piece closest to the wanted amount; of equals, the one with the smaller panels.
    fn nearest(&self, pieces: impl Iterator<Item = (BlockWork, Rect)>) -> Option<(BlockWork, Rect)> {
        let mut best: Option<(f64, f64, (BlockWork, Rect))> = None;
        for (piece, kept) in pieces.filter(|(piece, _)| self.fits(piece)) {
            let off = (piece.amount(self.plan) - self.wanted).abs();
            let panels = self.panel_bytes(&piece);
            if best.as_ref().is_none_or(|b| off < b.0 || off == b.0 && panels < b.1) {
                best = Some((off, panels, (piece, kept)));
            }
        }
        best.map(|b| b.2)
    }

    fn fits(&self, work: &BlockWork) -> bool {
        // Pinned work moves only between owners.
        self.plan.block_bytes(&work.block, &self.recipes[work.block.region], true) <= self.credit
    }

    /// Bytes of the panels that are sent for a piece.
    fn panel_bytes(&self, piece: &BlockWork) -> f64 {
        let (problem, block) = (&self.plan.problem, &piece.block);
        let region = &self.plan.regions[block.region];
        let side = |travels: bool, length: u64| if travels { nearest_f64(length * region.q()) } else { 0.0 };
        let sides = side(problem.a_source.is_sent(), region.grid.rows_of(block.cells.rows))
            + side(problem.b_source.is_sent(), region.grid.cols_of(block.cells.cols));
        sides * nearest_f64(region.depth_of(block.steps) * problem.element_bytes())
    }

    /// Bytes of the tiles of some cells.
    fn elements(&self, cells: Rect, piece: &BlockWork) -> f64 {
        let region = &self.plan.regions[piece.block.region];
        nearest_f64(region.elements(cells) * self.plan.problem.element_bytes())
    }
}

/// All ways to take the last rows or the last columns of some cells: (kept, taken).
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
