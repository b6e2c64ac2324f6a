//! `bramble bench hpl`: the High Performance Linpack benchmark on the threads of this process, or on workers.
//!
//! Place in the flow: the crate `lu` generates, solves and checks; `plan` has the bound and the prediction; `text` prints them in
//! the form of HPL's output.
//!
//! Invariants: the rules of HPL: its matrix, its count of operations, f64, no Strassen, a residual below 16. The clock runs from
//! the generated system to the solution. All cases of one order take turns.
//!
//! `mxp` runs HPL-MxP, which is another benchmark; `cluster` runs both on workers; `official` runs the official program beside
//! ours, where it is installed.

mod args;
mod cluster;
mod mxp;
mod mxp_cluster;
mod mxp_report;
mod official;
mod point;
mod stamp;
mod text;

pub use args::BenchHplArgs;

use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::{Choice, KernelName};
use bramble_lu::{LuFactors, LuKernels, LuOptions, WorkingMatrix, block_columns, hpl};
use bramble_lu::{LuProbe, memory_bytes, probe};
use bramble_matrix::DType;
use bramble_plan::{LuRates, estimate_lu};
use bramble_report::chart::{Chart, Ground, Series, drawing};
use bramble_report::exit::{Exit, Failure};
use bramble_report::plot_file;
use bramble_report::quantity::{bytes, seconds};
use bramble_report::times::Times;
use bramble_worker::{available_memory, default_threads};
use official::Official;
use point::{HplCase, HplEstimate, HplPlace, HplPoint};
use stamp::Stamp;
use std::time::Instant;

/// The error for both options.
const OFFICIAL_MXP: &str =
    "--official: runs HPL, which is another benchmark than HPL-MxP; use one of --mxp and --official";

/// Runs the verb.
pub fn run(args: &BenchHplArgs) -> Result<Exit, Failure> {
    args.plot.as_deref().map_or(Ok(()), plot_file::check)?;
    let find = || Official::find(args.launcher.as_deref(), &args.nb);
    let official = args.official.then(find).transpose()?;
    let kernel = kernel(args.kernel)?;
    if let Some(result) = cluster::run(args, official.as_ref()) {
        return result;
    }
    if args.mxp {
        return mxp::run(args, kernel);
    }
    let mut points = Vec::new();
    let stopped = in_process(args, kernel, official.as_ref(), &mut points);
    if !points.is_empty() {
        draw(args, "HPL", &points)?;
    }
    if let Some(exit) = stopped? {
        return Ok(exit);
    }
    let is_valid = points.iter().all(|point| point.check.is_valid());
    Ok(if is_valid { Exit::Done } else { Exit::Unverified })
}

/// Measures and prints all orders on the threads of this process; `points` also has the measurements that precede an error. The
/// exit code if a signal has ended it.
fn in_process(
    args: &BenchHplArgs,
    kernel: Option<KernelName>,
    official: Option<&Official>,
    points: &mut Vec<HplPoint>,
) -> Result<Option<Exit>, Failure> {
    let memory = args.memory.unwrap_or_else(available_memory);
    let threads = thread_counts(args);
    for order in orders(args, memory, &threads, needed) {
        let mut new = at_order(args, order, &threads, kernel, memory)?;
        let compared = official.map(|official| done_or_signal(official.beside(&mut new, true)));
        // Our own results are measured, however the official program ends.
        let lines: String =
            if args.json { new.iter().map(HplPoint::json_line).collect() } else { text::text(&new) };
        bramble_report::out(lines.as_bytes())?;
        points.extend(new);
        if let Some(Completion::Signal(exit)) = compared.transpose()? {
            return Ok(Some(exit));
        }
    }
    Ok(None)
}

/// The numbers of threads in this process.
fn thread_counts(args: &BenchHplArgs) -> Vec<usize> {
    match args.threads.is_empty() {
        true => vec![default_threads()],
        false => args.threads.iter().map(|t| usize::from(*t)).collect(),
    }
}

/// The orders: those of the options, or the largest of which the `needed` bytes fit in the memory.
fn orders(
    args: &BenchHplArgs,
    memory: u64,
    threads: &[usize],
    needed: impl Fn(usize, LuOptions) -> u64,
) -> Vec<usize> {
    if !args.size.is_empty() {
        return args.size.iter().map(|n| *n as usize).collect();
    }
    let order = largest(memory, threads.iter().max().copied().unwrap_or(1), needed);
    let memory = bytes(memory as f64);
    bramble_report::say(&format!(
        "bramble: N = {order}, which takes {memory} of memory; --size sets another"
    ));
    vec![order]
}

