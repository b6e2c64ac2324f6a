//! `lu` on workers: they factor, this process sends the columns, brings the factors home and judges them.
//!
//! Place in the flow: `factors.rs` comes here if the options name machines.
//!
//! Invariants: the factors are judged with the matrix as this process reads it, as they are in the file: P A w against L U w.
//! They go into the file as they come, through a map, so this machine needs no memory for them. They are computed in f64, also
//! for f32 matrices, and rounded at the end.
//!
//! Deliberately absent: matrices that are not square.

use crate::factors::unverified;
use crate::on_workers::{OpenTeam, accuse, display, refuse_alone, sessions, tell};
use crate::report::{LuReport, LuTimes};
use crate::setup::{check_kernels, sides};
use crate::workers_report::WorkersReport;
use crate::{LuArgs, failure, write};
use bramble_cluster::team::{GatheredTeam, TeamSpec};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::lu::LuElement;
use bramble_lu::{LuError, LuOptions, MatrixNorms, accepted_error, factors_error, norms};
use bramble_matrix::{DType, Matrix, MatrixError, Output, OutputTarget, Rect, Shape, Span};
use bramble_primary::{ClusterOptions, FactorsRequest, SystemFactors, SystemProgress, off_loop};
use bramble_report::exit::{Exit, Failure};
use bramble_report::out_file::{self, OutFile};
use bramble_report::quantity::bytes;
use bramble_worker::available_memory;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The machines that the options name; `None` if they name none.
pub(crate) fn team(args: &LuArgs, a: &Matrix) -> Result<Option<TeamSpec>, Failure> {
    let spec = match TeamSpec::of(&args.factor.team(&args.machines))? {
        TeamSpec::Alone => {
            refuse_alone(args.factor.survive, args.factor.depth)?;
            return Ok(None);
        }
        spec => spec,
    };
    check(a)?;
    Ok(Some(spec))
}

/// Refuses a matrix that workers do not factor.
pub(crate) fn check(a: &Matrix) -> Result<(), Failure> {
    let shape = a.shape();
    match shape.rows == shape.cols {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{} is {shape}: workers factor square matrices only; factor it on this machine, without workers",
            a.name()
        ))),
    }
}

/// Where the factors go.
struct Home {
    factors: Arc<Output>,
    /// A device or a pipe, which gets them from memory.
    stream: Option<OutFile>,
    pivots: Option<OutFile>,
}

impl Home {
    /// Opens the files, or refuses them before any work is done.
    fn open(name: Option<&Path>, shape: Shape, dtype: DType) -> Result<Self, Failure> {
        let failed = |e: MatrixError| Failure::failed(format!("{} {e}", write::OPTION));
        let pivots = write::open(name.map(write::beside).as_deref())?;
        let Some(name) = name else {
            return Ok(Self { factors: Arc::new(in_memory(shape, dtype)?), stream: None, pivots });
        };
        out_file::check(write::OPTION, name)?;
        let (factors, stream) = match OutputTarget::of(name).map_err(failed)? {
            OutputTarget::File(_) => (Output::create(name, shape, dtype).map_err(failed)?, None),
            OutputTarget::Stream => (in_memory(shape, dtype)?, write::open(Some(name))?),
        };
        Ok(Self { factors: Arc::new(factors), stream, pivots })
    }

    /// Gives the files their names.
    fn keep(self, pivots: &[usize]) -> Result<(), Failure> {
        let Self { factors, stream, pivots: beside } = self;
        let factors = Arc::try_unwrap(factors).map_err(|_| {
            Failure::failed("the factors are still in use; please report this bug of bramble")
        })?;
        let (shape, dtype, sealed) = (factors.shape(), factors.dtype(), factors.seal()?);
        if let Some(stream) = stream {
            write::write(stream, &[shape.rows, shape.cols], dtype, std::iter::once(sealed.bytes()))?;
        }
        sealed.commit()?;
        beside.map_or(Ok(()), |file| write::pivots(file, pivots))
    }
}

/// Memory for factors without a file.
fn in_memory(shape: Shape, dtype: DType) -> Result<Output, Failure> {
    let (needed, free) = (shape.bytes(dtype).unwrap_or(u64::MAX), available_memory());
    if needed > free {
        return Err(Failure::failed(format!(
            "the factors take {}, and this machine has free {}; name a file for them with -o",
            bytes(needed as f64),
            bytes(free as f64)
        )));
    }
    Ok(Output::anonymous(shape, dtype)?)
}

