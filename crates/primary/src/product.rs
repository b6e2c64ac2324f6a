//! One product, from opened operands to a verified C.

mod empty;
mod planned;
mod resident;

use crate::account::{
    CheckReport, MachineLoss, MachineReport, PlanReport, ProductProgress, Report, TeamChanges, losses, moved,
    relay_after,
};
use crate::bodies::Bodies;
use crate::cluster::{Cluster, TaskProgress, sketch_of};
use crate::gathering::{Participants, connect_members, select_sessions};
use crate::inspector::Inspector;
use crate::levels;
use crate::resume::{self, Resumed};
use crate::run::{InspectionResult, PreparedProduct, ResumePoint, RunOptions, RunOutcome, run};
use crate::stop::Stop;
use crate::strassen;
use bramble_arrays::ArrayOperand;
use bramble_link::LocalFuture;
use bramble_matrix::number::to_u64;
use bramble_matrix::{Matrix, Output, Sealed, Shape};
use bramble_plan::{Decision, OperandSource, Plan, PlanOptions, Problem, TileSize};
use bramble_record::journal::{JournalFile, JournalOptions, JournalSubject};
use bramble_record::log::{EventLog, EventRecorder, Phase};
use bramble_sessions::{PrimaryError, RelayReport, SecretSource, Unreachable};
use bramble_verify::Effort;
use empty::without_product;
pub use planned::ProductPlan;
pub(crate) use planned::plan_only;
use planned::{PlannedProduct, planned};
use resident::{check_lost_parts, operand_layouts, resident_panels};
use std::rc::Rc;
use std::time::Instant;

/// A product to compute, and how.
pub struct Request {
    /// Left operand, already transposed and converted as asked.
    pub a: ProductOperand,
    /// Right operand.
    pub b: ProductOperand,
    /// The old C, if β ≠ 0.
    pub old_c: Option<Matrix>,
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// The output for C.
    pub output: Output,
    /// Tile size and step depth, if not the defaults.
    pub cut: TileSize,
    /// Kernel by name, or `auto`.
    pub kernel: String,
    /// The user's wishes for the plan.
    pub wish: PlanOptions,
    /// Names the strategy or kernel that replaces one that the user has ordered, and the reason. `None` in a new request.
    pub instead: Option<String>,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
    /// The verification of C.
    pub check: CheckRequest,
    /// When the process began its work.
    pub began: Instant,
    /// The event log, if one is wanted.
    pub log: Option<EventLog>,
    /// The journal's options, if one is kept; with the journal of an earlier run, if this one resumes it.
    pub journal: Option<JournalOptions>,
    /// Tells whether the user asked for the end.
    pub stop: Rc<Stop>,
}

/// An operand of a product.
pub type ProductOperand = ArrayOperand<Matrix>;

/// The sessions of a product.
pub struct SessionRequest {
    /// Source of session numbers, which workers see.
    pub seed: u32,
    /// Source of the secrets with which relaying workers authenticate each other.
    pub random: SecretSource,
    /// Name by which the primary introduces itself.
    pub name: String,
    /// Most bytes that the primary may have outstanding at each worker.
    pub credits: Option<u64>,
    /// Whether idle machines steal work that a slow machine has not been sent.
    pub steals: bool,
    /// Whether processor time is accounted for, here and at workers.
    pub account: bool,
    /// Whether the product runs without workers that do not answer; otherwise a silent worker is an error.
    pub degraded: bool,
}

/// The verification of a product.
#[derive(Clone, Copy)]
pub struct CheckRequest {
    /// How thoroughly C is checked.
    pub effort: Effort,
    /// Threads for the check.
    pub threads: usize,
    /// Source of its random vectors, which workers must not be able to guess.
    pub seed: u64,
}

/// Observes a product while it runs.
pub trait ProductObserver {
    /// The plan has been chosen, with a sentence that says why.
    fn decided(&self, decision: &Decision);
    /// Workers have been introduced to each other.
    fn introduced(&self, relay: &RelayReport);
    /// A link between two relaying workers broke before C was complete.
    fn parted(&self, pair: &Unreachable);
    /// A named machine could not be used; the product runs without it.
    fn missing(&self, why: &str);
    /// The run resumes an earlier one.
    fn resumed(&self, resumed: &Resumed);
    /// A machine was lost; its unfinished work is reassigned. `helps`: whether it may usefully reconnect.
    fn lost(&self, name: &str, why: &str, helps: bool);
    /// `tiles` tiles of C are wrong, `text` describes one, and `makers` may have made them; other machines recompute them.
    fn wrong(&self, makers: &[String], tiles: usize, text: &str);
    /// A machine has joined, and takes a part of the remaining work.
    fn joined(&self, name: &str);
    /// A machine wanted to join, and may not take part.
    fn turned_away(&self, why: &PrimaryError);
    /// Called regularly.
    fn progress(&self, progress: &ProductProgress);
    /// C is complete and is being checked.
    fn verifying(&self);
    /// Called regularly while machines take, make or send parts of placed matrices.
    fn tasks(&self, progress: TaskProgress);
}

