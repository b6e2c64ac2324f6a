//! Walking a member's part of the plan: which panel comes next, what memory it takes, which jobs it makes possible.
//!
//! Invariants: blocks in order. In a block either step by step, panels of A and B in turn, so that the first job can
//! start after two panels and every further panel starts about as many jobs as there are panels on the other side; or
//! column by column, with the panels of A first. The jobs behind a panel are in the frame that carries its last lines.
//! A panel is begun only when the credit covers all that it brings. The next block is begun only when the last panel of
//! the one before has been sent, so that the older one can always finish; a block that goes on from the sum of others
//! only when that is there; and one whose sums may have to wait never goes further ahead of the oldest that is out than
//! the plan has room for sums (`Prediction::primary_memory_bytes`). Ids are names in one session: they are counted up.

use super::cell::{BlockIds, Ids, Panel, Scene, block_ids};
use super::outgoing::{Delivery, Operands, Outgoing};
use super::standing::Next;
use super::sums::PartialSums;
use bramble_matrix::Span;
use bramble_matrix::number::to_u64;
use bramble_plan::{Block, Cursor, Order, Plan, Recipe, Sums};
use std::collections::VecDeque;

/// What all walks of a product share.
pub(super) struct Course<'a> {
    pub(super) plan: &'a Plan,
    pub(super) operands: &'a Operands,
    /// How cells are multiplied, by region.
    pub(super) recipes: &'a [Recipe],
    pub(super) sums: &'a PartialSums,
}

/// Where in its part a worker's stream is.
pub(super) struct Walk {
    member: usize,
    shares_memory: bool,
    cursor: Cursor,
    /// The block that comes next but has to wait, for a sum or for older blocks.
    waiting: Option<Block>,
    /// Blocks that were begun.
    begun: u64,
    sending: Option<Sending>,
    /// The panel that comes next, where the credit did not cover it.
    refused: Option<Made>,
    /// The blocks that were begun and are not all back.
    out: Vec<OutBlock>,
    next_id: u32,
    /// Messages of the panel that was begun.
    ready: VecDeque<Outgoing>,
}

/// A block that is at the worker.
#[derive(Clone, Copy)]
pub(super) struct OutBlock {
    pub(super) block: Block,
    /// How many were begun before it.
    number: u64,
    ids: BlockIds,
    tiles: u32,
    tiles_left: u32,
}

/// A panel with all that it brings.
struct Made {
    panel: Panel,
    ids: Ids,
    /// Ids that it takes.
    id_count: u32,
    charged_bytes: u64,
    delivery: Delivery,
}

/// The block that is being sent.
struct Sending {
    block: Block,
    ids: BlockIds,
    step: u64,
    /// Rows of cells whose panels of this step were sent; in column order, once all are, for every step.
    a_sent: u64,
    /// Columns of cells whose panels of this step were sent.
    b_sent: u64,
    /// Ids of A's panels: of this step by row, in column order of all steps.
    a: Vec<Ids>,
    /// Ids of B's panels of this step by column.
    b: Vec<Ids>,
}

impl Walk {
    pub(super) fn new(member: usize, shares_memory: bool) -> Self {
        Self {
            member,
            shares_memory,
            cursor: Cursor::default(),
            waiting: None,
            begun: 0,
            sending: None,
            refused: None,
            out: Vec::new(),
            next_id: 0,
            ready: VecDeque::new(),
        }
    }

    /// The next message, taking what it needs from `credit`; `None` at the end or where something has to come back
    /// first.
    pub(super) fn next(&mut self, course: &Course<'_>, credit: &mut u64) -> Option<Outgoing> {
        if self.ready.is_empty() {
            self.begin_panel(course, credit)?;
        }
        self.ready.pop_front()
    }

    /// What the next message waits for, as far as the walk knows without taking a step.
    pub(super) fn next_waits_for(&self) -> Next {
        if !self.ready.is_empty() || (self.sending.is_some() && self.refused.is_none()) {
            Next::Link
        } else if self.refused.is_some() {
            Next::Credit
        } else if self.waiting.is_some() {
            Next::Sum
        } else if !self.out.is_empty() {
            Next::Tiles
        } else {
            Next::Nothing
        }
    }

