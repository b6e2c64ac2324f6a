//! `bramble bench accumulate`: compares ways in which several threads add to one block: with locks, with atomic
//! additions, or with an owner thread for each tile, as workers do.
//!
//! Place in the flow: `ways::Accumulator` does the additions; this file provides operands, rounds and
//! checks.
//!
//! Invariants: all ways add the same products to the same blocks, in turns; every block of every run is checked
//! against the owner's result, whose first block is checked against exact sums; integers have to be equal.

mod show;
mod ways;

pub(crate) use ways::AccumulateMethod;

use super::error::of_bound;
use super::kernel::numbers;
use super::machine;
use super::show::Form;
use crate::args::{BenchAccumulateArgs, BenchSize};
use bramble_kernel::{Choice, Kernel, open_on};
use bramble_matrix::DType;
use bramble_report::chart;
use bramble_report::exit::{Exit, Failure};
use bramble_report::times::Times;
use bramble_worker::{available_memory, default_threads};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use ways::{AccumulateJob, Accumulated, Accumulator, AtomicElement, ThreadTotals};

/// A run has as many blocks as take about this time, in seconds.
const RUN_SECONDS: f64 = 0.02;
/// Least number of work items per thread, so that no thread waits long for the last one.
const PIECES: usize = 16;
/// Most blocks in a run; `BLOCKS_BYTES_MAX` limits their bytes.
const BLOCKS_MAX: usize = 4096;
/// See `BLOCKS_MAX`.
const BLOCKS_BYTES_MAX: usize = 256 << 20;

/// A measured case, without the way to add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccumulateCase {
    pub(crate) kernel: Choice,
    pub(crate) size: BenchSize,
    pub(crate) jobs: usize,
    pub(crate) threads: usize,
}

/// The measurement of one way in one case.
#[derive(Clone, Debug)]
pub(crate) struct AccumulatePoint {
    pub(crate) case: AccumulateCase,
    pub(crate) dtype: DType,
    pub(crate) way: AccumulateMethod,
    /// Blocks in a run.
    pub(crate) blocks: usize,
    /// Seconds per block, with all its jobs.
    pub(crate) wall: Times,
    /// Time relative to the owner's in the same round, the median of all rounds.
    pub(crate) times_owner: f64,
    /// The activity of each thread in all rounds.
    pub(crate) threads: Vec<ThreadTotals>,
    /// Seconds of all rounds.
    pub(crate) all_s: f64,
    /// Number of distinct results among blocks that should be equal.
    pub(crate) results: usize,
    /// Largest difference of an element from the owner's result.
    pub(crate) difference: f64,
}

impl AccumulatePoint {
    pub(crate) fn gflops(&self) -> f64 {
        let BenchSize { m, k, n } = self.case.size;
        2.0 * m as f64 * k as f64 * n as f64 * self.case.jobs as f64 / self.wall.median() / 1e9
    }

    /// Fraction of the time of all rounds in which a thread multiplied or added.
    pub(crate) fn busy(&self, share: &ThreadTotals) -> f64 {
        (share.multiply + share.add).as_secs_f64() / self.all_s
    }

    /// Fraction of all threads' busy and waiting time that `of` selects.
    pub(crate) fn part(&self, of: fn(&ThreadTotals) -> f64) -> f64 {
        let all: f64 = self.threads.iter().map(busy_and_waiting).sum();
        self.threads.iter().map(of).sum::<f64>() / all.max(1e-12)
    }
}

fn busy_and_waiting(share: &ThreadTotals) -> f64 {
    (share.multiply + share.add + share.wait).as_secs_f64()
}

