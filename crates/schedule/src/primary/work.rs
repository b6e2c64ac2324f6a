//! What a machine has to do: lots of blocks, and blocks that were begun and have lost cells to others.
//!
//! Place in the flow: the walk takes blocks from its lots; stealing (`steal`) moves lots between walks and cuts cells
//! from the block that is being sent.
//!
//! Invariants: lots are disjoint in (tile, step). A cut takes cells only from a step on that has not been sent, and each
//! leaves a part of what the cuts before it left; so every tile of a block has one span of steps, from the block's
//! first.

use super::offer::parts;
use bramble_matrix::number::nearest_f64;
use bramble_matrix::{Rect, Span};
use bramble_plan::{Block, Order, Plan, Recipe};

/// A block as it is computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) block: Block,
    /// It starts from the sum of the steps before it.
    pub(super) goes_on: bool,
    /// Its sums wait for those of other blocks of the same machine, and the primary has room for a few of them only:
    /// such blocks move all together or not at all.
    pub(super) together: bool,
    /// Tiles of its only cell (as bits) that are in C already: the recipe makes all of a cell, and these are thrown away.
    pub(super) skip: u64,
    /// How often it was begun at machines that are gone.
    pub(super) attempt: u32,
    /// What others have taken of it, in the order of the steps.
    cuts: Vec<Cut>,
}

/// From a step on a block has fewer cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    from: u64,
    /// The cells that it still has, from its first row and column; none where it ends there.
    kept: Rect,
}

impl Work {
    /// Block number `number` of a member.
    fn planned(plan: &Plan, member: usize, number: u64) -> Option<Self> {
        let (share, index) = plan.members[member].share_of(number)?;
        let block = share.block(index)?;
        let all = plan.regions[block.region].steps();
        let together = share.steps == Span::new(0, all) && share.blocks_each_way().2 > 1;
        let goes_on = plan.continues(&block);
        Some(Self { goes_on, together, block, skip: 0, attempt: 0, cuts: Vec::new() })
    }

    /// Some cells of it from a step on. They go on from the sum where that is not its first step.
    pub(super) fn piece(&self, cells: Rect, from: u64) -> Self {
        let steps = Span::new(from, self.block.steps.end);
        let goes_on = self.goes_on || from > self.block.steps.start;
        assert!(self.skip == 0 || cells == self.block.cells, "a cell is made as a whole");
        Self { block: Block { cells, steps, ..self.block }, goes_on, cuts: Vec::new(), ..*self }
    }

    /// Cells of it that have to be made again, up to a step, where tiles are in C already but for those of `skip`.
    pub(super) fn again(&self, cells: Rect, end: u64, skip: u64) -> Self {
        let steps = Span::new(self.block.steps.start, end);
        let (block, attempt) = (Block { cells, steps, ..self.block }, self.attempt.saturating_add(1));
        Self { block, skip, attempt, cuts: Vec::new(), ..*self }.by_steps()
    }

    /// The same step by step, which takes the least memory and can be divided; the bits are the same.
    pub(super) fn by_steps(self) -> Self {
        Self { block: Block { order: Order::Steps, ..self.block }, ..self }
    }

    /// Two parts of one that was not begun, the first of about so much work, both step by step. `None` for a single cell.
    pub(super) fn divided(&self, plan: &Plan, wanted: f64) -> Option<(Self, Self)> {
        let Block { region, cells, steps, .. } = self.block;
        let off = |cells: Rect| (plan.work(region, cells, steps) - wanted).abs();
        let both = parts(cells).filter(|(first, _)| !first.rows.is_empty());
        let (first, rest) = both.min_by(|a, b| off(a.0).total_cmp(&off(b.0)))?;
        let piece = |cells| self.piece(cells, steps.start).by_steps();
        Some((piece(first), piece(rest)))
    }

    /// Whether a tile, by its number in the block, is in C already.
    pub(super) fn skips(&self, tile: u32) -> bool {
        tile < u64::BITS && self.skip >> tile & 1 == 1
    }

