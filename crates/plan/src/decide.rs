//! The choice of a plan: the one with the least predicted time among all strategies and teams, including the
//! primary alone, and one sentence that gives the reason.
//!
//! Invariants: every machine either has a share or is named in `left_out` with a reason. Among equal predictions
//! the simpler plan wins: alone before a team, fewer machines before more, `reuse` before the other strategies.

use crate::early::with_early_tiles;
use crate::search::{Search, SearchOutcome, unusable};
use crate::{
    Grid, GridError, Machine, MadeOperands, PanelOrder, Plan, Problem, Region, Share, Strategy, Sums,
    TileSize,
};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The machines that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The team with the least predicted time.
    Fastest,
    /// All workers, because the user asked for them.
    Workers,
}

/// Whether workers relay panels that several of them need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Relay if that is predicted to be faster, or equally fast with fewer bytes sent; never among workers on the
    /// primary's own cores.
    #[default]
    Auto,
    /// Relay wherever two or more workers can: plans that do not are dropped if any plan does.
    On,
    /// Never relay.
    Off,
}

/// The user's requirements on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// The strategy; `None` leaves it to the prediction.
    pub strategy: Option<Strategy>,
    /// The machines that may be chosen.
    pub who: Preference,
    /// Require the same bits for every strategy and every set of machines.
    pub reproducible: bool,
    /// Require the element-wise accuracy of the classical method.
    pub elementwise: bool,
    /// Whether workers relay.
    pub relay: Relay,
    /// Set if a journal is kept: tiles shall be complete early, if that costs next to nothing. Says which operands'
    /// panels have to be made anew for each block.
    pub tiles_early: Option<MadeOperands>,
}

impl PlanOptions {
    /// The least predicted time, without other requirements.
    pub const AUTO: Self = Self {
        strategy: None,
        who: Preference::Fastest,
        reproducible: false,
        elementwise: false,
        relay: Relay::Auto,
        tiles_early: None,
    };

    /// How sums over parts of k are combined.
    pub(crate) fn sums(&self) -> Sums {
        if self.reproducible { Sums::Chained } else { Sums::Merged }
    }
}

/// A machine without a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedMachine {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// A plan that was considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// Its strategy.
    pub strategy: Strategy,
    /// Number of participating machines.
    pub machines: usize,
    /// Whether the primary is one of them.
    pub with_primary: bool,
    /// Predicted seconds.
    pub seconds: f64,
    /// Predicted bytes sent by the primary.
    pub bytes_sent: u64,
    /// Predicted bytes received by the primary.
    pub bytes_received: u64,
    /// Predicted bytes that workers relay.
    pub bytes_relayed: u64,
}

/// The chosen plan, with the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The plan. Its members index the machines: 0 is the primary, then the workers in their order.
    pub plan: Plan,
    /// Whether the primary computes alone.
    pub alone: bool,
    /// Workers without a share.
    pub left_out: Vec<UnusedMachine>,
    /// One sentence for the user.
    pub sentence: String,
    /// The best plan of each considered strategy, fastest first.
    pub considered: Vec<Considered>,
}

