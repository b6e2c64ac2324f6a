//! Work of a peer: work items (runs of blocks, or parts of a block), and blocks in progress that may have
//! lost cells to thieves.
//!
//! Place in the flow: the panel stream takes blocks from its work items; stealing (`steal`) moves work items
//! between streams and takes cells from the block that is being sent.
//!
//! Invariants: work items are disjoint in (tile, step). A truncation takes cells from a step on that was not
//! sent, and each one keeps a part of what the earlier ones kept. So every tile of a block has one contiguous
//! span of steps, beginning at the block's first.

use super::steal_candidate::parts;
use super::units::sums_wait;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};
use bramble_plan::{Block, PanelOrder, Plan, Recipe};

/// A block, or a part of one, as a worker computes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockWork {
    pub(super) block: Block,
    /// Whether it continues the sum of earlier steps, which is in C.
    pub(super) continues_sum: bool,
    /// Whether its sums wait for those of other blocks of the same worker. The primary can buffer only a few
    /// such sums, so these blocks move to another worker all together or not at all.
    pub(super) moves_as_unit: bool,
    /// Bit set of the tiles of its only cell that are complete in C. The recipe computes all tiles of a cell;
    /// results for these are dropped.
    pub(super) committed_tiles: u64,
    /// How many lost workers had begun it.
    pub(super) attempt: u32,
    /// Cells that thieves took, in the order of the steps.
    truncations: Vec<Truncation>,
}

/// A block keeps fewer cells from a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Truncation {
    from: u64,
    /// The cells that it keeps, a prefix of its rows and columns; empty if the block ends at this step.
    kept: Rect,
}

impl BlockWork {
    /// Block `number` of a member of the plan.
    fn planned(plan: &Plan, member: usize, number: u64) -> Option<Self> {
        let (share, index) = plan.members[member].share_of(number)?;
        let block = share.block(index)?;
        let moves_as_unit = sums_wait(plan, share);
        let continues_sum = plan.continues(&block);
        Some(Self {
            continues_sum,
            moves_as_unit,
            block,
            committed_tiles: 0,
            attempt: 0,
            truncations: Vec::new(),
        })
    }

    /// Some of its cells from a step on. The piece continues a sum if that is not the first step.
    pub(super) fn piece(&self, cells: Rect, from: u64) -> Self {
        let steps = Span::new(from, self.block.steps.end);
        let continues_sum = self.continues_sum || from > self.block.steps.start;
        assert!(self.committed_tiles == 0 || cells == self.block.cells, "a cell is made as a whole");
        Self { block: Block { cells, steps, ..self.block }, continues_sum, truncations: Vec::new(), ..*self }
    }

    /// Cells whose tiles a lost worker did not return, up to a step; `committed_tiles` are those of a single
    /// cell that did come back.
    pub(super) fn unfinished_piece(&self, cells: Rect, end: u64, committed_tiles: u64) -> Self {
        let steps = Span::new(self.block.steps.start, end);
        let (block, attempt) = (Block { cells, steps, ..self.block }, self.attempt.saturating_add(1));
        Self { block, committed_tiles, attempt, truncations: Vec::new(), ..*self }.by_steps()
    }

    /// The same work in the order of steps, which needs the least memory and can be divided. The bits stay
    /// the same.
    pub(super) fn by_steps(self) -> Self {
        Self { block: Block { order: PanelOrder::Steps, ..self.block }, ..self }
    }

    /// Splits work that was not begun in two, both in the order of steps, the first of about the `wanted`
    /// amount. `None` for a single cell. With a placed operand, the longer side is cut: the panels of the other side are
    /// sent to both owners, and nothing is relayed.
    pub(super) fn split(&self, plan: &Plan, wanted: f64) -> Option<(Self, Self)> {
        let Block { region, cells, steps, .. } = self.block;
        let off = |cells: Rect| (plan.work(region, cells, steps) - wanted).abs();
        let grid = &plan.regions[region].grid;
        let cuts_cols = grid.cols_of(cells.cols) >= grid.rows_of(cells.rows);
        let is_along = |first: &Rect| match cells.cols.len().min(cells.rows.len()) {
            0 | 1 => true,
            _ => plan.ownership.is_none() || cuts_cols == (first.rows == cells.rows),
        };
        let both = parts(cells).filter(|(first, _)| !first.rows.is_empty() && is_along(first));
        let (first, rest) = both.min_by(|a, b| off(a.0).total_cmp(&off(b.0)))?;
        let piece = |cells| self.piece(cells, steps.start).by_steps();
        Some((piece(first), piece(rest)))
    }

