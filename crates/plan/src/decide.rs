//! Which plan: the one with the least predicted time among all strategies and teams, the primary alone included, and
//! one sentence that says why.
//!
//! Invariants: every machine either has a share or is named in `left_out` with a reason. With equal predictions the
//! simpler plan is taken: alone before a team, fewer machines before more, `reuse` before the others.

use crate::early::with_early_tiles;
use crate::search::{Found, Search, unusable};
use crate::{Cut, Grid, GridError, Machine, Making, Order, Plan, Problem, Region, Share, Strategy, Sums};

/// Who may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Whatever is predicted to be fastest.
    Fastest,
    /// The workers, all of them, because the user asked for them.
    Workers,
}

/// Whether workers pass panels on to each other that several of them need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Where that is predicted to be faster, or as fast with less to send; never among workers on the primary's own cores.
    #[default]
    Auto,
    /// Wherever two or more workers can.
    On,
    /// Nowhere.
    Off,
}

/// What the user wants of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The strategy; `None` leaves it to the prediction.
    pub strategy: Option<Strategy>,
    /// Who may be chosen.
    pub who: Preference,
    /// The same bits whatever the strategy and the machines.
    pub reproducible: bool,
    /// No element less accurate than by the classical method.
    pub elementwise: bool,
    /// Whether workers relay.
    pub relay: Relay,
    /// A journal is kept: tiles shall be complete early, where that costs next to nothing. Which panels have to be made anew
    /// for each block is then known.
    pub tiles_early: Option<Making>,
}

impl Wish {
    /// Whatever is fastest.
    pub const AUTO: Self = Self {
        strategy: None,
        who: Preference::Fastest,
        reproducible: false,
        elementwise: false,
        relay: Relay::Auto,
        tiles_early: None,
    };

    /// How sums over parts of k come together.
    pub(crate) fn sums(&self) -> Sums {
        if self.reproducible { Sums::Chained } else { Sums::Merged }
    }
}

/// A machine without a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A plan that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// Its strategy.
    pub strategy: Strategy,
    /// Machines that would take part.
    pub machines: usize,
    /// Whether the primary is one of them.
    pub with_primary: bool,
    /// Predicted seconds.
    pub seconds: f64,
    /// Predicted bytes that leave the primary.
    pub bytes_sent: u64,
    /// Predicted bytes that come back.
    pub bytes_received: u64,
    /// Predicted bytes that workers pass on to each other.
    pub bytes_relayed: u64,
}

/// The chosen plan and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The plan. Its members index the machines: 0 is the primary, then the workers in their order.
    pub plan: Plan,
    /// Whether the primary computes alone.
    pub alone: bool,
    /// Workers that get nothing.
    pub left_out: Vec<LeftOut>,
    /// One sentence for the user.
    pub sentence: String,
    /// The best plan of each strategy that was looked at, fastest first.
    pub considered: Vec<Considered>,
}

/// Errors of planning.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// `--tile`, `--panel`.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Not even one block fits anywhere.
    #[error(
        "no machine has room for one block of {strategy}: {need_bytes} bytes are needed, the most that one offers is \
         {have_bytes}; use a smaller --tile or --panel, or give the workers more --memory"
    )]
    NoRoom {
        /// What was to be planned.
        strategy: Strategy,
        /// Bytes of the least block.
        need_bytes: u64,
        /// Bytes of the roomiest machine.
        have_bytes: u64,
    },
    /// Not even one block fits into what a worker may be sent at once.
    #[error(
        "--credits: one block of {strategy} needs {need_bytes} bytes at a worker, and {credits} are allowed; use \
         --credits {}K or more, or leave it away", need_bytes.div_ceil(1024)
    )]
    Credits {
        /// What was to be planned.
        strategy: Strategy,
        /// Bytes of the least block.
        need_bytes: u64,
        /// Bytes that the user allows.
        credits: u64,
    },
    /// The strategy cannot do what was asked.
    #[error("--strategy {strategy}: {why}")]
    Refused {
        /// Which.
        strategy: Strategy,
        /// Why, and what to do instead.
        why: String,
    },
}

