//! One product, from opened operands to a verified C.

use crate::PrimaryError;
use crate::account::{MachineReport, Progress, RelayReport, Report, Unreachable, losses, moved};
use crate::bodies::Bodies;
use crate::gathering::{Gathered, acquainted, chosen, gather};
use crate::inspector::Inspector;
use crate::keeper::{JournalFile, Journaling, Subject};
use crate::levels;
use crate::log::{Log, Phase, Recorder};
use crate::neighbours::Random;
use crate::opening::even_speeds;
use crate::resume::{self, Resumed};
use crate::run::{Before, Inspected, Terms, run};
use crate::stop::Stop;
use crate::strassen;
use bramble_kernel::factors;
use bramble_link::Link;
use bramble_matrix::number::to_u64;
use bramble_matrix::{DType, Effort, Element, Matrix, Output, Rect, Sealed, Shape, Span};
use bramble_plan::{Cut, Decision, Machine, Making, Problem, Wish};
use bramble_schedule::message::Wants;
use bramble_schedule::primary::Operands;
use std::rc::Rc;
use std::time::Instant;

/// What is to be computed, and how.
pub struct Request {
    /// Left operand, already transposed and converted as asked.
    pub a: Matrix,
    /// Right operand.
    pub b: Matrix,
    /// The old C, where β ≠ 0.
    pub old_c: Option<Matrix>,
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// Where C goes.
    pub output: Output,
    /// Tiles and steps, where not the defaults.
    pub cut: Cut,
    /// Kernel by name, or `auto`.
    pub kernel: String,
    /// What is wanted of the plan.
    pub wish: Wish,
    /// Names the strategy or kernel that replaces one that the user has ordered, and the reason. `None` in a new request.
    pub instead: Option<String>,
    /// Most bytes that any one worker is sent before it frees some.
    pub credits: Option<u64>,
    /// Whether work that a slow machine has not been sent goes to others.
    pub steals: bool,
    /// How hard C is checked.
    pub effort: Effort,
    /// Threads that may check it.
    pub threads: usize,
    /// Source of session numbers, which workers see.
    pub session_seed: u32,
    /// Source of the check's random vectors, which workers must not be able to guess.
    pub check_seed: u64,
    /// Source of the secrets by which workers that relay know each other.
    pub random: Random,
    /// What the primary calls itself.
    pub name: String,
    /// When the process began its work.
    pub began: Instant,
    /// Whether it is accounted for what processor time went to, here and at workers.
    pub account: bool,
    /// Whether a worker that does not answer is left out; it is an error otherwise.
    pub degraded: bool,
    /// Where everything that happens is written down.
    pub log: Option<Log>,
    /// Where it is written down which tiles are complete, and what a run before has left.
    pub journal: Option<Journaling>,
    /// Where the user may say that it shall end.
    pub stop: Rc<Stop>,
}

/// The way to one machine.
pub struct End {
    /// The link.
    pub link: Link,
    /// Most threads that it may use there; 0 is no limit.
    pub threads_max: u16,
    /// Whether this process has made the connection.
    pub was_dialled: bool,
}

/// Who can compute.
pub struct Ends {
    /// This process's own threads.
    pub local: End,
    /// Workers.
    pub workers: Vec<End>,
    /// Whether the workers are known to be alike (processes of one machine): their speed is then the mean of
    /// what they measured, since they disturb each other's short measurements.
    pub alike: bool,
    /// Workers that could not be had, one sentence each, where the product goes on without them.
    pub missing: Vec<String>,
    /// Workers that come while the product runs.
    pub later: Option<tokio::sync::mpsc::Receiver<End>>,
}

/// Sees what happens while it happens.
pub trait Watch {
    /// The plan has been chosen, with a sentence that says why.
    fn decided(&self, decision: &Decision);
    /// Workers have been introduced to each other.
    fn introduced(&self, relay: &RelayReport);
    /// Two workers that passed panels on to each other had no link any more before C was complete.
    fn parted(&self, pair: &Unreachable);
    /// A machine that was named could not be had; the product goes on without it.
    fn missing(&self, why: &str);
    /// A run before is gone on with.
    fn resumed(&self, resumed: &Resumed);
    /// A machine was lost; others do what it has not given back. Whether it would help if it came back.
    fn lost(&self, name: &str, why: &str, helps: bool);
    /// So many tiles of C are wrong, one of them as it says, and these may have made them; others make them again.
    fn wrong(&self, makers: &[String], tiles: usize, text: &str);
    /// A machine has come in mid-product, and takes a part of what is left.
    fn joined(&self, name: &str);
    /// A machine has come in mid-product, and may not take part.
    fn turned_away(&self, why: &PrimaryError);
    /// Some time has passed.
    fn progress(&self, progress: &Progress);
    /// C is there and is being checked.
    fn verifying(&self);
}

/// A product that is done.
pub struct Finished {
    /// C, not yet under its final name.
    pub sealed: Sealed,
    /// Numbers.
    pub report: Report,
    /// What has happened, if that was wanted.
    pub log: Option<Log>,
    /// The journal, to be removed when C has its name.
    pub journal: Option<JournalFile>,
}

