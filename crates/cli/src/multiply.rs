//! `bramble multiply`: from arguments to a committed C and a report.

use crate::args::MultiplyArgs;
use crate::operands;
use crate::stream;
use bramble_cluster::random::session_request;
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec, check_kernel};
use bramble_cluster::turned_away::TurnedAway;
use bramble_cluster::until::{Completion, done_or_stopped};
use bramble_kernel::Workload;
use bramble_matrix::{DType, Matrix, Output, Shape};
use bramble_primary::{
    CheckRequest, Finished, PrimaryError, Report, Request, SessionRequest, Stop, multiply, prepared,
};
use bramble_record::journal::{JournalFile, JournalOptions};
use bramble_record::log::{EventLog, Phase};
use bramble_report::exit::{Exit, Failure};
use bramble_report::product as report;
use bramble_report::progress::{ProgressDisplay, ProgressOptions};
use bramble_report::trace::TraceFile;
use bramble_worker::{default_threads, host_name};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The operands, checked and converted to one type.
struct Operands {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
}

/// Runs the verb.
pub(crate) fn run(args: &MultiplyArgs, began: Instant) -> Result<Exit, Failure> {
    if let Some(file) = &args.refused.cluster {
        return Err(crate::plan::only_described("multiply", file));
    }
    if !args.refused.nearest.is_empty() || args.refused.labels.is_some() {
        return Err(Failure::usage(
            "--nearest, --labels: the rows of a written C are compared by another verb; write C with -o C.npy, then use \
             bramble nearest C.npy --rows LIST --labels FILE",
        ));
    }
    stream::check(args)?;
    let team = TeamSpec::of(&args.team)?;
    args.cut.check_relay(&args.team)?;
    let operands = operands(args)?;
    if let Some(path) = args.file()
        && crate::resume::is_done(args, path, (&operands.a, &operands.b, operands.old_c.as_ref()))?
    {
        bramble_report::say(&format!("bramble: {} is complete already", path.display()));
        return Ok(Exit::Done);
    }
    let (stop, has_place) = (Rc::new(Stop::default()), Cell::new(false));
    let unfinished_trace = RefCell::new(None);
    let work = async {
        let (trace, log) = trace(args, began)?.unzip();
        unfinished_trace.replace(trace.as_ref().and_then(TraceFile::part).map(Path::to_owned));
        let place = place(args, &operands)?;
        has_place.set(true);
        let (finished, turned_away) =
            compute(args, team, operands, place, (log, began, stop.clone())).await?;
        let kept = keep(args, finished, trace, &stop).await?;
        Ok(Kept { turned_away, ..kept })
    };
    match done_or_stopped(work, &|| stop.ask()) {
        Ok(Completion::Done(mut kept)) => {
            let journal = kept.journal.take();
            let exit = conclude(args, &kept, began)?;
            journal.iter().for_each(JournalFile::step);
            journal.into_iter().for_each(JournalFile::remove);
            Ok(exit)
        }
        Ok(Completion::Signal(exit)) => {
            // The signal may have come while a thread was writing the trace; its unfinished file is removed under it.
            unfinished_trace.take().into_iter().for_each(|part| drop(std::fs::remove_file(part)));
            let own = args.file().filter(|_| has_place.get());
            if let Some(left) = own.and_then(crate::resume::left) {
                bramble_report::say(&format!("bramble: stopped by a signal: {left}"));
            }
            Ok(exit)
        }
        Err(failure) if has_place.get() => Err(with_way_back(args, failure)),
        Err(failure) => Err(failure),
    }
}

/// Adds the command that resumes the run to a failure that leaves a journal.
fn with_way_back(args: &MultiplyArgs, failure: Failure) -> Failure {
    let is_of_the_run = matches!(failure.exit, Exit::Failed | Exit::Unreachable);
    let path = args.file().filter(|_| is_of_the_run && !failure.text.contains("--restart"));
    match path.and_then(crate::resume::kept) {
        Some(left) => Failure { text: format!("{}; {left}", failure.text), ..failure },
        None => failure,
    }
}