    /// Leaves it only the cells `kept` from a step on.
    pub(super) fn cut(&mut self, from: u64, kept: Rect) {
        let last = self.cuts.last().map_or(self.block.steps.start, |c| c.from);
        assert!(
            from > self.block.steps.start && from >= last && from < self.block.steps.end,
            "a cut at {from}"
        );
        self.cuts.push(Cut { from, kept });
    }

    /// Where the last cut is; the first step without one.
    pub(super) fn cut_from(&self) -> u64 {
        self.cuts.last().map_or(self.block.steps.start, |c| c.from)
    }

    /// Its cells in a step.
    pub(super) fn cells_at(&self, step: u64) -> Rect {
        let cut = self.cuts.iter().rev().find(|c| c.from <= step);
        cut.map_or(self.block.cells, |c| c.kept)
    }

    /// Its cells in its last step, as far as is known: none where all were taken.
    pub(super) fn cells_left(&self) -> Rect {
        self.cells_at(self.block.steps.end)
    }

    /// The steps that it has of a cell.
    pub(super) fn steps_of(&self, i: u64, j: u64) -> Span {
        let cut = self.cuts.iter().find(|c| !has(c.kept, i, j));
        Span::new(self.block.steps.start, cut.map_or(self.block.steps.end, |c| c.from))
    }

    /// Whether sums of its first steps land in C itself, so that somebody can go on from there.
    pub(super) fn lands_in_c(&self) -> bool {
        self.goes_on || self.block.steps.start == 0
    }

    /// Its work without what was taken.
    pub(super) fn amount(&self, plan: &Plan) -> f64 {
        plan.work(self.block.region, self.block.cells, self.block.steps)
    }
}

fn has(cells: Rect, i: u64, j: u64) -> bool {
    cells.rows.contains(i) && cells.cols.contains(j)
}

/// Blocks that a machine will compute, in their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lot {
    /// Blocks that the plan gave a member, by their numbers.
    Blocks {
        /// Whose they were.
        member: usize,
        /// Which.
        numbers: Span,
    },
    /// A part of a block.
    One(Work),
}

impl Lot {
    /// The block that is next.
    pub(super) fn first(&self, plan: &Plan) -> Option<Work> {
        match self {
            Self::Blocks { numbers, .. } if numbers.is_empty() => None,
            Self::Blocks { member, numbers } => Work::planned(plan, *member, numbers.start),
            Self::One(work) => Some(work.clone()),
        }
    }

    /// The block that is last.
    pub(super) fn last(&self, plan: &Plan) -> Option<Work> {
        match self {
            Self::Blocks { numbers, .. } if numbers.is_empty() => None,
            Self::Blocks { member, numbers } => Work::planned(plan, *member, numbers.end - 1),
            Self::One(work) => Some(work.clone()),
        }
    }

    /// Past its first block; false where it had only that.
    pub(super) fn pass(&mut self) -> bool {
        match self {
            Self::Blocks { numbers, .. } => {
                *numbers = Span::new(numbers.start + 1, numbers.end);
                !numbers.is_empty()
            }
            Self::One(_) => false,
        }
    }

    /// Its last blocks that have to stay together, and how much work they are: (the first of them, work). `None` where
    /// some of them were begun.
    pub(super) fn last_unit(&self, plan: &Plan) -> Option<(u64, f64)> {
        let Self::Blocks { member, numbers } = self else { return None };
        let work = self.last(plan)?;
        if !work.together {
            return Some((numbers.end - 1, work.amount(plan)));
        }
        let (share, index) = plan.members[*member].share_of(numbers.end - 1)?;
        let (_, across, deep) = share.blocks_each_way();
        let row = across * deep;
        let first = numbers.end - 1 - index % row;
        // A row of blocks ends where the share's next begins.
        let whole = index % row == row - 1 && first >= numbers.start;
        let cells = Rect::new(work.block.cells.rows, share.cells.cols);
        whole.then(|| (first, plan.work(share.region, cells, share.steps)))
    }

