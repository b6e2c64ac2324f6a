//! `bramble plan`: shows how a product would be computed, its predicted time and the reasons, without computing it.
//!
//! Place in the flow: the same as multiply up to the decision; then text and a picture, or a JSON object, instead of
//! a product.
//!
//! Invariant: real machines are contacted, measured and planned for exactly as by multiply, so multiply would use the
//! plan that is shown.

use crate::args::{PlanArgs, sizes};
use crate::operands;
use bramble_cluster::args::TeamArgs;
use bramble_cluster::cluster_file::{self, ClusterFile};
use bramble_cluster::levels;
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec, check_kernel};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::Workload;
use bramble_plan::{
    Machine, MadeOperands, OperandSource, PlanOptions, Problem, TileSize, decide, memory_to_ask,
};
use bramble_primary::{PrimaryError, Survey, Surveyed, survey};
use bramble_report::exit::{Exit, Failure};
use bramble_report::plan::picture::PictureStyle;
use bramble_report::plan::view::PlanView;
use bramble_report::plan::{json, text};
use bramble_worker::host_name;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;

/// Characters per line, if COLUMNS is not set.
const COLUMNS: usize = 80;
/// Larger products are refused: their byte counts could overflow 64 bits. This limits multiply-adds, `JOBS_MAX`
/// limits jobs.
const WORK_MAX: f64 = (1u64 << 60) as f64;
/// See `WORK_MAX`.
const JOBS_MAX: f64 = (1u64 << 48) as f64;

/// The machines that a plan is made for.
pub(crate) struct Machines {
    pub(crate) primary: Machine,
    pub(crate) workers: Vec<Machine>,
    /// Power of each machine in watts, the primary first; `None` if unknown.
    pub(crate) watts: Vec<Option<f64>>,
    /// Whether to use the workers even if the primary alone is predicted to be faster.
    pub(crate) workers_only: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let problem = problem("plan", args)?;
    let machines = match machines(args, &problem)? {
        Completion::Signal(exit) => return Ok(exit),
        Completion::Done(machines) => machines,
    };
    let view = view(args, &problem, machines)?;
    if args.json {
        return bramble_report::out(format!("{}\n", json::json(&view)).as_bytes());
    }
    bramble_report::out(text::text(&view, look()).as_bytes())
}

/// The machines that the command line names or a cluster file describes.
pub(crate) fn machines(args: &PlanArgs, problem: &Problem) -> Result<Completion<Machines>, Failure> {
    check_kernel(args.cut.kernel(), problem.dtype)?;
    args.cut.check(problem.dtype)?;
    args.cut.check_relay(&args.team)?;
    let file = args.cluster.as_deref().map(described).transpose()?;
    let team = if file.is_some() { TeamSpec::Alone } else { TeamSpec::of(&args.team)? };
    match file {
        Some(file) if file.primary.is_some() => Ok(Completion::Done(described_only(&file, problem))),
        file => Ok(match done_or_signal(real(args, &args.team, problem, team))? {
            Completion::Signal(exit) => Completion::Signal(exit),
            Completion::Done(real) => Completion::Done(beside(real, file.as_ref(), problem)),
        }),
    }
}

/// The error for `--cluster` with a verb that needs real machines.
pub(crate) fn only_described(verb: &str, file: &Path) -> Failure {
    Failure::usage(format!(
        "--cluster {}: a cluster file only describes machines, and `bramble {verb}` needs real ones: name them with \
        -w, or use `bramble plan`",
        file.display()
    ))
}

fn described(path: &Path) -> Result<ClusterFile, Failure> {
    cluster_file::read(path).map_err(|why| Failure::usage(format!("--cluster {why}")))
}

/// The product, from the shapes of the operands or from sizes.
pub(crate) fn problem(verb: &str, args: &PlanArgs) -> Result<Problem, Failure> {
    let reads_c = args.beta != 0.0;
    let size = match (&args.a, &args.b) {
        (Some(text), None) => {
            let text = text.to_string_lossy();
            Some(sizes(&text).map_err(|why| {
                Failure::usage(format!("{verb}: {text}: name two operands, or sizes instead: {why}"))
            })?)
        }
        _ => args.size,
    };
    let problem = match (&args.a, &args.b, size) {
        (Some(a), Some(b), _) => {
            let operands::OperandPair { a, b, .. } = operands::open(a, b, &args.operands, args.team.memory)?;
            Problem {
                m: a.shape().rows,
                n: b.shape().cols,
                k: a.shape().cols,
                dtype: a.dtype(),
                reads_c,
                a_source: OperandSource::generated_if(a.generator().is_some()),
                b_source: OperandSource::generated_if(b.generator().is_some()),
            }
        }
        (_, _, Some(size)) => Problem {
            m: size.m,
            n: size.n,
            k: size.k,
            dtype: args.operands.dtype.unwrap_or(size.dtype),
            reads_c,
            a_source: OperandSource::Sent,
            b_source: OperandSource::Sent,
        },
        _ => return Err(Failure::usage(format!("{verb}: name two operands, or sizes: MxKxN"))),
    };
    let (m, n, k) = (problem.m, problem.n, problem.k);
    if problem.flops() == 0.0 {
        return Err(Failure::failed(format!(
            "C is {m}x{n}, k = {k}: there is nothing to multiply, so nothing to plan"
        )));
    }
    let cut = cut_of(args, &problem);
    let grid = bramble_plan::Grid::new(&problem, cut).map_err(|e| Failure::usage(e.to_string()))?;
    let jobs = grid.rows() as f64 * grid.cols() as f64 * grid.steps() as f64;
    if problem.flops() / 2.0 > WORK_MAX || jobs > JOBS_MAX {
        return Err(Failure::failed(format!(
            "C is {m}x{n}, k = {k}: {:.1e} multiply-adds in {jobs:.1e} jobs are more than can be planned; \
             use smaller sizes, or a larger --tile and --panel",
            problem.flops() / 2.0
        )));
    }
    Ok(problem)
}