/// Writes the plot, if `--plot` is given.
fn draw<'a, P>(args: &BenchHplArgs, title: &str, points: &'a [P]) -> Result<(), Failure>
where
    Plotted: From<&'a P>,
{
    let plotted: Vec<Plotted> = points.iter().map(Plotted::from).collect();
    args.plot.as_deref().map_or(Ok(()), |path| plot_file::write(path, &svg(title, &plotted)))
}

/// Our own kernels in f64, since a library that has computed wrongly may do so again.
fn checking(threads: usize) -> Result<LuKernels, Failure> {
    let kernels = LuKernels::open(Some(KernelName::Simd), DType::F64, 0.0, threads);
    kernels.map_err(|e| Failure::failed(e.to_string()))
}

/// The kernel that the option names; `None` picks the fastest.
fn kernel(choice: Choice) -> Result<Option<KernelName>, Failure> {
    match choice {
        Choice::Auto => Ok(None),
        Choice::Named(name) => Ok(Some(name)),
        Choice::Blocked { .. } | Choice::Strassen { .. } => Err(Failure::usage(format!(
            "--kernel {choice}: the benchmark's rules exclude Strassen's method, and the factorisation cuts its products itself; \
             use auto, simd, openblas or blis"
        ))),
    }
}

/// Bytes that a system of this order takes.
fn needed(order: usize, options: LuOptions) -> u64 {
    memory_bytes::<f64>(order, order, 1, options)
}

/// The largest order, a multiple of its panel's columns, of which the `needed` bytes fit in that memory.
fn largest(memory: u64, threads: usize, needed: impl Fn(usize, LuOptions) -> u64) -> usize {
    let fits = |order: usize| needed(order, LuOptions { threads, block: block_columns(order) }) <= memory;
    let (mut fit, mut over) = (1, 2);
    while fits(over) {
        (fit, over) = (over, over * 2);
    }
    while over - fit > 1 {
        let middle = fit + (over - fit) / 2;
        if fits(middle) { fit = middle } else { over = middle }
    }
    let block = block_columns(fit);
    (fit / block * block).max(1)
}

/// Measures all cases of one order, in turns.
fn at_order(
    args: &BenchHplArgs,
    order: usize,
    threads: &[usize],
    kernel: Option<KernelName>,
    memory: u64,
) -> Result<Vec<HplPoint>, Failure> {
    let mut points = Vec::new();
    for options in cases(args, order, threads) {
        if needed(order, options) > memory {
            return Err(Failure::failed(format!(
                "--size {order}: the system takes {} of memory, and {} are free; use a smaller one, at most {}",
                bytes(needed(order, options) as f64),
                bytes(memory as f64),
                largest(memory, options.threads, needed)
            )));
        }
        let cannot = |e| Failure::failed(format!("--kernel: {e}"));
        let kernels =
            LuKernels::open(kernel, DType::F64, hpl::operations(order), options.threads).map_err(cannot)?;
        points.push((
            HplCase {
                order,
                options,
                kernels: kernels.clone(),
                rates: rates(&probe::<f64>(order, &kernels, options), options),
            },
            Vec::new(),
        ));
    }
    for (case, _) in &points {
        announce(case);
    }
    for _ in 0..args.rounds {
        for (case, runs) in &mut points {
            runs.push(one_run(case)?);
        }
    }
    Ok(points.into_iter().filter_map(|(case, runs)| HplPoint::new(case, runs)).collect())
}

/// The cases of one order: every number of threads with every width of panels.
fn cases(args: &BenchHplArgs, order: usize, threads: &[usize]) -> Vec<LuOptions> {
    let blocks = match args.nb.is_empty() {
        true => vec![block_columns(order)],
        false => args.nb.iter().map(|nb| usize::from(*nb).min(order)).collect(),
    };
    let of =
        |threads: &usize| blocks.iter().map(|block| LuOptions { threads: *threads, block: *block }).collect();
    threads.iter().flat_map::<Vec<LuOptions>, _>(of).collect()
}

/// The measured rates as the planner takes them.
fn rates(found: &LuProbe, options: LuOptions) -> LuRates {
    LuRates {
        threads: options.threads,
        product_gflops: found.product_gflops,
        update_gflops: found.update_gflops,
        panel_gflops: found.panel_gflops,
        read_bytes_per_s: found.read_bytes_per_s,
    }
}

