//! A placed operand in a trial: which machine holds which part.
//!
//! Place in the flow: scenarios from the seed `PLACED_SEEDS` on have one; their plans pin each share to the owner of
//! its part. Nodes read panels of the operand from their parts.
//!
//! Invariants: parts are a function of the seed. A
//! node reads only elements that it holds. A machine that joins, or joins again, holds none.

use super::Trial;
use super::scenario::{STEPS_MAX, Scenario, TILES_MAX};
use super::trial_data::places;
use crate::random::SeededRandom;
use bramble_matrix::{Layout, Rect, Span};
use bramble_plan::{
    Machine, OperandSource, OwnedSpan, Ownership, Plan, PlanOptions, Problem, ProductSide, Recipe, Share,
    TileSize, decide_resident, memory_needed,
};
use bramble_schedule::primary::UnplacedOperand;
use bramble_wire::message::{MatrixHeader, ResidentView};

/// The first seed of trials with a placed operand. Trials with smaller seeds have none.
pub const PLACED_SEEDS: u64 = 1 << 40;
/// Most parts.
const PARTS_MAX: u64 = 6;

/// The placed operand of a product.
pub(super) struct TrialPlacement {
    is_left: bool,
    ownership: Ownership,
    /// Whether machines have only the memory that their own blocks need.
    is_tight: bool,
}

impl TrialPlacement {
    /// That of a scenario, if it has one. Some machines have several parts, as after the loss of another machine.
    pub(super) fn of(seed: u64, p: &Problem, workers: usize) -> Option<Self> {
        let mut random = SeededRandom::new(seed ^ 0x9_1ace_d0b5);
        if seed < PLACED_SEEDS {
            return None;
        }
        let is_left = random.chance(0.5);
        let is_tight = SeededRandom::new(seed ^ 0x71_6447).chance(0.3);
        // The primary's own threads hold a part, too, but rarely.
        let owner = |random: &mut SeededRandom| {
            if random.chance(0.1) { 0 } else { 1 + random.index(workers) }
        };
        if random.chance(0.25) {
            let mut owners: Vec<usize> = (0..1 + random.index(3)).map(|_| owner(&mut random)).collect();
            owners.sort_unstable();
            owners.dedup();
            return Some(Self { is_left, ownership: Ownership::Replicas(owners), is_tight });
        }
        let (side, length) = match (random.chance(0.4), is_left) {
            (true, _) => (ProductSide::Depth, p.k),
            (false, true) => (ProductSide::Rows, p.m),
            (false, false) => (ProductSide::Cols, p.n),
        };
        let piece = 1 + random.below(8);
        let parts = 1 + random.below(PARTS_MAX.min(length.div_ceil(piece)));
        let mut borders: Vec<u64> =
            (1..parts).map(|_| piece * random.below(length.div_ceil(piece))).collect();
        borders.extend([0, length]);
        borders.sort_unstable();
        borders.dedup();
        let spans = borders
            .windows(2)
            .map(|ends| OwnedSpan { machine: owner(&mut random), span: Span::new(ends[0], ends[1]) });
        Some(Self { is_left, ownership: Ownership::Cut(side, spans.collect()), is_tight })
    }

    /// The plan of a product with it; `None` if it does not fit the machines, or has too many tiles or steps.
    pub(super) fn plan(
        &self,
        p: &Problem,
        cut: TileSize,
        machines: &[Machine],
        wish: &PlanOptions,
    ) -> Option<Plan> {
        let mut p = *p;
        let source = if self.is_left { &mut p.a_source } else { &mut p.b_source };
        *source = OperandSource::Resident;
        let wish = PlanOptions { strategy: None, reproducible: false, tiles_early: None, ..*wish };
        let mut plan =
            decide_resident(&p, &self.ownership, cut, &machines[0], &machines[1..], &wish).ok()?.plan;
        if self.is_tight {
            for member in &mut plan.members {
                let need = |share: &Share| memory_needed(share, &plan.regions[share.region], &plan.problem);
                member.memory_bytes = member.shares.iter().map(need).max().unwrap_or(0);
            }
        }
        let grid = plan.regions.first()?.grid;
        (grid.tiles() <= TILES_MAX && grid.steps() <= STEPS_MAX).then_some(plan)
    }
}