    /// Its first blocks that have to stay together: (the end of them, work).
    fn first_unit(&self, plan: &Plan) -> Option<(u64, f64)> {
        let Self::Blocks { member, numbers } = self else { return None };
        let work = self.first(plan)?;
        if !work.together {
            return Some((numbers.start + 1, work.amount(plan)));
        }
        let (share, index) = plan.members[*member].share_of(numbers.start)?;
        let (_, across, deep) = share.blocks_each_way();
        let row = across * deep;
        let end = (numbers.start + row - index % row).min(numbers.end);
        let cells = Rect::new(work.block.cells.rows, share.cells.cols);
        let part = nearest_f64(end - numbers.start) / nearest_f64(row);
        Some((end, plan.work(share.region, cells, share.steps) * part))
    }

    /// Its first part, of about so much work where it can be divided so, and the rest.
    pub(super) fn cut_to(&self, plan: &Plan, wanted: f64) -> (Self, Option<Self>) {
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
        let large = self.first(plan).filter(|work| !work.together && work.amount(plan) > wanted);
        match large.and_then(|work| work.divided(plan, wanted)) {
            Some((first, rest)) => (Self::One(first), Some(Self::One(rest))),
            None => (self.clone(), None),
        }
    }

    /// How often it was begun at machines that are gone.
    pub(super) fn attempt(&self) -> u32 {
        match self {
            Self::Blocks { .. } => 0,
            Self::One(work) => work.attempt,
        }
    }

    /// Whether its first sums have to wait for those of the lot before it, so that one machine had best make both.
    pub(super) fn goes_with_the_one_before(&self, plan: &Plan) -> bool {
        let Some(work) = self.first(plan).filter(|work| work.together) else { return false };
        let begins_a_row = |member: usize, number: u64| {
            let (share, index) = plan.members[member].share_of(number)?;
            let (_, across, deep) = share.blocks_each_way();
            Some(index % (across * deep) == 0)
        };
        match self {
            Self::Blocks { member, numbers } => begins_a_row(*member, numbers.start) != Some(true),
            Self::One(_) => work.block.steps.start > 0,
        }
    }

    /// Whether its sums have to wait for those of others, so that they are best made by one machine in their order.
    pub(super) fn is_together(&self, plan: &Plan) -> bool {
        self.first(plan).is_some_and(|work| work.together)
    }

    /// All its work.
    pub(super) fn amount(&self, plan: &Plan) -> f64 {
        self.works(plan).map(|work| work.amount(plan)).sum()
    }