/// Factors A on workers.
pub(crate) fn factor(args: &LuArgs, a: Matrix, dtype: DType, spec: TeamSpec) -> Result<Exit, Failure> {
    let began = Instant::now();
    args.factor.kernel()?;
    sides(&a)?;
    let home = Home::open(args.output.as_deref(), a.shape(), dtype)?;
    let a = a.converted(dtype)?;
    let computed = match dtype {
        DType::F32 => done_or_signal(compute::<f32>(args, a, home.factors.clone(), spec))?,
        _ => done_or_signal(compute::<f64>(args, a, home.factors.clone(), spec))?,
    };
    let (factors, error, times) = match computed {
        Completion::Done(computed) => computed,
        Completion::Signal(exit) => return Ok(exit),
    };
    let mut report = told(&factors, dtype, error, times);
    if report.error > report.tolerance || report.error.is_nan() {
        return Err(unverified(&report));
    }
    home.keep(&factors.pivots)?;
    report.output = args.output.as_deref().map(|name| (name.to_owned(), write::beside(name)));
    report.seconds.total = began.elapsed().as_secs_f64();
    report.print(&args.factor)?;
    Ok(Exit::Done)
}

/// The factors, their error, and the times.
type Computed = (SystemFactors, f64, LuTimes);

async fn compute<T: LuElement>(
    args: &LuArgs,
    a: Matrix,
    home: Arc<Output>,
    spec: TeamSpec,
) -> Result<Computed, Failure> {
    let mut at = Instant::now();
    let mut lap = move || std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
    let (matrix, threads) = (a.clone(), args.factor.own_threads(&args.machines));
    let norms = off_loop("reading A", move || norms::<T>(&matrix, threads)).await?.map_err(failure)?;
    let read = lap();
    let display = display(args.factor.quiet, args.factor.json);
    // The run that follows a loss uses the same connections.
    let options = ClusterOptions { keeps_links: args.factor.survive > 0 };
    let wanted = (args.factor.kernel, DType::F64, a.shape().rows);
    let mut team =
        OpenTeam::open((spec, &args.factor.team(&args.machines)), wanted, display, options).await?;
    let found: Arc<Mutex<Option<Result<f64, Failure>>>> = Arc::default();
    let (judged, matrix, factors) = (found.clone(), a.clone(), home.clone());
    let check = move |pivots: &[usize]| {
        let error = difference::<T>(&matrix, &norms, (&factors, pivots), threads);
        let is_accepted = error.as_ref().is_ok_and(|error| *error <= accepted_error(pivots.len(), T::DTYPE));
        *judged.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        is_accepted
    };
    let progress = |state: SystemProgress<'_>| tell(&state, args.factor.quiet);
    let width = args.factor.block.map(usize::from);
    let kernel = team.kernel.clone();
    let (survive, sessions) = (usize::from(args.factor.survive), sessions(args.factor.memory)?);
    let depth = args.factor.depth.map(usize::from);
    let request = FactorsRequest { a, width, depth, survive, kernel, sessions, home };
    let ran = team.cluster.factor(request, Box::new(check), &team.display, &progress).await;
    let factors = ran.map_err(|e| GatheredTeam::failure(team.is_local, e))?;
    let whole = lap();
    team.close().await;
    // A zero pivot is no error: the factors are right.
    if let Some(why) = LuError::of_pivots(None, factors.overflow) {
        return Err(failure(why));
    }
    accuse(&factors.accusations());
    let error = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let error = error.ok_or_else(|| Failure::failed("the factors were not checked"))??;
    let SystemFactors { setup_seconds, seconds, sent, home_seconds, .. } = factors;
    let check = (whole - setup_seconds - seconds - home_seconds).max(0.0);
    let load = read + setup_seconds;
    Ok((
        factors,
        error,
        LuTimes { load, factor: seconds, sent: sent.seconds, home: home_seconds, check, total: 0.0 },
    ))
}

/// How far L U w is from P A w for a random w.
fn difference<T: LuElement>(
    a: &Matrix,
    norms: &MatrixNorms,
    (factors, pivots): (&Output, &[usize]),
    threads: usize,
) -> Result<f64, Failure> {
    let Shape { rows, cols } = factors.shape();
    let all = Rect::new(Span::new(0, rows), Span::new(0, cols));
    let lines = factors.matrix()?.lines(all).ok_or(MatrixError::OutOfMemory { bytes: 0 })?;
    let kernels = check_kernels(threads)?;
    factors_error::<T>(a, norms, (lines.view(), pivots), &kernels).map_err(failure)
}

/// The report.
fn told(factors: &SystemFactors, dtype: DType, error: f64, seconds: LuTimes) -> LuReport {
    let SystemFactors { plan, losses, sent, .. } = factors;
    let (n, block) = (plan.order, plan.width);
    let at_workers = WorkersReport { plan: plan.clone(), losses: losses.clone(), sent: *sent };
    LuReport {
        shape: (n, n),
        dtype,
        options: LuOptions { threads: at_workers.threads(), block },
        kernel: "of the workers".to_owned(),
        memory_bytes: at_workers.memory_bytes(),
        at_workers: Some(at_workers),
        error,
        tolerance: accepted_error(n, dtype),
        singular: factors.zero,
        seconds,
        output: None,
    }
}
