//! Units: the rows of blocks of a share whose sums over k wait for each other at the primary.
//!
//! Place in the flow: stealing and the reassignment of lost work (`steal_candidate`, `peer_state`) move units; the
//! panel stream asks which of their blocks may begin.
//!
//! Invariants: the unfinished blocks of a unit are at one peer, in their order, so a peer that is slow holds up no
//! sums that another one returns. A member has at most as many sums waiting as its blocks after the oldest active one
//! have, also when it is lost; other workers none. So all fit `Prediction::primary_memory_bytes`.

use super::sums::TileIndex;
use super::work::{BlockWork, WorkItem};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::number::nearest_f64;
use bramble_base::{Rect, Span};
use bramble_plan::{Block, Plan, Share};

/// Whether one member has all steps of a share, in several blocks.
pub(super) fn sums_wait(plan: &Plan, share: &Share) -> bool {
    let all = plan.regions[share.region].steps();
    share.steps == Span::new(0, all) && share.blocks_each_way().2 > 1
}

/// The elements of a block's tiles.
pub(super) fn elements(plan: &Plan, block: &Block) -> u64 {
    plan.regions[block.region].elements(block.cells)
}

/// The elements of the largest block of a member's own units; 0 for a peer that is no member of the plan.
pub(super) fn largest_sums(plan: &Plan, member: usize) -> u64 {
    let shares = plan.members.get(member).into_iter().flat_map(|member| &member.shares);
    let blocks = shares.filter(|share| sums_wait(plan, share)).filter_map(|share| share.block(0));
    blocks.map(|block| elements(plan, &block)).max().unwrap_or(0)
}

/// A row of blocks of one share whose sums wait for each other: its region, and its first cell there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SumUnit {
    region: usize,
    row: u64,
    col: u64,
}