    /// This work and its neighbour as one, in the order of steps; `None` if they are not the same steps of adjacent cells.
    pub(super) fn coalesced_with(&self, other: &Self) -> Option<Self> {
        let (one, two) = (&self.block, &other.block);
        let is_plain =
            |work: &Self| !work.moves_as_unit && work.committed_tiles == 0 && work.truncations.is_empty();
        let is_alike = one.region == two.region
            && one.steps == two.steps
            && self.continues_sum == other.continues_sum
            && is_plain(self)
            && is_plain(other);
        let (a, b) = (one.cells, two.cells);
        let cells = if a.cols == b.cols && a.rows.end == b.rows.start {
            Rect::new(Span::new(a.rows.start, b.rows.end), a.cols)
        } else if a.rows == b.rows && a.cols.end == b.cols.start {
            Rect::new(a.rows, Span::new(a.cols.start, b.cols.end))
        } else {
            return None;
        };
        let attempt = self.attempt.max(other.attempt);
        is_alike.then(|| Self { block: Block { cells, ..*one }, attempt, ..self.clone() }.by_steps())
    }

    /// Whether a tile, by its number in the block, is complete in C.
    pub(super) fn is_committed(&self, tile: u32) -> bool {
        tile < u64::BITS && self.committed_tiles >> tile & 1 == 1
    }

    /// From a step on, keeps only the cells `kept`.
    pub(super) fn truncate(&mut self, from: u64, kept: Rect) {
        let last = self.truncations.last().map_or(self.block.steps.start, |c| c.from);
        assert!(
            from > self.block.steps.start && from >= last && from < self.block.steps.end,
            "a cut at {from}"
        );
        self.truncations.push(Truncation { from, kept });
    }

    /// The step of the last truncation, or the first step if there is none.
    pub(super) fn truncated_from(&self) -> u64 {
        self.truncations.last().map_or(self.block.steps.start, |c| c.from)
    }

    /// Its cells in a step.
    pub(super) fn cells_at(&self, step: u64) -> Rect {
        let cut = self.truncations.iter().rev().find(|c| c.from <= step);
        cut.map_or(self.block.cells, |c| c.kept)
    }

    /// Its cells in the last step, after all truncations so far.
    pub(super) fn cells_left(&self) -> Rect {
        self.cells_at(self.block.steps.end)
    }

    /// The steps that it computes of a cell.
    pub(super) fn steps_of(&self, i: u64, j: u64) -> Span {
        let cut = self.truncations.iter().find(|c| !has(c.kept, i, j));
        Span::new(self.block.steps.start, cut.map_or(self.block.steps.end, |c| c.from))
    }

    /// Whether its sums land in C itself, so that another worker can continue them.
    pub(super) fn lands_in_c(&self) -> bool {
        self.continues_sum || self.block.steps.start == 0
    }

    /// Amount of work, including cells that were taken from it.
    pub(super) fn amount(&self, plan: &Plan) -> f64 {
        plan.work(self.block.region, self.block.cells, self.block.steps)
    }
}

fn has(cells: Rect, i: u64, j: u64) -> bool {
    cells.rows.contains(i) && cells.cols.contains(j)
}

/// Work of a peer that was not begun, in its order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WorkItem {
    /// A run of blocks that the plan gave to a member.
    Blocks {
        /// The member.
        member: usize,
        /// Numbers of the blocks among that member's.
        numbers: Span,
    },
    /// A single block or a part of one.
    Part(BlockWork),
}

impl WorkItem {
    /// Its first block.
    pub(super) fn first(&self, plan: &Plan) -> Option<BlockWork> {
        match self {
            Self::Blocks { numbers, .. } if numbers.is_empty() => None,
            Self::Blocks { member, numbers } => BlockWork::planned(plan, *member, numbers.start),
            Self::Part(work) => Some(work.clone()),
        }
    }

    /// Its last block.
    pub(super) fn last(&self, plan: &Plan) -> Option<BlockWork> {
        match self {
            Self::Blocks { numbers, .. } if numbers.is_empty() => None,
            Self::Blocks { member, numbers } => BlockWork::planned(plan, *member, numbers.end - 1),
            Self::Part(work) => Some(work.clone()),
        }
    }

    /// Drops the first block; false if none is left.
    pub(super) fn drop_first(&mut self) -> bool {
        match self {
            Self::Blocks { numbers, .. } => {
                *numbers = Span::new(numbers.start + 1, numbers.end);
                !numbers.is_empty()
            }
            Self::Part(_) => false,
        }
    }

