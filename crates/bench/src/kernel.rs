//! `bramble bench kernel` and `bramble bench threads`: measures kernels by size, type and threads.
//!
//! Place in the flow: measures one point for each contestant and size; `show` prints the points, `plot` draws them.
//!
//! Invariants: all contestants of a size multiply the same operands into the same C, in turns; the first product of
//! each is a warm-up, is checked, and does not count. A single-threaded kernel multiplies blocks if it gets several
//! threads.

use super::error::of_bound;
use super::show::{self, Form};
use super::{machine, plot};
use crate::args::{BenchArgs, BenchKernelArgs, BenchSize, BenchThreadsArgs};
use bramble_kernel::{
    Choice, Kernel, KernelElement, KernelName, Product, open, open_on, peak, workspace_bytes,
};
use bramble_matrix::{DType, View, ViewMut};
use bramble_report::exit::{Exit, Failure};
use bramble_report::times::Times;
use bramble_worker::{available_memory, default_threads};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A run repeats its product for about this time, in seconds, so that the cost of clocks and thread wake-ups is
/// negligible.
const RUN_SECONDS: f64 = 0.01;
/// Most products in a run.
const REPEATS_MAX: f64 = 10_000.0;

/// A kernel and a number of threads.
pub(crate) type Contestant = (Choice, usize);

/// The measurement of one contestant at one size.
#[derive(Clone, Debug)]
pub(crate) struct KernelPoint {
    pub(crate) kernel: Choice,
    pub(crate) dtype: DType,
    pub(crate) size: BenchSize,
    pub(crate) threads: usize,
    /// Elapsed seconds per product.
    pub(crate) wall: Times,
    /// Processor seconds per product, all threads together.
    pub(crate) cpu: Times,
    /// The peak rate of this many threads.
    pub(crate) peak_gflops: f64,
    /// Largest error relative to the kernel's error bound.
    pub(crate) error: f64,
    /// Memory that the kernel needs besides A, B and C, bytes.
    pub(crate) workspace_bytes: usize,
}

impl KernelPoint {
    /// Rate by the median of elapsed times.
    pub(crate) fn gflops(&self) -> f64 {
        self.flops() / self.wall.median() / 1e9
    }

    /// Rate by processor time: an estimate of the rate on an otherwise idle machine.
    pub(crate) fn cpu_gflops(&self) -> f64 {
        self.flops() * self.threads as f64 / self.cpu.median() / 1e9
    }

    fn flops(&self) -> f64 {
        let BenchSize { m, k, n } = self.size;
        2.0 * m as f64 * k as f64 * n as f64
    }

    pub(crate) fn of_peak(&self) -> f64 {
        self.gflops() / self.peak_gflops
    }
}

/// Runs `bench kernel`.
pub(crate) fn rates(args: &BenchKernelArgs) -> Result<Exit, Failure> {
    let threads = args.threads.iter().map(|t| usize::from(*t));
    let contestants = |dtype: DType| -> Vec<Contestant> {
        let kernels = if args.kernel.is_empty() { present(dtype) } else { args.kernel.clone() };
        threads.clone().flat_map(|t| kernels.iter().map(move |k| (*k, t)).collect::<Vec<_>>()).collect()
    };
    measured(&args.bench, &args.size, contestants, show::rates)
}

/// Runs `bench threads`.
pub(crate) fn threads(args: &BenchThreadsArgs) -> Result<Exit, Failure> {
    let several = args.threads.map_or_else(default_threads, usize::from);
    let counts = if several > 1 { vec![1, several] } else { vec![1] };
    let contestants = |_: DType| -> Vec<Contestant> {
        args.kernel.iter().flat_map(|k| counts.iter().map(move |t| (*k, *t))).collect()
    };
    measured(&args.bench, &args.size, contestants, show::threads)
}

/// The kernels that are compared if none are named.
fn present(dtype: DType) -> Vec<Choice> {
    let fast = [KernelName::Simd, KernelName::OpenBlas, KernelName::Blis];
    let plain = fast.into_iter().filter(|name| name.supports(dtype) && open(*name).is_ok());
    let over = [
        Choice::Blocked { base: KernelName::Simd, edge: None },
        Choice::Strassen { base: KernelName::Simd, cutoff: None },
    ];
    plain.map(Choice::Named).chain(over).collect()
}

