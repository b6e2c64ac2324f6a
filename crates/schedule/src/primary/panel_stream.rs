//! The stream of panels to one worker: which panel comes next, which memory it takes, which jobs it makes
//! possible.
//!
//! Order: blocks of a work item in their order; of all work items, the first whose next block may begin. A
//! block is sent step by step, panels of A and B in turn, so that the first job can start after two panels
//! and every further panel starts about as many jobs as there are panels on the other side; or column by
//! column, with the panels of A first; or column by column in its last steps only.
//!
//! Invariants: the jobs of a panel travel in the frame with its last lines. A panel is begun only when the
//! credit covers all that it contains. The next block is begun only when the last panel of the previous one
//! was sent, so that the older block can always finish. A block that continues a sum is begun only when that
//! sum is in C. A block whose sums may have to wait is begun only if the primary has buffers for them,
//! counted from the oldest active block (`Prediction::primary_memory_bytes`). Ids are names in one session:
//! they only count up. Thieves get only work of which nothing was sent (`trim`).

mod block_progress;
mod remaining;
mod unfinished;

use self::block_progress::{BlockProgress, Numbering, panel_ids};
use super::cell::{BlockIds, Ids, Panel, PanelContext, block_ids};
use super::events::{PeerInfo, Referred};
use super::outgoing::{BodyMatrix, Delivery, Operands, Outgoing, rest_of, small};
use super::pinned::owns;
use super::rate_estimator::RateEstimator;
use super::relay::{PanelCopy, PanelDirectory, PanelKey, PanelRole};
use super::sums::PartialSums;
use super::units::{elements, largest_sums};
use super::work::{BlockWork, WorkItem};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::number::{to_u64, to_usize};
use bramble_base::{Rect, Span};
use bramble_plan::{Block, Plan, Recipe, Sums};
use core::time::Duration;

/// At this link rate, bytes per second, tiles return almost at once. Over a slower link the tiles of a
/// finished cell should leave while the next cell is multiplied, so cells are processed one after another.
const AT_ONCE_BYTES_PER_S: f64 = 1e9;

/// What all streams of a product share.
pub(super) struct StreamContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) operands: &'a Operands,
    /// By region: how its cells are multiplied.
    pub(super) recipes: &'a [Recipe],
    pub(super) sums: &'a PartialSums,
    pub(super) now: Duration,
}

/// Position of a worker in its work.
pub(super) struct PanelStream {
    member: usize,
    shares_memory: bool,
    /// Whether the operand sums for all cells of a block are made side by side.
    cells_together: bool,
    referred: Referred,
    /// Memory of the worker, and how many blocks of its own share it may hold at once.
    room_bytes: u64,
    at_once: usize,
    /// Work that was not begun: the worker's own blocks, then work that it took over.
    pub(super) items: VecDeque<WorkItem>,
    pub(super) speed: RateEstimator,
    /// Number of blocks that were begun.
    begun: u64,
    progress: Option<BlockProgress>,
    /// The next panel, if the credit did not cover it.
    waiting_panel: Option<PreparedPanel>,
    /// Whether the worker had room for a block that has to wait for sums.
    waits_for_sum: bool,
    /// Blocks that were begun and whose tiles have not all come back.
    active: Vec<ActiveBlock>,
    next_id: u32,
    /// Messages of the panel that was begun.
    ready: VecDeque<Outgoing>,
    relayed: RelayedMatrices,
}

/// Matrices that other workers pass on to a worker.
#[derive(Default)]
struct RelayedMatrices {
    /// With the number of their block, until that block is back.
    expected: BTreeMap<u32, (u64, BodyMatrix)>,
    /// Matrices that other workers failed to pass on. Their credit is already spent.
    rest: VecDeque<Outgoing>,
}

impl RelayedMatrices {
    fn is_empty(&self) -> bool {
        self.expected.is_empty() && self.rest.is_empty()
    }
}

/// A block that is at the worker.
pub(super) struct ActiveBlock {
    pub(super) work: BlockWork,
    /// Number of blocks that were begun before it.
    number: u64,
    ids: BlockIds,
    tiles: u32,
    tiles_left: u32,
    /// One bit per tile that came back.
    back: Vec<u64>,
}

/// A panel with its matrices and jobs.
struct PreparedPanel {
    panel: Panel,
    ids: Ids,
    /// Number of its matrices.
    matrices: u32,
    /// Number of ids that it takes, for matrices and the sums that are made of them.
    id_count: u32,
    charged_bytes: u64,
    /// Work of its jobs.
    amount: f64,
    delivery: Delivery,
    /// Identity of the panel where members share it.
    key: Option<PanelKey>,
    role: PanelRole,
}

