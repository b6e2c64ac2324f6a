//! Blocks whose tiles are complete early, so that an interrupted run keeps most of its work.
//!
//! Place in the flow: after the decision, if a journal is kept. It cuts the blocks of the chosen plan into smaller
//! ones, or orders them column by column, as long as the predicted time grows by at most the factor `COST_MAX`.
//!
//! Invariants: regions, members and the cells of each share stay unchanged, and so do the bits of C: the grid is
//! not changed, and each tile still sums its steps in order. Strategies that define their block size are left
//! unchanged, and so are the blocks of remote machines if the user has named the strategy.

use crate::cost::Costs;
use crate::memory::{CellCharges, EDGE_MAX};
use crate::team::set_memory;
use crate::{BlockSize, Machine, Member, PanelOrder, Plan, PlanOptions, Prediction, Recipe, Relay, Share};
use alloc::vec::Vec;
use bramble_base::Span;

/// The operands whose panels are made each time they are needed: generated, or converted from another type. Other
/// operands are in memory or in a mapped file, where smaller blocks of local threads read them again at no cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeOperands {
    /// Panels of A are made.
    pub a: bool,
    /// Panels of B are made.
    pub b: bool,
}

/// The largest predicted time with early tiles, relative to the fastest plan.
const COST_MAX: f64 = 1.01;
/// The fraction of a machine's work that should be complete together, and larger ones to try if that costs too
/// much.
const PARTS: [f64; 5] = [0.02, 0.04, 0.08, 0.16, 0.32];
/// Tiles with less work than this are early enough.
const SECONDS_MIN: f64 = 0.1;
/// Concurrent products per thread in one block: with fewer, threads would wait for the panels of the next block.
const PRODUCTS_A_THREAD: u64 = 2;
/// Fewest blocks per share if this changes the order from step by step and other machines could steal blocks that
/// were not begun.
const BLOCKS_MIN: u64 = 4;
/// Seconds to make a byte of a panel on one thread. Measured for random doubles on a server; conversions are
/// faster.
const MAKING_S_PER_BYTE: f64 = 1e-9;

/// A way to cut a share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Square blocks, step by step.
    Squares,
    /// Flat blocks, column by column: panels of B are sent once per block, those of A once.
    Bands,
}

impl Plan {
    /// The largest fraction of a member's work that completes together, near the end of its block: the loss if the
    /// product is interrupted just before.
    pub fn complete_together(&self) -> f64 {
        let of = |member: &Member| -> f64 {
            let all: f64 = member.shares.iter().map(|s| self.work(s.region, s.cells, s.steps)).sum();
            let one = |share: &Share| {
                let (cells, unit) = (cells_of(share), unit_of(share, self.regions[share.region].steps()));
                let part = if cells == 0 { 0.0 } else { unit as f64 / cells as f64 };
                self.work(share.region, share.cells, share.steps) * part / all.max(1.0)
            };
            member.shares.iter().map(one).fold(0.0, f64::max)
        };
        self.members.iter().map(of).fold(0.0, f64::max)
    }
}

fn cells_of(share: &Share) -> u64 {
    share.cells.rows.len().saturating_mul(share.cells.cols.len())
}

/// Cells that complete together. The cells of a share with a part of k complete when the shares with the other
/// parts do.
fn unit_of(share: &Share, steps: u64) -> u64 {
    if !is_whole(share, steps) {
        return cells_of(share);
    }
    let BlockSize { rows, cols, .. } = share.block;
    match share.order {
        PanelOrder::Steps | PanelOrder::Ending(_) => rows.saturating_mul(cols),
        PanelOrder::Columns(group) => rows.saturating_mul(group.min(cols)),
        PanelOrder::Corner => rows.max(cols),
    }
}

fn is_whole(share: &Share, steps: u64) -> bool {
    share.steps == Span::new(0, steps) && share.block.steps >= steps
}

/// The plan with early tiles; unchanged if that would cost too much.
pub(crate) fn with_early_tiles(
    plan: Plan,
    machines: &[Machine],
    options: &PlanOptions,
    making: MadeOperands,
) -> Plan {
    if plan.strategy.base.is_fixed() {
        return plan;
    }
    let recipes: Vec<Recipe> = plan.regions.iter().map(|r| Recipe::new(r.levels)).collect();
    let charges: Vec<CellCharges> = plan
        .regions
        .iter()
        .zip(&recipes)
        .map(|(r, recipe)| CellCharges::of(r, &plan.problem, recipe))
        .collect();
    let costs = Costs {
        problem: &plan.problem,
        regions: &plan.regions,
        recipes: &recipes,
        charges: &charges,
        sums: plan.sums,
        machines,
        relay: if plan.relay { options.relay } else { Relay::Off },
    };
    let cutter = Cutter { plan: &plan, costs: &costs, making, keeps_others: options.strategy.is_some() };
    match cutter.earliest() {
        Some((predicted, members)) => Plan { predicted, members, ..plan },
        None => plan,
    }
}

/// The state of the search for earlier tiles.
struct Cutter<'a> {
    plan: &'a Plan,
    costs: &'a Costs<'a>,
    making: MadeOperands,
    /// Remote machines keep their blocks.
    keeps_others: bool,
}