/// Measures all contestants at all sizes, and prints the results.
fn measured(
    args: &BenchArgs,
    sizes: &[BenchSize],
    contestants: impl Fn(DType) -> Vec<Contestant>,
    table: fn(&[KernelPoint]) -> Vec<String>,
) -> Result<Exit, Failure> {
    args.form.plot.check()?;
    let form = Form::of(&args.form.runs);
    let (mut points, mut peaks) = (Vec::new(), BTreeMap::new());
    bramble_report::out(machine::head(form, show::CSV_HEAD).as_bytes())?;
    for dtype in &args.dtype {
        let contestants = contestants(*dtype);
        for size in sizes {
            fits(*dtype, *size)?;
            let of = |threads| *peaks.entry((*dtype, threads)).or_insert_with(|| peak_of(*dtype, threads));
            let new = match dtype {
                DType::F32 => at_size::<f32>(&contestants, *size, args.form.runs.rounds, of)?,
                DType::F64 => at_size::<f64>(&contestants, *size, args.form.runs.rounds, of)?,
                DType::I32 => at_size::<i32>(&contestants, *size, args.form.runs.rounds, of)?,
                DType::I64 => at_size::<i64>(&contestants, *size, args.form.runs.rounds, of)?,
            };
            bramble_report::out(show::lines(form, &new).as_bytes())?;
            points.extend(new);
        }
    }
    if form == Form::Table {
        bramble_report::out((table(&points).join("\n") + "\n").as_bytes())?;
    }
    show::warnings(&points).iter().for_each(|line| bramble_report::say(line));
    args.form.plot.write(|| plot::svg(&points))?;
    Ok(Exit::Done)
}

/// Refuses operands that do not fit in memory.
fn fits(dtype: DType, BenchSize { m, k, n }: BenchSize) -> Result<(), Failure> {
    let elements = [(m, k), (k, n), (m, n)].map(|(x, y)| (x as u64).saturating_mul(y as u64));
    let bytes =
        elements.iter().fold(0u64, |sum, e| sum.saturating_add(*e)).saturating_mul(dtype.size_bytes() as u64);
    let free = available_memory();
    if bytes <= free {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "--size {m}x{k}x{n}: A, B and C of {dtype} take {} MiB, and {} MiB are free; use smaller ones",
        bytes >> 20,
        free >> 20
    )))
}

/// The peak of this many concurrent threads, Gflop/s.
fn peak_of(dtype: DType, threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| peak(dtype).max(peak(dtype)))).collect();
        running.into_iter().filter_map(|t| t.join().ok()).sum()
    })
}

/// The kernel of a contestant.
fn opened((choice, threads): Contestant, dtype: DType) -> Result<Arc<dyn Kernel>, Failure> {
    let fail = |e| Failure::failed(format!("--kernel: {e}"));
    bramble_kernel::pick(choice, dtype, 0.0).map_err(fail)?;
    let choice = match choice {
        Choice::Auto => Choice::Blocked { base: KernelName::Simd, edge: None },
        Choice::Named(base) if threads > 1 => Choice::Blocked { base, edge: None },
        choice => choice,
    };
    open_on(choice, threads).map_err(fail)
}

/// `len` reproducible numbers: floats in -1..1, integers that use every bit.
pub(super) fn numbers<T: KernelElement>(len: usize, mut state: u64) -> Vec<T> {
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state ^ (state >> 33)) as i64;
        if T::DTYPE.is_float() { T::from_f64(bits as f64 / 2f64.powi(63)) } else { T::from_i64(bits) }
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Elapsed time and processor time, since an arbitrary origin.
fn clocks() -> [Duration; 2] {
    [ClockId::Monotonic, ClockId::ProcessCPUTime]
        .map(|id| Duration::try_from(clock_gettime(id)).unwrap_or_default())
}

/// A, B and C of a measured product.
struct Operands<T> {
    size: BenchSize,
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

impl<T: KernelElement> Operands<T> {
    fn new(size: BenchSize) -> Self {
        let BenchSize { m, k, n } = size;
        Self { size, a: numbers(m * k, 1), b: numbers(k * n, 2), c: vec![T::ZERO; m * n] }
    }