impl PlanError {
    /// The same error, which names the user's limit of credits where that, and not a machine's memory, leaves no room.
    pub fn with_credits(self, credits: Option<u64>) -> Self {
        match (self, credits) {
            (Self::NoRoom { strategy, need_bytes, have_bytes }, Some(credits)) if have_bytes == credits => {
                Self::Credits { strategy, need_bytes, credits }
            }
            (other, _) => other,
        }
    }
}

/// Machines with the same number of threads are of one kind if their peaks (measured in microseconds) and speeds (in
/// milliseconds) differ from the slowest one's by no more than these parts of it.
const PEAK_DOUBT: f64 = 0.08;
/// See `PEAK_DOUBT`. Of four equal machines one was measured at half of what the others had, by something that ran beside it.
const SPEED_DOUBT: f64 = 1.5;
/// Links of machines of one kind that differ from their mean by no more than this part of it are taken for equal.
const LINK_DOUBT: f64 = 0.5;
/// The least edge of tiles that are taken because others do not fit the memory: still smaller ones would be computed very slowly.
const SMALLER_EDGE_MIN: u64 = 32;
/// What smaller tiles have to gain.
const FINER_GAIN: f64 = 0.98;

/// Chooses. `primary` is this machine's own cores; `workers` may be empty.
pub fn decide(
    problem: &Problem,
    cut: Cut,
    primary: &Machine,
    workers: &[Machine],
    wish: &Wish,
) -> Result<Decision, PlanError> {
    let with = |cut: Cut| decide_with(problem, cut, primary, workers, wish);
    let (decision, cut) = match with(cut) {
        Err(PlanError::NoRoom { .. }) if cut.tile.is_none() && !wish.reproducible => {
            with_smaller_tiles(problem, cut, with)?
        }
        decided => (decided?, cut),
    };
    let decision = match finer(cut, &decision.plan, wish).map(with) {
        Some(Ok(other))
            if goes_home_all_the_time(&other.plan)
                && other.plan.predicted.seconds < decision.plan.predicted.seconds * FINER_GAIN =>
        {
            other
        }
        _ => decision,
    };
    // After the grid is known: it must not depend on whether a journal is kept.
    let Some(making) = wish.tiles_early else { return Ok(decision) };
    let plan = with_early_tiles(decision.plan, &machines_of(primary, workers), wish, making);
    Ok(Decision { plan, ..decision })
}

