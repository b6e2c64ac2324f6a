//! `bramble plan`: how a product would be computed, what it would take, and why. It computes nothing.
//!
//! Place in the flow: as multiply up to the decision; then text and a picture, or a JSON object, instead of a product.
//!
//! Invariant: real machines are asked, measured and decided about as multiply does it, so that what is said here is what
//! would happen there.

pub(crate) mod json;
pub(crate) mod owners;
mod picture;
pub(crate) mod text;
pub(crate) mod view;

use crate::args::{PlanArgs, TeamArgs, sizes};
use crate::cluster_file::{self, ClusterFile};
use crate::exit::{Exit, Failure};
use crate::levels;
use crate::operands;
use crate::team::{Gathered, Purpose, Team, check_kernel};
use crate::until::{Ended, done_or_signal};
use bramble_plan::{Cut, Machine, Making, Problem, Wish, decide, memory_to_ask};
use bramble_primary::{PrimaryError, Survey, Surveyed, survey};
use bramble_worker::host_name;
use picture::Look;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;
use view::View;

/// Characters in a line, where nobody says otherwise.
const COLUMNS: usize = 80;
/// Multiply-adds, and jobs, beyond which no product is planned: its bytes would be no numbers of 64 bits.
const WORK_MAX: f64 = (1u64 << 60) as f64;
/// See `WORK_MAX`.
const JOBS_MAX: f64 = (1u64 << 48) as f64;

/// The machines that a plan is made for.
pub(crate) struct Machines {
    pub(crate) primary: Machine,
    pub(crate) workers: Vec<Machine>,
    /// Power of each of them, the primary first, where it is known.
    pub(crate) watts: Vec<Option<f64>>,
    /// Whether the workers are there to be used, whatever is predicted.
    pub(crate) workers_only: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let problem = problem("plan", args)?;
    let machines = match machines(args, &problem)? {
        Ended::Signal(exit) => return Ok(exit),
        Ended::Done(machines) => machines,
    };
    let view = view(args, &problem, machines)?;
    if args.json {
        return crate::out(format!("{}\n", json::json(&view)).as_bytes());
    }
    crate::out(text::text(&view, look()).as_bytes())
}

/// The machines that are named, or described.
pub(crate) fn machines(args: &PlanArgs, problem: &Problem) -> Result<Ended<Machines>, Failure> {
    check_kernel(args.cut.kernel(), problem.dtype)?;
    args.cut.check(problem.dtype)?;
    args.cut.check_relay(&args.team)?;
    let file = args.cluster.as_deref().map(described).transpose()?;
    let team = if file.is_some() { Team::Alone } else { Team::of(&args.team)? };
    match file {
        Some(file) if file.primary.is_some() => Ok(Ended::Done(described_only(&file, problem))),
        file => Ok(match done_or_signal(real(args, &args.team, problem, team))? {
            Ended::Signal(exit) => Ended::Signal(exit),
            Ended::Done(real) => Ended::Done(beside(real, file.as_ref(), problem)),
        }),
    }
}

/// A cluster file where machines are needed that compute or answer.
pub(crate) fn only_described(verb: &str, file: &Path) -> Failure {
    Failure::usage(format!(
        "--cluster {}: a cluster file describes machines and `bramble {verb}` reaches them: name them with -w, or use \
         `bramble plan`",
        file.display()
    ))
}

fn described(path: &Path) -> Result<ClusterFile, Failure> {
    cluster_file::read(path).map_err(|why| Failure::usage(format!("--cluster {why}")))
}

