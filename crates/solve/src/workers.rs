//! `solve` on workers: they factor and substitute, this process sends the columns and judges the solution.
//!
//! Place in the flow: `system.rs` comes here if the options name machines, after it has checked the shapes.
//!
//! Invariants: the solution is judged with the matrix as this process reads it, and with its own kernel. It is computed
//! in f64, as NumPy does, also for f32 matrices, and rounded at the end; with `--refine` by factors in f32, which `refined.rs`
//! corrects.
//!
//! Deliberately absent: the condition, which needs the factors in one place.

use crate::on_workers::{OpenTeam, accuse, display, refuse_alone, sessions, tell};
use crate::refined::{Judging, SolutionJudge};
use crate::report::{SolveReport, SolveTimes};
use crate::setup::check_kernels;
use crate::system::{SolveProblem, Solved, right_hand_sides};
use crate::workers_report::WorkersReport;
use crate::{SolveArgs, failure};
use bramble_cluster::team::{GatheredTeam, TeamSpec};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_lu::{LuError, LuOptions, Residual, accepted_error, norms};
use bramble_matrix::DType;
use bramble_primary::{
    ClusterOptions, RefinedRequest, SolutionCheck, SystemProgress, SystemRequest, SystemSolution,
    SystemSource, off_loop,
};
use bramble_report::exit::Failure;
use std::sync::Arc;
use std::time::Instant;

/// The machines that the options name; `None` if they name none.
pub(crate) fn team(args: &SolveArgs) -> Result<Option<TeamSpec>, Failure> {
    let spec = match TeamSpec::of(&args.factor.team(&args.machines))? {
        TeamSpec::Alone => {
            refuse_alone(args.factor.survive, args.factor.depth)?;
            return Ok(None);
        }
        spec => spec,
    };
    Ok(Some(spec))
}

/// Solves a system on workers.
pub(crate) fn solve(
    args: &SolveArgs,
    problem: &SolveProblem,
    dtype: DType,
    spec: TeamSpec,
) -> Result<Completion<Solved>, Failure> {
    args.factor.kernel()?;
    let work = async {
        let mut at = Instant::now();
        let mut lap = move || std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
        let threads = args.factor.own_threads(&args.machines);
        let in_type = |matrix: &bramble_matrix::Matrix| matrix.clone().converted(dtype);
        let (a, b) = (in_type(&problem.a)?, in_type(&problem.b)?);
        let (matrix, right) = (a.clone(), right_hand_sides(problem)?);
        let of_a = move || match matrix.dtype() {
            DType::F32 => norms::<f32>(&matrix, threads),
            _ => norms::<f64>(&matrix, threads),
        };
        let norms = off_loop("reading A", of_a).await?.map_err(failure)?;
        let read = lap();
        let display = display(args.factor.quiet, args.factor.json);
        // The run that follows a loss, or factors in f32, uses the same connections.
        let options = ClusterOptions { keeps_links: args.factor.survive > 0 || args.refine };
        let factored = if args.refine { DType::F32 } else { DType::F64 };
        let wanted = (args.factor.kernel, factored, a.shape().rows);
        let mut team =
            OpenTeam::open((spec, &args.factor.team(&args.machines)), wanted, display, options).await?;
        let kernels = check_kernels(threads)?;
        let judge =
            SolutionJudge::new(Judging { a: a.clone(), norms, b: right, kernels }, problem.width, dtype);
        let judge = Arc::new(judge);
        let judging = judge.clone();
        let check: SolutionCheck = Box::new(move |x| judging.check(x));
        let progress = |state: SystemProgress<'_>| tell(&state, args.factor.quiet);
        let full = request(args, &team.kernel, DType::F64, SystemSource::Given { a, b })?;
        let ran = if args.refine {
            let rounded = request(args, &team.kernel, DType::F32, judge.rounded()?)?;
            let refinement = judge.clone().refinement();
            let refined = RefinedRequest { rounded, full, refinement, check };
            team.cluster.solve_refined(refined, &team.display, &progress).await
        } else {
            team.cluster.solve(full, check, &team.display, &progress).await
        };
        let solution = ran.map_err(|e| GatheredTeam::failure(team.is_local, e))?;
        let whole = lap();
        team.close().await;
        singular(&solution)?;
        accuse(&solution.accusations());
        let (x, found, refinement) = judge.found(solution.is_refined)?;
        let times = SolveTimes {
            load: read + solution.setup_seconds,
            factor: solution.seconds,
            sent: solution.sent.seconds,
            solve: solution.refine_seconds,
            check: (whole - solution.setup_seconds - solution.seconds - solution.refine_seconds).max(0.0),
            ..SolveTimes::default()
        };
        let mut report = told(problem, &solution, &found, (dtype, times));
        report.refinement = refinement.filter(|_| args.refine);
        Ok(Solved { x, report })
    };
    done_or_signal(work)
}

fn request(
    args: &SolveArgs,
    kernel: &str,
    dtype: DType,
    source: SystemSource,
) -> Result<SystemRequest, Failure> {
    let sessions = sessions(args.factor.memory)?;
    let width = args.factor.block.map(usize::from);
    let survive = usize::from(args.factor.survive);
    let kernel = kernel.to_owned();
    Ok(SystemRequest {
        source,
        dtype,
        width,
        depth: args.factor.depth.map(usize::from),
        workers: None,
        outlives_losses: false,
        survive,
        kernel,
        sessions,
    })
}

/// Refuses a matrix without a pivot in some column.
fn singular(solution: &SystemSolution) -> Result<(), Failure> {
    LuError::of_pivots(solution.zero, solution.overflow).map_or(Ok(()), |why| Err(failure(why)))
}

/// The report.
fn told(
    problem: &SolveProblem,
    solution: &SystemSolution,
    found: &Residual,
    (dtype, seconds): (DType, SolveTimes),
) -> SolveReport {
    let SystemSolution { plan, losses, sent, .. } = solution;
    let at_workers = WorkersReport { plan: plan.clone(), losses: losses.clone(), sent: *sent };
    SolveReport {
        n: problem.n,
        width: problem.width,
        dtype,
        options: LuOptions { threads: at_workers.threads(), block: plan.width },
        kernel: "of the workers".to_owned(),
        memory_bytes: at_workers.memory_bytes(),
        at_workers: Some(at_workers),
        backward_error: found.backward_error,
        tolerance: accepted_error(problem.n, dtype),
        condition: None,
        refinement: None,
        seconds,
        output: None,
    }
}