    /// Enters the next block where the last one has been sent.
    fn enter_block(&mut self, course: &Course<'_>) -> Option<()> {
        if self.sending.is_some() {
            return Some(());
        }
        let member = &course.plan.members[self.member];
        if self.out.len() >= member.blocks_at_once {
            return None;
        }
        let block = match self.waiting.take() {
            Some(block) => block,
            None => member.next_block(&mut self.cursor)?,
        };
        if !is_reached(course, &block) || !self.has_room_for_sums(course, &block) {
            self.waiting = Some(block);
            return None;
        }
        let region = &course.plan.regions[block.region];
        let (tiles, products, parts) = block_ids(region, &course.recipes[block.region], &block);
        let ids = BlockIds { tiles: self.ids(tiles), products: self.ids(products), parts: self.ids(parts) };
        self.out.push(OutBlock { block, number: self.begun, ids, tiles, tiles_left: tiles });
        self.begun += 1;
        let step = block.steps.start;
        self.sending = Some(Sending { block, ids, step, a_sent: 0, b_sent: 0, a: Vec::new(), b: Vec::new() });
        Some(())
    }

    /// Sums that come back are put aside until those of older blocks have come, so a worker that keeps one of those
    /// must not be given ever more.
    fn has_room_for_sums(&self, course: &Course<'_>, block: &Block) -> bool {
        let merges = course.plan.sums == Sums::Merged && !course.plan.is_whole(block);
        let ahead = self.out.first().map_or(0, |oldest| self.begun - oldest.number);
        !merges || ahead <= to_u64(course.plan.members[self.member].blocks_at_once)
    }

    /// So many fresh ids, one after another.
    fn ids(&mut self, count: u32) -> u32 {
        let first = self.next_id;
        self.next_id = self.next_id.wrapping_add(count);
        first
    }

    fn begin_panel(&mut self, course: &Course<'_>, credit: &mut u64) -> Option<()> {
        if self.refused.as_ref().is_some_and(|made| made.charged_bytes > *credit) {
            return None;
        }
        let made = match self.refused.take() {
            Some(made) => made,
            None => self.next_panel(course)?,
        };
        let Some(left) = credit.checked_sub(made.charged_bytes) else {
            self.refused = Some(made);
            return None;
        };
        *credit = left;
        self.next_id = self.next_id.wrapping_add(made.id_count);
        made.delivery.into_messages(self.shares_memory, &mut self.ready);
        if let Some(sending) = self.sending.as_mut()
            && sending.advance(made.panel, made.ids)
        {
            self.sending = None;
        }
        Some(())
    }

    /// Makes the next panel of the block that is sent, or of the one after it.
    fn next_panel(&mut self, course: &Course<'_>) -> Option<Made> {
        self.enter_block(course)?;
        let sending = self.sending.as_ref()?;
        let scene = Scene {
            plan: course.plan,
            operands: course.operands,
            recipe: &course.recipes[sending.block.region],
            block: sending.block,
            ids: sending.ids,
            lends: self.shares_memory,
        };
        let (panel, others) = sending.next_panel();
        let step = sending.step;
        let (matrices, sums) = scene.id_counts(panel, step);
        let ids = Ids { panels: self.next_id, sums: self.next_id.wrapping_add(matrices) };
        let delivery = scene.deliver(panel, step, ids, others, &|at| sending.other_ids(panel, at));
        let charged_bytes = delivery.charged_bytes();
        Some(Made { panel, ids, id_count: matrices + sums, charged_bytes, delivery })
    }

    /// The block that a tile's id belongs to, and the tile's number in it.
    pub(super) fn find(&self, id: u32) -> Option<(&OutBlock, u32)> {
        let at = |out: &OutBlock| id.wrapping_sub(out.ids.tiles);
        let out = self.out.iter().find(|out| at(out) < out.tiles)?;
        Some((out, at(out)))
    }

    /// The steps that a result of that block has to name.
    pub(super) fn result_steps(course: &Course<'_>, out: &OutBlock) -> Span {
        let recipe = &course.recipes[out.block.region];
        let (plan, operands) = (course.plan, course.operands);
        Scene { plan, operands, recipe, block: out.block, ids: out.ids, lends: false }.result_steps()
    }

    /// A tile has come back whole.
    pub(super) fn returned(&mut self, id: u32) {
        for out in &mut self.out {
            let mine = id.wrapping_sub(out.ids.tiles) < out.tiles;
            out.tiles_left -= u32::from(mine);
        }
        self.out.retain(|out| out.tiles_left > 0);
    }
}