/// The product, by its operands' shapes or by sizes alone.
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
            let operands::Pair { a, b, .. } = operands::open(a, b, &args.operands, args.team.memory)?;
            Problem {
                m: a.shape().rows,
                n: b.shape().cols,
                k: a.shape().cols,
                dtype: a.dtype(),
                reads_c,
                sends_a: a.generator().is_none(),
                sends_b: b.generator().is_none(),
            }
        }
        (_, _, Some(size)) => Problem {
            m: size.m,
            n: size.n,
            k: size.k,
            dtype: args.operands.dtype.unwrap_or(size.dtype),
            reads_c,
            sends_a: true,
            sends_b: true,
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

/// Tiles and steps as they are asked for, or as the kernel wants them.
fn cut_of(args: &PlanArgs, problem: &Problem) -> Cut {
    args.cut.cut([problem.m, problem.n, problem.k], problem.dtype)
}

/// What is wanted of the plan, with what goes with the kernel: levels of a plan do not go with a kernel's.
fn wish_of(args: &PlanArgs, problem: &Problem, workers_only: bool) -> Wish {
    let wish = args.cut.wish(workers_only);
    let elementwise = wish.elementwise || levels::is_norm_wise(args.cut.kernel(), problem.dtype);
    // As for a product with -o, which keeps a journal.
    let tiles_early = Some(Making { a: !problem.sends_a, b: !problem.sends_b });
    Wish { elementwise, tiles_early, ..wish }
}

/// Asks the machines that are there.
async fn real(
    args: &PlanArgs,
    team_args: &TeamArgs,
    problem: &Problem,
    team: Team,
) -> Result<Machines, Failure> {
    let purpose = Purpose { kernel: args.cut.kernel(), dtype: problem.dtype, flops: problem.flops() };
    let mut gathered = team.gather(team_args, purpose).await?;
    let mut missing = std::mem::take(&mut gathered.ends.missing);
    let is_local = gathered.is_local;
    let fail = |e: PrimaryError| Gathered::failure(is_local, e);
    let wish = wish_of(args, problem, is_local);
    let ask = Survey {
        dtype: problem.dtype,
        flops: problem.flops(),
        memory_bytes: memory_to_ask(problem, cut_of(args, problem), &wish).map_err(|e| fail(e.into()))?,
        credits: args.cut.credits,
        kernel: gathered.kernel.clone(),
        one_kernel: args.cut.reproducible && problem.dtype.is_float(),
        name: host_name(),
        session_seed: crate::seed()? as u32,
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
    missing.iter().for_each(|why| crate::say(&format!("{why}; planned without it (--degraded)")));
    let workers: Vec<Machine> = answered.into_iter().map(|s| s.machine).collect();
    Ok(Machines {
        primary: own.machine,
        watts: vec![None; workers.len() + 1],
        workers,
        workers_only: is_local,
    })
}

/// Machines of a file, the primary too.
fn described_only(file: &ClusterFile, problem: &Problem) -> Machines {
    let all = file.primary.iter().chain(&file.machines);
    let mut machines: Vec<Machine> = all.map(|m| m.machine(problem.dtype, file.primary.as_ref())).collect();
    let primary = machines.remove(0);
    let watts = file.primary.iter().chain(&file.machines).map(|m| m.watts).collect();
    Machines { primary, workers: machines, watts, workers_only: false }
}

/// The machines of a file beside this one, where there is a file.
fn beside(real: Machines, file: Option<&ClusterFile>, problem: &Problem) -> Machines {
    let Some(file) = file else { return real };
    let workers = file.machines.iter().map(|m| m.machine(problem.dtype, None)).collect();
    let watts = std::iter::once(None).chain(file.machines.iter().map(|m| m.watts)).collect();
    Machines { primary: real.primary, workers, watts, workers_only: false }
}

/// Decides.
pub(crate) fn view(args: &PlanArgs, problem: &Problem, machines: Machines) -> Result<View, Failure> {
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
    Ok(View { decision, machines, watts, plan_seconds })
}

/// What the terminal can show.
fn look() -> Look {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|n| *n > 0);
    Look {
        columns: columns.unwrap_or(COLUMNS),
        colours: std::io::stdout().is_terminal() && !is_set("NO_COLOR"),
    }
}