/// A request that is to go on with the product of another run, with what that has left checked: A, B and C are read for it, so
/// this comes before anybody is asked to wait. Others stay as they are.
pub async fn gone_on_with(request: Request, watch: &dyn Watch) -> Result<Request, PrimaryError> {
    let problem = problem(&request)?;
    let request = strassen::with_a_fitting_strategy(request, &problem).await?;
    resume::check(request, &problem, watch).await
}

/// Computes and checks a product. Has to run inside a `tokio::task::LocalSet`. A C that fails the check is
/// given back too: `report.verify` says so, and the caller must not commit it.
pub async fn multiply(request: Request, ends: Ends, watch: &dyn Watch) -> Result<Finished, PrimaryError> {
    let problem = problem(&request)?;
    if problem.flops() == 0.0 || request.alpha == 0.0 {
        return without_product(request, &problem).await;
    }
    let (mut request, measured) = strassen::with_a_fitting_kernel(request, &problem).await?;
    let alike = ends.alike;
    let mut recorder = Recorder::new(request.log.take());
    recorder.phase(Phase::Opening);
    let wants = Wants { log: recorder.is_on(), account: request.account };
    let mut gathered = gather(&request, &problem, ends, wants, watch).await?;
    let making = Making { a: request.a.is_made(), b: request.b.is_made() };
    request.wish = Wish { tiles_early: request.journal.as_ref().map(|_| making), ..gathered.wish };
    let everybody = std::iter::once(&gathered.local).chain(&gathered.workers);
    strassen::check_own_kernels(&request, &problem, everybody, measured).await?;
    let before = request.journal.as_ref().and_then(|journal| journal.before.as_deref());
    let kernel = resume::fitting_kernel(&mut gathered, before, &problem)?;
    let Gathered { local, workers, nic_bytes_per_s, missing, mut lost, comers, rules, .. } = gathered;
    recorder.phase(Phase::Planning);
    let primary = Machine { nic_bytes_per_s, ..local.machine(None, false) };
    let mut machines: Vec<Machine> = workers.iter().map(|s| s.machine(request.credits, alike)).collect();
    if alike {
        even_speeds(machines.iter_mut().collect());
    }
    let decision = match before {
        None => strassen::choose(&request, &problem, &primary, &machines).await?,
        Some(journal) => resume::decision(journal, workers.len()),
    };
    watch.decided(&decision);
    let (sessions, reserve) = match before {
        None => chosen(&decision, local, workers).await,
        Some(_) => resume::team((local, workers), request.wish.who),
    };
    let before = before.map(|journal| Before::of(journal, sessions.len()));
    if decision.plan.relay {
        recorder.phase(Phase::Introducing);
    }
    let mut met = acquainted(&decision.plan, sessions, request.random, watch).await?;
    met.sessions.extend(reserve);
    met.neighbours.resize(met.sessions.len(), Vec::new());
    met.dead.resize(met.sessions.len(), None);
    let tiles = levels::tiles(&rules, decision.plan.regions.first().map(|region| &region.grid));
    let inspector = Inspector::of(&request, decision.plan.strategy.levels, tiles);
    let operands = as_they_lie(&request, &problem);
    let bodies = Bodies::new(request.a.clone(), request.b.clone(), request.old_c.clone());
    let plan = decision.plan.clone();
    let relay = decision.plan.relay.then(|| met.report.clone());
    let introduced = met.report.unreachable.len();
    let members = if before.is_some() { 0 } else { decision.plan.members.len() };
    let subject = || Subject::of(&request, &problem, kernel, &plan);
    let subject = request.journal.is_some().then(subject);
    let journal = request.journal.take().zip(subject);
    let instead = request.instead;
    let (steals, account, stop) = (request.steals, request.account, request.stop);
    let credits = request.credits;
    let terms = Terms { steals, account, credits, comers, recorder, journal, before, stop, inspector };
    let ran = run(plan, operands, bodies, request.output, met, watch, terms).await?;
    let relay = relay.map(|relay| relay.after(ran.parted, &ran.state, &ran.machines));
    let broken = relay.as_ref().and_then(|relay| relay.unreachable.get(introduced..));
    broken.into_iter().flatten().for_each(|pair| watch.parted(pair));
    let sealed = ran.output.seal()?;
    let wire = |f: fn(&MachineReport) -> u64| ran.machines.iter().map(f).sum();
    let grid =
        decision.plan.regions.first().map_or([0; 3], |r| [r.grid.tile_rows, r.grid.tile_cols, r.grid.depth]);
    let Inspected { verify, wrong, suspect } = ran.inspected;
    lost.extend(losses(&ran.state, &ran.machines));
    let report = Report {
        m: problem.m,
        n: problem.n,
        k: problem.k,
        dtype: problem.dtype,
        strategy: decision.plan.strategy.to_string(),
        sums: decision.plan.sums,
        grid,
        seconds: ran.seconds,
        opening_seconds: ran.first_job.saturating_duration_since(request.began).as_secs_f64(),
        peak_gflops: decision.plan.peak_gflops,
        bound: decision.plan.bound,
        predicted: decision.plan.predicted.clone(),
        aside_bytes_max: to_u64(ran.aside_bytes_max),
        bytes_sent: wire(|m| m.bytes_in),
        bytes_received: wire(|m| m.bytes_out),
        alone: decision.alone,
        sentence: decision.sentence,
        instead,
        moved: moved(&ran.state, &ran.machines),
        lost,
        joined: ran.joined,
        wrong,
        missing,
        io: ran.io,
        machines: with_a_share(ran.machines, members),
        left_out: decision.left_out,
        verify,
        suspect,
        relay,
        effort: request.effort,
    };
    Ok(Finished { sealed, report, log: ran.log, journal: ran.journal })
}

