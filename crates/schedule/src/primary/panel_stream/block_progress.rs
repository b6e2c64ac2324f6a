//! Progress of the block that is being sent: which panels were sent, and which panel comes next.
//!
//! Place in the flow: the panel stream prepares the panel that `next_panel` names, and calls `advance` once
//! it has begun to send it.
//!
//! Invariants: in the order of steps, both sides of a step are sent whole before the next step. Column by
//! column, the panels of A come with the first group of columns, and the ids of all of them are remembered.
//! From a corner, the ids of both sides are. Cells that thieves took are not sent (`BlockWork::cells_at`);
//! once a block is sent column by column, no cells can be taken.
//!
//! Deliberately absent: messages, credit, and which other workers need the same panel.

use super::{Ids, Panel, PanelKey};
use crate::primary::outgoing::small;
use crate::primary::work::BlockWork;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};
use bramble_plan::{Block, PanelOrder};

/// Progress of the block that is being sent, which is the last active one.
pub(super) struct BlockProgress {
    pub(super) step: u64,
    /// Rows of cells whose panels were sent: of this step; column by column, of every such step (all rows
    /// after the first group); from a corner, for every step.
    pub(super) a_sent: u64,
    /// Columns of cells, likewise.
    pub(super) b_sent: u64,
    /// Column by column: columns that are finished.
    pub(super) cols_done: u64,
    /// Ids of A's panels: of this step by row; column by column, of all such steps; from a corner, by row and
    /// step.
    pub(super) a: Vec<Ids>,
    /// Ids of B's panels: of this step by column; from a corner, by column and step.
    pub(super) b: Vec<Ids>,
    /// Number of the block among the member's own; `None` if it was another worker's.
    pub(super) wave: Option<u64>,
    /// Relaying members that may need the same panels, with their blocks of this wave.
    pub(super) sharers: Vec<(usize, Block)>,
}

/// How a panel gets its ids.
pub(super) enum Numbering {
    /// It takes its own ids.
    Alone,
    /// It is the first of this many panels, and reserves ids for all of them.
    First(u32),
    /// It uses ids that the first panel (whose ids these are) reserved, at this position.
    Among(Ids, u32),
}

impl BlockProgress {
    /// Identity of the next panel among members that share it.
    pub(super) fn key(&self, block: &Block, panel: Panel) -> Option<PanelKey> {
        let (is_b, index) = match panel {
            Panel::A(row) => (false, row),
            Panel::B(col) => (true, col),
        };
        let by_columns = matches!(block.order, PanelOrder::Columns(_) | PanelOrder::Corner);
        Some(PanelKey { wave: self.wave?, step: self.step, region: block.region, by_columns, is_b, index })
    }

    /// Other members that need the panel by the plan.
    pub(super) fn others(&self, key: PanelKey) -> impl Iterator<Item = usize> {
        let side = move |block: &Block| if key.is_b { block.cells.cols } else { block.cells.rows };
        let needs = move |b: &Block| b.steps.contains(key.step) && side(b).contains(key.index);
        self.sharers.iter().filter(move |(_, block)| needs(block)).map(|(member, _)| *member)
    }

    /// The next panel, and the cells on the opposite side that it can be combined with.
    pub(super) fn next_panel(&self, work: &BlockWork) -> (Panel, Span) {
        let Rect { rows, cols } = self.cells(work);
        let a_is_next = self.a_sent < rows.len();
        if a_is_next && (self.a_sent <= self.b_sent || self.b_sent == cols.len()) {
            (Panel::A(rows.start + self.a_sent), Span::new(cols.start, cols.start + self.b_sent))
        } else {
            (Panel::B(cols.start + self.b_sent), Span::new(rows.start, rows.start + self.a_sent))
        }
    }

    /// Column by column: number of columns that are finished before the next ones begin.
    fn group(&self, block: &Block) -> Option<u64> {
        match block.order {
            PanelOrder::Steps | PanelOrder::Corner => None,
            PanelOrder::Columns(group) => Some(group.max(1)),
            PanelOrder::Ending(_) => (self.step >= block.by_columns_from()).then_some(1),
        }
    }

    /// Whether from now on each panel of B enables work by itself, although no new step begins.
    pub(super) fn has_all_of_a(&self, block: &Block) -> bool {
        matches!(block.order, PanelOrder::Ending(_)) && self.group(block).is_some() && self.cols_done > 0
    }

    /// The cells that are sent step by step; column by column, those of the current group.
    fn cells(&self, work: &BlockWork) -> Rect {
        let Rect { rows, cols } = work.cells_at(self.step);
        let Some(group) = self.group(&work.block) else { return Rect::new(rows, cols) };
        let first = cols.start + self.cols_done;
        Rect::new(rows, Span::new(first, (first + group).min(cols.end)))
    }

