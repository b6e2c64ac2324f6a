//! "Alone or with workers": the plan with the least predicted time among the primary alone and the
//! workers, fastest first, and one sentence that says why.
//!
//! Invariant: every machine either has a share or is named in `left_out` with a reason.

use crate::{
    BlockSize, Cut, Grid, GridError, LinkRate, Machine, Plan, Problem, Share, block_size, cost, partition,
};
use bramble_matrix::{Rect, Span};

/// Who may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Whatever is predicted to be fastest.
    Fastest,
    /// The workers, all of them, because the user asked for them.
    Workers,
}

/// A machine without a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// The chosen plan and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The plan. Its shares index `machines`.
    pub plan: Plan,
    /// Whether the primary computes alone.
    pub alone: bool,
    /// Workers that get nothing.
    pub left_out: Vec<LeftOut>,
    /// One sentence for the user.
    pub sentence: String,
}

/// Errors of planning.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// `--tile`, `--panel`.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Not even one tile fits anywhere.
    #[error(
        "no machine has room for one tile: {need_bytes} bytes are needed, the most that one offers is \
         {have_bytes}; use a smaller --tile or --panel, or give the workers more --memory"
    )]
    NoRoom {
        /// Bytes of a 1 × 1 block.
        need_bytes: u64,
        /// Bytes of the roomiest machine.
        have_bytes: u64,
    },
}

/// Chooses. `primary` is this machine's own cores; `workers` may be empty.
pub fn decide(
    problem: &Problem,
    cut: Cut,
    primary: &Machine,
    workers: &[Machine],
    preference: Preference,
) -> Result<Decision, PlanError> {
    let grid = Grid::new(problem, cut)?;
    let with_room: Vec<usize> =
        (0..workers.len()).filter(|i| has_room(problem, &grid, workers[*i].memory_bytes)).collect();
    let alone = alone(problem, grid, primary);
    let Some(with) = best_team(problem, grid, workers, &with_room, preference) else {
        if !workers.is_empty() && preference == Preference::Workers {
            return Err(no_room(problem, &grid, workers));
        }
        let plan = alone.ok_or_else(|| no_room(problem, &grid, std::slice::from_ref(primary)))?;
        let sentence = format!("alone on {}", describe(primary));
        let left_out = left_out(workers, &[], &with_room, "");
        return Ok(Decision { plan, alone: true, left_out, sentence });
    };
    let (t_with, t_alone) = (with.predicted.seconds, alone.as_ref().map(|p| p.predicted.seconds));
    match (preference, t_alone, alone) {
        (Preference::Fastest, Some(t_alone), Some(plan)) if t_alone <= t_with => {
            let sentence = format!(
                "alone on {}: {} predicted, against {} with {}",
                describe(primary),
                seconds(t_alone),
                seconds(t_with),
                count(with.shares.len())
            );
            let left_out = left_out(workers, &[], &with_room, "the primary alone is predicted to be faster");
            Ok(Decision { plan, alone: true, left_out, sentence })
        }
        _ => {
            let used: Vec<usize> = with.shares.iter().map(|s| s.machine).collect();
            let against = match t_alone {
                Some(t) => format!("against {} on the primary alone", seconds(t)),
                None => "the product does not fit the primary alone".to_owned(),
            };
            let sentence = format!("with {}: {} predicted, {against}", count(used.len()), seconds(t_with));
            let reason = match preference {
                Preference::Fastest => "it would not make the product faster",
                Preference::Workers => "there are too few tiles for a share of its own",
            };
            let left_out = left_out(workers, &used, &with_room, reason);
            Ok(Decision { plan: with, alone: false, left_out, sentence })
        }
    }
}

/// Everyone who is not used: for want of memory, or for `reason`.
fn left_out(workers: &[Machine], used: &[usize], with_room: &[usize], reason: &str) -> Vec<LeftOut> {
    let why = |i: usize| match with_room.contains(&i) {
        true => reason.to_owned(),
        false => format!("its {} bytes of memory have no room for one tile", workers[i].memory_bytes),
    };
    (0..workers.len())
        .filter(|i| !used.contains(i))
        .map(|i| LeftOut { name: workers[i].name.clone(), reason: why(i) })
        .collect()
}