/// Tile size and step depth: the user's, or a choice that suits the kernel.
fn cut_of(args: &PlanArgs, problem: &Problem) -> TileSize {
    args.cut.cut([problem.m, problem.n, problem.k], problem.dtype)
}

/// The constraints on the plan: the user's, and no levels of Strassen's method in the plan if the kernel already uses
/// it.
fn wish_of(args: &PlanArgs, problem: &Problem, workers_only: bool) -> PlanOptions {
    let wish = args.cut.wish(workers_only);
    let elementwise = wish.elementwise || levels::is_norm_wise(args.cut.kernel(), problem.dtype);
    // As for a product with -o, whose journal benefits from tiles that are complete early.
    let tiles_early = Some(MadeOperands { a: !problem.a_source.is_sent(), b: !problem.b_source.is_sent() });
    PlanOptions { elementwise, tiles_early, ..wish }
}

/// Contacts and measures real machines.
async fn real(
    args: &PlanArgs,
    team_args: &TeamArgs,
    problem: &Problem,
    team: TeamSpec,
) -> Result<Machines, Failure> {
    let purpose = Purpose {
        kernel: args.cut.kernel(),
        dtype: problem.dtype,
        flops: problem.flops(),
        work: Workload::Products,
    };
    let mut gathered = team.gather(team_args, purpose).await?;
    let mut missing = std::mem::take(&mut gathered.ends.missing);
    let is_local = gathered.is_local;
    let fail = |e: PrimaryError| GatheredTeam::failure(is_local, e);
    let wish = wish_of(args, problem, is_local);
    let ask = Survey {
        dtype: problem.dtype,
        flops: problem.flops(),
        memory_bytes: memory_to_ask(problem, cut_of(args, problem), &wish).map_err(|e| fail(e.into()))?,
        credits: args.cut.credits,
        kernel: gathered.kernel.clone(),
        one_kernel: args.cut.reproducible && problem.dtype.is_float(),
        name: host_name(),
        session_seed: bramble_cluster::random::seed()? as u32,
    };
    let (own, others) = survey(&ask, gathered.ends).await.map_err(fail)?;
    let mut answered: Vec<Surveyed> = Vec::new();
    for other in others {
        match other.map_err(fail) {
            Ok(surveyed) => answered.push(surveyed),
            Err(e) if team_args.degraded && e.exit == Exit::Unreachable => missing.push(e.text),
            Err(e) => return Err(e),
        }
    }
    missing.iter().for_each(|why| bramble_report::say(&format!("{why}; planning without it (--degraded)")));
    let workers: Vec<Machine> = answered.into_iter().map(|s| s.machine).collect();
    Ok(Machines {
        primary: own.machine,
        watts: vec![None; workers.len() + 1],
        workers,
        workers_only: is_local,
    })
}

/// The machines of a cluster file that describes the primary, too.
fn described_only(file: &ClusterFile, problem: &Problem) -> Machines {
    let all = file.primary.iter().chain(&file.machines);
    let mut machines: Vec<Machine> = all.map(|m| m.machine(problem.dtype, file.primary.as_ref())).collect();
    let primary = machines.remove(0);
    let watts = file.primary.iter().chain(&file.machines).map(|m| m.watts).collect();
    Machines { primary, workers: machines, watts, workers_only: false }
}

/// This machine as primary and the workers of a cluster file; without a file, the real machines.
fn beside(real: Machines, file: Option<&ClusterFile>, problem: &Problem) -> Machines {
    let Some(file) = file else { return real };
    let workers = file.machines.iter().map(|m| m.machine(problem.dtype, None)).collect();
    let watts = std::iter::once(None).chain(file.machines.iter().map(|m| m.watts)).collect();
    Machines { primary: real.primary, workers, watts, workers_only: false }
}

/// Makes the plan.
pub(crate) fn view(args: &PlanArgs, problem: &Problem, machines: Machines) -> Result<PlanView, Failure> {
    let Machines { primary, mut workers, watts, workers_only } = machines;
    if let (Some(credits), Some(_)) = (args.cut.credits, &args.cluster) {
        workers.iter_mut().for_each(|m| m.memory_bytes = m.memory_bytes.min(credits));
    }
    let began = Instant::now();
    let decision =
        decide(problem, cut_of(args, problem), &primary, &workers, &wish_of(args, problem, workers_only))
            .map_err(|e| Failure::from(PrimaryError::from(e.with_credits(args.cut.credits))))?;
    let plan_seconds = began.elapsed().as_secs_f64();
    let machines = std::iter::once(primary).chain(workers).collect();
    Ok(PlanView { decision, machines, watts, plan_seconds, is_inspected: false })
}

/// Width and colours of the terminal.
fn look() -> PictureStyle {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|n| *n > 0);
    PictureStyle {
        columns: columns.unwrap_or(COLUMNS),
        colours: std::io::stdout().is_terminal() && !is_set("NO_COLOR"),
    }
}
