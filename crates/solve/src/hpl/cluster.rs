//! `bramble bench hpl` on workers: `primary` solves, this file repeats, checks and draws.
//!
//! Place in the flow: `mod.rs` comes here if the options name machines. A run of HPL-MxP is in `mxp_cluster.rs`.
//!
//! Invariants: as in this process. The clock runs from the last column that was generated to the last element of the
//! solution; X is checked here, with a matrix that this process generates again. After a run that has lost a worker no
//! further run begins: it would measure another cluster. The official program runs once the workers are free again.

use super::args::SIZE_MAX;
use super::mxp_report::{self, MxpPoint};
use super::official::Official;
use super::point::{HplEstimate, HplPlace, HplPoint};
use super::stamp::Stamp;
use super::{BenchHplArgs, OFFICIAL_MXP, checking, draw, mxp_cluster, text};
use crate::on_workers::{OpenTeam, accuse, display, refuse_alone, sessions, tell};
use bramble_cluster::team::{GatheredTeam, TeamSpec};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_lu::hpl;
use bramble_matrix::DType;
use bramble_primary::{
    ClusterOptions, LuLoss, PrimaryError, SystemProgress, SystemRequest, SystemSolution, SystemSource,
};
use bramble_report::exit::{Exit, Failure};
use bramble_report::losses;
use bramble_report::quantity::counted;
use bramble_report::times::Times;
use bramble_worker::default_threads;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the verb on the machines that the options name; `None` if they name none.
pub(super) fn run(args: &BenchHplArgs, official: Option<&Official>) -> Option<Result<Exit, Failure>> {
    let team = args.machines.team();
    match TeamSpec::of(&team) {
        Ok(TeamSpec::Alone) if args.nodes.is_empty() => refuse_alone(args.survive, args.depth).err().map(Err),
        Ok(TeamSpec::Alone) => {
            let text = "--nodes: needs workers; name some with -w, --hostfile, --await or --local";
            Some(Err(Failure::usage(text)))
        }
        Ok(spec) => Some(refuse(args, &spec).and_then(|()| on_workers(args, spec, official))),
        Err(e) => Some(Err(e)),
    }
}

/// Refuses options that have no meaning with workers.
fn refuse(args: &BenchHplArgs, spec: &TeamSpec) -> Result<(), Failure> {
    let is_elsewhere = !matches!(spec, TeamSpec::Local(_));
    let refused = [
        (!args.threads.is_empty(), "--threads: workers use their own; start them with --threads"),
        (args.official && args.mxp, OFFICIAL_MXP),
        (
            args.official && args.launcher.is_none() && is_elsewhere,
            "--official: with workers on other machines, add --launcher with the command that starts MPI's processes on them, as \
             in --launcher 'mpirun --hostfile hosts'",
        ),
    ];
    match refused.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, text)) => Err(Failure::usage(text)),
        None => Ok(()),
    }
}

fn on_workers(args: &BenchHplArgs, spec: TeamSpec, official: Option<&Official>) -> Result<Exit, Failure> {
    let is_here = matches!(spec, TeamSpec::Local(_));
    let work = async {
        let dtype = if args.mxp { DType::F32 } else { DType::F64 };
        let (display, options) = (display(args.json, args.json), ClusterOptions { keeps_links: true });
        let largest = args.size.iter().max().copied().unwrap_or(SIZE_MAX);
        let wanted = (args.kernel, dtype, u64::from(largest));
        let mut team = OpenTeam::open((spec, &args.machines.team()), wanted, display, options).await?;
        let measured = measure(args, &mut team).await;
        team.close().await;
        Ok(measured)
    };
    match done_or_signal(work)? {
        Completion::Signal(exit) => Ok(exit),
        Completion::Done((cases, failed)) => {
            let official = official.filter(|_| failed.is_none());
            let exit = match args.mxp {
                true => tell_mxp(args, cases)?,
                false => tell_hpl(args, cases, official.map(|official| (official, is_here)))?,
            };
            failed.map_or(Ok(exit), Err)
        }
    }
}

/// Prints the runs of all cases of HPL, with the official program's beside them if it is given, and whether all workers are on
/// this machine.
fn tell_hpl(
    args: &BenchHplArgs,
    cases: Vec<Vec<Run>>,
    official: Option<(&Official, bool)>,
) -> Result<Exit, Failure> {
    let mut points: Vec<HplPoint> = cases.into_iter().filter_map(HplPoint::of_workers).collect();
    let compared = official.map(|(official, is_here)| done_or_signal(official.beside(&mut points, is_here)));
    // Our own results are measured, however the official program ends.
    let lines: String = match args.json {
        true => points.iter().map(HplPoint::json_line).collect(),
        false if args.nodes.len() > 1 => text::text(&points) + &text::scaling(&points),
        false => text::text(&points),
    };
    if !points.is_empty() {
        bramble_report::out(lines.as_bytes())?;
        draw(args, "HPL", &points)?;
    }
    match compared.transpose()? {
        Some(Completion::Signal(exit)) => Ok(exit),
        _ => Ok(exit_of(points.iter().all(|point| point.check.is_valid()))),
    }
}