/// Errors of planning.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// An unusable `--tile` or `--panel`.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// No machine has room for one block.
    #[error(
        "no machine has room for one block of {strategy}: {need_bytes} bytes are needed, the most that one offers is \
         {have_bytes}; use a smaller --tile or --panel, or give the workers more --memory"
    )]
    NoRoom {
        /// The strategy.
        strategy: Strategy,
        /// Bytes of the smallest block.
        need_bytes: u64,
        /// Bytes of the machine with the most memory.
        have_bytes: u64,
    },
    /// One block exceeds the credit that the user allows per worker.
    #[error(
        "--credits: one block of {strategy} needs {need_bytes} bytes at a worker, and {credits} are allowed; use \
         --credits {}K or more, or leave it away", need_bytes.div_ceil(1024)
    )]
    Credits {
        /// The strategy.
        strategy: Strategy,
        /// Bytes of the smallest block.
        need_bytes: u64,
        /// Bytes that the user allows.
        credits: u64,
    },
    /// An owner of a part of a placed operand has no room for one block of its share.
    #[error(
        "{name} holds a part of an operand, and one block of its share needs {need_bytes} bytes more, of which it has \
         {have_bytes}; use a smaller --tile or --panel, free other arrays, or give the workers more --memory"
    )]
    OwnerWithoutRoom {
        /// The machine.
        name: String,
        /// Bytes of the smallest block.
        need_bytes: u64,
        /// Bytes that it has.
        have_bytes: u64,
    },
    /// The parts of a placed operand are cut where the tiles that `--reproducible` asks for are not.
    #[error(
        "--reproducible: the parts of an operand are cut between the borders of tiles of {tile_rows} x {tile_cols} and \
         steps of {depth}, on which the bits depend; place it anew, use --tile or --panel 256, or leave --reproducible away"
    )]
    CutsBetweenTiles {
        /// Rows of a tile of the canonical grid.
        tile_rows: u64,
        /// Columns of a tile.
        tile_cols: u64,
        /// Depth of a step.
        depth: u64,
    },
    /// The strategy cannot meet the requirements.
    #[error("--strategy {strategy}: {why}")]
    Refused {
        /// The strategy.
        strategy: Strategy,
        /// The reason, and the next step.
        why: String,
    },
}

impl PlanError {
    /// The same error, but naming the user's limit of credits if that limit, and not a machine's memory, is too
    /// small.
    pub fn with_credits(self, credits: Option<u64>) -> Self {
        match (self, credits) {
            (Self::NoRoom { strategy, need_bytes, have_bytes }, Some(credits)) if have_bytes == credits => {
                Self::Credits { strategy, need_bytes, credits }
            }
            (other, _) => other,
        }
    }
}

/// Machines with the same number of threads are of one kind if their peaks (measured in microseconds) and speeds
/// (in milliseconds) exceed those of the slowest by at most these fractions.
const PEAK_DOUBT: f64 = 0.08;
/// See `PEAK_DOUBT`. One of four equal machines was once measured at half of the others' speed, because of a
/// program that ran beside it.
const SPEED_DOUBT: f64 = 1.5;
/// Links of machines of one kind that differ from their mean by at most this fraction are treated as equal.
const LINK_DOUBT: f64 = 0.5;
/// The smallest edge of tiles that are chosen because larger ones do not fit the memory; still smaller tiles would
/// be very slow.
const SMALLER_EDGE_MIN: u64 = 32;
/// The gain in time that smaller tiles must have.
const FINER_GAIN: f64 = 0.98;

/// Chooses a plan. `primary` is this machine's own cores; `workers` may be empty.
pub fn decide(
    problem: &Problem,
    cut: TileSize,
    primary: &Machine,
    workers: &[Machine],
    options: &PlanOptions,
) -> Result<Decision, PlanError> {
    let with = |cut: TileSize| decide_with(problem, cut, primary, workers, options);
    let (decision, cut) = match with(cut) {
        Err(PlanError::NoRoom { .. }) if !options.reproducible => with_less_at_once(problem, cut, with)?,
        decided => (decided?, cut),
    };
    let decision = match finer(cut, &decision.plan, options).map(with) {
        Some(Ok(other))
            if goes_home_all_the_time(&other.plan)
                && other.plan.predicted.seconds < decision.plan.predicted.seconds * FINER_GAIN =>
        {
            other
        }
        _ => decision,
    };
    // This follows the choice of the grid, which must not depend on whether a journal is kept.
    let Some(making) = options.tiles_early else { return Ok(decision) };
    let plan = with_early_tiles(decision.plan, &machines_of(primary, workers), options, making);
    Ok(Decision { plan, ..decision })
}

/// The decision with shallower steps, if those of a thin product fit no machine, or else with smaller tiles.
fn with_less_at_once(
    problem: &Problem,
    cut: TileSize,
    with: impl Fn(TileSize) -> Result<Decision, PlanError>,
) -> Result<(Decision, TileSize), PlanError> {
    let usual = Grid::new(problem, cut)?;
    let shallower = usual.shallower(cut).unwrap_or(cut);
    if shallower != cut
        && let Ok(mut decision) = with(shallower)
    {
        decision.sentence += &format!(
            "; with steps of {} along k, since those of {} do not fit the memory",
            shallower.depth.unwrap_or(usual.depth),
            usual.depth
        );
        return Ok((decision, shallower));
    }
    match shallower.tile {
        None => with_smaller_tiles(problem, shallower, with),
        Some(_) => with(cut).map(|decision| (decision, cut)),
    }
}

