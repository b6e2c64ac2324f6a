//! `bramble bench hpl --mxp`: HPL-MxP (formerly HPL-AI) on the threads of this process.
//!
//! Place in the flow: the crate `lu` generates, solves and checks; `plan` has the bound and the prediction; `mxp_report` prints
//! them.
//!
//! Invariants: the rules of HPL-MxP: LU in a lower precision, here f32, and an iteration in f64, here GMRES, to HPL's accuracy;
//! HPL's count of operations. The clock runs from the generated system in f64 to the solution, so it includes the conversion of
//! the matrix. All cases of one order take turns.
//!
//! Deliberately absent: workers (`mxp_cluster.rs`).

use super::mxp_report::{MxpPoint, text};
use super::point::{HplCase, HplEstimate, HplPlace};
use super::stamp::Stamp;
use super::{BenchHplArgs, OFFICIAL_MXP, cases, checking, draw, largest, orders, rates, thread_counts};
use bramble_kernel::KernelName;
use bramble_lu::hpl::{HplCheck, operations};
use bramble_lu::mxp::{MxpMemory, MxpSolution, ORDER_MIN, check, generate, right_hand_side, solve};
use bramble_lu::{LuKernels, LuOptions, WorkingMatrix, probe};
use bramble_matrix::DType;
use bramble_plan::estimate_mxp;
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::{bytes, seconds};
use bramble_worker::available_memory;

/// Runs the verb.
pub(super) fn run(args: &BenchHplArgs, kernel: Option<KernelName>) -> Result<Exit, Failure> {
    if args.official {
        return Err(Failure::usage(OFFICIAL_MXP));
    }
    let memory = args.memory.unwrap_or_else(available_memory);
    let threads = thread_counts(args);
    let mut points = Vec::new();
    for order in orders(args, memory, &threads, needed) {
        let new = at_order(args, order, &threads, kernel, memory)?;
        let lines: String =
            if args.json { new.iter().map(MxpPoint::json_line).collect() } else { text(&new) };
        bramble_report::out(lines.as_bytes())?;
        points.extend(new);
    }
    draw(args, "HPL-MxP", &points)?;
    let is_valid = points.iter().all(|point| point.check.is_valid());
    Ok(if is_valid { Exit::Done } else { Exit::Unverified })
}

/// Bytes that a system of this order takes.
fn needed(order: usize, options: LuOptions) -> u64 {
    MxpMemory::of(order, options).total()
}

/// Refuses an order that is too small for the generator.
pub(super) fn check_smallest(order: usize) -> Result<(), Failure> {
    if order >= ORDER_MIN {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--size {order}: the system of HPL-MxP is singular below N = {ORDER_MIN}; use a larger one"
    )))
}

/// Refuses an order that is too small for the generator or too large for the memory.
fn check_order(order: usize, options: LuOptions, memory: u64) -> Result<(), Failure> {
    check_smallest(order)?;
    let parts = MxpMemory::of(order, options);
    if parts.total() <= memory {
        return Ok(());
    }
    let size = |of: u64| bytes(of as f64);
    Err(Failure::failed(format!(
        "--size {order}: HPL-MxP takes {} of memory ({} for A in f64, {} for its factors in f32, {} for vectors), and {} are \
         free; use a smaller one, at most {}",
        size(parts.total()),
        size(parts.matrix),
        size(parts.factors),
        size(parts.vectors),
        size(memory),
        largest(memory, options.threads, needed)
    )))
}

/// A case of HPL-MxP: HPL's with kernels and rates in f32, and the kernels of the iteration.
struct MxpCase {
    low: HplCase,
    high: LuKernels,
    estimate: HplEstimate,
}

/// Measures all cases of one order, in turns.
fn at_order(
    args: &BenchHplArgs,
    order: usize,
    threads: &[usize],
    kernel: Option<KernelName>,
    memory: u64,
) -> Result<Vec<MxpPoint>, Failure> {
    let mut measured = Vec::new();
    for options in cases(args, order, threads) {
        check_order(order, options, memory)?;
        let open = |dtype| {
            let kernels = LuKernels::open(kernel, dtype, operations(order), options.threads);
            kernels.map_err(|e| Failure::failed(format!("--kernel: {e}")))
        };
        let (kernels, high) = (open(DType::F32)?, open(DType::F64)?);
        let probed = probe::<f32>(order, &kernels, options);
        let rates = rates(&probed, options);
        let found = estimate_mxp(order, options.block, &rates, probed.read_all_bytes_per_s);
        let estimate =
            HplEstimate { bound_seconds: found.bound_seconds, bound_by: "compute", seconds: found.seconds };
        measured
            .push((MxpCase { low: HplCase { order, options, kernels, rates }, high, estimate }, Vec::new()));
    }
    for (case, _) in &measured {
        announce(case);
    }
    for _ in 0..args.rounds {
        for (case, runs) in &mut measured {
            runs.push(one_run(case)?);
        }
    }
    Ok(measured.into_iter().filter_map(|(case, runs)| point(case, runs)).collect())
}

/// Says what will take long.
fn announce(case: &MxpCase) {
    let HplCase { order, options, .. } = &case.low;
    if case.estimate.seconds >= 10.0 {
        bramble_report::say(&format!(
            "bramble: HPL-MxP, N = {order}, NB = {} on {} threads: {} predicted",
            options.block,
            options.threads,
            seconds(case.estimate.seconds)
        ));
    }
}

/// One run of a case.
pub(super) struct MxpRun {
    pub(super) solution: MxpSolution,
    pub(super) start: Stamp,
    pub(super) end: Stamp,
    pub(super) check: HplCheck,
}

fn one_run(case: &MxpCase) -> Result<MxpRun, Failure> {
    let HplCase { order, options, kernels, .. } = &case.low;
    let failed = |e: bramble_lu::LuError| Failure::failed(format!("--size {order}: {e}"));
    let checking = checking(options.threads)?;
    let a = WorkingMatrix::zeros::<f64>(*order, *order)?;
    generate(&a, options.threads);
    let b = right_hand_side(*order);
    let start = Stamp::now();
    let solution = solve(&a, &b, (kernels, &case.high), *options).map_err(failed)?;
    let end = Stamp::now();
    drop(a);
    let check = check(&solution.found.x, options.threads, &checking);
    Ok(MxpRun { solution, start, end, check })
}

/// A case with its runs: the times of the run with the median, its stamps, and the worst check. `None` without a run.
fn point(case: MxpCase, mut runs: Vec<MxpRun>) -> Option<MxpPoint> {
    let total = |run: &MxpRun| run.solution.seconds.total();
    let worst = |a: &&MxpRun, b: &&MxpRun| a.check.scaled_residual.total_cmp(&b.check.scaled_residual);
    let check = runs.iter().max_by(worst)?.check;
    runs.sort_by(|a, b| total(a).total_cmp(&total(b)));
    let (rounds, seconds_min, seconds_max) = (runs.len(), total(runs.first()?), total(runs.last()?));
    let middle = runs.swap_remove((rounds - 1) / 2);
    let HplCase { order, options, kernels, rates } = case.low;
    Some(MxpPoint {
        order,
        block: options.block,
        place: HplPlace::Threads { threads: options.threads, kernel: kernels.one.name().to_owned(), rates },
        rounds,
        seconds: middle.solution.seconds,
        seconds_min,
        seconds_max,
        start: middle.start,
        end: middle.end,
        iterations: middle.solution.found.iterations,
        exchanges: middle.solution.exchanges,
        check,
        estimate: case.estimate,
        memory_bytes: needed(order, options),
    })
}
