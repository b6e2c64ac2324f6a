//! One product, from opened operands to a verified C.

use crate::PrimaryError;
use crate::account::{Progress, RelayReport, Report, VerifyReport, moved};
use crate::bodies::Bodies;
use crate::log::{Log, Phase, Recorder};
use crate::measure::measure;
use crate::neighbours::{Met, Random, introduce};
use crate::opening::{Opening, Session, dismiss, even_speeds, one_kernel, open};
use crate::run::{Terms, run};
use bramble_link::Link;
use bramble_matrix::number::to_u64;
use bramble_matrix::{
    Check, DType, Effort, Element, Matrix, Output, Rect, Sealed, Shape, Span, scaling, verify,
};
use bramble_plan::{Cut, Decision, Machine, Plan, Problem, Wish, decide, memory_to_ask};
use bramble_schedule::message::Wants;
use bramble_schedule::primary::Operands;
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
    /// Where everything that happens is written down.
    pub log: Option<Log>,
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
}

/// Sees what happens while it happens.
pub trait Watch {
    /// The plan has been chosen, with a sentence that says why.
    fn decided(&self, decision: &Decision);
    /// Workers have been introduced to each other.
    fn introduced(&self, relay: &RelayReport);
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
}

/// Computes and checks a product. Has to run inside a `tokio::task::LocalSet`. A C that fails the check is
/// given back too: `report.verify` says so, and the caller must not commit it.
pub async fn multiply(mut request: Request, ends: Ends, watch: &dyn Watch) -> Result<Finished, PrimaryError> {
    let problem = problem(&request)?;
    if problem.flops() == 0.0 || request.alpha == 0.0 {
        return without_product(request, &problem).await;
    }
    let alike = ends.alike;
    let mut recorder = Recorder::new(request.log.take());
    recorder.phase(Phase::Opening);
    let wants = Wants { log: recorder.is_on(), account: request.account };
    let (local, mut workers) = open_all(&request, &problem, ends, wants).await?;
    if request.wish.reproducible && problem.dtype.is_float() {
        one_kernel(&local, &workers)?;
    }
    let nic_bytes_per_s = measure(&mut workers).await?;
    recorder.phase(Phase::Planning);
    let primary = Machine { nic_bytes_per_s, ..local.machine(None, false) };
    let mut machines: Vec<Machine> = workers.iter().map(|s| s.machine(request.credits, alike)).collect();
    if alike {
        even_speeds(machines.iter_mut().collect());
    }
    let decision = choose(&request, &problem, &primary, &machines).await?;
    watch.decided(&decision);
    let sessions = chosen(&decision, local, workers).await;
    if decision.plan.relay {
        recorder.phase(Phase::Introducing);
    }
    let met = acquainted(&decision.plan, sessions, request.random, watch).await?;
    let checked = Checked::of(&request);
    let operands = Operands {
        a_layout: request.a.layout(),
        b_layout: request.b.layout(),
        a_generated: !problem.sends_a,
        b_generated: !problem.sends_b,
        reads_c: problem.reads_c,
    };
    let bodies = Bodies::new(request.a.clone(), request.b.clone(), request.old_c.clone());
    let plan = decision.plan.clone();
    let relay = decision.plan.relay.then(|| met.report.clone());
    let terms = Terms { steals: request.steals, account: request.account, recorder };
    let mut ran = run(plan, operands, bodies, request.output, met, watch, terms).await?;
    let sealed = ran.output.seal()?;
    watch.verifying();
    ran.log.iter_mut().for_each(|log| log.phase(Phase::Verifying));
    let verify = checked.verify(&sealed, decision.plan.strategy.levels).await?;
    let wire = |f: fn(&crate::MachineReport) -> u64| ran.machines.iter().map(f).sum();
    let grid =
        decision.plan.regions.first().map_or([0; 3], |r| [r.grid.tile_rows, r.grid.tile_cols, r.grid.depth]);
    let suspect = verify.verdict.fault.as_ref().and_then(|fault| {
        let owner = ran.state.owner_of(fault.row, fault.col)?;
        Some(ran.machines[owner].name.clone())
    });
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
        moved: moved(&ran.state, &ran.machines),
        io: ran.io,
        machines: ran.machines,
        left_out: decision.left_out,
        verify,
        suspect,
        relay,
        effort: request.effort,
    };
    Ok(Finished { sealed, report, log: ran.log })
}