/// Whether a block of one tile fits.
fn has_room(problem: &Problem, grid: &Grid, memory_bytes: u64) -> bool {
    let one = Rect::new(Span::new(0, grid.rows().min(1)), Span::new(0, grid.cols().min(1)));
    block_size(problem, grid, one, memory_bytes).is_some()
}

fn count(workers: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

fn seconds(t: f64) -> String {
    if t >= 1.0 { format!("{t:.1} s") } else { format!("{:.1} ms", t * 1e3) }
}

fn describe(machine: &Machine) -> String {
    let plural = if machine.threads == 1 { "thread" } else { "threads" };
    format!("{} {plural} of {}", machine.threads, machine.name)
}

fn no_room(problem: &Problem, grid: &Grid, machines: &[Machine]) -> PlanError {
    let (step, tiles) = crate::reuse::block_bytes(problem, grid, BlockSize { rows: 1, cols: 1 });
    let have_bytes = machines.iter().map(|m| m.memory_bytes).max().unwrap_or(0);
    PlanError::NoRoom { need_bytes: tiles.saturating_add(step.saturating_mul(2)), have_bytes }
}

/// The whole of C on the primary's own threads.
fn alone(problem: &Problem, grid: Grid, primary: &Machine) -> Option<Plan> {
    let machines = [Machine { link: None, ..primary.clone() }];
    let tiles = Rect::new(Span::new(0, grid.rows()), Span::new(0, grid.cols()));
    let block = block_size(problem, &grid, tiles, primary.memory_bytes)?;
    let share = Share { machine: 0, tiles, block, memory_bytes: primary.memory_bytes };
    Some(plan_of(problem, grid, &machines, vec![share]))
}

/// The best plan with the p fastest of the workers that have room, over all p (in growing steps beyond 64);
/// with all of them where the user asked for them.
fn best_team(
    problem: &Problem,
    grid: Grid,
    workers: &[Machine],
    with_room: &[usize],
    preference: Preference,
) -> Option<Plan> {
    let mut order = with_room.to_vec();
    order.sort_by(|a, b| useful_speed(&workers[*b]).total_cmp(&useful_speed(&workers[*a])).then(a.cmp(b)));
    if preference == Preference::Workers {
        return team(problem, grid, workers, &order);
    }
    let mut best: Option<Plan> = None;
    let mut p = 1;
    while p <= order.len() {
        if let Some(plan) = team(problem, grid, workers, &order[..p]) {
            // A larger team has to be really faster: equal predictions leave machines free.
            if best.as_ref().is_none_or(|b| plan.predicted.seconds < b.predicted.seconds * 0.999) {
                best = Some(plan);
            }
        }
        p = if p < 64 { p + 1 } else { (p + p / 8).min(order.len().max(p + 1)) };
    }
    best
}

/// Speed that orders workers: the kernel's, unless the link is absent.
fn useful_speed(machine: &Machine) -> f64 {
    match machine.link {
        Some(LinkRate { bytes_per_s, .. }) if bytes_per_s <= 0.0 => 0.0,
        _ => machine.gflops,
    }
}

/// A plan in which those workers share C in proportion to speed; `None` where a share does not fit.
fn team(problem: &Problem, grid: Grid, workers: &[Machine], members: &[usize]) -> Option<Plan> {
    let weights: Vec<f64> = members.iter().map(|i| workers[*i].gflops).collect();
    let rects = partition(grid.rows(), grid.cols(), problem.m as f64, problem.n as f64, &weights);
    let mut shares = Vec::new();
    for (machine, rect) in members.iter().zip(rects) {
        let Some(tiles) = rect else { continue };
        let memory_bytes = workers[*machine].memory_bytes;
        let block = block_size(problem, &grid, tiles, memory_bytes)?;
        shares.push(Share { machine: *machine, tiles, block, memory_bytes });
    }
    (!shares.is_empty()).then(|| plan_of(problem, grid, workers, shares))
}

fn plan_of(problem: &Problem, grid: Grid, machines: &[Machine], shares: Vec<Share>) -> Plan {
    let predicted = cost::predict(problem, &grid, machines, &shares);
    let bound = cost::bound(problem, machines, &shares);
    let peak_gflops = shares.iter().map(|s| machines[s.machine].peak_gflops).sum();
    Plan { problem: *problem, grid, strategy: "reuse", shares, predicted, bound, peak_gflops }
}
