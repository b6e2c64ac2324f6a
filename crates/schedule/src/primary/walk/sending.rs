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

/// Which of two panels one is that share their ids.
pub(super) enum Pairing {
    /// It shares them with nobody.
    None,
    /// The first, which takes them.
    First,
    /// The second, with the ids of the first.
    Second(Ids),
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

    /// Whether a panel and the one that it meets first share their ids: the first of A and of B in a step.
    pub(super) fn pairing(&self, work: &Work, panel: Panel) -> Pairing {
        match panel {
            Panel::A(_) if self.a_sent == 0 && self.b_sent == 0 => Pairing::First,
            // Of later groups of columns the first panel meets one whose ids are taken.
            Panel::B(_) if self.a_sent > 0 && self.b_sent == 0 && self.cols_done == 0 => {
                Pairing::Second(self.other_ids(work, panel, self.cells(work).rows.start))
            }
            Panel::A(_) | Panel::B(_) => Pairing::None,
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

/// A number of panels as an index; more than memory has room for is out of range.
fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