/// The file of `--trace`, and the event log that it is rendered from.
fn trace(args: &MultiplyArgs, began: Instant) -> Result<Option<(TraceFile, EventLog)>, Failure> {
    let Some(path) = &args.trace else { return Ok(None) };
    if is_same(path, args.file()) {
        return Err(Failure::usage(format!("--trace {}: is the name of C", path.display())));
    }
    // The operand FILE:TENSOR reads FILE.
    let files = [&args.a, &args.b].map(|spec| {
        let colon = spec.as_bytes().iter().rposition(|byte| *byte == b':');
        let file = colon.map(|at| Path::new(OsStr::from_bytes(&spec.as_bytes()[..at])));
        [Some(Path::new(spec)), file]
    });
    if files.into_iter().flatten().any(|read| is_same(path, read)) {
        return Err(Failure::usage(format!(
            "--trace {}: is read for the product; choose another name",
            path.display()
        )));
    }
    TraceFile::create(path, began).map(Some)
}

/// Whether two paths name the same file.
fn is_same(one: &Path, other: Option<&Path>) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    other.is_some_and(|other| one == other || real(one) == real(other))
}

/// A verified C under its final name.
struct Kept {
    report: Report,
    digest: Option<String>,
    /// Connections at `--listen` that became no worker.
    turned_away: Option<Rc<RefCell<TurnedAway>>>,
    /// Kept if C was computed from an old C: until the report is printed, it records that this C is the result.
    journal: Option<JournalFile>,
}

/// Opens the operands, and checks everything that can be checked before the product starts.
fn operands(args: &MultiplyArgs) -> Result<Operands, Failure> {
    let operands::OperandPair { a, b, promoted } =
        operands::open(&args.a, &args.b, &args.operands, args.team.memory)?;
    let shape = Shape::new(a.shape().rows, b.shape().cols);
    let old_c = match args.file() {
        Some(path) if args.beta != 0.0 => {
            if !path.exists() {
                // A bad factor is the more useful error than the missing C.
                factors(args, a.dtype())?;
            }
            Some(old_c(path, shape, args)?)
        }
        _ => None,
    };
    let dtype = match &old_c {
        Some(old) => with_old_c(a.dtype(), old, args)?,
        None => a.dtype(),
    };
    let wider = (dtype != a.dtype()).then(|| format!("C is {dtype}, as NumPy would have it with the old C"));
    let (a, b) = (a.converted(dtype)?, b.converted(dtype)?);
    let old_c = old_c.map(|old| old.converted(dtype)).transpose()?;
    factors(args, dtype)?;
    check_kernel(args.cut.kernel(), dtype)?;
    args.cut.check(dtype)?;
    for told in promoted.iter().chain(&wider).filter(|_| !args.quiet) {
        bramble_report::say(&format!("bramble: {told}"));
    }
    Ok(Operands { a, b, old_c })
}

/// The type of C if it is added to an old C: a type that holds the old C exactly, unless the user named another.
fn with_old_c(dtype: DType, old: &Matrix, args: &MultiplyArgs) -> Result<DType, Failure> {
    let (name, was, wide) = (old.name(), old.dtype(), dtype.promoted(old.dtype()));
    let loses =
        |reason: &str| Err(Failure::failed(format!("{name} is {was}, and {reason}; nothing was written")));
    if let Some(asked) = args.operands.dtype {
        if wide == asked {
            return Ok(asked);
        }
        return loses(&format!(
            "--dtype {asked} would replace it by a C that cannot hold its elements: use --dtype {wide}, or another -o"
        ));
    }
    if was == DType::I64 && wide == DType::F64 {
        return loses(&format!(
            "A and B are {dtype}: f64, which C would be, does not hold every i64 exactly; say --dtype f64 if that does"
        ));
    }
    Ok(wide)
}

fn factors(args: &MultiplyArgs, dtype: DType) -> Result<(), Failure> {
    dtype.check_factor("--alpha", args.alpha).map_err(Failure::usage)?;
    dtype.check_factor("--beta", args.beta).map_err(Failure::usage)
}