/// Says what will take long.
fn announce(case: &HplCase) {
    let estimate = estimate_lu(case.order, case.options.block, &case.rates);
    if estimate.seconds >= 10.0 {
        let HplCase { order, options, .. } = case;
        bramble_report::say(&format!(
            "bramble: N = {order}, NB = {} on {} threads: {} predicted",
            options.block,
            options.threads,
            seconds(estimate.seconds)
        ));
    }
}

/// One run of a case.
struct HplRun {
    seconds: f64,
    start: Stamp,
    end: Stamp,
    check: hpl::HplCheck,
}

fn one_run(case: &HplCase) -> Result<HplRun, Failure> {
    let HplCase { order, options, kernels, .. } = case;
    let checking = checking(options.threads)?;
    let failed = |e: bramble_lu::LuError| Failure::failed(format!("--size {order}: {e}"));
    let working = WorkingMatrix::zeros::<f64>(*order, order + 1)?;
    hpl::generate(&working, options.threads);
    let (start, clock) = (Stamp::now(), Instant::now());
    let factors = LuFactors::<f64>::new(&working, *order, kernels, *options).map_err(failed)?;
    factors.check().map_err(failed)?;
    let x = factors.back_substitute(1);
    let (seconds, end) = (clock.elapsed().as_secs_f64(), Stamp::now());
    drop((factors, working));
    Ok(HplRun { seconds, start, end, check: hpl::check(&x, options.threads, &checking) })
}

impl HplPoint {
    /// A case with its runs: the median of the times, the stamps of the last run, and the worst check. `None` without a run.
    fn new(case: HplCase, runs: Vec<HplRun>) -> Option<Self> {
        let times = Times::new(runs.iter().map(|run| run.seconds).collect());
        let (start, end) = runs.last().map(|run| (run.start, run.end))?;
        let worst = runs
            .into_iter()
            .map(|run| run.check)
            .max_by(|a, b| a.scaled_residual.total_cmp(&b.scaled_residual))?;
        let estimate = estimate_lu(case.order, case.options.block, &case.rates);
        let estimate = HplEstimate {
            bound_seconds: estimate.bound_seconds,
            bound_by: "compute",
            seconds: estimate.seconds,
        };
        let HplCase { order, options, kernels, rates } = case;
        let place =
            HplPlace::Threads { threads: options.threads, kernel: kernels.one.name().to_owned(), rates };
        Some(Self {
            order,
            block: options.block,
            place,
            times,
            start,
            end,
            check: worst,
            estimate,
            official: None,
        })
    }
}

/// A measurement in the plot.
struct Plotted {
    order: usize,
    block: usize,
    threads: usize,
    machines: usize,
    gflops: f64,
}

impl From<&HplPoint> for Plotted {
    fn from(point: &HplPoint) -> Self {
        Self {
            order: point.order,
            block: point.block,
            threads: point.place.threads(),
            machines: point.place.machines(),
            gflops: point.gflops(),
        }
    }
}

/// The plot: Gflop/s by NB, a line for each order and number of threads or workers; or by workers, if their number varies.
fn svg(title: &str, points: &[Plotted]) -> String {
    let mut series: Vec<Series> = Vec::new();
    let by_workers = points.iter().any(|point| point.machines != points[0].machines);
    for point in points {
        let threads = bramble_report::quantity::counted(point.threads as u64, "thread");
        let name = match point.machines {
            _ if by_workers => format!("N = {}", point.order),
            1 => format!("N = {}, {threads}", point.order),
            machines => format!("N = {}, {machines} workers", point.order),
        };
        let at = series.iter().position(|one| one.name == name).unwrap_or_else(|| {
            series.push(Series { name, colour: series.len(), ..Series::default() });
            series.len() - 1
        });
        let x = if by_workers { point.machines } else { point.block };
        series[at].points.push((x as f64, point.gflops));
    }
    let chart = Chart {
        title: format!("{title}, Gflop/s"),
        below: if by_workers { "workers" } else { "NB, columns of a panel" }.to_owned(),
        mark: |x| format!("{x:.0}"),
        series,
        is_log: false,
        levels: Vec::new(),
    };
    drawing(&[chart], Ground::White)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_order_fits_and_the_next_does_not() {
        for memory in [64 << 20, 1 << 30, 17 << 30] {
            let order = largest(memory, 4, needed);
            let block = block_columns(order);
            let options = LuOptions { threads: 4, block };
            assert!(order.is_multiple_of(block) && needed(order, options) <= memory, "{order}");
            assert!(needed(order + 2 * block, options) > memory, "{order}");
        }
    }
}