/// If the default tiles fit no machine: the decision with the largest tiles for which some machine has room, and
/// their tile size. The depth of a step stays the same, because sums depend on it.
fn with_smaller_tiles(
    problem: &Problem,
    cut: TileSize,
    with: impl Fn(TileSize) -> Result<Decision, PlanError>,
) -> Result<(Decision, TileSize), PlanError> {
    let usual = Grid::new(problem, cut)?;
    let edge = usual.tile_rows.max(usual.tile_cols);
    let halves = core::iter::successors(Some(edge.next_power_of_two() / 2), |edge| Some(edge / 2));
    for edge in halves.take_while(|edge| *edge >= SMALLER_EDGE_MIN) {
        let smaller = TileSize { tile: Some(edge), depth: Some(usual.depth) };
        match with(smaller) {
            Err(PlanError::NoRoom { .. }) => {}
            decided => {
                let mut decision = decided?;
                let Grid { tile_rows, tile_cols, .. } = usual;
                decision.sentence += &format!(
                    "; with tiles of {edge} x {edge}, since those of {tile_rows} x {tile_cols} do not fit the memory"
                );
                return Ok((decision, smaller));
            }
        }
    }
    // The error names the need of the default tiles.
    with(cut).map(|decision| (decision, cut))
}

/// The primary, then the workers, with the values that planning uses.
pub(crate) fn machines_of(primary: &Machine, workers: &[Machine]) -> Vec<Machine> {
    let primary = Machine { link: None, ..primary.clone() };
    // A primary with unknown speed is treated as a very slow one.
    let gflops = if unusable(&primary).is_some() { 1e-3 } else { primary.gflops };
    let mut machines = vec![Machine { gflops, ..primary }];
    machines.extend(with_even_speeds(workers));
    machines
}

/// Half the edge of the tiles, if the user has not set it and it may pay. If tiles return while panels arrive, the
/// tiles of the last panel end the product, and smaller panels have fewer of them. Never if the bits must not
/// depend on the machines, nor if most of the product goes step by step: then computing is the limit, and small
/// tiles are slower in a way that the model does not know.
fn finer(cut: TileSize, plan: &Plan, options: &PlanOptions) -> Option<TileSize> {
    let grid = &plan.regions.first()?.grid;
    let go_home_early = shares(plan).any(|s| s.order != PanelOrder::Steps);
    let has_halves = grid.tile_rows == grid.tile_cols && grid.tile_rows.is_multiple_of(512);
    let may = cut.tile.is_none() && !options.reproducible && go_home_early && has_halves;
    may.then_some(TileSize { tile: Some(grid.tile_rows / 2), depth: Some(grid.depth) })
}

fn goes_home_all_the_time(plan: &Plan) -> bool {
    shares(plan).any(|s| matches!(s.order, PanelOrder::Columns(_) | PanelOrder::Corner))
}

fn shares(plan: &Plan) -> impl Iterator<Item = &Share> {
    plan.members.iter().flat_map(|member| &member.shares)
}

fn decide_with(
    problem: &Problem,
    cut: TileSize,
    primary: &Machine,
    workers: &[Machine],
    options: &PlanOptions,
) -> Result<Decision, PlanError> {
    let machines = machines_of(primary, workers);
    let regions = regions(problem, cut, options)?;
    let search = Search::new(problem, &machines, options, &regions);
    let mut found = SearchOutcome::default();
    let alone_too = options.who == Preference::Fastest || workers.is_empty();
    if alone_too && (options.strategy.is_none() || workers.is_empty()) {
        search.alone(&mut found);
    }
    search.teams(&mut found);
    let Some(best) = found.best() else { return Err(search.no_room()) };
    let alone = best.members.iter().all(|m| m.machine == 0);
    let left_out = search.left_out(&best, alone);
    let sentence = search.sentence(&best, &found, alone);
    Ok(Decision { alone, left_out, sentence, considered: found.considered(), plan: best })
}