/// The same for HPL-MxP.
fn tell_mxp(args: &BenchHplArgs, cases: Vec<Vec<Run>>) -> Result<Exit, Failure> {
    let points: Vec<MxpPoint> = cases.into_iter().filter_map(MxpPoint::of_workers).collect();
    let lines: String =
        if args.json { points.iter().map(MxpPoint::json_line).collect() } else { mxp_report::text(&points) };
    if !points.is_empty() {
        bramble_report::out(lines.as_bytes())?;
        draw(args, "HPL-MxP", &points)?;
    }
    Ok(exit_of(points.iter().all(|point| point.check.is_valid())))
}

fn exit_of(are_valid: bool) -> Exit {
    if are_valid { Exit::Done } else { Exit::Unverified }
}

/// Order, columns of a panel and number of workers.
pub(super) type CaseKey = (usize, Option<usize>, Option<usize>);

/// A case, with its runs.
type Case = (CaseKey, Vec<Run>);

/// One run of a case.
pub(super) struct Run {
    pub(super) solution: SystemSolution,
    pub(super) start: Stamp,
    pub(super) end: Stamp,
    pub(super) check: hpl::HplCheck,
    /// HPL-MxP's iteration after the first solution; nothing for HPL.
    pub(super) iteration: MxpIteration,
}

/// How GMRES corrected a solution.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MxpIteration {
    pub(super) seconds: f64,
    pub(super) count: usize,
}

/// Measures all cases, in turns. After a failed run no more are begun: without a lost worker, another cluster would be measured.
/// The runs of each case that have ended, and the failure.
async fn measure(args: &BenchHplArgs, team: &mut OpenTeam) -> (Vec<Vec<Run>>, Option<Failure>) {
    let or_none = |list: &[u16]| -> Vec<Option<usize>> {
        if list.is_empty() { vec![None] } else { list.iter().map(|x| Some(usize::from(*x))).collect() }
    };
    let mut systems: Vec<(usize, Option<usize>)> = Vec::new();
    for order in &args.size {
        systems.extend(or_none(&args.nodes).into_iter().map(|nodes| (*order as usize, nodes)));
    }
    if args.size.is_empty() {
        for nodes in or_none(&args.nodes) {
            match largest(args, team, nodes).await {
                Ok(order) => systems.push((order, nodes)),
                Err(failure) => return (Vec::new(), Some(GatheredTeam::failure(team.is_local, failure))),
            }
        }
    }
    let mut cases: Vec<Case> = Vec::new();
    for (order, nodes) in systems {
        let blocks = or_none(&args.nb).into_iter().map(|nb| nb.map(|nb| nb.min(order)));
        cases.extend(blocks.map(|nb| ((order, nb, nodes), Vec::new())));
    }
    let (all, mut ended, mut failed) = (cases.len() * usize::from(args.rounds), 0, None);
    'rounds: for _ in 0..args.rounds {
        for (case, runs) in &mut cases {
            let run = match args.mxp {
                true => mxp_cluster::one_run(args, team, *case).await,
                false => one_run(args, team, *case).await,
            };
            match run {
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
    (cases.into_iter().map(|(_, runs)| runs).collect(), failed)
}

/// The order that fills the memory of that number of workers.
async fn largest(args: &BenchHplArgs, team: &mut OpenTeam, nodes: Option<usize>) -> Result<usize, Failure> {
    let most = SIZE_MAX as usize;
    let system = match args.mxp {
        true => (SystemSource::HplMxp(most), DType::F32),
        false => (SystemSource::Hpl(most), DType::F64),
    };
    let width = args.nb.iter().max().map(|nb| usize::from(*nb));
    let request = request(args, team, system, (most, width, nodes))?;
    let order = team.cluster.largest_system(&request, &team.display).await?;
    let memory = nodes.map_or_else(|| "the workers".to_owned(), |count| counted(count as u64, "worker"));
    bramble_report::say(&format!(
        "bramble: N = {order}, which fills the memory of {memory}; --size sets another"
    ));
    Ok(order)
}

/// Why no run begins after one that has survived a loss.
fn no_further_run(loss: &LuLoss) -> Failure {
    let why = format!(
        "it was lost {}; no further run begins: it would measure another cluster",
        losses::when(loss)
    );
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

/// The request for a run of a case.
pub(super) fn request(
    args: &BenchHplArgs,
    team: &OpenTeam,
    (source, dtype): (SystemSource, DType),
    (_, width, workers): CaseKey,
) -> Result<SystemRequest, Failure> {
    Ok(SystemRequest {
        source,
        dtype,
        width,
        depth: args.depth.map(usize::from),
        workers,
        // What the others measured would be another cluster.
        outlives_losses: false,
        survive: usize::from(args.survive),
        kernel: team.kernel.clone(),
        sessions: sessions(args.memory)?,
    })
}

async fn one_run(args: &BenchHplArgs, team: &mut OpenTeam, key: CaseKey) -> Result<Run, Failure> {
    let (order, ..) = key;
    let request = request(args, team, (SystemSource::Hpl(order), DType::F64), key)?;
    let threads = default_threads();
    let checking = checking(threads)?;
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
    Ok(Run { solution, start: start.get(), end, check, iteration: MxpIteration::default() })
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
        let estimate = HplEstimate::of_workers(&plan);
        let (order, block, place) = (plan.order, plan.width, HplPlace::Workers(plan, solution.losses));
        Some(Self { order, block, place, times, start, end, check, estimate, official: None })
    }
}
