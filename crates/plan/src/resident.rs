//! Plans for products with a placed operand: each machine computes the part that it owns.
//!
//! Place in the flow: the counterpart of `decide` for an operand that lies in parts on the workers. No search is
//! needed: the parts determine the share of each machine (`Ownership`), or with replicas the speeds do. The planner
//! chooses only the size and order of blocks, and whether the other operand is relayed, as in every plan for a team.
//!
//! Invariants: every share lies within the part of its machine. Borders of parts are borders of the grid. Panels of
//! the placed operand are neither sent nor counted in the memory of the product, except for their entries.
//!
//! Deliberately absent: other strategies, and Strassen's method, which needs quarters across the whole operand; fewer
//! machines than owners; a journal.

use crate::cost::Costs;
use crate::decide::machines_of;
use crate::explain::seconds;
use crate::memory::CellCharges;
use crate::search::unusable;
use crate::team::{TeamInput, least_memory, plan_team};
use crate::{
    Base, Considered, Decision, Grid, Machine, Ownership, Plan, PlanError, PlanOptions, Problem, Recipe,
    Region, Strategy, TileSize, UnusedMachine, memory_wanted,
};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The only strategy for a placed operand: blocks as large as memory allows.
const REUSE: Strategy = Strategy::plain(Base::Reuse);
/// Speed and link rate of an owner whose own are unknown: it has to compute its share in any case.
const UNKNOWN_GFLOPS: f64 = 1e-3;
const UNKNOWN_BYTES_PER_S: f64 = 1e6;
/// The smallest edge of tiles that are chosen because larger ones do not fit the memory.
const SMALLER_EDGE_MIN: u64 = 32;

/// The plan for a product with a placed operand. The machines are those of `decide`: 0 is the primary, then the workers.
pub fn decide_resident(
    problem: &Problem,
    ownership: &Ownership,
    cut: TileSize,
    primary: &Machine,
    workers: &[Machine],
    options: &PlanOptions,
) -> Result<Decision, PlanError> {
    assert!(problem.has_resident(), "a plan for a placed operand that no operand is");
    ownership.assert_covers([problem.m, problem.n, problem.k], workers.len() + 1);
    if let Some(strategy) = options.strategy.filter(|strategy| *strategy != REUSE) {
        let why = "an operand lies in parts on the workers, and these decide which machine computes what; leave it away"
            .to_owned();
        return Err(PlanError::Refused { strategy, why });
    }
    let machines: Vec<Machine> = machines_of(primary, workers).into_iter().map(usable).collect();
    let first = plan_with(problem, ownership, cut, &machines, options);
    let plan = match first {
        Err(PlanError::OwnerWithoutRoom { .. }) if !options.reproducible => {
            let smaller = smaller_tiles(problem, cut)?;
            let mut plans =
                smaller.into_iter().map(|cut| plan_with(problem, ownership, cut, &machines, options));
            plans.find(|plan| !matches!(plan, Err(PlanError::OwnerWithoutRoom { .. }))).unwrap_or(first)?
        }
        plan => plan?,
    };
    let plan = if ownership.is_replicated() { plan } else { with_room_for_lost_parts(plan, &machines) };
    let alone = plan.members.iter().all(|member| member.machine == 0);
    let (left_out, sentence) = (left_out(&plan, ownership, &machines), sentence(&plan));
    Ok(Decision { alone, left_out, sentence, considered: Vec::from([considered(&plan)]), plan })
}

/// The most memory that any one worker could use for a product with a placed operand, besides its part of that.
pub fn memory_to_ask_resident(
    problem: &Problem,
    ownership: &Ownership,
    cut: TileSize,
) -> Result<u64, PlanError> {
    let region = region(problem, ownership, cut)?;
    Ok(memory_wanted(&[region], problem))
}

/// All of C in tiles that fit the parts.
fn region(problem: &Problem, ownership: &Ownership, cut: TileSize) -> Result<Region, PlanError> {
    let region = Region::whole(problem, cut)?;
    Ok(Region { grid: ownership.fit(region.grid)?, ..region })
}

