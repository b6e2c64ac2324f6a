//! Measures the speed of a kernel on the calling thread.
//!
//! Place in the flow: `pick` compares kernels with it; workers report their speed with it.
//!
//! Rates are by a clock of the caller's choice: the wall clock measures the real throughput of a thread, its CPU
//! time the throughput without interruptions.
//!
//! Deliberately absent: threads. To measure a machine with all its cores busy (shared caches, memory and clock),
//! call [`rate`] on all of them at once.

use std::time::{Duration, Instant};

use bramble_matrix::{DType, View, ViewMut};

use crate::{Kernel, KernelElement, Product};

/// Edges of the trial products, largest first.
const EDGES: [usize; 6] = [512, 384, 256, 192, 128, 64];

/// Returns the time since some fixed moment.
pub type KernelClock<'a> = &'a dyn Fn() -> Duration;

/// Operands of one trial product, small numbers that stay finite and normal.
struct Trial<T> {
    edge: usize,
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

impl<T: KernelElement> Trial<T> {
    fn new(edge: usize) -> Self {
        let fill = |by: usize| (0..edge * edge).map(|i| T::from_f64((i * by % 17) as f64 - 8.0)).collect();
        Self { edge, a: fill(5), b: fill(7), c: vec![T::ZERO; edge * edge] }
    }

    /// Multiplications and additions of one product.
    fn flops(&self) -> f64 {
        2.0 * (self.edge as f64).powi(3)
    }