/// The decision with the largest tiles that some machine has room for, where those that are usual fit none, and the cut that says
/// so. The depth of a step stays as it was: it is what sums depend on.
fn with_smaller_tiles(
    problem: &Problem,
    cut: Cut,
    with: impl Fn(Cut) -> Result<Decision, PlanError>,
) -> Result<(Decision, Cut), PlanError> {
    let usual = Grid::new(problem, cut)?;
    let edge = usual.tile_rows.max(usual.tile_cols);
    let halves = std::iter::successors(Some(edge.next_power_of_two() / 2), |edge| Some(edge / 2));
    for edge in halves.take_while(|edge| *edge >= SMALLER_EDGE_MIN) {
        let smaller = Cut { tile: Some(edge), depth: Some(usual.depth) };
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
    // What is missing for the tiles that are usual.
    with(cut).map(|decision| (decision, cut))
}

/// The primary, then the workers, as plans are made for them.
fn machines_of(primary: &Machine, workers: &[Machine]) -> Vec<Machine> {
    let primary = Machine { link: None, ..primary.clone() };
    // A primary whose speed is not known is taken for a very slow one.
    let gflops = if unusable(&primary).is_some() { 1e-3 } else { primary.gflops };
    let mut machines = vec![Machine { gflops, ..primary }];
    machines.extend(with_even_speeds(workers));
    machines
}

/// Half the edge of the tiles, where nobody asked for another and it may pay: where tiles go home while panels come, those
/// of the last panel end the product, and smaller panels have fewer. Never where bits shall not depend on the machines, nor
/// where most of the product goes step by step: there computing binds, and small tiles take longer, which is not in the model.
fn finer(cut: Cut, plan: &Plan, wish: &Wish) -> Option<Cut> {
    let grid = &plan.regions.first()?.grid;
    let go_home_early = shares(plan).any(|s| s.order != Order::Steps);
    let has_halves = grid.tile_rows == grid.tile_cols && grid.tile_rows.is_multiple_of(512);
    let may = cut.tile.is_none() && !wish.reproducible && go_home_early && has_halves;
    may.then_some(Cut { tile: Some(grid.tile_rows / 2), depth: Some(grid.depth) })
}

fn goes_home_all_the_time(plan: &Plan) -> bool {
    shares(plan).any(|s| matches!(s.order, Order::Columns(_) | Order::Corner))
}

fn shares(plan: &Plan) -> impl Iterator<Item = &Share> {
    plan.members.iter().flat_map(|member| &member.shares)
}

fn decide_with(
    problem: &Problem,
    cut: Cut,
    primary: &Machine,
    workers: &[Machine],
    wish: &Wish,
) -> Result<Decision, PlanError> {
    let machines = machines_of(primary, workers);
    let regions = regions(problem, cut, wish)?;
    let search = Search::new(problem, &machines, wish, &regions);
    let mut found = Found::default();
    let alone_too = wish.who == Preference::Fastest || workers.is_empty();
    if alone_too && (wish.strategy.is_none() || workers.is_empty()) {
        search.alone(&mut found);
    }
    search.teams(&mut found);
    let Some(best) = found.best() else { return Err(search.no_room()) };
    let alone = best.members.iter().all(|m| m.machine == 0);
    let left_out = search.left_out(&best, alone);
    let sentence = search.sentence(&best, &found, alone);
    Ok(Decision { alone, left_out, sentence, considered: found.considered(), plan: best })
}

/// The workers, where those of one kind have the same speed, and links: what was measured of each differs by what was in its
/// way just then. Equal machines get equal parts, which share the most panels.
///
/// The speed is the median: one machine that was disturbed does not move it. What disturbs makes slower, so the truth is above
/// the middle rather than below; but the highest is that of the luckiest moment. Of an even number it is the mean of the
/// middle two: where there are only two, nothing says which of them was disturbed.
fn with_even_speeds(workers: &[Machine]) -> Vec<Machine> {
    let mut even = workers.to_vec();
    let mut left: Vec<usize> = (0..workers.len()).collect();
    left.sort_by(|a, b| workers[*a].gflops.total_cmp(&workers[*b].gflops));
    while let Some(first) = left.first().map(|at| &workers[*at]) {
        let is_alike = |at: &usize| {
            let other = &workers[*at];
            let apart = (other.peak_gflops - first.peak_gflops).abs();
            std::ptr::eq(first, other)
                || first.threads == other.threads
                    && apart <= first.peak_gflops * PEAK_DOUBT
                    && other.gflops <= first.gflops * (1.0 + SPEED_DOUBT)
        };
        // Both stay in the order of their speeds.
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

/// The most memory that any one worker could use, whichever plan is chosen.
pub fn memory_to_ask(problem: &Problem, cut: Cut, wish: &Wish) -> Result<u64, PlanError> {
    let all = regions(problem, cut, wish)?;
    Ok(all.iter().map(|(_, r)| crate::memory_wanted(r, problem.element_bytes())).max().unwrap_or(0))
}

/// The regions of each number of levels that may be used.
fn regions(problem: &Problem, cut: Cut, wish: &Wish) -> Result<Vec<(u32, Vec<Region>)>, PlanError> {
    let levels: Vec<u32> = match wish.strategy {
        Some(strategy) => vec![strategy.levels],
        None if wish.reproducible || wish.elementwise => vec![0],
        None => vec![0, 1, 2],
    };
    let mut all = Vec::new();
    for levels in levels {
        match (Region::peeled(problem, cut, levels)?, wish.strategy) {
            (Some(regions), _) => all.push((levels, regions)),
            (None, None) => {}
            (None, Some(strategy)) => {
                let why = format!(
                    "{} x {} x {} cannot be halved {levels} times; use fewer levels",
                    problem.m, problem.n, problem.k
                );
                return Err(PlanError::Refused { strategy, why });
            }
        }
    }
    if let Some(strategy) = wish.strategy.filter(|s| s.levels > 0) {
        let classical = "use another strategy, or let Bramble choose";
        let why = match (wish.reproducible, wish.elementwise && problem.dtype.is_float()) {
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