fn plan_with(
    problem: &Problem,
    ownership: &Ownership,
    cut: TileSize,
    machines: &[Machine],
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    let region = region(problem, ownership, cut)?;
    let canonical = Grid::new(problem, cut)?;
    if options.reproducible && region.grid != canonical {
        let Grid { tile_rows, tile_cols, depth, .. } = canonical;
        return Err(PlanError::CutsBetweenTiles { tile_rows, tile_cols, depth });
    }
    let recipe = Recipe::new(0);
    let charges = CellCharges::of(&region, problem, &recipe);
    let costs = Costs {
        problem,
        regions: &[region],
        recipes: &[recipe],
        charges: &[charges],
        sums: options.sums(),
        machines,
        relay: options.relay,
    };
    let team = TeamInput { costs: &costs, strategy: REUSE, everyone: false, ownership: Some(ownership) };
    plan_team(&team, &ownership.machines()).map_err(|without_room| {
        let least =
            without_room.into_iter().map(|id| &machines[id]).min_by_key(|machine| machine.memory_bytes);
        let (name, have_bytes) = least.map_or((String::new(), 0), |m| (m.name.clone(), m.memory_bytes));
        PlanError::OwnerWithoutRoom {
            name,
            need_bytes: least_memory(Base::Reuse, &region, &charges),
            have_bytes,
        }
    })
}

/// Twice the memory, where machines have it: if one of several is lost, the others are sent the panels of its part while they
/// compute their own shares.
fn with_room_for_lost_parts(mut plan: Plan, machines: &[Machine]) -> Plan {
    if plan.members.len() < 2 {
        return plan;
    }
    let costs = plan.members.iter_mut().zip(&mut plan.predicted.machines);
    for (member, cost) in costs.filter(|(member, _)| machines[member.machine].link.is_some()) {
        let twice = member.memory_bytes.saturating_mul(2).min(machines[member.machine].memory_bytes);
        (member.memory_bytes, cost.memory_bytes) = (twice, twice);
        plan.predicted.worker_memory_bytes = plan.predicted.worker_memory_bytes.max(twice);
    }
    plan
}

/// A machine with values that can be planned with.
fn usable(machine: Machine) -> Machine {
    if unusable(&machine).is_none() {
        return machine;
    }
    let known = |value: f64, else_: f64| if value.is_finite() && value > 0.0 { value } else { else_ };
    let rate = |link: crate::LinkRate| crate::LinkRate {
        bytes_per_s: known(link.bytes_per_s, UNKNOWN_BYTES_PER_S),
        ..link
    };
    Machine { gflops: known(machine.gflops, UNKNOWN_GFLOPS), link: machine.link.map(rate), ..machine }
}

/// Smaller tiles to try if an owner has no room: first with the usual depth of steps, then with smaller and smaller edges.
fn smaller_tiles(problem: &Problem, cut: TileSize) -> Result<Vec<TileSize>, PlanError> {
    let usual = Grid::new(problem, cut)?;
    let shallower = usual.shallower(cut);
    let with_depth = shallower.unwrap_or(TileSize { depth: Some(usual.depth), ..cut });
    let edge = usual.tile_rows.max(usual.tile_cols).next_power_of_two();
    let edges = core::iter::successors(Some(edge / 2), |edge| Some(edge / 2));
    let halves = edges.take_while(|edge| *edge >= SMALLER_EDGE_MIN && cut.tile.is_none());
    Ok(shallower.into_iter().chain(halves.map(|edge| TileSize { tile: Some(edge), ..with_depth })).collect())
}

fn left_out(plan: &Plan, ownership: &Ownership, machines: &[Machine]) -> Vec<UnusedMachine> {
    let owners = ownership.machines();
    let has_share = |id: &usize| plan.members.iter().any(|member| member.machine == *id);
    let reason = |id: usize| match owners.contains(&id) {
        true => "its share would be less than one tile".to_owned(),
        false => "it holds no part of the operand".to_owned(),
    };
    let without = (1..machines.len()).filter(|id| !has_share(id));
    without.map(|id| UnusedMachine { name: machines[id].name.clone(), reason: reason(id) }).collect()
}

fn sentence(plan: &Plan) -> String {
    let owners = match plan.members.len() {
        1 => "the machine that holds the operand".to_owned(),
        count => format!("the {count} machines that hold the operand"),
    };
    format!("with {owners}: {} predicted", seconds(plan.predicted.seconds))
}

fn considered(plan: &Plan) -> Considered {
    Considered {
        strategy: plan.strategy,
        machines: plan.members.len(),
        with_primary: plan.members.iter().any(|member| member.machine == 0),
        seconds: plan.predicted.seconds,
        bytes_sent: plan.predicted.bytes_sent,
        bytes_received: plan.predicted.bytes_received,
        bytes_relayed: plan.predicted.bytes_relayed,
    }
}