fn old_c(path: &Path, shape: Shape, args: &MultiplyArgs) -> Result<Matrix, Failure> {
    let name = path.display().to_string();
    if !path.exists() {
        return Err(Failure::failed(format!("{name}: --beta {} needs an existing C there", args.beta)));
    }
    let old = Matrix::open_file(path)?;
    if old.is_vector() {
        return Err(Failure::failed(format!(
            "{name} has one dimension, but C has two: --beta needs the same; save it again as a matrix: a.reshape({}, {})",
            shape.rows, shape.cols
        )));
    }
    if old.shape() != shape {
        return Err(Failure::failed(format!(
            "{name} is {}, but C is {shape}: --beta needs the same",
            old.shape()
        )));
    }
    Ok(old)
}

/// Creates the output of C. Signals are handled from here on, so that no unfinished file stays behind.
fn place(args: &MultiplyArgs, operands: &Operands) -> Result<(Output, Option<JournalOptions>), Failure> {
    let (shape, dtype) = (Shape::new(operands.a.shape().rows, operands.b.shape().cols), operands.a.dtype());
    let Some(path) = args.file() else { return Ok((Output::anonymous(shape, dtype)?, None)) };
    let (output, journal) = crate::resume::begin(args, path, shape, dtype)?;
    Ok((output, Some(journal)))
}

/// The sessions with the machines.
fn sessions(args: &MultiplyArgs) -> Result<SessionRequest, Failure> {
    // Measuring the time of each thread would slow small frames down.
    let account = args.verbose || args.trace.is_some();
    session_request(args.cut.credits, !args.no_steal, account, args.team.degraded)
}

/// Connects to the machines and multiplies.
async fn compute(
    args: &MultiplyArgs,
    team: TeamSpec,
    operands: Operands,
    (output, journal): (Output, Option<JournalOptions>),
    (mut log, began, stop): (Option<EventLog>, Instant, Rc<Stop>),
) -> Result<(Finished, Option<Rc<RefCell<TurnedAway>>>), Failure> {
    let dtype = operands.a.dtype();
    let (m, k, n) = (operands.a.shape().rows, operands.a.shape().cols, operands.b.shape().cols);
    let purpose = Purpose {
        kernel: args.cut.kernel(),
        dtype,
        flops: 2.0 * m as f64 * k as f64 * n as f64,
        work: Workload::Products,
    };
    let is_local = matches!(team, TeamSpec::Local(_));
    let (lost, told) = mpsc::unbounded_channel();
    let shown = ProgressOptions {
        is_quiet: args.quiet,
        is_json: args.json,
        is_verbose: args.verbose,
        is_brief: false,
        keeps_journal: args.file().is_some(),
    };
    let watch = ProgressDisplay::new(shown, lost);
    let request = Request {
        a: operands.a.into(),
        b: operands.b.into(),
        old_c: operands.old_c,
        alpha: args.alpha,
        beta: args.beta,
        output,
        cut: args.cut.cut([m, n, k], dtype),
        // Known once the machines are connected.
        kernel: String::new(),
        wish: args.cut.wish(is_local),
        instead: None,
        sessions: sessions(args)?,
        check: CheckRequest {
            effort: args.verify,
            threads: args.team.threads.map_or_else(default_threads, usize::from),
            seed: bramble_cluster::random::seed()?,
        },
        began,
        log: None,
        journal,
        stop,
    };
    // Checking large A, B and C of the interrupted run takes long: no worker is connected yet that would have to
    // wait.
    let mut request = prepared(request, &watch).await?;
    log.iter_mut().for_each(|log| log.phase(Phase::Reaching));
    let mut gathered = team.gather(&args.team, purpose).await?;
    gathered.expect_more(told);
    let turned_away = gathered.turned_away.take();
    if request.kernel.is_empty() {
        request.kernel.clone_from(&gathered.kernel);
    }
    (request.check.threads, request.log) = (gathered.threads, log);
    let result = multiply(request, gathered.ends, &watch).await;
    watch.done();
    if let (Err(PrimaryError::Changed(_)), Some(path)) = (&result, &args.output) {
        // Tiles from before and from after the change do not belong together: no run may resume with them.
        crate::resume::forget(path);
    }
    let finished = result.map_err(|e| GatheredTeam::failure(is_local, e))?;
    Ok((finished, turned_away))
}

