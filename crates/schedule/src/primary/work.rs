//! What a machine has to do: lots of blocks, and blocks that were begun and have lost cells to others.
//!
//! Place in the flow: the walk takes blocks from its lots; stealing (`steal`) moves lots between walks and cuts cells
//! from the block that is being sent.
//!
//! Invariants: lots are disjoint in (tile, step). A cut takes cells only from a step on that has not been sent, and each
//! leaves a part of what the cuts before it left; so every tile of a block has one span of steps, from the block's
//! first.

use bramble_matrix::{Rect, Span};
use bramble_plan::{Block, Plan};

/// A block as it is computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) block: Block,
    /// It starts from the sum of the steps before it.
    pub(super) goes_on: bool,
    /// Its sums wait for those of other blocks of the same machine, and the primary has room for a few of them only:
    /// such blocks move all together or not at all.
    pub(super) together: bool,
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
        Some(Self { goes_on: plan.continues(&block), together, block, cuts: Vec::new() })
    }

    /// Some cells of it from a step on. They go on from the sum where that is not its first step.
    pub(super) fn piece(&self, cells: Rect, from: u64) -> Self {
        let steps = Span::new(from, self.block.steps.end);
        let goes_on = self.goes_on || from > self.block.steps.start;
        Self {
            block: Block { cells, steps, ..self.block },
            goes_on,
            together: self.together,
            cuts: Vec::new(),
        }
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
    use bramble_plan::Order;

    fn rect(rows: u64, cols: u64) -> Rect {
        Rect::new(Span::new(2, 2 + rows), Span::new(5, 5 + cols))
    }

    #[test]
    fn a_tile_has_the_steps_before_the_cut_that_took_it() {
        let block = Block { region: 0, cells: rect(4, 6), steps: Span::new(3, 20), order: Order::Steps };
        let mut work = Work { block, goes_on: false, together: false, cuts: Vec::new() };
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