/// How the primary sends panels of the placed operand to machines that hold no part of it: in three of five scenarios it can.
pub(super) fn unplaced(scenario: &Scenario) -> [Option<UnplacedOperand>; 2] {
    let mut random = SeededRandom::new(scenario.seed ^ 0x50_0ce5);
    if !random.chance(0.6) {
        return [None; 2];
    }
    let mut of = || {
        let layout = if random.chance(0.3) { Layout::ColMajor } else { Layout::RowMajor };
        Some(UnplacedOperand { layout, source: OperandSource::Sent })
    };
    [of(), of()]
}

impl Trial {
    /// A product has failed for want of a part: some part is gone, and where the primary can read the operand, no machine that
    /// is trusted has the memory for its panels.
    pub(super) fn check_part_lost(&self, is_gone: &dyn Fn(usize) -> bool) {
        assert!(self.some_part_is_gone(is_gone), "each part has a machine");
        if self.model.unplaced.iter().all(Option::is_some) {
            let plan = self.primary.plan();
            let need =
                plan.regions.iter().enumerate().map(|(at, region)| {
                    plan.cell_bytes(at, region.steps(), &Recipe::new(region.levels), false)
                });
            let need = need.max().unwrap_or(0);
            let has_room = |peer: &usize| !is_gone(*peer) && self.members.rooms[*peer] >= need;
            let able = (0..self.members.count).find(has_room);
            assert_eq!(
                able, None,
                "a machine could be sent the panels of the lost part, which take {need} bytes"
            );
        }
    }

    /// (10) The elements of a panel of a placed operand, by rows, at a node that holds them.
    pub(super) fn placed_elements(&self, peer: usize, header: &MatrixHeader, body: &[u8]) -> Vec<f64> {
        let view = ResidentView::decode(body).unwrap_or_else(|e| panic!("a view that is none: {e:?}"));
        assert_eq!(view.transposed, header.layout == Layout::ColMajor, "the layout of a view");
        let stored = view.rect(header.shape()).unwrap_or_else(|| panic!("a view beyond all arrays"));
        let rect = if view.transposed { stored.transposed() } else { stored };
        let is_left = view.array == 0;
        assert!(self.holds(peer, is_left, rect), "w{peer} is to read {rect} of a part that it does not hold");
        let (from, cols) = match is_left {
            true => (&self.model.data.a, self.model.data.p.k),
            false => (&self.model.data.b, self.model.data.p.n),
        };
        places(rect, cols).map(|place| from[place]).collect()
    }

    /// Whether a peer holds a rectangle of the placed operand.
    fn holds(&self, peer: usize, is_left: bool, rect: Rect) -> bool {
        let plan = self.primary.plan();
        let Some(member) = plan.members.get(peer) else { return false };
        match &plan.ownership {
            None => false,
            Some(Ownership::Replicas(machines)) => machines.contains(&member.machine),
            Some(Ownership::Cut(side, spans)) => {
                let needed = match (side, is_left) {
                    (ProductSide::Rows, _) | (ProductSide::Depth, false) => rect.rows,
                    (ProductSide::Cols, _) | (ProductSide::Depth, true) => rect.cols,
                };
                let mut own = spans.iter().filter(|owned| owned.machine == member.machine);
                own.any(|owned| owned.span.intersect(needed) == needed)
            }
        }
    }

    /// Whether no machine is left that holds some part of the placed operand.
    pub(super) fn some_part_is_gone(&self, is_gone: &dyn Fn(usize) -> bool) -> bool {
        let plan = self.primary.plan();
        let peer_of = |machine: usize| plan.members.iter().position(|member| member.machine == machine);
        match &plan.ownership {
            None => false,
            Some(Ownership::Replicas(machines)) => {
                machines.iter().filter_map(|machine| peer_of(*machine)).all(is_gone)
            }
            Some(Ownership::Cut(_, spans)) => {
                spans.iter().filter_map(|owned| peer_of(owned.machine)).any(is_gone)
            }
        }
    }
}
