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
mod view;

use crate::args::{PlanArgs, TeamArgs};
use crate::cluster_file::{self, ClusterFile};
use crate::exit::{Exit, Failure};
use crate::operands;
use crate::team::{Gathered, Purpose, Team, check_kernel};
use crate::until::{Ended, done_or_signal};
use bramble_plan::{Machine, Problem, decide, memory_to_ask};
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
struct Machines {
    primary: Machine,
    workers: Vec<Machine>,
    /// Power of each of them, the primary first, where it is known.
    watts: Vec<Option<f64>>,
    /// Whether the workers are there to be used, whatever is predicted.
    workers_only: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let problem = problem(args)?;
    check_kernel(args.cut.kernel(), problem.dtype)?;
    let file = args.cluster.as_deref().map(described).transpose()?;
    let team = if file.is_some() { Team::Alone } else { Team::of(&args.team)? };
    let machines = match file {
        Some(file) if file.primary.is_some() => described_only(&file, &problem),
        file => match done_or_signal(real(args, &args.team, &problem, team))? {
            Ended::Signal(exit) => return Ok(exit),
            Ended::Done(real) => beside(real, file.as_ref(), &problem),
        },
    };
    let view = view(args, &problem, machines)?;
    if args.json {
        return crate::out(format!("{}\n", json::json(&view)).as_bytes());
    }
    crate::out(text::text(&view, look()).as_bytes())
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
fn problem(args: &PlanArgs) -> Result<Problem, Failure> {
    let reads_c = args.beta != 0.0;
    let problem = match (&args.a, &args.b, args.size) {
        (Some(a), Some(b), _) => {
            let (a, b) = operands::open(a, b, &args.operands)?;
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
        _ => return Err(Failure::usage("plan: name two operands, or --size MxKxN")),
    };
    let (m, n, k) = (problem.m, problem.n, problem.k);
    if problem.flops() == 0.0 {
        return Err(Failure::failed(format!(
            "C is {m}x{n}, k = {k}: there is nothing to multiply, so nothing to plan"
        )));
    }
    let cut = args.cut.cut();
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

/// Asks the machines that are there.
async fn real(
    args: &PlanArgs,
    team_args: &TeamArgs,
    problem: &Problem,
    team: Team,
) -> Result<Machines, Failure> {
    let purpose = Purpose { kernel: args.cut.kernel(), dtype: problem.dtype, flops: problem.flops() };
    let gathered = team.gather(team_args, purpose).await?;
    let is_local = gathered.is_local;
    let fail = |e: PrimaryError| Gathered::failure(is_local, e);
    let wish = args.cut.wish(is_local);
    let ask = Survey {
        dtype: problem.dtype,
        flops: problem.flops(),
        memory_bytes: memory_to_ask(problem, args.cut.cut(), &wish).map_err(|e| fail(e.into()))?,
        credits: args.cut.credits,
        kernel: gathered.kernel.clone(),
        one_kernel: args.cut.reproducible && problem.dtype.is_float(),
        name: host_name(),
        session_seed: crate::seed()? as u32,
    };
    let (own, others) = survey(&ask, gathered.ends).await.map_err(fail)?;
    let others: Vec<Surveyed> = others.into_iter().collect::<Result<_, _>>().map_err(fail)?;
    let workers: Vec<Machine> = others.into_iter().map(|s| s.machine).collect();
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

fn view(args: &PlanArgs, problem: &Problem, machines: Machines) -> Result<View, Failure> {
    let Machines { primary, mut workers, watts, workers_only } = machines;
    if let (Some(credits), Some(_)) = (args.cut.credits, &args.cluster) {
        workers.iter_mut().for_each(|m| m.memory_bytes = m.memory_bytes.min(credits));
    }
    let began = Instant::now();
    let decision = decide(problem, args.cut.cut(), &primary, &workers, &args.cut.wish(workers_only))
        .map_err(|e| Failure::from(PrimaryError::from(e)))?;
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
