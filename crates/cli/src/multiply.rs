//! `bramble multiply`: from arguments to a committed C and a report.

use crate::args::MultiplyArgs;
use crate::exit::{Exit, Failure};
use crate::insight::Insight;
use crate::operands;
use crate::progress::Progress;
use crate::report;
use crate::team::{Gathered, Purpose, Team, check_kernel};
use crate::trace::TraceFile;
use crate::until::{Ended, done_or_signal};
use bramble_matrix::{DType, Matrix, Output, Shape};
use bramble_primary::log::{Log, Phase};
use bramble_primary::{Finished, Report, Request, multiply};
use bramble_worker::host_name;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Integer factors are exact up to here.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What the operands are, checked and ready.
struct Operands {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    insight: Option<Insight>,
}

/// Runs the verb.
pub(crate) fn run(args: &MultiplyArgs, began: Instant) -> Result<Exit, Failure> {
    if let Some(file) = &args.cluster {
        return Err(crate::plan::only_described("multiply", file));
    }
    let team = Team::of(&args.team)?;
    let mut operands = operands(args)?;
    let insight = operands.insight.take();
    let work = async {
        let (trace, log) = trace(args, began)?.unzip();
        keep(args, compute(args, team, operands, log, began).await?, trace).await
    };
    match done_or_signal(work)? {
        Ended::Done(kept) => conclude(args, &kept, insight, began),
        Ended::Signal(exit) => {
            // A signal while C was being synced: that goes on in a thread, without its file. The same for the trace.
            for path in args.output.iter().chain(&args.trace) {
                let _ = std::fs::remove_file(part_of(path));
            }
            Ok(exit)
        }
    }
}

/// The file of `--trace`, and the log that it will be drawn from.
fn trace(args: &MultiplyArgs, began: Instant) -> Result<Option<(TraceFile, Log)>, Failure> {
    let Some(path) = &args.trace else { return Ok(None) };
    if args.output.as_ref() == Some(path) {
        return Err(Failure::usage(format!("--trace {}: is the name of C", path.display())));
    }
    TraceFile::create(path, began).map(Some)
}

/// The unfinished file beside `path`.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// A verified C under its final name.
struct Kept {
    c: Matrix,
    report: Report,
    digest: Option<String>,
}

/// Opens the operands, and checks all that can be checked before anything is begun.
fn operands(args: &MultiplyArgs) -> Result<Operands, Failure> {
    let (a, b) = operands::open(&args.a, &args.b, &args.operands)?;
    let dtype = a.dtype();
    factors(args, dtype)?;
    check_kernel(args.cut.kernel(), dtype)?;
    let shape = Shape::new(a.shape().rows, b.shape().cols);
    let insight = Insight::prepare(args, shape.rows)?;
    let old_c = match &args.output {
        Some(path) if args.beta != 0.0 => Some(old_c(path, shape, dtype, args)?),
        _ => None,
    };
    Ok(Operands { a, b, old_c, insight })
}

fn factors(args: &MultiplyArgs, dtype: DType) -> Result<(), Failure> {
    for (name, x) in [("alpha", args.alpha), ("beta", args.beta)] {
        if !x.is_finite() {
            return Err(Failure::usage(format!("--{name} {x}: must be a finite number")));
        }
        let exact = x.fract() == 0.0 && x.abs() <= EXACT_MAX;
        let fits = dtype != DType::I32 || (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x);
        let fine = dtype.is_float() || (exact && fits);
        if !fine {
            return Err(Failure::usage(format!(
                "--{name} {x}: the matrices are {dtype}, so it must be a whole number of that type; or use --dtype f64"
            )));
        }
    }
    Ok(())
}

fn old_c(path: &Path, shape: Shape, dtype: DType, args: &MultiplyArgs) -> Result<Matrix, Failure> {
    let name = path.display().to_string();
    if !path.exists() {
        return Err(Failure::failed(format!("{name}: --beta {} needs an existing C there", args.beta)));
    }
    let old = Matrix::open(&name)?;
    if old.shape() != shape {
        return Err(Failure::failed(format!(
            "{name} is {}, but C is {shape}: --beta needs the same",
            old.shape()
        )));
    }
    if old.dtype() == dtype {
        return Ok(old);
    }
    let was = old.dtype();
    old.converted(dtype).map_err(|e| Failure::failed(format!("{name} is {was}, but C is {dtype}: {e}")))
}

