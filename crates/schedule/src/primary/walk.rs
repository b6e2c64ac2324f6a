//! Walking a member's part of the plan: which panel comes next, what memory it takes, which jobs it makes possible.
//!
//! Invariants: the blocks of a lot in order, and of all lots the first whose block may begin. In a block either step by
//! step, panels of A and B in turn, so that the first job can start after two panels and every further panel starts
//! about as many jobs as there are panels on the other side; or column by column, with the panels of A first; or so in
//! its last steps only. The jobs behind a panel are in the frame that carries its last lines. A panel is begun only
//! when the credit covers all that it brings. The next block is begun only when the last panel of the one before has
//! been sent, so that the older one can always finish; a block that goes on from the sum of others only when that is
//! there; and one whose sums may have to wait never goes further ahead of the oldest that is out than the plan has room
//! for sums (`Prediction::primary_memory_bytes`). Ids are names in one session: they are counted up. What others take
//! is cut off where nothing was sent yet (`trim`).

mod left;
mod rest;
mod sending;

use self::sending::{Numbering, Sending, panel_ids};
use super::cell::{BlockIds, Ids, Panel, Scene, block_ids};
use super::events::{PeerInfo, Referred};
use super::outgoing::{Delivery, Operands, Outgoing, Stored, rest_of};
use super::pace::Pace;
use super::relay::{Board, Given, Key, Role};
use super::sums::PartialSums;
use super::work::{Lot, Work};
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Rect, Span};
use bramble_plan::{Block, Plan, Recipe, Sums};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Over a link of so many bytes a second tiles are home at once. Over a slower one those of a cell that is done leave while
/// the next one is multiplied, so cells come one after another.
const AT_ONCE_BYTES_PER_S: f64 = 1e9;

/// What all walks of a product share.
pub(super) struct Course<'a> {
    pub(super) plan: &'a Plan,
    pub(super) operands: &'a Operands,
    /// How cells are multiplied, by region.
    pub(super) recipes: &'a [Recipe],
    pub(super) sums: &'a PartialSums,
    pub(super) now: Duration,
}

/// Where in its part a worker's stream is.
pub(super) struct Walk {
    member: usize,
    shares_memory: bool,
    /// The sums of all cells of a block are made side by side.
    cells_together: bool,
    referred: Referred,
    /// Its memory, and how many of its own blocks it may have at once.
    room_bytes: u64,
    at_once: usize,
    /// What was not begun: the member's own blocks, then what was taken from others.
    pub(super) lots: VecDeque<Lot>,
    pub(super) pace: Pace,
    /// Blocks that were begun.
    begun: u64,
    sending: Option<Sending>,
    /// The panel that comes next, where the credit did not cover it.
    refused: Option<Made>,
    /// There was room for a block, but sums had to come first.
    waits_for_sum: bool,
    /// The blocks that were begun and are not all back.
    out: Vec<OutBlock>,
    next_id: u32,
    /// Messages of the panel that was begun.
    ready: VecDeque<Outgoing>,
    /// Matrices that other workers send, with the number of their block, until that is back.
    relayed: BTreeMap<u32, (u64, Stored)>,
    /// What they could not send after all; it has been paid for.
    rest: VecDeque<Outgoing>,
}

/// A block that is at the worker.
pub(super) struct OutBlock {
    pub(super) work: Work,
    /// How many were begun before it.
    number: u64,
    ids: BlockIds,
    tiles: u32,
    tiles_left: u32,
    /// A bit for each tile that came back.
    back: Vec<u64>,
}

/// A panel with all that it brings.
struct Made {
    panel: Panel,
    ids: Ids,
    /// Matrices that it is.
    matrices: u32,
    /// Ids that it takes, with the sums that are made of it.
    id_count: u32,
    charged_bytes: u64,
    /// Work of its jobs.
    amount: f64,
    delivery: Delivery,
    /// What it is called where members share panels.
    key: Option<Key>,
    role: Role,
}