    /// The least memory in which each of its cells can be made.
    pub(super) fn least_bytes(&self, plan: &Plan, recipes: &[Recipe]) -> u64 {
        let cell = Rect::new(Span::new(0, 1), Span::new(0, 1));
        let of = |region: usize, steps: u64| {
            let block = Block { region, cells: cell, steps: Span::new(0, steps), order: Order::Steps };
            plan.block_bytes(&block, &recipes[region])
        };
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
    pub(super) fn works<'a>(&'a self, plan: &'a Plan) -> Box<dyn Iterator<Item = Work> + 'a> {
        match self {
            Self::Blocks { member, numbers } => {
                Box::new(numbers.iter().filter_map(|number| Work::planned(plan, *member, number)))
            }
            Self::One(work) => Box::new(std::iter::once(work.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_matrix::DType;
    use bramble_plan::{Base, Cut as Grid, LinkRate, Machine, Problem, Strategy, Wish, decide};

    fn rect(rows: u64, cols: u64) -> Rect {
        Rect::new(Span::new(2, 2 + rows), Span::new(5, 5 + cols))
    }

    /// A plan for four machines.
    fn plan(base: Base, levels: u32) -> Plan {
        let p =
            Problem { m: 60, n: 44, k: 64, dtype: DType::F64, reads_c: false, sends_a: true, sends_b: true };
        let machine = |memory_bytes: u64| Machine {
            name: "w".into(),
            threads: 1,
            gflops: 1.0,
            peak_gflops: 1.0,
            memory_bytes,
            link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
            shares_cores: false,
            nic_bytes_per_s: None,
        };
        let machines: Vec<Machine> = [40_000, 60_000, 30_000, 90_000].map(machine).to_vec();
        let wish = Wish { strategy: Some(Strategy { base, levels }), ..Wish::AUTO };
        let cut = Grid { tile: Some(4), depth: Some(4) };
        decide(&p, cut, &machines[0], &machines, &wish).unwrap().plan
    }

    #[test]
    fn a_lot_is_cut_into_parts_that_are_all_of_it_and_keep_together_what_has_to_stay_so() {
        let (mut parts, mut members) = (0, 0);
        for (base, levels) in [(Base::Naive, 0), (Base::Square(2), 0), (Base::Row(2), 1), (Base::Reuse, 0)] {
            let plan = plan(base, levels);
            for (member, planned) in plan.members.iter().enumerate() {
                let whole = Lot::Blocks { member, numbers: Span::new(0, planned.block_count()) };
                let (wanted, mut rest, mut found) =
                    (whole.amount(&plan) / 5.0, Some(whole.clone()), Vec::new());
                while let Some(lot) = rest {
                    let (part, more) = lot.cut_to(&plan, wanted);
                    assert!(!part.goes_with_the_one_before(&plan), "{base:?}: {part:?} is the rest of a row");
                    found.push(part);
                    rest = more;
                }
                (parts, members) = (parts + found.len(), members + 1);
                let tiles = |lots: &[Lot]| {
                    let works = lots.iter().flat_map(|lot| lot.works(&plan));
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
    fn a_block_is_divided_where_it_comes_nearest_to_what_is_wanted() {
        let plan = plan(Base::Reuse, 0);
        let lot = Lot::Blocks { member: plan.members.len() - 1, numbers: Span::new(0, 1) };
        let work = lot.first(&plan).unwrap();
        let (first, rest) = lot.cut_to(&plan, work.amount(&plan) / 3.0);
        let (Lot::One(first), Some(Lot::One(rest))) = (first, rest) else { panic!("it is in one piece") };
        let sum = first.amount(&plan) + rest.amount(&plan);
        assert!((sum - work.amount(&plan)).abs() < 1e-6);
        assert!((first.amount(&plan) / sum - 1.0 / 3.0).abs() < 0.2, "{first:?}");
        assert_eq!((first.block.order, rest.block.order), (Order::Steps, Order::Steps));
        let cell = Work { block: Block { cells: rect(1, 1), ..work.block }, ..work };
        assert_eq!(Lot::One(cell.clone()).cut_to(&plan, 0.0), (Lot::One(cell), None));
    }

    #[test]
    fn a_tile_has_the_steps_before_the_cut_that_took_it() {
        let block = Block { region: 0, cells: rect(4, 6), steps: Span::new(3, 20), order: Order::Steps };
        let mut work = Work { block, goes_on: false, together: false, skip: 0, attempt: 0, cuts: Vec::new() };
        work.cut(7, rect(3, 6));
        work.cut(7, rect(3, 4));
        work.cut(11, rect(0, 4));
        assert_eq!(
            (work.cells_at(6), work.cells_at(7), work.cells_at(10)),
            (rect(4, 6), rect(3, 4), rect(3, 4))
        );
        assert!(work.cells_at(11).rows.is_empty() && work.cells_left().rows.is_empty());
        assert_eq!(work.steps_of(5, 5), Span::new(3, 7));
        assert_eq!(work.steps_of(2, 9), Span::new(3, 7));
        assert_eq!(work.steps_of(2, 5), Span::new(3, 11));
        assert_eq!(work.piece(rect(1, 1), 11).block.steps, Span::new(11, 20));
        assert!(work.piece(rect(1, 1), 11).goes_on && !work.piece(rect(1, 1), 3).goes_on);
    }
}