/// Gets everyone together and multiplies.
async fn compute(
    args: &MultiplyArgs,
    team: Team,
    operands: Operands,
    mut log: Option<Log>,
    began: Instant,
) -> Result<Finished, Failure> {
    // Signals are waited for from here on, so nothing that is begun stays behind.
    let (shape, dtype) = (Shape::new(operands.a.shape().rows, operands.b.shape().cols), operands.a.dtype());
    let output = match &args.output {
        Some(path) => Output::create(path, shape, dtype)?,
        None => Output::anonymous(shape, dtype)?,
    };
    let flops = 2.0
        * operands.a.shape().rows as f64
        * operands.a.shape().cols as f64
        * operands.b.shape().cols as f64;
    let purpose = Purpose { kernel: args.cut.kernel(), dtype, flops };
    log.iter_mut().for_each(|log| log.phase(Phase::Reaching));
    let gathered = team.gather(&args.team, purpose).await?;
    let is_local = gathered.is_local;
    let watch = Progress::new(args);
    let request = Request {
        a: operands.a,
        b: operands.b,
        old_c: operands.old_c,
        alpha: args.alpha,
        beta: args.beta,
        output,
        cut: args.cut.cut(),
        kernel: gathered.kernel.clone(),
        wish: args.cut.wish(is_local),
        credits: args.cut.credits,
        steals: !args.no_steal,
        effort: args.verify,
        threads: gathered.threads,
        session_seed: crate::seed()? as u32,
        check_seed: crate::seed()?,
        random: crate::random,
        name: host_name(),
        began,
        // Reading the time of a thread costs what small frames would feel.
        account: args.verbose || args.trace.is_some(),
        log,
    };
    let result = multiply(request, gathered.ends, &watch).await;
    watch.done();
    result.map_err(|e| Gathered::failure(is_local, e))
}

/// Gives C its final name, or says why not. Syncing may take long, so it is done on a thread of its own.
async fn keep(args: &MultiplyArgs, finished: Finished, trace: Option<TraceFile>) -> Result<Kept, Failure> {
    let Finished { sealed, report, mut log } = finished;
    let verdict = &report.verify.verdict;
    if !verdict.passed {
        let text = verdict.fault.as_ref().map_or_else(|| verdict.method.clone(), |f| f.text.clone());
        let kept =
            args.output.as_ref().map_or_else(String::new, |p| format!("; {} was not written", p.display()));
        let by = report.suspect.as_ref().map_or_else(String::new, |name| format!(", computed by {name}"));
        return Err(Failure { exit: Exit::Unverified, text: format!("C is wrong: {text}{by}{kept}") });
    }
    let json = args.json;
    let keeping = tokio::task::spawn_blocking(move || -> Result<_, Failure> {
        log.iter_mut().for_each(|log| log.phase(Phase::Keeping));
        let digest = json.then(|| digest(sealed.bytes()));
        let c = sealed.matrix()?;
        sealed.commit()?;
        if let Some((trace, log)) = trace.zip(log) {
            trace.keep(&log, &report, &host_name())?;
        }
        Ok((c, report, digest))
    });
    let (c, report, digest) = keeping.await.map_err(|e| Failure::failed(format!("keeping C: {e}")))??;
    Ok(Kept { c, report, digest })
}

/// Prints the report.
fn conclude(
    args: &MultiplyArgs,
    kept: &Kept,
    insight: Option<Insight>,
    began: Instant,
) -> Result<Exit, Failure> {
    let total_seconds = began.elapsed().as_secs_f64();
    if let Some(digest) = &kept.digest {
        return crate::out(format!("{}\n", report::json(&kept.report, total_seconds, digest)).as_bytes());
    }
    if !args.quiet {
        crate::out(report::text(&kept.report, args, total_seconds).as_bytes())?;
    }
    if let Some(insight) = insight {
        insight.print(args, &kept.c)?;
    }
    Ok(Exit::Done)
}

/// BLAKE3 of C's bytes, in hexadecimal.
fn digest(bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(bytes);
    hasher.finalize().to_hex().to_string()
}