/// The workers, with equal speeds, and equal links, for all workers of one kind: measurements of equal machines
/// differ only by disturbances. Equal machines get equal parts, which share the most panels.
///
/// The speed is the median: one disturbed machine does not move it. A disturbance makes a machine slower, so the
/// true speed is above the middle rather than below it; but the highest one is the luckiest measurement. Of an even
/// number the median is the mean of the middle two: with only two, nothing tells which of them was disturbed.
fn with_even_speeds(workers: &[Machine]) -> Vec<Machine> {
    let mut even = workers.to_vec();
    let mut left: Vec<usize> = (0..workers.len()).collect();
    left.sort_by(|a, b| workers[*a].gflops.total_cmp(&workers[*b].gflops));
    while let Some(first) = left.first().map(|at| &workers[*at]) {
        let is_alike = |at: &usize| {
            let other = &workers[*at];
            let apart = (other.peak_gflops - first.peak_gflops).abs();
            core::ptr::eq(first, other)
                || first.threads == other.threads
                    && apart <= first.peak_gflops * PEAK_DOUBT
                    && other.gflops <= first.gflops * (1.0 + SPEED_DOUBT)
        };
        // Both lists stay in the order of speeds.
        let (alike, rest): (Vec<usize>, Vec<usize>) = left.iter().partition(|at| is_alike(at));
        let middle = [(alike.len() - 1) / 2, alike.len() / 2].map(|at| workers[alike[at]].gflops);
        let speed = f64::midpoint(middle[0], middle[1]);
        let rate = |m: &Machine| m.link.map_or(f64::NAN, |link| link.bytes_per_s);
        let link = alike.iter().map(|at| rate(&workers[*at])).sum::<f64>() / alike.len() as f64;
        for at in &alike {
            even[*at].gflops = speed;
            let near = (rate(&even[*at]) - link).abs() <= link * LINK_DOUBT;
            if let Some(own) = even[*at].link.as_mut().filter(|_| near) {
                own.bytes_per_s = link;
            }
        }
        left = rest;
    }
    even
}

/// The most memory that any one worker could use under any plan.
pub fn memory_to_ask(problem: &Problem, cut: TileSize, options: &PlanOptions) -> Result<u64, PlanError> {
    let all = regions(problem, cut, options)?;
    Ok(all.iter().map(|(_, r)| crate::memory_wanted(r, problem)).max().unwrap_or(0))
}

/// The regions for each allowed number of levels.
fn regions(
    problem: &Problem,
    cut: TileSize,
    options: &PlanOptions,
) -> Result<Vec<(u32, Vec<Region>)>, PlanError> {
    let levels: Vec<u32> = match options.strategy {
        Some(strategy) => vec![strategy.levels],
        None if options.reproducible || options.elementwise => vec![0],
        None => vec![0, 1, 2],
    };
    let mut all = Vec::new();
    for levels in levels {
        match (Region::peeled(problem, cut, levels)?, options.strategy) {
            (Some(regions), _) => all.push((levels, regions)),
            (None, None) => {}
            (None, Some(strategy)) => {
                let why = format!(
                    "{} x {} x {} cannot be halved {levels} times; use fewer levels",
                    problem.m, problem.k, problem.n
                );
                return Err(PlanError::Refused { strategy, why });
            }
        }
    }
    if let Some(strategy) = options.strategy.filter(|s| s.levels > 0) {
        let classical = "use another strategy, or let Bramble choose";
        let why = match (options.reproducible, options.elementwise && problem.dtype.is_float()) {
            (true, _) => format!(
                "--reproducible asks for the bits of the classical sum, which it does not have; {classical}"
            ),
            (_, true) => format!(
                "its error is bounded by norms only, and elementwise accuracy was asked for; {classical}"
            ),
            _ => return Ok(all),
        };
        return Err(PlanError::Refused { strategy, why });
    }
    Ok(all)
}
