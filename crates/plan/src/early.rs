//! Blocks whose tiles are complete early, so that a run that is interrupted keeps most of what it has computed.
//!
//! Place in the flow: after the decision, where a journal is kept. The blocks of the chosen plan are cut into smaller ones, or
//! done column by column, as long as the plan is not predicted to take more than `COST_MAX` times as long.
//!
//! Invariants: regions, members and the cells of each share stay as they are, and so does C to the last bit: the grid is not
//! touched, and each tile still sums its steps in order. Strategies whose blocks are a part of their definition are left alone,
//! and so are blocks of other machines where the user has named the strategy.

use crate::cost::Costs;
use crate::memory::{CellCharges, EDGE_MAX};
use crate::team::set_memory;
use crate::{Base, BlockSize, Machine, Member, Order, Plan, Prediction, Recipe, Relay, Share, Wish};
use bramble_matrix::Span;

/// Which operands' panels are made each time that they are needed: generated, or converted from another type. The others
/// lie in memory or in a mapped file, where smaller blocks of this machine's own threads read them again at no cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Making {
    /// Of A.
    pub a: bool,
    /// Of B.
    pub b: bool,
}

/// How much longer than the fastest plan one with early tiles may be predicted to take.
const COST_MAX: f64 = 1.01;
/// The part of a machine's work that should be complete together, and what is tried where that costs too much.
const PARTS: [f64; 5] = [0.02, 0.04, 0.08, 0.16, 0.32];
/// Tiles of less work than this are complete early enough.
const SECONDS_MIN: f64 = 0.1;
/// Products at once for each thread in one block: with fewer, threads would wait for the next block's panels.
const PRODUCTS_A_THREAD: u64 = 2;
/// Blocks that a share has at least where another order than by steps is introduced and other machines could take over
/// blocks that were not begun.
const BLOCKS_MIN: u64 = 4;
/// Seconds to make a byte of a panel on one thread. Measured for random doubles on a server; conversions take less.
const MAKING_S_PER_BYTE: f64 = 1e-9;

/// How a share is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Blocks about as high as wide, step by step.
    Squares,
    /// Flat blocks, column by column: panels of B are sent once for each block, those of A once.
    Bands,
}

impl Plan {
    /// The largest part of a member's work that is complete all at once, near the end of its block: what is lost of it where
    /// the product is interrupted just before.
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

/// Cells that are complete together. Those of a share with a part of k are when other shares are done, too.
fn unit_of(share: &Share, steps: u64) -> u64 {
    if !is_whole(share, steps) {
        return cells_of(share);
    }
    let BlockSize { rows, cols, .. } = share.block;
    match share.order {
        Order::Steps | Order::Ending(_) => rows.saturating_mul(cols),
        Order::Columns(group) => rows.saturating_mul(group.min(cols)),
        Order::Corner => rows.max(cols),
    }
}

fn is_whole(share: &Share, steps: u64) -> bool {
    share.steps == Span::new(0, steps) && share.block.steps >= steps
}

/// The plan with early tiles; as it is where that would cost too much.
pub(crate) fn with_early_tiles(plan: Plan, machines: &[Machine], wish: &Wish, making: Making) -> Plan {
    if matches!(plan.strategy.base, Base::Naive | Base::Row(_) | Base::Square(_)) {
        return plan;
    }
    let recipes: Vec<Recipe> = plan.regions.iter().map(|r| Recipe::new(r.levels)).collect();
    let e = plan.problem.element_bytes();
    let charges: Vec<CellCharges> =
        plan.regions.iter().zip(&recipes).map(|(r, recipe)| CellCharges::of(r, e, recipe)).collect();
    let costs = Costs {
        problem: &plan.problem,
        regions: &plan.regions,
        recipes: &recipes,
        charges: &charges,
        sums: plan.sums,
        machines,
        relay: if plan.relay { wish.relay } else { Relay::Off },
    };
    let cutter = Cutter { plan: &plan, costs: &costs, making, keeps_others: wish.strategy.is_some() };
    match cutter.earliest() {
        Some((predicted, members)) => Plan { predicted, members, ..plan },
        None => plan,
    }
}

/// What is cut.
struct Cutter<'a> {
    plan: &'a Plan,
    costs: &'a Costs<'a>,
    making: Making,
    /// Machines behind a link keep their blocks.
    keeps_others: bool,
}

impl Cutter<'_> {
    /// The members whose tiles are complete earliest, of those that cost little enough.
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
        // At least this machine's own threads, to which panels need not be sent.
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

    /// All members cut so that no more than such a part of their work is complete together. `None` where blocks do not fit.
    fn cut(&self, part: f64, way: Way) -> Option<Vec<Member>> {
        // Panels that are made, and the sums of Strassen's method, cost something each time.
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

/// A share in blocks of which so many cells at most are complete together; as it is where that is so, or cannot be had.
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
            Share { block, order: Order::Steps, ..*share }
        }
        Way::Bands if steps > EDGE_MAX || share.block.cols < cols => *share,
        Way::Bands => {
            let bands = if share.order == Order::Steps && !is_alone { BLOCKS_MIN } else { 1 };
            let high = even(rows, most.min(rows.div_ceil(bands)).min(share.block.rows));
            let group = (most / high).clamp(1, cols);
            let block = BlockSize { rows: high, ..share.block };
            Share { block, order: Order::Columns(group), ..*share }
        }
    }
}