/// Runs the verb.
pub(crate) fn run(args: &BenchAccumulateArgs) -> Result<Exit, Failure> {
    args.form.plot.check()?;
    let form = Form::of(&args.form.runs);
    let mut ways = vec![AccumulateMethod::Owner];
    args.way.iter().for_each(|way| {
        if !ways.contains(way) {
            ways.push(*way)
        }
    });
    let threads: Vec<usize> = match args.threads.is_empty() {
        true => vec![default_threads()],
        false => args.threads.iter().map(|t| usize::from(*t)).collect(),
    };
    for dtype in &args.dtype {
        if args.kernel.levels(*dtype).is_some() {
            let text = "its rounding errors differ from those of plain sums, which this compares; use simd or blocked";
            return Err(Failure::usage(format!("--kernel {}: {text}", args.kernel)));
        }
        bramble_kernel::pick(args.kernel, *dtype, 0.0)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    }
    let kernel = open_on(args.kernel, 1).map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    bramble_report::out(machine::head(form, show::CSV_HEAD).as_bytes())?;
    let mut points = Vec::new();
    for dtype in &args.dtype {
        for size in &args.size {
            for (jobs, threads) in
                args.jobs.iter().flat_map(|j| threads.iter().map(move |t| (usize::from(*j), *t)))
            {
                let case = AccumulateCase { kernel: args.kernel, size: *size, jobs, threads };
                fits(case, *dtype)?;
                let new = match dtype {
                    DType::F32 => measured::<f32>(case, &*kernel, &ways, args.form.runs.rounds)?,
                    DType::F64 => measured::<f64>(case, &*kernel, &ways, args.form.runs.rounds)?,
                    DType::I32 => measured::<i32>(case, &*kernel, &ways, args.form.runs.rounds)?,
                    DType::I64 => measured::<i64>(case, &*kernel, &ways, args.form.runs.rounds)?,
                };
                bramble_report::out(show::lines(form, &new).as_bytes())?;
                points.extend(new);
            }
        }
    }
    if form == Form::Table {
        bramble_report::out((show::table(&points).join("\n") + "\n").as_bytes())?;
    }
    show::warnings(&points).iter().for_each(|line| bramble_report::say(line));
    args.form.plot.write(|| chart::drawing(&show::charts(&points), chart::Ground::White))?;
    Ok(Exit::Done)
}

/// Bytes of one block.
fn block_bytes(size: BenchSize, dtype: DType) -> usize {
    size.m.saturating_mul(size.n).saturating_mul(dtype.size_bytes())
}

/// Refuses cases that do not fit in memory: operands, blocks, and their copies for each way.
fn fits(case: AccumulateCase, dtype: DType) -> Result<(), Failure> {
    let BenchSize { m, k, n } = case.size;
    let operands = (m + n).saturating_mul(k).saturating_mul(case.jobs).saturating_mul(2 * dtype.size_bytes());
    // The blocks of a run, and a private block for each thread.
    let blocks =
        block_bytes(case.size, dtype).max(BLOCKS_BYTES_MAX).saturating_mul(AccumulateMethod::ALL.len());
    let own = block_bytes(case.size, dtype).saturating_mul(case.threads + 2);
    let (bytes, free) = (operands.saturating_add(blocks).saturating_add(own) as u64, available_memory());
    if bytes <= free {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "--size {m}x{k}x{n}: {} jobs of {dtype} and their blocks may take {} MiB, and {} MiB are free; use smaller ones",
        case.jobs,
        bytes >> 20,
        free >> 20
    )))
}

/// The state of one way during the measurement.
struct Measured<'a, T: AtomicElement> {
    way: AccumulateMethod,
    blocks: Accumulator<'a, T>,
    wall: Vec<f64>,
    threads: Vec<ThreadTotals>,
    /// Hashes of the bits of all blocks.
    results: BTreeSet<u64>,
    difference: f64,
}