/// A finished product.
pub struct Finished {
    /// C, not yet under its final name.
    pub sealed: Sealed,
    /// The report.
    pub report: Report,
    /// The event log, if one was wanted.
    pub log: Option<EventLog>,
    /// The journal, to be removed when C has its final name.
    pub journal: Option<JournalFile>,
}

/// Prepares a request before any worker has to wait, since this may read A, B and C: replaces a named strategy of Strassen's
/// method whose sums could overflow; and if the request resumes an earlier run, checks the operands and the tiles of that run.
/// Every request is prepared; most are returned unchanged.
pub fn prepared<'f>(
    request: Request,
    watch: &'f dyn ProductObserver,
) -> LocalFuture<'f, Result<Request, PrimaryError>> {
    Box::pin(async move {
        let problem = problem(&request)?;
        let request = strassen::replace_unsafe_strategy(request, &problem).await?;
        resume::check(request, &problem, watch).await
    })
}

/// What the journal's head says of a product.
fn journal_subject(request: &Request, problem: &Problem, kernel: String, plan: &Plan) -> JournalSubject {
    JournalSubject {
        a: request.a.matrix.clone(),
        b: request.b.matrix.clone(),
        old_c: request.old_c.clone().filter(|_| problem.reads_c),
        alpha: request.alpha,
        beta: request.beta,
        kernel,
        plan: plan.clone(),
        threads: request.check.threads,
    }
}

/// Computes and checks a product on the machines of a cluster. Their connections are idle again afterwards, also after an
/// error.
pub(crate) async fn one_product(
    mut request: Request,
    cluster: &mut Cluster,
    watch: &dyn ProductObserver,
) -> Result<Finished, PrimaryError> {
    let problem = problem(&request)?;
    if problem.flops() == 0.0 || request.alpha == 0.0 {
        return without_product(request, &problem).await;
    }
    let mut recorder = EventRecorder::new(request.log.take());
    let planned = planned(request, problem, cluster, &mut recorder, watch).await?;
    let PlannedProduct { mut request, problem, resident, gathered, decision, kernel, .. } = planned;
    let Participants { local, workers, missing, lost, join_terms, rules, .. } = gathered;
    watch.decided(&decision);
    let before = request.journal.as_ref().and_then(|journal| journal.before.as_deref());
    let (sessions, reserve) = match before {
        None => select_sessions(&decision, local, workers, &mut cluster.idle).await,
        Some(_) => resume::resuming_machines((local, workers), request.wish.who),
    };
    let before = before.map(|journal| ResumePoint::of(journal, sessions.len()));
    if decision.plan.relay {
        recorder.phase(Phase::Introducing);
    }
    let mut connected = connect_members(&decision.plan, sessions, request.sessions.random, watch).await?;
    connected.add_reserve(reserve);
    let tiles = levels::tile_levels(&rules, decision.plan.regions.first().map(|region| &region.grid));
    let inspector =
        Inspector::of(&request, decision.plan.strategy.levels, tiles, sketch_of(&request, &cluster.arrays));
    let members = if before.is_some() { 0 } else { decision.plan.members.len() };
    let subject =
        request.journal.is_some().then(|| journal_subject(&request, &problem, kernel, &decision.plan));
    let journal = request.journal.take().zip(subject);
    let relay = decision.plan.relay.then(|| connected.report.clone());
    let (began, effort) = (request.began, request.check.effort);
    let panels = resident_panels(resident.as_ref(), &cluster.arrays)?;
    let numbers: Vec<u64> = connected.sessions.iter().map(|session| session.known.number).collect();
    let product = PreparedProduct {
        plan: decision.plan.clone(),
        operands: operand_layouts(&request, &problem),
        bodies: Bodies::new(request.a.matrix, request.b.matrix, request.old_c, panels),
        output: request.output,
        connected,
    };
    let (SessionRequest { steals, account, credits, .. }, stop) = (request.sessions, request.stop);
    let options =
        RunOptions { steals, account, credits, join_terms, recorder, journal, before, stop, inspector };
    let outcome = run(product, watch, options, &mut cluster.idle).await?;
    check_lost_parts(resident.as_ref(), &cluster.arrays, (outcome.state.losses(), &numbers)).await?;
    let instead = request.instead;
    let before_run = BeforeRun { problem, decision, members, began, effort, instead, missing, lost, relay };
    finished(before_run, outcome, watch)
}