/// Decides. Where Strassen's method would be fastest for floats, the operands are looked at first: its errors are small
/// beside the largest elements only.
async fn choose(
    request: &Request,
    problem: &Problem,
    primary: &Machine,
    machines: &[Machine],
) -> Result<Decision, PrimaryError> {
    let decision = decide(problem, request.cut, primary, machines, &request.wish)?;
    let is_named = request.wish.strategy.is_some();
    if is_named || decision.plan.strategy.levels == 0 || !problem.dtype.is_float() {
        return Ok(decision);
    }
    let (a, b, threads) = (request.a.clone(), request.b.clone(), request.threads);
    let looking = tokio::task::spawn_blocking(move || scaling(&a, &b, threads));
    let scaling =
        looking.await.map_err(|e| PrimaryError::Failed(format!("looking at the operands: {e}")))??;
    if !scaling.is_bad() {
        return Ok(decision);
    }
    let classical = Wish { elementwise: true, ..request.wish };
    let mut decision = decide(problem, request.cut, primary, machines, &classical)?;
    decision.sentence += &format!("; not by Strassen's method, which would lose small elements ({scaling})");
    Ok(decision)
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

/// Opens the session with this machine's own threads, so that they are measured undisturbed (workers may be
/// processes beside us), then all others at the same time.
async fn open_all(
    request: &Request,
    problem: &Problem,
    ends: Ends,
    wants: Wants,
) -> Result<(Session, Vec<Session>), PrimaryError> {
    // The grids do not depend on who answers, so what there is to hold is known before anybody is asked.
    let memory_bytes = memory_to_ask(problem, request.cut, &request.wish)?;
    let opening = Opening {
        dtype: problem.dtype,
        alpha: request.alpha,
        beta: request.beta,
        flops: problem.flops(),
        memory_bytes,
        kernel: request.kernel.clone(),
        name: request.name.clone(),
        wants,
    };
    let first = request.session_seed | 1;
    let local = open(ends.local, &opening, first).await?;
    let mut opened = Vec::new();
    let mut tasks = Vec::new();
    for (i, end) in ends.workers.into_iter().enumerate() {
        let opening = opening.clone();
        let session = first.wrapping_add(2 + i as u32 * 2);
        tasks.push(tokio::task::spawn_local(async move { open(end, &opening, session).await }));
    }
    let mut failed = None;
    for task in tasks {
        match task.await {
            Ok(Ok(session)) => opened.push(session),
            Ok(Err(e)) => failed = failed.or(Some(e)),
            Err(e) => {
                failed = failed.or_else(|| Some(PrimaryError::Failed(format!("opening a session: {e}"))));
            }
        }
    }
    match failed {
        Some(e) => Err(e),
        None => Ok((local, opened)),
    }
}

/// The sessions of a plan's members, in their order; the others are dismissed.
async fn chosen(decision: &Decision, local: Session, workers: Vec<Session>) -> Vec<Session> {
    // As in the decision: first the primary, then the workers.
    let mut slots: Vec<Option<Session>> = std::iter::once(local).chain(workers).map(Some).collect();
    let sessions = decision.plan.members.iter().filter_map(|m| slots[m.machine].take()).collect();
    dismiss(slots.into_iter().flatten().collect()).await;
    sessions
}

/// The sessions, and who of them can pass panels on to whom, where the plan wants that.
async fn acquainted(
    plan: &Plan,
    sessions: Vec<Session>,
    random: Random,
    watch: &dyn Watch,
) -> Result<Met, PrimaryError> {
    if !plan.relay {
        let neighbours = vec![Vec::new(); sessions.len()];
        return Ok(Met { sessions, neighbours, report: RelayReport::default() });
    }
    let met = introduce(plan, sessions, random).await?;
    watch.introduced(&met.report);
    Ok(met)
}

/// Products without multiplications: no elements, no depth, or α = 0. C = βC.
async fn without_product(mut request: Request, problem: &Problem) -> Result<Finished, PrimaryError> {
    let began = Instant::now();
    let mut log = request.log.take();
    log.iter_mut().for_each(|log| log.phase(Phase::Computing));
    let checked = Checked::of(&request);
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
    let verify = checked.verify(&sealed, 0).await?;
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
        io: None,
        machines: Vec::new(),
        moved: Vec::new(),
        left_out: Vec::new(),
        verify,
        suspect: None,
        relay: None,
        effort: request.effort,
    };
    Ok(Finished { sealed, report, log })
}

/// C = βC, a strip of rows at a time.
fn scale<T: Element>(old: &Matrix, beta: f64, output: &Output) -> Result<(), PrimaryError> {
    let shape = old.shape();
    let beta = T::from_f64(beta);
    for row in 0..shape.rows {
        let rect = Rect::new(Span::new(row, row + 1), Span::new(0, shape.cols));
        let mut bytes = vec![0; shape.cols as usize * size_of::<T>()];
        old.read_block(rect, &mut bytes)?;
        let mut lent = output.lend(rect);
        let mut view = lent.view_mut::<T>();
        for (j, element) in bytes.chunks_exact(size_of::<T>()).enumerate() {
            *view.at_mut(0, j) = bytemuck::pod_read_unaligned::<T>(element).times(beta);
        }
    }
    Ok(())
}

/// Matrices smaller than this are checked at once: threads would take longer to start.
const INLINE_ELEMENTS: u64 = 1 << 18;

/// What the check needs of a request whose output is gone.
struct Checked {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    alpha: f64,
    beta: f64,
    effort: Effort,
    threads: usize,
    seed: u64,
}

impl Checked {
    fn of(request: &Request) -> Self {
        Self {
            a: request.a.clone(),
            b: request.b.clone(),
            old_c: request.old_c.clone(),
            alpha: request.alpha,
            beta: request.beta,
            effort: request.effort,
            threads: request.threads,
            seed: request.check_seed,
        }
    }

    /// Checks C, on threads of its own where it takes long enough for a signal to come in between.
    async fn verify(self, sealed: &Sealed, levels: u32) -> Result<VerifyReport, PrimaryError> {
        let began = Instant::now();
        let c = sealed.matrix()?;
        let elements = |m: &Matrix| m.shape().elements().unwrap_or(u64::MAX);
        let small = elements(&self.a).max(elements(&self.b)).max(elements(&c)) < INLINE_ELEMENTS;
        let look = move || {
            verify(&Check {
                a: &self.a,
                b: &self.b,
                c: &c,
                c0: self.old_c.as_ref(),
                alpha: self.alpha,
                beta: self.beta,
                levels,
                effort: self.effort,
                seed: self.seed,
                threads: if small { 1 } else { self.threads },
            })
        };
        let verdict = if small {
            look()?
        } else {
            let checking = tokio::task::spawn_blocking(look);
            checking.await.map_err(|e| PrimaryError::Failed(format!("verification: {e}")))??
        };
        Ok(VerifyReport { verdict, seconds: began.elapsed().as_secs_f64() })
    }
}