impl Walk {
    /// What the plan gives a machine; nothing for those that it does not know.
    pub(super) fn new(plan: &Plan, member: usize, info: &PeerInfo) -> Self {
        let (lots, pace, at_once) = match plan.members.get(member) {
            None => (VecDeque::new(), Pace::new(0.0, info.work_per_s), 1),
            Some(planned) => {
                let given = planned.shares.iter().map(|s| plan.work(s.region, s.cells, s.steps)).sum();
                let seconds = plan.predicted.machines.get(member).map_or(0.0, |m| m.seconds);
                let pace = Pace::new(given, if seconds > 0.0 { given / seconds } else { 0.0 });
                let numbers = Span::new(0, planned.block_count());
                (VecDeque::from([Lot::Blocks { member, numbers }]), pace, planned.blocks_at_once)
            }
        };
        Self {
            member,
            shares_memory: info.shares_memory,
            cells_together: info.shares_memory
                || info.link_bytes_per_s.is_some_and(|rate| rate >= AT_ONCE_BYTES_PER_S),
            referred: info.referred,
            room_bytes: info.credit_bytes,
            at_once,
            lots,
            pace,
            begun: 0,
            sending: None,
            refused: None,
            waits_for_sum: false,
            out: Vec::new(),
            next_id: 0,
            ready: VecDeque::new(),
            relayed: BTreeMap::new(),
            rest: VecDeque::new(),
        }
    }

    /// The next message, taking what it needs from `credit`; `None` at the end or where something has to come back
    /// first.
    pub(super) fn next(
        &mut self,
        course: &Course<'_>,
        board: &mut Board,
        credit: &mut u64,
    ) -> Option<Outgoing> {
        if let Some(rest) = self.rest.pop_front() {
            return Some(rest);
        }
        if self.ready.is_empty() {
            self.begin_panel(course, board, credit)?;
        }
        self.ready.pop_front()
    }

    /// Enters the next block where the last one has been sent.
    fn enter_block(&mut self, course: &Course<'_>, board: &Board) -> Option<()> {
        if self.sending.is_some() {
            return Some(());
        }
        let may_begin = |lot: &Lot| {
            let work = if self.has_room_for(lot) { lot.first(course.plan) } else { None };
            work.filter(|work| is_reached(course, work) && self.has_room_for_sums(course, work))
        };
        let found = self.lots.iter().enumerate().find_map(|(at, lot)| Some((at, may_begin(lot)?)));
        let may_be_out = |lot: &Lot| self.has_room_for(lot) && lot.first(course.plan).is_some();
        self.waits_for_sum = found.is_none() && self.lots.iter().any(may_be_out);
        let (lot, work) = found?;
        let own = match &self.lots[lot] {
            Lot::Blocks { member, numbers } if *member == self.member => Some(numbers.start),
            Lot::Blocks { .. } | Lot::One(_) => None,
        };
        if !self.lots[lot].pass() {
            self.lots.remove(lot);
        }
        let work = if own.is_some() { work } else { self.fitted(course, lot, work) };
        let wave = own.filter(|number| board.is_own(self.member, *number));
        let region = &course.plan.regions[work.block.region];
        let (tiles, products, parts) = block_ids(region, &course.recipes[work.block.region], &work.block);
        let ids = BlockIds { tiles: self.ids(tiles), products: self.ids(products), parts: self.ids(parts) };
        let (block, number) = (work.block, self.begun);
        let back = vec![0; to_usize(tiles).div_ceil(64)];
        self.out.push(OutBlock { work, number, ids, tiles, tiles_left: tiles, back });
        self.begun += 1;
        let mates = wave.map_or_else(Vec::new, |wave| self.mates(course, board, wave, &block));
        let (step, a, b) = (block.steps.start, Vec::new(), Vec::new());
        self.sending = Some(Sending { step, a_sent: 0, b_sent: 0, cols_done: 0, a, b, wave, mates });
        Some(())
    }

    /// What there is room for of a block that was another's: the rest is a lot of its own.
    fn fitted(&mut self, course: &Course<'_>, lot: usize, work: Work) -> Work {
        let (plan, room_bytes) = (course.plan, self.room_bytes);
        let fits =
            |work: &Work| plan.block_bytes(&work.block, &course.recipes[work.block.region]) <= room_bytes;
        if fits(&work) {
            return work;
        }
        let mut work = work.by_steps();
        while !fits(&work)
            && let Some((first, rest)) = work.divided(plan, work.amount(plan) / 2.0)
        {
            self.lots.insert(lot, Lot::One(rest));
            work = first;
        }
        work
    }