    /// How the next panel gets its ids. The first panels of both sides of a step share one range of ids; with
    /// `cells_together`, all panels of the step do. In later groups of columns, all panels meet panels of A
    /// that have ids already.
    pub(super) fn numbering(&self, work: &BlockWork, cells_together: bool) -> Numbering {
        let cells = self.cells(work);
        let together = if cells_together { small(cells.rows.len() + cells.cols.len()) } else { 2 };
        let place = small(self.a_sent + self.b_sent);
        if self.cols_done > 0 {
            return Numbering::Alone;
        }
        match place {
            0 => Numbering::First(together),
            place if place < together => {
                let first = self.other_ids(work, Panel::B(cells.cols.start), cells.rows.start);
                Numbering::Among(first, place)
            }
            _ => Numbering::Alone,
        }
    }

    /// Ids of the panel of the opposite side.
    pub(super) fn other_ids(&self, work: &BlockWork, panel: Panel, at: u64) -> Ids {
        let block = &work.block;
        let place = |span: Span| index(at.saturating_sub(span.start));
        let cells = self.cells(work);
        let (rows, cols) = (place(cells.rows), place(cells.cols));
        if block.order == PanelOrder::Corner {
            let (step, steps) = (index(self.step - block.steps.start), index(block.steps.len()));
            return match panel {
                Panel::A(_) => self.b[cols * steps + step],
                Panel::B(_) => self.a[rows * steps + step],
            };
        }
        let kept = match self.group(block) {
            None => 0,
            Some(_) => index(self.step - block.by_columns_from()) * index(cells.rows.len()),
        };
        match panel {
            Panel::A(_) => self.b[cols],
            Panel::B(_) => self.a[kept + rows],
        }
    }

    /// Moves past this panel and, at the end of a step or column, past that. True at the end of the block.
    pub(super) fn advance(&mut self, work: &BlockWork, panel: Panel, ids: Ids) -> bool {
        let cells = self.cells(work);
        let (rows, cols) = (cells.rows.len(), cells.cols.len());
        let (sent, ids_of_side) = match panel {
            Panel::A(_) => (&mut self.a_sent, &mut self.a),
            Panel::B(_) => (&mut self.b_sent, &mut self.b),
        };
        ids_of_side.push(ids);
        if work.block.order == PanelOrder::Corner {
            self.step += 1;
            if self.step == work.block.steps.end {
                self.step = work.block.steps.start;
                *sent += 1;
            }
            return self.a_sent == rows && self.b_sent == cols;
        }
        *sent += 1;
        if self.a_sent < rows || self.b_sent < cols {
            return false;
        }
        let by_columns = self.group(&work.block).is_some();
        self.step += 1;
        (self.a_sent, self.b_sent) = (0, 0);
        self.b.clear();
        let ends = self.step == work.block.steps.end;
        if !by_columns {
            self.a.clear();
            let left = work.cells_at(self.step);
            return ends || left.rows.is_empty() || left.cols.is_empty();
        }
        if ends {
            self.step = work.block.by_columns_from();
            self.cols_done += cols;
        }
        // The panels of A were sent with the first group.
        self.a_sent = if self.cols_done == 0 { 0 } else { rows };
        ends && self.cols_done == work.cells_left().cols.len()
    }
}

/// The ids of a panel with this many matrices and sums, and how many ids it takes from `next` on.
///
/// The panels of a step have equally many operand sums on both sides, made of the same parts of the recipe.
/// Where the ids of the two sides alternate, a worker that takes tasks by id (`worker::Priority`) makes each
/// sum just before the products that need it, for all cells that use it. Processed cell by cell instead, the
/// sums of a shared panel would all exist until the last cell.
pub(super) fn panel_ids(next: u32, (matrices, sums): (u32, u32), numbering: Numbering) -> (Ids, u32) {
    let after = |first: u32, count: u32| first.wrapping_add(count);
    match numbering {
        Numbering::Alone => (Ids { panels: next, sums: after(next, matrices), stride: 1 }, matrices + sums),
        Numbering::First(many) => {
            (Ids { panels: next, sums: after(next, many * matrices), stride: many }, many * (matrices + sums))
        }
        Numbering::Among(first, place) => {
            let (panels, sums) = (after(first.panels, place * matrices), after(first.sums, place));
            (Ids { panels, sums, stride: first.stride }, 0)
        }
    }
}

/// Converts a number of panels to an index; numbers beyond memory are out of range.
fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
