//! `bramble multiply`: from arguments to a committed C and a report.

use crate::args::{LinkKind, MultiplyArgs, StrategyKind};
use crate::cluster::Cluster;
use crate::exit::{Exit, Failure};
use crate::hostfile;
use crate::insight::Insight;
use crate::local::{LocalWorkers, Share};
use crate::progress::Progress;
use crate::report;
use crate::trust;
use bramble_kernel::{Choice, KernelName};
use bramble_link::thread_pair;
use bramble_matrix::{DType, Matrix, Output, Shape};
use bramble_plan::{Base, Cut, Preference, Strategy, Wish};
use bramble_primary::{End, Ends, Finished, Report, Request, multiply};
use bramble_worker::{Config, Ledger, available_memory, default_threads, host_name, serve_link};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};

/// Integer factors are exact up to here.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Who computes, as the command line says.
enum Team {
    /// This process alone.
    Alone,
    /// Processes that it starts.
    Local(Share),
    /// Workers that listen or dial in.
    Cluster(Cluster),
}

/// What the operands are, checked and ready.
struct Operands {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    insight: Option<Insight>,
}

/// Runs the verb.
pub(crate) fn run(args: &MultiplyArgs, began: Instant) -> Result<Exit, Failure> {
    let team = team(args)?;
    let mut operands = operands(args)?;
    let insight = operands.insight.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, until_signal(args, team, operands, began));
    // Tasks hold the unfinished output; with them it goes, and with it NAME.part.
    drop(local);
    runtime.shutdown_background();
    match result? {
        Ended::Done(kept) => conclude(args, &kept, insight, began),
        Ended::Signal(exit) => {
            // A signal while C was being synced: that goes on in a thread, without its file.
            if let Some(path) = &args.output {
                let _ = std::fs::remove_file(part_of(path));
            }
            Ok(exit)
        }
    }
}

/// The unfinished file beside `path`.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

enum Ended {
    Done(Box<Kept>),
    Signal(Exit),
}

/// A verified C under its final name.
struct Kept {
    c: Matrix,
    report: Report,
    digest: Option<String>,
}

async fn until_signal(
    args: &MultiplyArgs,
    team: Team,
    operands: Operands,
    began: Instant,
) -> Result<Ended, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    tokio::select! {
        result = async { keep(args, compute(args, team, operands, began).await?).await } => {
            Ok(Ended::Done(Box::new(result?)))
        }
        _ = interrupt.recv() => Ok(Ended::Signal(Exit::Interrupted)),
        _ = terminate.recv() => Ok(Ended::Signal(Exit::Terminated)),
    }
}

fn team(args: &MultiplyArgs) -> Result<Team, Failure> {
    let cores = default_threads();
    if let Some(workers) = args.local {
        if args.link == Some(LinkKind::Thread) {
            let text = "--link thread: --local starts processes; leave --local away to use threads";
            return Err(Failure::usage(text));
        }
        return Ok(Team::Local(Share {
            workers,
            threads: args.threads.map_or_else(|| (cores / usize::from(workers)).max(1), usize::from),
            memory_bytes: args.memory.unwrap_or_else(|| available_memory() / u64::from(workers)),
            cores,
        }));
    }
    // A flag goes before the variable, so this is no business of the argument parser's.
    let is_named = args.workers.is_some() || args.hostfile.is_some() || args.awaited.is_some();
    let from_environment = match is_named {
        false => std::env::var("BRAMBLE_HOSTS").ok().filter(|list| !list.is_empty()),
        true => None,
    };
    let hosts = match (args.workers.as_ref().or(from_environment.as_ref()), &args.hostfile) {
        (Some(list), _) => hostfile::from_list(list)?,
        (None, Some(file)) => hostfile::from_file(file)?,
        (None, None) => Vec::new(),
    };
    let awaited = args.awaited.unwrap_or(0);
    if !hosts.is_empty() || awaited > 0 {
        let security = trust::security(&args.trust)?;
        return Ok(Team::Cluster(Cluster { hosts, awaited, listen: args.listen, security }));
    }
    if args.link == Some(LinkKind::Tcp) {
        return Err(Failure::usage("--link tcp: needs workers; add --local N or --workers HOSTS"));
    }
    Ok(Team::Alone)
}

/// Opens, transposes and converts the operands, and checks that they fit.
fn operands(args: &MultiplyArgs) -> Result<Operands, Failure> {
    let open = |spec: &str, transpose: bool| -> Result<Matrix, Failure> {
        let matrix = Matrix::open(spec)?;
        let matrix = match args.dtype {
            Some(dtype) if dtype != matrix.dtype() => matrix.converted(dtype)?,
            _ => matrix,
        };
        Ok(if transpose { matrix.transposed() } else { matrix })
    };
    let a = open(&args.a, args.transpose_a)?;
    let b = open(&args.b, args.transpose_b)?;
    fit(args, &a, &b)?;
    let dtype = a.dtype();
    factors(args, dtype)?;
    if let Choice::Named(_) = args.kernel {
        // A kernel that cannot be had is said before anything is begun.
        bramble_kernel::pick(args.kernel, dtype, 0.0)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    }
    let shape = Shape::new(a.shape().rows, b.shape().cols);
    let insight = Insight::prepare(args, shape.rows)?;
    let old_c = match &args.output {
        Some(path) if args.beta != 0.0 => Some(old_c(path, shape, dtype, args)?),
        _ => None,
    };
    Ok(Operands { a, b, old_c, insight })
}