/// Whether all tiles of a block have the steps before it, where it goes on from their sum.
fn is_reached(course: &Course<'_>, block: &Block) -> bool {
    if !course.plan.continues(block) {
        return true;
    }
    let region = &course.plan.regions[block.region];
    let tiles = region.q() * region.q();
    let mut cells = block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j)));
    cells.all(|(i, j)| {
        let first = (i * region.grid.cols() + j) * tiles;
        (first..first + tiles).all(|tile| course.sums.done((block.region, tile)) == block.steps.start)
    })
}

impl Sending {
    /// The next panel, and the cells on the other side that then have both.
    fn next_panel(&self) -> (Panel, Span) {
        let (rows, cols) = (self.block.cells.rows, self.block.cells.cols);
        let a = Panel::A(rows.start + self.a_sent);
        let b = Panel::B(cols.start + self.b_sent);
        let a_is_next = self.a_sent < rows.len();
        match self.block.order {
            Order::Columns if a_is_next => (a, Span::new(cols.start, cols.start)),
            Order::Columns => (b, rows),
            Order::Steps if a_is_next && (self.a_sent <= self.b_sent || self.b_sent == cols.len()) => {
                (a, Span::new(cols.start, cols.start + self.b_sent))
            }
            Order::Steps => (b, Span::new(rows.start, rows.start + self.a_sent)),
        }
    }

    /// Ids of the panel on the other side.
    fn other_ids(&self, panel: Panel, at: u64) -> Ids {
        let place = |span: Span| usize::try_from(at - span.start).unwrap_or(usize::MAX);
        match (panel, self.block.order) {
            (Panel::A(_), _) => self.b[place(self.block.cells.cols)],
            (Panel::B(_), Order::Steps) => self.a[place(self.block.cells.rows)],
            (Panel::B(_), Order::Columns) => {
                let step = usize::try_from(self.step - self.block.steps.start).unwrap_or(usize::MAX);
                self.a[step * rows_of(&self.block) + place(self.block.cells.rows)]
            }
        }
    }

    /// Past this panel, and where that ends a step or a column, past that; true at the end of the block.
    fn advance(&mut self, panel: Panel, ids: Ids) -> bool {
        match panel {
            Panel::A(_) => {
                self.a_sent += 1;
                self.a.push(ids);
            }
            Panel::B(_) => {
                self.b_sent += 1;
                self.b.push(ids);
            }
        }
        let (rows, cols) = (self.block.cells.rows.len(), self.block.cells.cols.len());
        match self.block.order {
            Order::Steps => {
                if self.a_sent < rows || self.b_sent < cols {
                    return false;
                }
                self.step += 1;
                (self.a_sent, self.b_sent) = (0, 0);
                self.a.clear();
                self.b.clear();
                self.step == self.block.steps.end
            }
            Order::Columns => {
                if matches!(panel, Panel::A(_)) {
                    return false;
                }
                // One panel of a column has been sent; `b_sent` counts whole columns.
                self.b_sent -= 1;
                self.b.clear();
                self.step += 1;
                if self.step < self.block.steps.end {
                    let first_column = self.b_sent == 0;
                    self.a_sent = if first_column { 0 } else { rows };
                    return false;
                }
                self.step = self.block.steps.start;
                self.b_sent += 1;
                self.b_sent == cols
            }
        }
    }
}

fn rows_of(block: &Block) -> usize {
    usize::try_from(block.cells.rows.len()).unwrap_or(usize::MAX)
}

/// Number of a tile in its region: cell by cell.
pub(super) fn tile_number(
    region: &bramble_plan::Region,
    block: &Block,
    at: u32,
) -> (u64, u64, u64, u64, u64) {
    let tiles = region.q() * region.q();
    let (cell, inner) = (u64::from(at) / tiles, u64::from(at) % tiles);
    let cols = block.cells.cols.len();
    let (i, j) = (block.cells.rows.start + cell / cols, block.cells.cols.start + cell % cols);
    let number = (i * region.grid.cols() + j) * tiles + inner;
    (number, i, j, inner / region.q(), inner % region.q())
}

/// Recipes by region.
pub(super) fn recipes(plan: &Plan) -> Vec<Recipe> {
    plan.regions.iter().map(|r| Recipe::new(r.levels)).collect()
}