    /// Seconds of one product.
    fn seconds(&mut self, kernel: &dyn Kernel, clock: KernelClock<'_>) -> f64 {
        let edge = self.edge;
        let (a, b) = (View::row_major(&self.a, edge, edge), View::row_major(&self.b, edge, edge));
        let c = ViewMut::row_major(&mut self.c, edge, edge);
        let product = T::any(Product::new(T::ONE, a, b, T::ZERO, c));
        let start = clock();
        kernel.multiply(product);
        clock().saturating_sub(start).as_secs_f64().max(1e-9)
    }
}

/// The largest edge whose product takes at most `seconds`, judged by a small warm one.
fn fitting_edge<T: KernelElement>(kernel: &dyn Kernel, seconds: f64) -> usize {
    let mut small = Trial::<T>::new(64);
    let start = Instant::now();
    let wall = || start.elapsed();
    let once = (0..3).map(|_| small.seconds(kernel, &wall)).fold(f64::INFINITY, f64::min);
    let cost = |edge: usize| once * (edge as f64 / 64.0).powi(3);
    EDGES.into_iter().find(|&edge| cost(edge) <= seconds).unwrap_or(64)
}

/// Gflop/s (2 m n k operations; Gop/s for integers) of one thread, warm, over about `seconds_budget`
/// seconds (at least one product). Panics for a type that the kernel does not support.
pub fn rate(kernel: &dyn Kernel, dtype: DType, seconds_budget: f64, clock: KernelClock<'_>) -> f64 {
    match dtype {
        DType::F32 => rate_of::<f32>(kernel, seconds_budget, clock),
        DType::F64 => rate_of::<f64>(kernel, seconds_budget, clock),
        DType::I32 => rate_of::<i32>(kernel, seconds_budget, clock),
        DType::I64 => rate_of::<i64>(kernel, seconds_budget, clock),
    }
}

fn rate_of<T: KernelElement>(kernel: &dyn Kernel, seconds_budget: f64, clock: KernelClock<'_>) -> f64 {
    let start = Instant::now();
    let edge = fitting_edge::<T>(kernel, seconds_budget / 8.0);
    let mut trial = Trial::<T>::new(edge);
    trial.seconds(kernel, clock); // Memory is touched and caches are filled before the clock counts.
    let (mut products, mut seconds) = (0u32, 0.0);
    while products == 0 || start.elapsed().as_secs_f64() < seconds_budget {
        seconds += trial.seconds(kernel, clock);
        products += 1;
    }
    f64::from(products) * trial.flops() / seconds / 1e9
}

/// Rows and columns of a tile, and depth of a step, as most jobs of a large product have them.
const JOB: (usize, usize) = (256, 512);
/// Operands and tiles that the trial jobs use in turn, like real jobs: the data of one job is not in the caches for
/// the next.
const JOB_SETS: usize = 4;

/// Gflop/s of one thread for the jobs of a large product: tiles that are added to, and operands that come from
/// memory. Takes about `seconds_budget` and 10 MiB. Panics for an unsupported type.
pub fn job_rate(kernel: &dyn Kernel, dtype: DType, seconds_budget: f64, clock: KernelClock<'_>) -> f64 {
    match dtype {
        DType::F32 => job_rate_of::<f32>(kernel, seconds_budget, clock),
        DType::F64 => job_rate_of::<f64>(kernel, seconds_budget, clock),
        DType::I32 => job_rate_of::<i32>(kernel, seconds_budget, clock),
        DType::I64 => job_rate_of::<i64>(kernel, seconds_budget, clock),
    }
}

fn job_rate_of<T: KernelElement>(kernel: &dyn Kernel, seconds_budget: f64, clock: KernelClock<'_>) -> f64 {
    let (edge, depth) = JOB;
    let sets = |elements: usize, by: usize| -> Vec<Vec<T>> {
        let one = |set: usize| (0..elements).map(|i| T::from_f64((i * by % 17 + set) as f64 - 8.0)).collect();
        (0..JOB_SETS).map(one).collect()
    };
    let (a, b) = (sets(edge * depth, 5), sets(depth * edge, 7));
    let mut c: Vec<Vec<T>> = sets(edge * edge, 3);
    let start = Instant::now();
    let mut jobs: Vec<f64> = Vec::new();
    while jobs.len() < 2 * JOB_SETS || start.elapsed().as_secs_f64() < seconds_budget {
        // All pairs occur; each tile is used again only after all others.
        let (left, right) = (jobs.len() / JOB_SETS % JOB_SETS, jobs.len() % JOB_SETS);
        let tile = ViewMut::row_major(&mut c[right], edge, edge);
        let (a, b) = (View::row_major(&a[left], edge, depth), View::row_major(&b[right], depth, edge));
        let began = clock();
        kernel.multiply(T::any(Product::new(T::ONE, a, b, T::ONE, tile)));
        jobs.push(clock().saturating_sub(began).as_secs_f64());
    }
    // The lower quartile: some jobs are delayed by a CPU quota, which is accounted for elsewhere, or by other
    // processes.
    jobs.sort_by(f64::total_cmp);
    2.0 * (edge * edge * depth) as f64 / jobs[jobs.len() / 4].max(1e-9) / 1e9
}

/// Gflop/s of each kernel at its best, in rounds of one product each so that a disturbance affects all kernels
/// alike, for about `budget`.
pub(crate) fn compare(
    kernels: &[&dyn Kernel],
    dtype: DType,
    budget: Duration,
    clock: KernelClock<'_>,
) -> Vec<f64> {
    match dtype {
        DType::F32 => compare_of::<f32>(kernels, budget, clock),
        DType::F64 => compare_of::<f64>(kernels, budget, clock),
        DType::I32 => compare_of::<i32>(kernels, budget, clock),
        DType::I64 => compare_of::<i64>(kernels, budget, clock),
    }
}

fn compare_of<T: KernelElement>(
    kernels: &[&dyn Kernel],
    budget: Duration,
    clock: KernelClock<'_>,
) -> Vec<f64> {
    let start = Instant::now();
    let Some(&first) = kernels.first() else { return Vec::new() };
    // Five rounds and the warm-up.
    let edge = fitting_edge::<T>(first, budget.as_secs_f64() / (6 * kernels.len()) as f64).clamp(128, 384);
    let mut trial = Trial::<T>::new(edge);
    for kernel in kernels {
        trial.seconds(*kernel, clock);
    }
    let mut best = vec![f64::INFINITY; kernels.len()];
    let mut turns = 0;
    while turns < 3 || start.elapsed() < budget {
        for (best, kernel) in best.iter_mut().zip(kernels) {
            *best = best.min(trial.seconds(*kernel, clock));
        }
        turns += 1;
    }
    best.iter().map(|seconds| trial.flops() / seconds / 1e9).collect()
}