/// Gives C its final name, or fails if C is wrong. Syncing may take long, so a separate thread does it.
async fn keep(
    args: &MultiplyArgs,
    finished: Finished,
    trace: Option<TraceFile>,
    stop: &Stop,
) -> Result<Kept, Failure> {
    let Finished { sealed, report, mut log, mut journal } = finished;
    let verdict = &report.check.verify.verdict;
    if !verdict.passed {
        sealed.discard();
        journal.into_iter().for_each(JournalFile::remove);
        let text = verdict.fault.as_ref().map_or_else(|| verdict.method.clone(), |f| f.text.clone());
        let kept =
            args.output.as_ref().map_or_else(String::new, |p| format!("; {} was not written", p.display()));
        let by =
            report.check.suspect.as_ref().map_or_else(String::new, |name| format!(", computed by {name}"));
        return Err(Failure { exit: Exit::Unverified, text: format!("C is wrong: {text}{by}{kept}") });
    }
    let (json, reads_c, is_streamed) = (args.json, args.beta != 0.0, args.is_streamed());
    let threads = args.team.threads.map_or_else(default_threads, usize::from);
    // From here on a signal waits until the files are complete, so that the command that resumes the run finds them.
    stop.arm(!is_streamed);
    let keeping = bramble_primary::off_loop("keeping C", move || -> Result<_, Failure> {
        log.iter_mut().for_each(|log| log.phase(Phase::Keeping));
        let digest = json.then(|| bramble_report::digest::digest(sealed.bytes()));
        let c = sealed.matrix()?;
        if let Some(journal) = journal.as_mut().filter(|_| reads_c) {
            journal.complete(&c, threads)?;
        }
        journal.iter().for_each(JournalFile::step);
        if is_streamed {
            stream::write(&c, sealed.bytes())?;
        }
        sealed.commit()?;
        journal.iter().for_each(JournalFile::step);
        if reads_c {
            journal.iter().for_each(JournalFile::keep_until_reported);
        } else {
            journal.take().into_iter().for_each(JournalFile::remove);
        }
        if let Some((trace, log)) = trace.zip(log) {
            trace.keep(&log, &report, &host_name())?;
        }
        Ok((report, digest, journal))
    });
    keeping.await?.map(|(report, digest, journal)| Kept { report, digest, turned_away: None, journal })
}

/// Prints the report.
fn conclude(args: &MultiplyArgs, kept: &Kept, began: Instant) -> Result<Exit, Failure> {
    let total_seconds = began.elapsed().as_secs_f64();
    let exit = report::exit(&kept.report);
    kept.report.check.wrong.iter().for_each(|wrong| bramble_report::say(&report::wrong_tiles(wrong)));
    let turned_away = kept.turned_away.as_ref().map(|turned_away| turned_away.borrow());
    if let Some(digest) = &kept.digest {
        let mut object = report::json(&kept.report, total_seconds, digest);
        object["turned_away"] = turned_away.map_or(Value::Null, |turned_away| turned_away.json());
        bramble_report::out(format!("{object}\n").as_bytes())?;
        return Ok(exit);
    }
    if !args.quiet {
        let refused = turned_away.and_then(|turned_away| turned_away.text());
        let text = report::text(&kept.report, &place_of_c(args), args.verbose, total_seconds, refused);
        bramble_report::tell(text.as_bytes(), args.is_streamed())?;
    }
    Ok(exit)
}

/// Where C is, as the report tells it.
fn place_of_c(args: &MultiplyArgs) -> String {
    match (args.file(), args.is_streamed()) {
        (Some(path), _) => path.display().to_string(),
        (None, true) => "standard output".to_owned(),
        (None, false) => "not kept (no -o)".to_owned(),
    }
}