/// What the report says about the time before the run.
struct BeforeRun {
    problem: Problem,
    decision: Decision,
    /// Machines that the report names even if they did nothing; the members of the plan come first.
    members: usize,
    /// When the process began its work.
    began: Instant,
    effort: Effort,
    instead: Option<String>,
    missing: Vec<String>,
    /// Machines that were lost before the run.
    lost: Vec<MachineLoss>,
    /// Links between workers, if the plan relays panels.
    relay: Option<RelayReport>,
}

/// Seals C and makes the report of a run.
fn finished(
    before: BeforeRun,
    outcome: RunOutcome,
    watch: &dyn ProductObserver,
) -> Result<Finished, PrimaryError> {
    let BeforeRun { problem, decision, members, began, effort, instead, missing, mut lost, relay } = before;
    let introduced = relay.as_ref().map_or(0, |relay| relay.unreachable.len());
    let relay = relay.map(|relay| relay_after(relay, outcome.parted, &outcome.state, &outcome.machines));
    let broken = relay.as_ref().and_then(|relay| relay.unreachable.get(introduced..));
    broken.into_iter().flatten().for_each(|pair| watch.parted(pair));
    let sealed = outcome.output.seal()?;
    let wire = |f: fn(&MachineReport) -> u64| outcome.machines.iter().map(f).sum();
    let InspectionResult { verify, wrong, suspect } = outcome.inspected;
    lost.extend(losses(&outcome.state, &outcome.machines));
    let plan = PlanReport {
        strategy: decision.plan.strategy.to_string(),
        sums: decision.plan.sums,
        grid: grid_of(&decision.plan),
        peak_gflops: decision.plan.peak_gflops,
        bound: decision.plan.bound,
        predicted: decision.plan.predicted,
        alone: decision.alone,
        sentence: decision.sentence,
        instead,
    };
    let changes = TeamChanges {
        moved: moved(&outcome.state, &outcome.machines),
        lost,
        joined: outcome.joined,
        missing,
        left_out: decision.left_out,
    };
    let report = Report {
        problem,
        plan,
        seconds: outcome.seconds,
        opening_seconds: outcome.first_job.saturating_duration_since(began).as_secs_f64(),
        partial_sum_bytes_max: to_u64(outcome.partial_sum_bytes_max),
        bytes_sent: wire(|m| m.bytes_in),
        bytes_received: wire(|m| m.bytes_out),
        io: outcome.io,
        machines: machines_with_work(outcome.machines, members),
        changes,
        check: CheckReport { verify, wrong, suspect, effort },
        relay,
    };
    Ok(Finished { sealed, report, log: outcome.log, journal: outcome.journal })
}

/// Rows and columns of a tile, depth of a step.
fn grid_of(plan: &Plan) -> [u64; 3] {
    plan.regions.first().map_or([0; 3], |r| [r.grid.tile_rows, r.grid.tile_cols, r.grid.depth])
}

/// Members of the plan, and other machines that did work.
fn machines_with_work(machines: Vec<MachineReport>, members: usize) -> Vec<MachineReport> {
    let counts = |(at, machine): &(usize, MachineReport)| *at < members || machine.share > 0.0;
    machines.into_iter().enumerate().filter(counts).map(|(_, machine)| machine).collect()
}

/// Checks that the operands fit each other and the output.
fn problem(request: &Request) -> Result<Problem, PrimaryError> {
    let (a, b) = (request.a.matrix.shape(), request.b.matrix.shape());
    let dtype = request.a.matrix.dtype();
    let shapes_fit = a.cols == b.rows && request.output.shape() == Shape::new(a.rows, b.cols);
    let types_fit = request.b.matrix.dtype() == dtype && request.output.dtype() == dtype;
    let old_fits =
        request.old_c.as_ref().is_none_or(|c| c.shape() == request.output.shape() && c.dtype() == dtype);
    if !(shapes_fit && types_fit && old_fits) {
        return Err(PrimaryError::Operands(format!("{a} times {b} of {dtype} do not fit")));
    }
    Ok(Problem {
        m: a.rows,
        n: b.cols,
        k: a.cols,
        dtype,
        reads_c: request.old_c.is_some() && request.beta != 0.0,
        a_source: OperandSource::generated_if(request.a.matrix.generator().is_some()),
        b_source: OperandSource::generated_if(request.b.matrix.generator().is_some()),
    })
}