    /// Elapsed and processor seconds per product, as the mean of `products` products.
    fn run(&mut self, kernel: &dyn Kernel, products: usize) -> [f64; 2] {
        let BenchSize { m, k, n } = self.size;
        let before = clocks();
        for _ in 0..products {
            let (a, b) = (View::row_major(&self.a, m, k), View::row_major(&self.b, k, n));
            let c = ViewMut::row_major(&mut self.c, m, n);
            kernel.multiply(T::any(Product::new(T::ONE, a, b, T::ZERO, c)));
        }
        let after = clocks();
        [0, 1].map(|at| after[at].saturating_sub(before[at]).as_secs_f64().max(1e-9) / products as f64)
    }

    /// The error of the last product relative to the kernel's bound; a failure if it exceeds the bound.
    fn error(&self, choice: Choice) -> Result<f64, Failure> {
        let error = of_bound(choice, self.size, &self.a, &self.b, &self.c);
        error.filter(|error| *error <= 1.0).ok_or_else(|| {
            let BenchSize { m, k, n } = self.size;
            let off = error.map_or_else(|| "wrong".to_owned(), |e| format!("off by {e:.3} times its bound"));
            let text = format!("the kernel {choice} is {off} at {m}x{k}x{n} of {}", T::DTYPE);
            Failure { exit: Exit::Unverified, text }
        })
    }
}

/// A contestant after its warm-up.
struct Warm {
    kernel: Arc<dyn Kernel>,
    /// Products of a run.
    products: usize,
    error: f64,
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

/// All contestants at one size.
fn at_size<T: KernelElement>(
    contestants: &[Contestant],
    size: BenchSize,
    rounds: u16,
    mut peak: impl FnMut(usize) -> f64,
) -> Result<Vec<KernelPoint>, Failure> {
    let mut operands = Operands::<T>::new(size);
    let mut all = Vec::new();
    for contestant in contestants {
        let kernel = opened(*contestant, T::DTYPE)?;
        let [first, _] = operands.run(&*kernel, 1);
        let error = operands.error(contestant.0)?;
        let products = (RUN_SECONDS / first).clamp(1.0, REPEATS_MAX) as usize;
        all.push(Warm { kernel, products, error, wall: Vec::new(), cpu: Vec::new() });
    }
    for _ in 0..rounds {
        for one in &mut all {
            let [wall, cpu] = operands.run(&*one.kernel, one.products);
            one.wall.push(wall);
            one.cpu.push(cpu);
        }
    }
    let sides = [size.m, size.n, size.k];
    let point = |((kernel, threads), one): (&Contestant, Warm)| KernelPoint {
        kernel: *kernel,
        dtype: T::DTYPE,
        size,
        threads: *threads,
        wall: Times::new(one.wall),
        cpu: Times::new(one.cpu),
        peak_gflops: peak(*threads),
        error: one.error,
        workspace_bytes: kernel
            .levels(T::DTYPE)
            .map_or(0, |rules| workspace_bytes(sides, T::DTYPE, rules.cutoff, false)),
    };
    Ok(contestants.iter().zip(all).map(point).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn all_contestants_are_measured_at_a_size_and_are_right() {
        let size = BenchSize { m: 70, k: 90, n: 50 };
        let kernels = ["simd", "blocked:reference:16", "strassen:simd:16"];
        let contestants: Vec<Contestant> =
            kernels.iter().flat_map(|k| [1, 2].map(|threads| (k.parse().unwrap(), threads))).collect();
        let points = at_size::<f32>(&contestants, size, 3, |threads| 10.0 * threads as f64).unwrap();
        assert_eq!(points.len(), 6);
        for (point, contestant) in points.iter().zip(&contestants) {
            assert_eq!((point.kernel, point.threads, point.wall.count()), (contestant.0, contestant.1, 3));
            assert!(point.error > 0.0 && point.error < 1.0 && point.gflops() > 0.0);
            assert_eq!(point.peak_gflops, 10.0 * point.threads as f64);
        }
        assert!(points[4].workspace_bytes > 0 && points[0].workspace_bytes == 0);
        assert_eq!(at_size::<i64>(&contestants, size, 1, |_| 1.0).unwrap()[5].error, 0.0);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let size = BenchSize { m: 1 << 17, k: 1 << 17, n: 1 << 17 };
        let refused = fits(DType::F64, size).unwrap_err().text;
        assert!(refused.contains("393216 MiB"), "{refused}");
    }
}
