//! `bramble bench hpl` on workers: `primary` solves, this file repeats, checks and draws.
//!
//! Place in the flow: `mod.rs` comes here if the options name machines.
//!
//! Invariants: as in this process. The clock runs from the last column that was generated to the last element of the
//! solution; X is checked here, with a matrix that this process generates again. After a run that has lost a worker no
//! further run begins: it would measure another cluster.
//!
//! Deliberately absent: the official program, which starts its own processes on the machines (docs/solve.md).

use super::BenchHplArgs;
use super::point::{HplEstimate, HplPlace, HplPoint};
use super::stamp::Stamp;
use super::{draw, text};
use crate::on_workers::{OpenTeam, SURVIVE_ALONE, accuse, display, sessions, tell, when};
use bramble_cluster::team::{GatheredTeam, TeamSpec};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::KernelName;
use bramble_lu::{LuKernels, hpl};
use bramble_matrix::DType;
use bramble_primary::{
    ClusterOptions, LuLoss, PrimaryError, SystemProgress, SystemRequest, SystemSolution, SystemSource,
};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::counted;
use bramble_report::times::Times;
use bramble_worker::default_threads;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the verb on the machines that the options name; `None` if they name none.
pub(super) fn run(args: &BenchHplArgs) -> Option<Result<Exit, Failure>> {
    let team = args.machines.team();
    match TeamSpec::of(&team) {
        Ok(TeamSpec::Alone) if args.survive > 0 => Some(Err(Failure::usage(SURVIVE_ALONE))),
        Ok(TeamSpec::Alone) if args.nodes.is_empty() => None,
        Ok(TeamSpec::Alone) => {
            let text = "--nodes: needs workers; name some with -w, --hostfile, --await or --local";
            Some(Err(Failure::usage(text)))
        }
        Ok(spec) => Some(refuse(args).and_then(|()| on_workers(args, spec))),
        Err(e) => Some(Err(e)),
    }
}

/// Refuses options that have no meaning with workers.
fn refuse(args: &BenchHplArgs) -> Result<(), Failure> {
    let refused = [
        (!args.threads.is_empty(), "--threads: workers use their own; start them with --threads"),
        (
            args.official,
            "--official: starts processes on this machine only; docs/solve.md says how to run it on several",
        ),
        (args.size.is_empty(), "--size: name the order N; with workers it has no default"),
    ];
    match refused.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, text)) => Err(Failure::usage(text)),
        None => Ok(()),
    }
}

fn on_workers(args: &BenchHplArgs, spec: TeamSpec) -> Result<Exit, Failure> {
    let work = async {
        let (display, options) = (display(args.json, args.json), ClusterOptions { keeps_links: true });
        let mut team =
            OpenTeam::open((spec, &args.machines), (args.kernel, DType::F64), display, options).await?;
        let measured = measure(args, &mut team).await;
        team.close().await;
        Ok(measured)
    };
    match done_or_signal(work)? {
        Completion::Signal(exit) => Ok(exit),
        Completion::Done((points, failed)) => {
            let lines: String = match args.json {
                true => points.iter().map(HplPoint::json_line).collect(),
                false if args.nodes.len() > 1 => text::text(&points) + &text::scaling(&points),
                false => text::text(&points),
            };
            if !points.is_empty() {
                bramble_report::out(lines.as_bytes())?;
                draw(args, "HPL", &points)?;
            }
            if let Some(failure) = failed {
                return Err(failure);
            }
            let is_valid = points.iter().all(|point| point.check.is_valid());
            Ok(if is_valid { Exit::Done } else { Exit::Unverified })
        }
    }
}

/// Order, columns of a panel and number of workers.
type CaseKey = (usize, Option<usize>, Option<usize>);

/// A case, with its runs.
type Case = (CaseKey, Vec<Run>);

/// One run of a case.
struct Run {
    solution: SystemSolution,
    start: Stamp,
    end: Stamp,
    check: hpl::HplCheck,
}