    /// The blocks that other members who relay have in this wave, where panels of theirs can be the same.
    fn mates(&self, course: &Course<'_>, board: &Board, wave: u64, block: &Block) -> Vec<(usize, Block)> {
        let others = course.plan.members.iter().enumerate();
        let others = others.filter(|(at, _)| *at != self.member && board.relays(*at));
        let theirs = others.filter_map(|(at, member)| Some((at, member.block_at(wave)?)));
        theirs.filter(|(_, b)| b.region == block.region && b.order == block.order).collect()
    }

    /// Whether a block of that lot may be out beside those that are.
    fn has_room_for(&self, lot: &Lot) -> bool {
        // What was taken may come while the last own block is finished, whatever the plan had room for.
        let planned = matches!(lot, Lot::Blocks { member, .. } if *member == self.member);
        self.out.len() < if planned { self.at_once } else { self.at_once.saturating_add(1) }
    }

    /// Sums that come back are put aside until those of older blocks have come, so a worker that keeps one of those
    /// must not be given ever more.
    fn has_room_for_sums(&self, course: &Course<'_>, work: &Work) -> bool {
        let merges = course.plan.sums == Sums::Merged && !work.goes_on && !course.plan.is_whole(&work.block);
        let ahead = self.out.first().map_or(0, |oldest| self.begun - oldest.number);
        !merges || ahead <= to_u64(self.at_once)
    }

    /// So many fresh ids, one after another.
    fn ids(&mut self, count: u32) -> u32 {
        let first = self.next_id;
        self.next_id = self.next_id.wrapping_add(count);
        first
    }

    fn begin_panel(&mut self, course: &Course<'_>, board: &mut Board, credit: &mut u64) -> Option<()> {
        self.forget_refused(course, board);
        if self.refused.as_ref().is_some_and(|made| made.charged_bytes > *credit) {
            return None;
        }
        let made = match self.refused.take() {
            Some(made) => made,
            None => self.next_panel(course, board)?,
        };
        let Some(left) = credit.checked_sub(made.charged_bytes) else {
            self.refused = Some(made);
            return None;
        };
        *credit = left;
        self.next_id = self.next_id.wrapping_add(made.id_count);
        if let Some(key) = made.key {
            let (first_id, bytes) = (made.ids.panels, made.delivery.operand_bytes());
            let mates = self.sending.iter().flat_map(|sending| sending.others(key));
            let given = Given { first_id, matrices: made.matrices, bytes };
            board.begun(self.member, key, (made.role, mates), given);
        }
        let number = self.out.last().map_or(0, |out| out.number);
        for stored in &made.delivery.relayed {
            self.relayed.insert(stored.header.id, (number, *stored));
        }
        let sending = self.sending.as_ref().zip(self.out.last());
        if sending.is_some_and(|(sending, out)| sending.has_all_of_a(&out.work.block)) {
            self.pace.begin_step();
        }
        self.pace.begun(made.delivery.operand_bytes(), made.amount, course.now);
        made.delivery.into_messages((self.shares_memory, self.referred), &mut self.ready);
        if let Some((sending, out)) = self.sending.as_mut().zip(self.out.last())
            && sending.advance(&out.work, made.panel, made.ids)
        {
            self.sending = None;
        }
        Some(())
    }

    /// A panel that was refused may have to be made anew: meanwhile another member may have it, or have it no more.
    fn forget_refused(&mut self, course: &Course<'_>, board: &Board) {
        let (Some(made), Some(sending), Some(out)) = (&self.refused, &self.sending, self.out.last()) else {
            return;
        };
        let (_, role) = self.role(course, board, sending, (&out.work.block, made.panel));
        if role != made.role {
            self.refused = None;
        }
    }

    /// How the member comes to the panel that is next.
    fn role(
        &self,
        course: &Course<'_>,
        board: &Board,
        sending: &Sending,
        (block, panel): (&Block, Panel),
    ) -> (Option<Key>, Role) {
        let key = sending.key(block, panel).filter(|_| !is_generated(course.operands, panel));
        let role = key.map_or(Role::ALONE, |key| board.role(self.member, &key, sending.others(key)));
        (key, role)
    }