impl Cutter<'_> {
    /// The members with the earliest tiles among those that cost little enough.
    fn earliest(&self) -> Option<(Prediction, Vec<Member>)> {
        let most_s = (self.plan.predicted.seconds + self.making_s(&self.plan.members)) * COST_MAX;
        for part in PARTS {
            let mut best: Option<(f64, Prediction, Vec<Member>)> = None;
            for way in [Way::Squares, Way::Bands] {
                let Some(members) = self.cut(part, way) else { continue };
                let predicted = self.costs.predict(&members, self.plan.relay);
                let seconds = predicted.seconds + self.making_s(&members);
                if seconds <= best.as_ref().map_or(most_s, |b| b.0) {
                    best = Some((seconds, predicted, members));
                }
            }
            if let Some((_, predicted, members)) = best {
                return (members != self.plan.members).then_some((predicted, members));
            }
        }
        // At least cut the shares of local threads, to which panels are not sent.
        let members = self.each(|member| match self.is_here(member) {
            true => self.member(member, PARTS[0], Way::Squares),
            false => Some(member.clone()),
        })?;
        let predicted = self.costs.predict(&members, self.plan.relay);
        let is_cheap = predicted.seconds + self.making_s(&members) <= most_s;
        (is_cheap && members != self.plan.members).then_some((predicted, members))
    }

    fn each(&self, cut: impl Fn(&Member) -> Option<Member>) -> Option<Vec<Member>> {
        self.plan.members.iter().map(cut).collect()
    }

    fn is_here(&self, member: &Member) -> bool {
        self.costs.machines[member.machine].link.is_none()
    }

    /// All members, cut so that at most that fraction of their work completes together. `None` if the blocks do not
    /// fit.
    fn cut(&self, part: f64, way: Way) -> Option<Vec<Member>> {
        // Making panels, and the sums of Strassen's method, cost something each time.
        let makes = self.making.a || self.making.b || self.plan.strategy.levels > 0;
        self.each(|member| match self.is_here(member) {
            true if !makes => self.member(member, PARTS[0], Way::Squares),
            false if self.keeps_others => Some(member.clone()),
            _ => self.member(member, part, way),
        })
    }

    fn member(&self, member: &Member, part: f64, way: Way) -> Option<Member> {
        let machine = &self.costs.machines[member.machine];
        let at = self.plan.members.iter().position(|m| m.machine == member.machine)?;
        let compute_s = self.plan.predicted.machines.get(at).map_or(0.0, |cost| cost.compute_s);
        let part = part.max(SECONDS_MIN / compute_s.max(SECONDS_MIN));
        let work = |s: &Share| self.plan.work(s.region, s.cells, s.steps);
        let all: f64 = member.shares.iter().map(work).sum();
        let mut cut = member.clone();
        for share in &mut cut.shares {
            let charges = &self.costs.charges[share.region];
            let products = PRODUCTS_A_THREAD * u64::from(machine.threads);
            let least = products.div_ceil(charges.products_of(1).max(1));
            let cells = cells_of(share) as f64 * part * all / work(share).max(1.0);
            // A number of cells: never more than a share has.
            let most = (cells as u64).max(least).max(1);
            let is_alone = self.plan.members.len() == 1;
            *share = recut(share, self.plan.regions[share.region].steps(), most, (way, is_alone));
            if charges.need(share.block, share.order) > machine.memory_bytes {
                return None;
            }
        }
        set_memory(self.costs, &mut cut);
        Some(cut)
    }

    /// Seconds in which the slowest member makes panels.
    fn making_s(&self, members: &[Member]) -> f64 {
        let e = self.plan.problem.element_bytes() as f64;
        let of = |share: &Share| {
            let region = &self.plan.regions[share.region];
            let (down, across, _) = share.blocks_each_way();
            let depth = region.depth_of(share.steps) as f64;
            let rows = (region.grid.rows_of(share.cells.rows) * region.q()) as f64;
            let cols = (region.grid.cols_of(share.cells.cols) * region.q()) as f64;
            let a = if self.making.a { rows * across as f64 } else { 0.0 };
            let b = if self.making.b { cols * down as f64 } else { 0.0 };
            (a + b) * depth * e * MAKING_S_PER_BYTE
        };
        let each = members.iter().map(|member| {
            let threads = f64::from(self.costs.machines[member.machine].threads.max(1));
            member.shares.iter().map(of).sum::<f64>() / threads
        });
        each.fold(0.0, f64::max)
    }
}

/// A share in blocks of which at most `most` cells complete together; unchanged if it is already so, or impossible.
fn recut(share: &Share, steps: u64, most: u64, (way, is_alone): (Way, bool)) -> Share {
    let (rows, cols) = (share.cells.rows.len(), share.cells.cols.len());
    if !is_whole(share, steps) || unit_of(share, steps) <= most || rows == 0 || cols == 0 {
        return *share;
    }
    // Even blocks: 10 rows in blocks of at most 4 are 4 + 3 + 3.
    let even = |all: u64, each: u64| all.div_ceil(all.div_ceil(each.max(1)));
    match way {
        Way::Squares => {
            let high = most.isqrt().clamp(1, rows);
            let wide = (most / high).clamp(1, cols.min(EDGE_MAX));
            let high = (most / wide).clamp(1, rows.min(EDGE_MAX));
            let block = BlockSize { rows: even(rows, high), cols: even(cols, wide), ..share.block };
            Share { block, order: PanelOrder::Steps, ..*share }
        }
        Way::Bands if steps > EDGE_MAX || share.block.cols < cols => *share,
        Way::Bands => {
            let bands = if share.order == PanelOrder::Steps && !is_alone { BLOCKS_MIN } else { 1 };
            let high = even(rows, most.min(rows.div_ceil(bands)).min(share.block.rows));
            let group = (most / high).clamp(1, cols);
            let block = BlockSize { rows: high, ..share.block };
            Share { block, order: PanelOrder::Columns(group), ..*share }
        }
    }
}