/// Measures all cases, in turns. After a failed run no more are begun: without a lost worker, another cluster would be measured.
/// The cases with runs that have ended, and the failure.
async fn measure(args: &BenchHplArgs, team: &mut OpenTeam) -> (Vec<HplPoint>, Option<Failure>) {
    let or_none = |list: &[u16]| -> Vec<Option<usize>> {
        if list.is_empty() { vec![None] } else { list.iter().map(|x| Some(usize::from(*x))).collect() }
    };
    let mut cases: Vec<Case> = Vec::new();
    for order in args.size.iter().map(|n| *n as usize) {
        for nodes in or_none(&args.nodes) {
            let blocks = or_none(&args.nb).into_iter().map(|nb| nb.map(|nb| nb.min(order)));
            cases.extend(blocks.map(|nb| ((order, nb, nodes), Vec::new())));
        }
    }
    let (all, mut ended, mut failed) = (cases.len() * usize::from(args.rounds), 0, None);
    'rounds: for _ in 0..args.rounds {
        for (case, runs) in &mut cases {
            match one_run(args, team, *case).await {
                Ok(run) => {
                    let lost = run.solution.losses.workers.first().map(no_further_run);
                    runs.push(run);
                    if let Some(failure) = lost.filter(|_| ended + 1 < all) {
                        let told = told(failure, *case, (ended + 1, all));
                        failed = Some(GatheredTeam::failure(team.is_local, told));
                        break 'rounds;
                    }
                }
                Err(failure) => {
                    failed = Some(GatheredTeam::failure(team.is_local, told(failure, *case, (ended, all))));
                    break 'rounds;
                }
            }
            ended += 1;
        }
    }
    (cases.into_iter().filter_map(|(_, runs)| HplPoint::of_workers(runs)).collect(), failed)
}

/// Why no run begins after one that has survived a loss.
fn no_further_run(loss: &LuLoss) -> Failure {
    let why = format!("it was lost {}; no further run begins: it would measure another cluster", when(loss));
    PrimaryError::Unreachable { name: loss.name.clone(), why }.into()
}

/// A failure of one of several runs says which, and what has been measured before.
fn told(failure: Failure, (order, width, workers): CaseKey, (ended, all): (usize, usize)) -> Failure {
    if all == 1 {
        return failure;
    }
    let width = width.map_or_else(String::new, |width| format!(", NB = {width}"));
    let workers = workers.map_or_else(String::new, |count| format!(", {}", counted(count as u64, "worker")));
    let text = format!("{} (N = {order}{width}{workers}; {ended} of {all} runs have ended)", failure.text);
    Failure { text, ..failure }
}

async fn one_run(
    args: &BenchHplArgs,
    team: &mut OpenTeam,
    (order, width, workers): CaseKey,
) -> Result<Run, Failure> {
    let request = SystemRequest {
        source: SystemSource::Hpl(order),
        dtype: DType::F64,
        width,
        workers,
        // What the others measured would be another cluster.
        outlives_losses: false,
        survive: usize::from(args.survive),
        kernel: team.kernel.clone(),
        sessions: sessions(args.memory)?,
    };
    // Our own kernel, since a library that has computed wrongly may do so again.
    let threads = default_threads();
    let checking = LuKernels::open(Some(KernelName::Simd), DType::F64, 0.0, threads);
    let checking = checking.map_err(|e| Failure::failed(e.to_string()))?;
    let start = Cell::new(Stamp::now());
    let found: Arc<Mutex<Option<(Stamp, hpl::HplCheck)>>> = Arc::default();
    let judged = found.clone();
    let check = move |x: &[f64]| {
        let end = Stamp::now();
        let check = hpl::check(x, threads, &checking);
        *judged.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, check));
        check.is_valid()
    };
    let progress = |state: SystemProgress<'_>| match state {
        SystemProgress::Began => start.set(Stamp::now()),
        state => tell(&state, false),
    };
    let solution = team.cluster.solve(request, Box::new(check), &team.display, &progress).await?;
    accuse(&solution.accusations());
    if let Some(column) = solution.zero {
        return Err(Failure::failed(format!("--size {order}: all pivots of column {column} are 0")));
    }
    let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (end, check) = found.ok_or_else(|| Failure::failed("the solution was not checked"))?;
    Ok(Run { solution, start: start.get(), end, check })
}

impl HplPoint {
    /// The runs of a case on workers: the median of the times, the last run's stamps and plan, and the worst check. `None`
    /// without runs.
    fn of_workers(runs: Vec<Run>) -> Option<Self> {
        let worst = |a: &&Run, b: &&Run| a.check.scaled_residual.total_cmp(&b.check.scaled_residual);
        let check = runs.iter().max_by(worst)?.check;
        let times = Times::new(runs.iter().map(|run| run.solution.seconds).collect());
        let Run { solution, start, end, .. } = runs.into_iter().next_back()?;
        let plan = solution.plan;
        let estimate = HplEstimate {
            bound_seconds: plan.estimate.bound_seconds,
            bound_by: if plan.estimate.is_bound_by_links { "links" } else { "compute" },
            seconds: plan.estimate.seconds,
        };
        let (order, block, place) = (plan.order, plan.width, HplPlace::Workers(plan, solution.losses));
        Some(Self { order, block, place, times, start, end, check, estimate, official: None })
    }
}