    /// Splits off a first part of about the `wanted` amount, as far as that is possible, and returns it with
    /// the rest.
    pub(super) fn split_off(&self, plan: &Plan, wanted: f64) -> (Self, Option<Self>) {
        if let Self::Blocks { member, numbers } = self
            && numbers.len() > 1
        {
            let blocks = |start, end| Self::Blocks { member: *member, numbers: Span::new(start, end) };
            let (mut end, mut work) = (numbers.start, 0.0);
            while let Some((next, more)) = blocks(end, numbers.end).first_unit(plan)
                && (end == numbers.start || work + more <= wanted)
            {
                (end, work) = (next, work + more);
            }
            let rest = (end < numbers.end).then(|| blocks(end, numbers.end));
            return (blocks(numbers.start, end), rest);
        }
        let large = self.first(plan).filter(|work| !work.moves_as_unit && work.amount(plan) > wanted);
        match large.and_then(|work| work.split(plan, wanted)) {
            Some((first, rest)) => (Self::Part(first), Some(Self::Part(rest))),
            None => (self.clone(), None),
        }
    }

    /// How many lost workers had begun it.
    pub(super) fn attempt(&self) -> u32 {
        match self {
            Self::Blocks { .. } => 0,
            Self::Part(work) => work.attempt,
        }
    }

    /// Its total amount of work.
    pub(super) fn amount(&self, plan: &Plan) -> f64 {
        self.works(plan).map(|work| work.amount(plan)).sum()
    }

    /// The least memory with which any single one of its cells can be computed, by a machine that holds the parts of placed
    /// operands or by another one.
    pub(super) fn least_bytes(&self, plan: &Plan, recipes: &[Recipe], is_owner: bool) -> u64 {
        let of = |region: usize, steps: u64| plan.cell_bytes(region, steps, &recipes[region], is_owner);
        let Self::Blocks { member, numbers } = self else {
            return self.first(plan).map_or(0, |work| of(work.block.region, work.block.steps.len()));
        };
        let mut most = 0;
        let mut end = 0;
        for share in &plan.members[*member].shares {
            let first = end;
            end += share.blocks();
            if first < numbers.end && end > numbers.start {
                most = of(share.region, share.block.steps.min(share.steps.len())).max(most);
            }
        }
        most
    }