/// Measures all ways in one case.
fn measured<T: AtomicElement>(
    case: AccumulateCase,
    kernel: &dyn Kernel,
    ways: &[AccumulateMethod],
    rounds: u16,
) -> Result<Vec<AccumulatePoint>, Failure> {
    let BenchSize { m, k, n } = case.size;
    let job = |at: usize| AccumulateJob {
        a: numbers(m * k, 2 * at as u64 + 1),
        b: numbers(k * n, 2 * at as u64 + 2),
    };
    let jobs: Vec<AccumulateJob<T>> = (0..case.jobs).map(job).collect();
    let new = |way: AccumulateMethod, blocks: usize| Accumulator::new(way, kernel, &jobs, [m, k, n], blocks);
    let mut first = new(AccumulateMethod::Owner, 1);
    first.run(1);
    let warm = first.run(1).wall.as_secs_f64().max(1e-9);
    let right = first.block(0);
    checked(case, &jobs, &right)?;
    let least = (PIECES * case.threads).div_ceil(Accumulator::<T>::tiles(m, n));
    let most = (BLOCKS_BYTES_MAX / block_bytes(case.size, T::DTYPE).max(1)).clamp(1, BLOCKS_MAX);
    let blocks = ((RUN_SECONDS * case.threads as f64 / warm) as usize).max(least).clamp(1, most);
    let start = |way: &AccumulateMethod| Measured {
        way: *way,
        blocks: new(*way, blocks),
        wall: Vec::new(),
        threads: vec![ThreadTotals::default(); case.threads],
        results: BTreeSet::new(),
        difference: 0.0,
    };
    let mut all: Vec<Measured<'_, T>> = ways.iter().map(start).collect();
    for round in 0..=rounds {
        for one in &mut all {
            let run = one.blocks.run(case.threads);
            one.compare(case, &right)?;
            // The first round is a warm-up.
            if round > 0 {
                one.add(&run);
            }
        }
    }
    // The first way is the owner.
    let owner = all.first().map_or_else(Vec::new, |one| one.wall.clone());
    Ok(all.into_iter().map(|one| one.point(case, &owner)).collect())
}

/// Checks the owner's block against exact sums, as one product: the A of all jobs side by side, times their B
/// stacked.
fn checked<T: AtomicElement>(
    case: AccumulateCase,
    jobs: &[AccumulateJob<T>],
    right: &[T],
) -> Result<(), Failure> {
    let BenchSize { m, k, n } = case.size;
    let rows = (0..m).flat_map(|i| jobs.iter().flat_map(move |job| &job.a[i * k..(i + 1) * k]));
    let (a, b): (Vec<T>, Vec<T>) =
        (rows.copied().collect(), jobs.iter().flat_map(|job| &job.b).copied().collect());
    let size = BenchSize { m, k: k * jobs.len(), n };
    match of_bound(case.kernel, size, &a, &b, right) {
        Some(error) if error <= 1.0 => Ok(()),
        _ => Err(wrong(case, T::DTYPE, AccumulateMethod::Owner)),
    }
}

fn wrong(case: AccumulateCase, dtype: DType, way: AccumulateMethod) -> Failure {
    let BenchSize { m, k, n } = case.size;
    let text = format!("{way}: {} jobs of {m}x{k}x{n} of {dtype} give a wrong sum", case.jobs);
    Failure { exit: Exit::Unverified, text }
}