/// The members of the plan, and the machines that took over work.
fn with_a_share(machines: Vec<MachineReport>, members: usize) -> Vec<MachineReport> {
    let counts = |(at, machine): &(usize, MachineReport)| *at < members || machine.share > 0.0;
    machines.into_iter().enumerate().filter(counts).map(|(_, machine)| machine).collect()
}

/// How the operands lie, and which of them are generated.
fn as_they_lie(request: &Request, problem: &Problem) -> Operands {
    Operands {
        a_layout: request.a.layout(),
        b_layout: request.b.layout(),
        a_generated: !problem.sends_a,
        b_generated: !problem.sends_b,
        reads_c: problem.reads_c,
    }
}

/// Checks that the operands fit each other and the output.
fn problem(request: &Request) -> Result<Problem, PrimaryError> {
    let (a, b) = (request.a.shape(), request.b.shape());
    let dtype = request.a.dtype();
    let shapes_fit = a.cols == b.rows && request.output.shape() == Shape::new(a.rows, b.cols);
    let types_fit = request.b.dtype() == dtype && request.output.dtype() == dtype;
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
        sends_a: request.a.generator().is_none(),
        sends_b: request.b.generator().is_none(),
    })
}

/// Products without multiplications: no elements, no depth, or α = 0. C = βC.
async fn without_product(mut request: Request, problem: &Problem) -> Result<Finished, PrimaryError> {
    let began = Instant::now();
    let mut log = request.log.take();
    log.iter_mut().for_each(|log| log.phase(Phase::Computing));
    let inspector = Inspector::of(&request, 0, Vec::new());
    if let Some(old) = request.old_c.as_ref().filter(|_| problem.reads_c) {
        match problem.dtype {
            DType::F32 => scale::<f32>(old, request.beta, &request.output)?,
            DType::F64 => scale::<f64>(old, request.beta, &request.output)?,
            DType::I32 => scale::<i32>(old, request.beta, &request.output)?,
            DType::I64 => scale::<i64>(old, request.beta, &request.output)?,
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let sealed = request.output.seal()?;
    log.iter_mut().for_each(|log| log.phase(Phase::Verifying));
    let verify = inspector.look(sealed.matrix()?, 0).await?;
    inspector.unchanged("when C was complete", !verify.verdict.passed)?;
    let report = Report {
        m: problem.m,
        n: problem.n,
        k: problem.k,
        dtype: problem.dtype,
        strategy: "none".to_owned(),
        sums: bramble_plan::Sums::Merged,
        grid: [0; 3],
        seconds,
        opening_seconds: began.saturating_duration_since(request.began).as_secs_f64(),
        peak_gflops: 0.0,
        bound: bramble_plan::Bound { seconds: 0.0, by: bramble_plan::Binding::Compute },
        predicted: bramble_plan::Prediction::default(),
        aside_bytes_max: 0,
        bytes_sent: 0,
        bytes_received: 0,
        alone: true,
        sentence: "alone: there is nothing to multiply".to_owned(),
        instead: None,
        io: None,
        machines: Vec::new(),
        moved: Vec::new(),
        joined: Vec::new(),
        lost: Vec::new(),
        wrong: Vec::new(),
        missing: Vec::new(),
        left_out: Vec::new(),
        verify,
        suspect: None,
        relay: None,
        effort: request.effort,
    };
    Ok(Finished { sealed, report, log, journal: None })
}

/// C = βC, a strip of rows at a time.
fn scale<T: Element>(old: &Matrix, beta: f64, output: &Output) -> Result<(), PrimaryError> {
    let shape = old.shape();
    for row in 0..shape.rows {
        let rect = Rect::new(Span::new(row, row + 1), Span::new(0, shape.cols));
        let mut bytes = vec![0; shape.cols as usize * size_of::<T>()];
        old.read_block(rect, &mut bytes)?;
        let mut lent = output.lend(rect);
        let mut view = lent.view_mut::<T>();
        for (j, element) in bytes.chunks_exact(size_of::<T>()).enumerate() {
            *view.at_mut(0, j) = factors::times(bytemuck::pod_read_unaligned::<T>(element), beta);
        }
    }
    Ok(())
}