/// Gathers the items of each unit, in their order. An item that begins within a unit is divided where the unit
/// ends; whole units, and work that belongs to none, are groups of their own.
pub(super) fn gathered(plan: &Plan, items: VecDeque<WorkItem>) -> Vec<Vec<WorkItem>> {
    let mut groups: Vec<Vec<WorkItem>> = Vec::new();
    let mut begun: BTreeMap<SumUnit, usize> = BTreeMap::new();
    let mut items = items;
    while let Some(mut item) = items.pop_front() {
        let unit = item.first(plan).filter(|_| !item.begins_with_whole_unit(plan));
        let unit = unit.and_then(|work| SumUnit::of(plan, &work));
        if unit.is_some() {
            let (first, rest) = item.split_off(plan, 0.0);
            item = first;
            rest.into_iter().for_each(|rest| items.push_front(rest));
        }
        let at = unit.map_or(groups.len(), |unit| *begun.entry(unit).or_insert(groups.len()));
        match groups.get_mut(at) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

/// Checks that no tile of a unit has a sum that waits, given the tiles of sums from workers outside the plan;
/// for tests.
pub(super) fn validate_waiting(plan: &Plan, waiting: impl Iterator<Item = TileIndex>) {
    for (at, tile) in waiting {
        let region = &plan.regions[at];
        let cell = tile / (region.q() * region.q());
        let (i, j) = (cell / region.grid.cols(), cell % region.grid.cols());
        let is_unit = share_at(plan, at, (i, j)).is_some_and(|share| sums_wait(plan, share));
        assert!(!is_unit, "a worker outside the plan has returned a sum of tile {tile} that has to wait");
    }
}

/// The first share with a cell.
fn share_at(plan: &Plan, region: usize, (i, j): (u64, u64)) -> Option<&Share> {
    let mut shares = plan.members.iter().flat_map(|member| &member.shares);
    shares
        .find(|share| share.region == region && share.cells.rows.contains(i) && share.cells.cols.contains(j))
}

/// Checks that the unfinished blocks of each unit are at one peer; for tests.
pub(super) fn validate(plan: &Plan, unfinished: impl Iterator<Item = VecDeque<WorkItem>>) {
    let mut owners: BTreeMap<SumUnit, usize> = BTreeMap::new();
    for (peer, items) in unfinished.enumerate() {
        for unit in items.iter().flat_map(|item| item.works(plan)).filter_map(|work| SumUnit::of(plan, &work))
        {
            let owner = *owners.entry(unit).or_insert(peer);
            assert_eq!(owner, peer, "two peers have blocks of {unit:?}, whose sums wait for each other");
        }
    }
}

impl SumUnit {
    /// The unit that a block belongs to, if it belongs to one.
    fn of(plan: &Plan, work: &BlockWork) -> Option<Self> {
        let Block { region, cells, .. } = work.block;
        let share = share_at(plan, region, (cells.rows.start, cells.cols.start));
        let share = share.filter(|_| work.moves_as_unit)?;
        let Rect { rows, cols } = share.cells;
        let row = (cells.rows.start - rows.start) / share.block.rows.max(1);
        Some(Self { region, row: rows.start + row * share.block.rows, col: cols.start })
    }
}

impl WorkItem {
    /// Whether it begins with a whole unit, of which no peer has begun anything.
    pub(super) fn begins_with_whole_unit(&self, plan: &Plan) -> bool {
        let Self::Blocks { member, numbers } = self else { return false };
        plan.members[*member].share_of(numbers.start).is_some_and(|(share, index)| {
            let (_, across, deep) = share.blocks_each_way();
            index % (across * deep) == 0
        })
    }

    /// The last blocks that can only move together: (number of the first of them, their work). `None` if some
    /// of them were begun.
    pub(super) fn last_unit(&self, plan: &Plan) -> Option<(u64, f64)> {
        let Self::Blocks { member, numbers } = self else { return None };
        let work = self.last(plan)?;
        if !work.moves_as_unit {
            return Some((numbers.end - 1, work.amount(plan)));
        }
        let (share, index) = plan.members[*member].share_of(numbers.end - 1)?;
        let (_, across, deep) = share.blocks_each_way();
        let row = across * deep;
        let first = numbers.end - 1 - index % row;
        // The unit is a whole row of blocks of the share.
        let whole = index % row == row - 1 && first >= numbers.start;
        let cells = Rect::new(work.block.cells.rows, share.cells.cols);
        whole.then(|| (first, plan.work(share.region, cells, share.steps)))
    }

    /// The first blocks that have to stay together: (number after the last of them, their work).
    pub(super) fn first_unit(&self, plan: &Plan) -> Option<(u64, f64)> {
        let Self::Blocks { member, numbers } = self else { return None };
        let work = self.first(plan)?;
        if !work.moves_as_unit {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_base::DType;
    use bramble_plan::{
        Base, LinkRate, Machine, OperandSource, PlanOptions, Problem, Strategy, TileSize, decide,
    };

    /// A plan for one worker, by blocks of one tile and one step: 3 x 4 tiles, 5 steps.
    fn plan() -> Plan {
        let p = Problem {
            m: 12,
            n: 16,
            k: 20,
            dtype: DType::F64,
            reads_c: false,
            a_source: OperandSource::Sent,
            b_source: OperandSource::Sent,
        };
        let machine = Machine {
            name: "w".into(),
            threads: 1,
            gflops: 1.0,
            peak_gflops: 1.0,
            memory_bytes: 1 << 20,
            link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
            shares_cores: false,
            nic_bytes_per_s: None,
            memory_rate: None,
        };
        let wish =
            PlanOptions { strategy: Some(Strategy { base: Base::Naive, levels: 0 }), ..PlanOptions::AUTO };
        let cut = TileSize { tile: Some(4), depth: Some(4) };
        decide(&p, cut, &machine, std::slice::from_ref(&machine), &wish).unwrap().plan
    }

    #[test]
    fn the_rest_of_a_row_is_gathered_and_whole_rows_are_apart() {
        let plan = plan();
        let blocks = |start, end| WorkItem::Blocks { member: 0, numbers: Span::new(start, end) };
        let part = |number| blocks(number, number + 1).first(&plan).map(WorkItem::Part).unwrap();
        // A row has 20 blocks. Two blocks of the second row were begun, then one of the first row again.
        let items = vec![part(21), part(23), blocks(24, 60), part(7), blocks(8, 20)];
        let groups = gathered(&plan, items.into());
        assert_eq!(
            groups,
            [vec![part(21), part(23), blocks(24, 40)], vec![blocks(40, 60)], vec![part(7), blocks(8, 20)]]
        );
        validate(&plan, groups.into_iter().map(VecDeque::from));
        assert_eq!((largest_sums(&plan, 0), largest_sums(&plan, 1)), (16, 0));
    }

    #[test]
    #[should_panic(expected = "two peers have blocks")]
    fn a_row_at_two_peers_is_a_bug() {
        let blocks =
            |start, end| VecDeque::from([WorkItem::Blocks { member: 0, numbers: Span::new(start, end) }]);
        validate(&plan(), [blocks(0, 5), blocks(5, 20)].into_iter());
    }
}