impl PanelStream {
    /// The share that the plan gives to a member; an empty stream for workers outside the plan.
    pub(super) fn new(plan: &Plan, member: usize, info: &PeerInfo) -> Self {
        let (items, speed, at_once) = match plan.members.get(member) {
            None => (VecDeque::new(), RateEstimator::new(0.0, info.work_per_s), 1),
            Some(planned) => {
                let given = planned.shares.iter().map(|s| plan.work(s.region, s.cells, s.steps)).sum();
                let seconds = plan.predicted.machines.get(member).map_or(0.0, |m| m.seconds);
                let speed = RateEstimator::new(given, if seconds > 0.0 { given / seconds } else { 0.0 });
                let numbers = Span::new(0, planned.block_count());
                (VecDeque::from([WorkItem::Blocks { member, numbers }]), speed, planned.blocks_at_once)
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
            items,
            speed,
            begun: 0,
            progress: None,
            waiting_panel: None,
            waits_for_sum: false,
            active: Vec::new(),
            next_id: 0,
            ready: VecDeque::new(),
            relayed: RelayedMatrices::default(),
        }
    }

    /// The next message, paid from `credit`. `None` at the end, or if something has to come back first.
    pub(super) fn next(
        &mut self,
        context: &StreamContext<'_>,
        directory: &mut PanelDirectory,
        credit: &mut u64,
    ) -> Option<Outgoing> {
        if let Some(rest) = self.relayed.rest.pop_front() {
            return Some(rest);
        }
        if self.ready.is_empty() {
            self.begin_panel(context, directory, credit)?;
        }
        self.ready.pop_front()
    }

    /// Begins the next block if the previous one was sent.
    fn enter_block(&mut self, context: &StreamContext<'_>, directory: &PanelDirectory) -> Option<()> {
        if self.progress.is_some() {
            return Some(());
        }
        let may_begin = |item: &WorkItem| {
            let work = if self.has_room_for(item) { item.first(context.plan) } else { None };
            work.filter(|work| is_reached(context, work) && self.has_room_for_sums(context, work))
        };
        let found = self.items.iter().enumerate().find_map(|(at, item)| Some((at, may_begin(item)?)));
        let may_be_out = |item: &WorkItem| self.has_room_for(item) && item.first(context.plan).is_some();
        self.waits_for_sum = found.is_none() && self.items.iter().any(may_be_out);
        let (item, work) = found?;
        let own = match &self.items[item] {
            WorkItem::Blocks { member, numbers } if *member == self.member => Some(numbers.start),
            WorkItem::Blocks { .. } | WorkItem::Part(_) => None,
        };
        if !self.items[item].drop_first() {
            self.items.remove(item);
        }
        let work = if own.is_some() { work } else { self.fitted(context, item, work) };
        let wave = own.filter(|number| directory.is_own(self.member, *number));
        let region = &context.plan.regions[work.block.region];
        let (tiles, products, parts) = block_ids(region, &context.recipes[work.block.region], &work.block);
        let ids = BlockIds { tiles: self.ids(tiles), products: self.ids(products), parts: self.ids(parts) };
        let (block, number) = (work.block, self.begun);
        let back = vec![0; to_usize(tiles).div_ceil(64)];
        self.active.push(ActiveBlock { work, number, ids, tiles, tiles_left: tiles, back });
        self.begun += 1;
        let sharers = wave.map_or_else(Vec::new, |wave| self.sharers(context, directory, wave, &block));
        let (step, a, b) = (block.steps.start, Vec::new(), Vec::new());
        self.progress = Some(BlockProgress { step, a_sent: 0, b_sent: 0, cols_done: 0, a, b, wave, sharers });
        Some(())
    }

    /// Splits off the part of another worker's block that fits this worker's memory; the rest becomes a work
    /// item.
    fn fitted(&mut self, context: &StreamContext<'_>, item: usize, work: BlockWork) -> BlockWork {
        let (plan, room_bytes) = (context.plan, self.room_bytes);
        let is_owner = owns(plan, self.member, &work.block);
        let fits = |work: &BlockWork| {
            plan.block_bytes(&work.block, &context.recipes[work.block.region], is_owner) <= room_bytes
        };
        if fits(&work) {
            return work;
        }
        let mut work = work.by_steps();
        while !fits(&work)
            && let Some((first, rest)) = work.split(plan, work.amount(plan) / 2.0)
        {
            self.items.insert(item, WorkItem::Part(rest));
            work = first;
        }
        work
    }

    /// The blocks of other relaying members in this wave that can share panels with `block`.
    fn sharers(
        &self,
        context: &StreamContext<'_>,
        directory: &PanelDirectory,
        wave: u64,
        block: &Block,
    ) -> Vec<(usize, Block)> {
        let others = context.plan.members.iter().enumerate();
        let others = others.filter(|(at, _)| *at != self.member && directory.relays(*at));
        let theirs = others.filter_map(|(at, member)| Some((at, member.block_at(wave)?)));
        theirs.filter(|(_, b)| b.region == block.region && b.order == block.order).collect()
    }

    /// Whether the worker may hold the next block of that item beside its active ones.
    fn has_room_for(&self, item: &WorkItem) -> bool {
        // Work that was taken over may begin while the last own block finishes, beyond the number that the
        // plan foresaw.
        let planned = matches!(item, WorkItem::Blocks { member, .. } if *member == self.member);
        self.active.len() < if planned { self.at_once } else { self.at_once.saturating_add(1) }
    }

    /// Returned sums are buffered until those of older blocks have arrived, so a worker that is late with an
    /// old block must not begin ever more new ones. Where one worker has all steps, the plan counts buffers for the
    /// blocks of members, as large as their own: for other workers, and larger blocks, the sums before must be in C.
    fn has_room_for_sums(&self, context: &StreamContext<'_>, work: &BlockWork) -> bool {
        let plan = context.plan;
        let merges = plan.sums == Sums::Merged && !work.continues_sum && !plan.is_whole(&work.block);
        let ahead = self.active.first().map_or(0, |oldest| self.begun - oldest.number);
        let is_counted = || largest_sums(plan, self.member) >= elements(plan, &work.block);
        let is_in_time = || !work.moves_as_unit || is_counted() || sums_are_there(context, work);
        !merges || ahead <= to_u64(self.at_once) && is_in_time()
    }

    /// Reserves `count` consecutive ids.
    fn ids(&mut self, count: u32) -> u32 {
        let first = self.next_id;
        self.next_id = self.next_id.wrapping_add(count);
        first
    }

    fn begin_panel(
        &mut self,
        context: &StreamContext<'_>,
        directory: &mut PanelDirectory,
        credit: &mut u64,
    ) -> Option<()> {
        self.forget_waiting_panel(context, directory);
        if self.waiting_panel.as_ref().is_some_and(|made| made.charged_bytes > *credit) {
            return None;
        }
        let made = match self.waiting_panel.take() {
            Some(made) => made,
            None => self.next_panel(context, directory)?,
        };
        let Some(left) = credit.checked_sub(made.charged_bytes) else {
            self.waiting_panel = Some(made);
            return None;
        };
        *credit = left;
        self.next_id = self.next_id.wrapping_add(made.id_count);
        if let Some(key) = made.key {
            let (first_id, bytes) = (made.ids.panels, made.delivery.operand_bytes());
            let sharers = self.progress.iter().flat_map(|progress| progress.others(key));
            let given = PanelCopy { first_id, matrices: made.matrices, bytes };
            directory.record_copy(self.member, key, (made.role, sharers), given);
        }
        let number = self.active.last().map_or(0, |out| out.number);
        for stored in &made.delivery.relayed {
            self.relayed.expected.insert(stored.header.id, (number, *stored));
        }
        let progress = self.progress.as_ref().zip(self.active.last());
        if progress.is_some_and(|(progress, out)| progress.has_all_of_a(&out.work.block)) {
            self.speed.begin_step();
        }
        self.speed.begun(made.delivery.operand_bytes(), made.amount, context.now);
        made.delivery.into_messages((self.shares_memory, self.referred), &mut self.ready);
        if let Some((progress, out)) = self.progress.as_mut().zip(self.active.last())
            && progress.advance(&out.work, made.panel, made.ids)
        {
            self.progress = None;
        }
        Some(())
    }

    /// Drops a waiting panel if its role has changed: meanwhile another member may have received or lost the
    /// panel.
    fn forget_waiting_panel(&mut self, context: &StreamContext<'_>, directory: &PanelDirectory) {
        let (Some(made), Some(progress), Some(out)) =
            (&self.waiting_panel, &self.progress, self.active.last())
        else {
            return;
        };
        let (_, role) = self.role(context, directory, progress, (&out.work.block, made.panel));
        if role != made.role {
            self.waiting_panel = None;
        }
    }

    /// How the worker gets the next panel.
    fn role(
        &self,
        context: &StreamContext<'_>,
        directory: &PanelDirectory,
        progress: &BlockProgress,
        (block, panel): (&Block, Panel),
    ) -> (Option<PanelKey>, PanelRole) {
        let key = progress.key(block, panel).filter(|_| is_sent(context.operands, panel));
        let role =
            key.map_or(PanelRole::ALONE, |key| directory.role(self.member, &key, progress.others(key)));
        (key, role)
    }

    /// Prepares the next panel of the current block, or of the block after it.
    fn next_panel(
        &mut self,
        context: &StreamContext<'_>,
        directory: &PanelDirectory,
    ) -> Option<PreparedPanel> {
        self.enter_block(context, directory)?;
        let (progress, out) = self.progress.as_ref().zip(self.active.last())?;
        let region = out.work.block.region;
        let panel_context = PanelContext {
            plan: context.plan,
            operands: context.operands,
            recipe: &context.recipes[region],
            work: &out.work,
            ids: out.ids,
            leases: self.shares_memory,
            is_owner: owns(context.plan, self.member, &out.work.block),
        };
        let (panel, others) = progress.next_panel(&out.work);
        let step = progress.step;
        let (matrices, sums) = panel_context.id_counts(panel, step);
        let numbering =
            if sums > 0 { progress.numbering(&out.work, self.cells_together) } else { Numbering::Alone };
        let (ids, id_count) = panel_ids(self.next_id, (matrices, sums), numbering);
        let (key, role) = self.role(context, directory, progress, (&out.work.block, panel));
        let to_others = (others, role);
        let delivery = panel_context
            .deliver(panel, step, ids, to_others, &|at| progress.other_ids(&out.work, panel, at));
        let charged_bytes = delivery.charged_bytes();
        let cells = match panel {
            Panel::A(i) => Rect::new(Span::new(i, i + 1), others),
            Panel::B(j) => Rect::new(others, Span::new(j, j + 1)),
        };
        let amount = context.plan.work(region, cells, Span::new(step, step + 1));
        Some(PreparedPanel { panel, ids, matrices, id_count, charged_bytes, amount, delivery, key, role })
    }

    /// The block that a tile id belongs to, and the tile's number in that block.
    pub(super) fn find(&self, id: u32) -> Option<(&ActiveBlock, u32)> {
        let at = |out: &ActiveBlock| id.wrapping_sub(out.ids.tiles);
        let out = self.active.iter().find(|out| at(out) < out.tiles)?;
        Some((out, at(out)))
    }

    /// The steps that a worker must report with the result of a cell.
    pub(super) fn result_steps(context: &StreamContext<'_>, out: &ActiveBlock, i: u64, j: u64) -> Span {
        let recipe = &context.recipes[out.work.block.region];
        let (plan, operands) = (context.plan, context.operands);
        let work = &out.work;
        PanelContext { plan, operands, recipe, work, ids: out.ids, leases: false, is_owner: true }
            .result_steps(i, j)
    }

    /// A tile has come back completely.
    pub(super) fn returned(&mut self, id: u32) {
        for out in &mut self.active {
            let at = id.wrapping_sub(out.ids.tiles);
            if at < out.tiles {
                out.tiles_left -= 1;
                out.back[to_usize(at / 64)] |= 1 << (at % 64);
            }
        }
        let done = self.active.iter().filter(|out| out.tiles_left == 0).map(|out| out.number);
        if !self.relayed.expected.is_empty() {
            for number in done {
                self.relayed.expected.retain(|_, (wave, _)| *wave != number);
            }
        }
        self.active.retain(|out| out.tiles_left > 0);
    }

    /// The sender of a relayed matrix delivers only its first `lines` lines. False if no worker was to pass
    /// on a matrix with that id.
    pub(super) fn missing(&mut self, id: u32, lines: u32) -> bool {
        let Some((_, mut stored)) = self.relayed.expected.remove(&id) else { return false };
        let is_short = lines < stored.header.lines;
        if is_short {
            stored.header.first_line = lines;
            rest_of(stored, lines, &mut self.relayed.rest);
        }
        is_short
    }
}

/// Whether the elements of a panel are sent; if not, the worker has or makes them.
fn is_sent(operands: &Operands, panel: Panel) -> bool {
    match panel {
        Panel::A(_) => operands.a_source.is_sent(),
        Panel::B(_) => operands.b_source.is_sent(),
    }
}

/// Whether a block that continues a sum may begin.
fn is_reached(context: &StreamContext<'_>, work: &BlockWork) -> bool {
    !work.continues_sum || sums_are_there(context, work)
}

/// Whether C holds exactly the steps before a block, for all tiles that the block has to return.
fn sums_are_there(context: &StreamContext<'_>, work: &BlockWork) -> bool {
    let block = &work.block;
    let region = &context.plan.regions[block.region];
    let tiles = block.cells.rows.len() * block.cells.cols.len() * region.q() * region.q();
    let tile = |at: u32| (block.region, tile_number(region, block, at).0);
    let mut owed = (0..small(tiles)).filter(|at| !work.is_committed(*at));
    owed.all(|at| context.sums.done(tile(at)) == block.steps.start)
}

/// Number of a tile in its region, counted cell by cell, with its cell (i, j) and its position (u, v) in the
/// cell.
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