    /// Makes the next panel of the block that is sent, or of the one after it.
    fn next_panel(&mut self, course: &Course<'_>, board: &Board) -> Option<Made> {
        self.enter_block(course, board)?;
        let (sending, out) = self.sending.as_ref().zip(self.out.last())?;
        let region = out.work.block.region;
        let scene = Scene {
            plan: course.plan,
            operands: course.operands,
            recipe: &course.recipes[region],
            work: &out.work,
            ids: out.ids,
            lends: self.shares_memory,
        };
        let (panel, others) = sending.next_panel(&out.work);
        let step = sending.step;
        let (matrices, sums) = scene.id_counts(panel, step);
        let numbering =
            if sums > 0 { sending.numbering(&out.work, self.cells_together) } else { Numbering::Alone };
        let (ids, id_count) = panel_ids(self.next_id, (matrices, sums), numbering);
        let (key, role) = self.role(course, board, sending, (&out.work.block, panel));
        let to_others = (others, role);
        let delivery =
            scene.deliver(panel, step, ids, to_others, &|at| sending.other_ids(&out.work, panel, at));
        let charged_bytes = delivery.charged_bytes();
        let cells = match panel {
            Panel::A(i) => Rect::new(Span::new(i, i + 1), others),
            Panel::B(j) => Rect::new(others, Span::new(j, j + 1)),
        };
        let amount = course.plan.work(region, cells, Span::new(step, step + 1));
        Some(Made { panel, ids, matrices, id_count, charged_bytes, amount, delivery, key, role })
    }

    /// The block that a tile's id belongs to, and the tile's number in it.
    pub(super) fn find(&self, id: u32) -> Option<(&OutBlock, u32)> {
        let at = |out: &OutBlock| id.wrapping_sub(out.ids.tiles);
        let out = self.out.iter().find(|out| at(out) < out.tiles)?;
        Some((out, at(out)))
    }

    /// The steps that a result of a cell of that block has to name.
    pub(super) fn result_steps(course: &Course<'_>, out: &OutBlock, i: u64, j: u64) -> Span {
        let recipe = &course.recipes[out.work.block.region];
        let (plan, operands) = (course.plan, course.operands);
        Scene { plan, operands, recipe, work: &out.work, ids: out.ids, lends: false }.result_steps(i, j)
    }

    /// A tile has come back whole.
    pub(super) fn returned(&mut self, id: u32) {
        for out in &mut self.out {
            let at = id.wrapping_sub(out.ids.tiles);
            if at < out.tiles {
                out.tiles_left -= 1;
                out.back[to_usize(at / 64)] |= 1 << (at % 64);
            }
        }
        let done = self.out.iter().filter(|out| out.tiles_left == 0).map(|out| out.number);
        if !self.relayed.is_empty() {
            for number in done {
                self.relayed.retain(|_, (wave, _)| *wave != number);
            }
        }
        self.out.retain(|out| out.tiles_left > 0);
    }

    /// Another worker sends no more than the first `lines` of a matrix; false where it was to send none with that id.
    pub(super) fn missing(&mut self, id: u32, lines: u32) -> bool {
        let Some((_, mut stored)) = self.relayed.remove(&id) else { return false };
        let is_short = lines < stored.header.lines;
        if is_short {
            stored.header.first_line = lines;
            rest_of(stored, lines, &mut self.rest);
        }
        is_short
    }
}

/// Whether workers make a panel themselves.
fn is_generated(operands: &Operands, panel: Panel) -> bool {
    match panel {
        Panel::A(_) => operands.a_generated,
        Panel::B(_) => operands.b_generated,
    }
}

/// Whether all tiles of a block have the steps before it, where it goes on from their sum.
fn is_reached(course: &Course<'_>, work: &Work) -> bool {
    if !work.goes_on {
        return true;
    }
    let block = &work.block;
    let region = &course.plan.regions[block.region];
    let tiles = region.q() * region.q();
    let mut cells = block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j)));
    cells.all(|(i, j)| {
        let first = (i * region.grid.cols() + j) * tiles;
        (first..first + tiles).all(|tile| course.sums.done((block.region, tile)) == block.steps.start)
    })
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