fn fit(args: &MultiplyArgs, a: &Matrix, b: &Matrix) -> Result<(), Failure> {
    let (sa, sb) = (a.shape(), b.shape());
    let seen = |spec: &str, transposed: bool, shape: Shape| {
        format!("{spec} is {shape}{}", if transposed { " transposed" } else { "" })
    };
    if sa.cols != sb.rows {
        let hint = if sa.cols == sb.cols {
            "; did you mean --transpose-b?"
        } else if sa.rows == sb.rows {
            "; did you mean --transpose-a?"
        } else {
            ""
        };
        let (left, right) = (seen(&args.a, args.transpose_a, sa), seen(&args.b, args.transpose_b, sb));
        return Err(Failure::failed(format!(
            "{left} and {right}: the columns of the first must equal the rows of the second{hint}"
        )));
    }
    if a.dtype() != b.dtype() {
        let (da, db) = (a.dtype(), b.dtype());
        let widest = match (da, db) {
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            (DType::I64, DType::F32) | (DType::F32, DType::I64) => DType::F64,
            (DType::I32, DType::F32) | (DType::F32, DType::I32) => DType::F64,
            _ => DType::I64,
        };
        let which = if da == widest { &args.b } else { &args.a };
        return Err(Failure::failed(format!(
            "{} is {da} and {} is {db}: convert {which} with --dtype {widest}",
            args.a, args.b
        )));
    }
    Ok(())
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
    let mut kernel = args.kernel;
    let forced = !matches!(team, Team::Alone) && args.strategy == StrategyKind::Reuse;
    let is_local = matches!(team, Team::Local(_));
    let mut processes = LocalWorkers::default();
    let workers = match team {
        Team::Alone => Vec::new(),
        Team::Local(share) => {
            let (started, door) = LocalWorkers::start(share).await?;
            processes = started;
            // All are this machine: one probe, while they start, serves them all.
            kernel = probed(kernel, &operands, flops)?;
            let links = processes.accept(door).await?;
            links.into_iter().map(|link| End { link, threads_max: 0 }).collect()
        }
        Team::Cluster(cluster) => cluster.connect().await?,
    };
    let threads =
        if is_local { default_threads() } else { args.threads.map_or_else(default_threads, usize::from) };
    let config = Config {
        threads,
        memory_bytes: if is_local {
            available_memory()
        } else {
            args.memory.unwrap_or_else(available_memory)
        },
        kernel: None,
        // Worker processes of the same cores come and go; pinning is for a machine of one's own.
        pin_from: (!is_local && threads <= default_threads()).then_some(0),
        name: host_name(),
    };
    let (here, there) = thread_pair("primary", "this machine");
    tokio::task::spawn_local(async move {
        // How it ended is seen at the other end.
        let _ = serve_link(there, None, &config, &Ledger::new()).await;
    });
    let watch = Progress::new(args);
    let request = Request {
        a: operands.a,
        b: operands.b,
        old_c: operands.old_c,
        alpha: args.alpha,
        beta: args.beta,
        output,
        cut: Cut { tile: args.tile, depth: args.panel },
        kernel: name_of(kernel),
        wish: Wish {
            strategy: (args.strategy == StrategyKind::Reuse).then_some(Strategy::plain(Base::Reuse)),
            who: if is_local || forced { Preference::Workers } else { Preference::Fastest },
            ..Wish::AUTO
        },
        credits: args.credits,
        effort: args.verify,
        threads,
        session_seed: seed()? as u32,
        check_seed: seed()?,
        name: host_name(),
        began,
    };
    let ends = Ends { local: End { link: here, threads_max: 0 }, workers, alike: is_local };
    let result = multiply(request, ends, &watch).await;
    watch.done();
    drop(processes);
    result.map_err(|e| match Failure::from(e) {
        // Processes of our own are no cluster that could be unreachable.
        Failure { exit: Exit::Unreachable, text } if is_local => Failure::failed(text),
        failure => failure,
    })
}

/// `auto` resolved once.
fn probed(kernel: Choice, operands: &Operands, flops: f64) -> Result<Choice, Failure> {
    let pick = bramble_kernel::pick(kernel, operands.a.dtype(), flops)
        .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    let name: KernelName = pick.kernel.name().parse().map_err(|e| Failure::failed(format!("{e}")))?;
    Ok(Choice::Named(name))
}

fn name_of(kernel: Choice) -> String {
    match kernel {
        Choice::Auto => "auto".to_owned(),
        Choice::Named(name) => name.as_str().to_owned(),
    }
}

/// A random number.
fn seed() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    crate::random(&mut bytes).map_err(|e| Failure::failed(format!("no random numbers: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Gives C its final name, or says why not. Syncing may take long, so it is done on a thread of its own.
async fn keep(args: &MultiplyArgs, finished: Finished) -> Result<Kept, Failure> {
    let Finished { sealed, report } = finished;
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
        let digest = json.then(|| digest(sealed.bytes()));
        let c = sealed.matrix()?;
        sealed.commit()?;
        Ok((c, digest))
    });
    let (c, digest) = keeping.await.map_err(|e| Failure::failed(format!("keeping C: {e}")))??;
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