impl<T: AtomicElement> Measured<'_, T> {
    /// Checks all blocks against the owner's result.
    fn compare(&mut self, case: AccumulateCase, right: &[T]) -> Result<(), Failure> {
        let depth = (case.size.k * case.jobs) as f64;
        let unit = if T::DTYPE == DType::F32 { f64::from(f32::EPSILON) / 2.0 } else { f64::EPSILON / 2.0 };
        // Both results have errors of at most γ(depth + jobs + 4) Σ |a b|, and |a b| is at most 1.
        let bound = 2.0 * (depth + case.jobs as f64 + 4.0) * unit * depth;
        for at in 0..self.blocks.blocks() {
            let block = self.blocks.block(at);
            let mut hash = DefaultHasher::new();
            for (x, y) in block.iter().zip(right) {
                // Hashes the bits of floats; integers have to be equal anyway.
                x.to_f64().to_bits().hash(&mut hash);
                self.difference = self.difference.max((x.to_f64() - y.to_f64()).abs());
            }
            self.results.insert(hash.finish());
            let is_right = match T::DTYPE.is_float() && self.way != AccumulateMethod::Owner {
                true => self.difference <= bound,
                // The owner's floats have to be equal, too: the order of its additions is fixed.
                false => block == right,
            };
            if !is_right {
                return Err(wrong(case, T::DTYPE, self.way));
            }
        }
        Ok(())
    }

    fn add(&mut self, run: &Accumulated) {
        self.wall.push(run.wall.as_secs_f64().max(1e-9) / self.blocks.blocks() as f64);
        for (sum, new) in self.threads.iter_mut().zip(&run.threads) {
            sum.jobs += new.jobs;
            sum.multiply += new.multiply;
            sum.add += new.add;
            sum.wait += new.wait;
        }
    }

    fn point(self, case: AccumulateCase, owner: &[f64]) -> AccumulatePoint {
        let ratios = self.wall.iter().zip(owner).map(|(own, owner)| own / owner).collect();
        AccumulatePoint {
            case,
            dtype: T::DTYPE,
            way: self.way,
            blocks: self.blocks.blocks(),
            times_owner: Times::new(ratios).median(),
            all_s: self.wall.iter().sum::<f64>() * self.blocks.blocks() as f64,
            wall: Times::new(self.wall),
            threads: self.threads,
            results: self.results.len(),
            difference: self.difference,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    fn case(jobs: usize, threads: usize) -> AccumulateCase {
        AccumulateCase { kernel: Choice::Auto, size: BenchSize { m: 40, k: 30, n: 20 }, jobs, threads }
    }

    #[test]
    fn all_ways_are_measured_and_right() {
        let kernel = open_on(Choice::Auto, 1).unwrap();
        let points = measured::<f32>(case(3, 2), &*kernel, &AccumulateMethod::ALL, 2).unwrap();
        assert_eq!(points.iter().map(|p| p.way).collect::<Vec<_>>(), AccumulateMethod::ALL);
        for p in &points {
            let jobs: f64 = p.threads.iter().map(|share| share.jobs).sum();
            assert!((jobs - (3 * p.blocks * 2) as f64).abs() < 1e-6 && p.gflops() > 0.0 && p.results > 0);
            assert_eq!(p.wall.count(), 2);
        }
        assert_eq!((points[0].times_owner, points[0].results, points[0].difference), (1.0, 1, 0.0));
        let integers = measured::<i64>(case(4, 2), &*kernel, &AccumulateMethod::ALL, 1).unwrap();
        assert!(integers.iter().all(|p| p.results == 1 && p.difference == 0.0));
    }

    #[test]
    fn a_block_that_is_wrong_ends_it() {
        let kernel = open_on(Choice::Auto, 1).unwrap();
        let job: AccumulateJob<f64> = AccumulateJob { a: numbers(1200, 1), b: numbers(600, 2) };
        let jobs = [job];
        let mut block = Accumulator::new(AccumulateMethod::Mutex, &*kernel, &jobs, [40, 30, 20], 1);
        block.run(1);
        let mut right = block.block(0);
        assert!(checked(case(1, 1), &jobs, &right).is_ok());
        let mut one = Measured {
            way: AccumulateMethod::Mutex,
            blocks: block,
            wall: Vec::new(),
            threads: Vec::new(),
            results: BTreeSet::new(),
            difference: 0.0,
        };
        assert!(one.compare(case(1, 1), &right).is_ok());
        right[0] += 1e-3;
        assert_eq!(one.compare(case(1, 1), &right).unwrap_err().exit, Exit::Unverified);
        assert_eq!(checked(case(1, 1), &jobs, &right).unwrap_err().exit, Exit::Unverified);
    }
}