    /// All its blocks.
    pub(super) fn works<'a>(&'a self, plan: &'a Plan) -> Box<dyn Iterator<Item = BlockWork> + 'a> {
        match self {
            Self::Blocks { member, numbers } => {
                Box::new(numbers.iter().filter_map(|number| BlockWork::planned(plan, *member, number)))
            }
            Self::Part(work) => Box::new(core::iter::once(work.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_base::DType;
    use bramble_plan::{
        Base, LinkRate, Machine, OperandSource, PlanOptions, Problem, Strategy, TileSize as Grid, decide,
    };

    fn rect(rows: u64, cols: u64) -> Rect {
        Rect::new(Span::new(2, 2 + rows), Span::new(5, 5 + cols))
    }

    /// A plan for four machines.
    fn plan(base: Base, levels: u32) -> Plan {
        let p = Problem {
            m: 60,
            n: 44,
            k: 64,
            dtype: DType::F64,
            reads_c: false,
            a_source: OperandSource::Sent,
            b_source: OperandSource::Sent,
        };
        let machine = |memory_bytes: u64| Machine {
            name: "w".into(),
            threads: 1,
            gflops: 1.0,
            peak_gflops: 1.0,
            memory_bytes,
            link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
            shares_cores: false,
            nic_bytes_per_s: None,
            memory_rate: None,
        };
        let machines: Vec<Machine> = [40_000, 60_000, 30_000, 90_000].map(machine).to_vec();
        let wish = PlanOptions { strategy: Some(Strategy { base, levels }), ..PlanOptions::AUTO };
        let cut = Grid { tile: Some(4), depth: Some(4) };
        decide(&p, cut, &machines[0], &machines, &wish).unwrap().plan
    }

    #[test]
    fn a_work_item_splits_into_parts_that_cover_it_and_keep_units_whole() {
        let (mut parts, mut members) = (0, 0);
        for (base, levels) in [(Base::Naive, 0), (Base::Square(2), 0), (Base::Row(2), 1), (Base::Reuse, 0)] {
            let plan = plan(base, levels);
            for (member, planned) in plan.members.iter().enumerate() {
                let whole = WorkItem::Blocks { member, numbers: Span::new(0, planned.block_count()) };
                let (wanted, mut rest, mut found) =
                    (whole.amount(&plan) / 5.0, Some(whole.clone()), Vec::new());
                while let Some(item) = rest {
                    let (part, more) = item.split_off(&plan, wanted);
                    let is_cut = part.first(&plan).is_some_and(|work| work.moves_as_unit)
                        && !part.begins_with_whole_unit(&plan);
                    assert!(!is_cut, "{base:?}: {part:?} is the rest of a row");
                    found.push(part);
                    rest = more;
                }
                (parts, members) = (parts + found.len(), members + 1);
                let tiles = |items: &[WorkItem]| {
                    let works = items.iter().flat_map(|item| item.works(&plan));
                    let all = works.flat_map(|w| {
                        let Rect { rows, cols } = w.block.cells;
                        let cells = rows.iter().flat_map(move |i| cols.iter().map(move |j| (i, j)));
                        let steps = w.block.steps;
                        cells.map(move |(i, j)| (w.block.region, i, j, steps.start, steps.end))
                    });
                    let mut all: Vec<_> = all.collect();
                    all.sort_unstable();
                    all
                };
                assert_eq!(tiles(&found), tiles(&[whole]));
            }
        }
        assert!(parts > 3 * members, "{parts} of {members}");
    }

    #[test]
    fn a_block_is_split_as_close_as_possible_to_the_wanted_amount() {
        let plan = plan(Base::Reuse, 0);
        let item = WorkItem::Blocks { member: plan.members.len() - 1, numbers: Span::new(0, 1) };
        let work = item.first(&plan).unwrap();
        let (first, rest) = item.split_off(&plan, work.amount(&plan) / 3.0);
        let (WorkItem::Part(first), Some(WorkItem::Part(rest))) = (first, rest) else {
            panic!("it is in one piece")
        };
        let sum = first.amount(&plan) + rest.amount(&plan);
        assert!((sum - work.amount(&plan)).abs() < 1e-6);
        assert!((first.amount(&plan) / sum - 1.0 / 3.0).abs() < 0.2, "{first:?}");
        assert_eq!((first.block.order, rest.block.order), (PanelOrder::Steps, PanelOrder::Steps));
        let cell = BlockWork { block: Block { cells: rect(1, 1), ..work.block }, ..work };
        assert_eq!(WorkItem::Part(cell.clone()).split_off(&plan, 0.0), (WorkItem::Part(cell), None));
    }

    #[test]
    fn adjacent_blocks_of_the_same_steps_are_coalesced_and_others_are_not() {
        let plan = plan(Base::Reuse, 0);
        let item = WorkItem::Blocks { member: plan.members.len() - 1, numbers: Span::new(0, 1) };
        let work = item.first(&plan).unwrap();
        let of = |cells: Rect| BlockWork { block: Block { cells, ..work.block }, ..work.clone() };
        let cells = |rows: (u64, u64), cols: (u64, u64)| {
            of(Rect::new(Span::new(rows.0, rows.1), Span::new(cols.0, cols.1)))
        };
        let cells_of_both = |a: &BlockWork, b: &BlockWork| a.coalesced_with(b).map(|both| both.block.cells);
        let upper = cells((0, 2), (1, 4));
        assert_eq!(cells_of_both(&upper, &cells((2, 5), (1, 4))), Some(cells((0, 5), (1, 4)).block.cells));
        assert_eq!(cells_of_both(&upper, &cells((0, 2), (4, 5))), Some(cells((0, 2), (1, 5)).block.cells));
        assert_eq!(cells_of_both(&upper, &cells((2, 5), (1, 5))), None, "other columns");
        assert_eq!(cells_of_both(&upper, &cells((3, 5), (1, 4))), None, "a row in between");
        let later = BlockWork { continues_sum: true, ..cells((2, 5), (1, 4)) };
        assert_eq!(cells_of_both(&upper, &later), None, "it continues a sum");
        let partly = BlockWork { committed_tiles: 1, ..cells((2, 5), (1, 4)) };
        assert_eq!(cells_of_both(&upper, &partly), None, "some tiles are complete");
        let again = BlockWork { attempt: 3, ..cells((2, 5), (1, 4)) };
        assert_eq!(upper.coalesced_with(&again).unwrap().attempt, 3);
    }

    #[test]
    fn a_tile_has_the_steps_before_the_cut_that_took_it() {
        let block = Block { region: 0, cells: rect(4, 6), steps: Span::new(3, 20), order: PanelOrder::Steps };
        let mut work = BlockWork {
            block,
            continues_sum: false,
            moves_as_unit: false,
            committed_tiles: 0,
            attempt: 0,
            truncations: Vec::new(),
        };
        work.truncate(7, rect(3, 6));
        work.truncate(7, rect(3, 4));
        work.truncate(11, rect(0, 4));
        assert_eq!(
            (work.cells_at(6), work.cells_at(7), work.cells_at(10)),
            (rect(4, 6), rect(3, 4), rect(3, 4))
        );
        assert!(work.cells_at(11).rows.is_empty() && work.cells_left().rows.is_empty());
        assert_eq!(work.steps_of(5, 5), Span::new(3, 7));
        assert_eq!(work.steps_of(2, 9), Span::new(3, 7));
        assert_eq!(work.steps_of(2, 5), Span::new(3, 11));
        assert_eq!(work.piece(rect(1, 1), 11).block.steps, Span::new(11, 20));
        assert!(work.piece(rect(1, 1), 11).continues_sum && !work.piece(rect(1, 1), 3).continues_sum);
    }
}
