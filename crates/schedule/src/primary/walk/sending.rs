//! How much of a block was sent, and which panel of it comes next.
//!
//! Place in the flow: the walk makes the panel that this file names (`Sending::next_panel`) and says when it has begun it
//! (`Sending::advance`).
//!
//! Invariants: step by step both sides of a step are sent whole before the next; column by column the panels of A come with
//! the first group, and the ids of all of them are kept; from a corner those of both sides are. Cells that others took are
//! not sent (`Work::cells_at`), and where a block goes by columns none are taken any more.
//!
//! Deliberately absent: messages, credit, and who else needs the same panel.

use super::{Ids, Key, Panel};
use crate::primary::outgoing::small;
use crate::primary::work::Work;
use bramble_matrix::{Rect, Span};
use bramble_plan::{Block, Order};

/// How much of the block that is being sent (the last of those that are out) was sent.
pub(super) struct Sending {
    pub(super) step: u64,
    /// Rows of cells whose panels of this step were sent; column by column, once all are, for every such step; from a corner
    /// those whose panels were sent for every step.
    pub(super) a_sent: u64,
    /// Columns of cells, likewise.
    pub(super) b_sent: u64,
    /// Column by column: those that are done.
    pub(super) cols_done: u64,
    /// Ids of A's panels: of this step by row, column by column of all such steps, from a corner by row and step.
    pub(super) a: Vec<Ids>,
    /// Ids of B's panels of this step by column, from a corner by column and step.
    pub(super) b: Vec<Ids>,
    /// Its number among the member's own blocks; nothing where it was another's.
    pub(super) wave: Option<u64>,
    /// Members that relay, and may need the same panels, with their blocks of this wave.
    pub(super) mates: Vec<(usize, Block)>,
}

/// Where a panel has its ids.
pub(super) enum Numbering {
    /// It takes its own.
    Alone,
    /// It is the first of so many, and takes those of all.
    First(u32),
    /// It has that place among those whose first one has taken these.
    Among(Ids, u32),
}

impl Sending {
    /// What the panel that comes next is called.
    pub(super) fn key(&self, block: &Block, panel: Panel) -> Option<Key> {
        let (is_b, index) = match panel {
            Panel::A(row) => (false, row),
            Panel::B(col) => (true, col),
        };
        let by_columns = matches!(block.order, Order::Columns(_) | Order::Corner);
        Some(Key { wave: self.wave?, step: self.step, region: block.region, by_columns, is_b, index })
    }

    /// Other members that need it by the plan.
    pub(super) fn others(&self, key: Key) -> impl Iterator<Item = usize> {
        let side = move |block: &Block| if key.is_b { block.cells.cols } else { block.cells.rows };
        let needs = move |b: &Block| b.steps.contains(key.step) && side(b).contains(key.index);
        self.mates.iter().filter(move |(_, block)| needs(block)).map(|(member, _)| *member)
    }

    /// The next panel, and the cells on the other side that then have both.
    pub(super) fn next_panel(&self, work: &Work) -> (Panel, Span) {
        let Rect { rows, cols } = self.cells(work);
        let a_is_next = self.a_sent < rows.len();
        if a_is_next && (self.a_sent <= self.b_sent || self.b_sent == cols.len()) {
            (Panel::A(rows.start + self.a_sent), Span::new(cols.start, cols.start + self.b_sent))
        } else {
            (Panel::B(cols.start + self.b_sent), Span::new(rows.start, rows.start + self.a_sent))
        }
    }

    /// How many columns of cells are done before the next ones are begun, where that is how the block goes on.
    fn group(&self, block: &Block) -> Option<u64> {
        match block.order {
            Order::Steps | Order::Corner => None,
            Order::Columns(group) => Some(group.max(1)),
            Order::Ending(_) => (self.step >= block.by_columns_from()).then_some(1),
        }
    }

    /// Whether panels of B alone make work possible from now on, without a new step's beginning.
    pub(super) fn has_all_of_a(&self, block: &Block) -> bool {
        matches!(block.order, Order::Ending(_)) && self.group(block).is_some() && self.cols_done > 0
    }

    /// The cells that are walked step by step: column by column those of a group.
    fn cells(&self, work: &Work) -> Rect {
        let Rect { rows, cols } = work.cells_at(self.step);
        let Some(group) = self.group(&work.block) else { return Rect::new(rows, cols) };
        let first = cols.start + self.cols_done;
        Rect::new(rows, Span::new(first, (first + group).min(cols.end)))
    }

    /// Where the panel that comes next has its ids. The first panels on both sides of a step are numbered together, and with
    /// `cells_together` all of them. Of later groups of columns all meet panels whose ids are taken.
    pub(super) fn numbering(&self, work: &Work, cells_together: bool) -> Numbering {
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

    /// Ids of the panel on the other side.
    pub(super) fn other_ids(&self, work: &Work, panel: Panel, at: u64) -> Ids {
        let block = &work.block;
        let place = |span: Span| index(at.saturating_sub(span.start));
        let cells = self.cells(work);
        let (rows, cols) = (place(cells.rows), place(cells.cols));
        if block.order == Order::Corner {
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

    /// Past this panel, and where that ends a step or a column, past that; true at the end of the block.
    pub(super) fn advance(&mut self, work: &Work, panel: Panel, ids: Ids) -> bool {
        let cells = self.cells(work);
        let (rows, cols) = (cells.rows.len(), cells.cols.len());
        let (sent, ids_of_side) = match panel {
            Panel::A(_) => (&mut self.a_sent, &mut self.a),
            Panel::B(_) => (&mut self.b_sent, &mut self.b),
        };
        ids_of_side.push(ids);
        if work.block.order == Order::Corner {
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
        // The panels of A are sent with the first group.
        self.a_sent = if self.cols_done == 0 { 0 } else { rows };
        ends && self.cols_done == work.cells_left().cols.len()
    }
}

/// The ids of a panel of so many matrices and sums, and how many are taken from the next one on.
///
/// The panels of a step have as many sums on both sides, made of the same parts of the recipe. Where the numbers of these
/// alternate, a worker that goes by numbers (`worker::Turn`) makes each when products come to need it, for all cells that
/// use them: with cell after cell, the sums of a panel that they share are all there until the last one.
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

/// A number of panels as an index; more than memory has room for is out of range.
fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
