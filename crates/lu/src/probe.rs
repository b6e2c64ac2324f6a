//! Measures the rates that the time of a factorisation depends on.
//!
//! Place in the flow: `bench hpl` in one process measures for about a second ([`probe`]); a worker measures its tasks for a part
//! of that before a long factorisation ([`probe_tasks`]).
//!
//! Invariant: what all threads do at once in a factorisation is measured on all threads at once: they share caches, memory and
//! clock.

use crate::{LuKernels, LuOptions};
use bramble_kernel::lu::{LuElement, PackedPanel, dot};
use bramble_kernel::{Kernel, rate};
use bramble_matrix::ViewMut;
use bramble_wire::message::LuSpeeds;
use std::time::{Duration, Instant};

/// Seconds of each measurement in one process.
const SECONDS: f64 = 0.25;
/// Seconds of each measurement of a worker.
const TASK_SECONDS: f64 = 0.02;
/// Most rows of the measured panel and of the updated columns.
const ROWS: usize = 2048;
/// A worker's wider panel updates columns in less time, if they are not too short then, seconds.
const UPDATE_SECONDS: f64 = 0.02;
/// Columns that an update takes at a time.
const COLUMNS: usize = 512;
/// Elements that the measurement of reading goes through: more than any cache holds.
const READ_ELEMENTS: usize = 8 << 20;

/// Measured rates.
#[derive(Clone, Copy, Debug)]
pub struct LuProbe {
    /// All threads, each multiplying square matrices, Gflop/s.
    pub product_gflops: f64,
    /// All threads, each updating columns with a panel, Gflop/s.
    pub update_gflops: f64,
    /// One thread, factoring a panel, Gflop/s.
    pub panel_gflops: f64,
    /// One thread, reading memory, bytes/s.
    pub read_bytes_per_s: f64,
    /// All threads at once, each reading memory of its own, bytes/s.
    pub read_all_bytes_per_s: f64,
}

/// Measures the rates for matrices of order `n`.
pub fn probe<T: LuElement>(n: usize, kernels: &LuKernels, options: LuOptions) -> LuProbe {
    let rows = n.clamp(options.block, ROWS.max(options.block));
    let start = Instant::now();
    let wall = || start.elapsed();
    let products = || rate(&*kernels.one, T::DTYPE, SECONDS, &wall);
    let update = || {
        let mut columns = Updated::<T>::new(rows);
        let (panel, _) = columns.panel(&*kernels.one, options.block, (0.0, &wall));
        columns.rate(&*kernels.one, &panel, n, (SECONDS, &wall))
    };
    let (_, panel_gflops) = Updated::<T>::new(rows).panel(&*kernels.one, options.block, (SECONDS, &wall));
    LuProbe {
        product_gflops: on_all(options.threads, products),
        update_gflops: on_all(options.threads, update),
        panel_gflops,
        read_bytes_per_s: read_rate::<T>(),
        read_all_bytes_per_s: on_all(options.threads, read_rate::<f64>),
    }
}

/// Measures the tasks of a factorisation of order `n` on `threads` threads at once, in at most `bytes` of memory, by `clock`.
/// `None` if the memory does not suffice for columns three times as long as the wider panel is wide.
pub fn probe_tasks<T: LuElement>(
    kernel: &dyn Kernel,
    n: usize,
    threads: usize,
    bytes: u64,
    clock: &(dyn Fn() -> Duration + Sync),
) -> Option<LuSpeeds> {
    // Beside the columns: the panels, and a copy of the one that is measured.
    let square = bytes / threads.max(1) as u64 / 2 / size_of::<T>() as u64;
    let rows = usize::try_from(square.isqrt()).unwrap_or(ROWS).min(ROWS);
    let [_, widest] = LuSpeeds::WIDTHS;
    let least = 3 * widest;
    if rows < least {
        return None;
    }
    let gflops = rate(kernel, T::DTYPE, TASK_SECONDS / 10.0, clock);
    let quick = UPDATE_SECONDS * gflops * 1e9 / (2 * widest * COLUMNS) as f64;
    let rows = rows.min((quick as usize).max(least));
    let one = |_: usize| {
        let mut columns = Updated::<T>::new(rows);
        let mut of = |width: usize| {
            let (panel, panel_gflops) = columns.panel(kernel, width, (TASK_SECONDS, clock));
            (columns.rate(kernel, &panel, n, (TASK_SECONDS, clock)), panel_gflops)
        };
        let [(narrow, _), (wide, panel)] = LuSpeeds::WIDTHS.map(&mut of);
        [narrow, wide, panel]
    };
    let each = crate::threads::each(threads, (0..threads).collect(), one);
    let sum = |at: usize| each.iter().map(|rates| rates[at]).sum::<f64>();
    let panel_gflops = sum(2) / each.len().max(1) as f64;
    Some(LuSpeeds { update_gflops: [sum(0), sum(1)], panel_gflops })
}

/// The sum of the rates of threads that measure at the same time.
fn on_all(threads: usize, measure: impl Fn() -> f64 + Sync) -> f64 {
    crate::threads::each(threads, (0..threads).collect(), |_: usize| measure()).into_iter().sum()
}

fn noise<T: LuElement>(len: usize) -> Vec<T> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    (0..len).map(|_| T::from_f64(next())).collect()
}

/// How long a measurement takes, by which clock.
type Budget<'a> = (f64, &'a dyn Fn() -> Duration);

/// Columns that are updated some at a time, in turn, so that they come from memory as in a factorisation.
struct Updated<T> {
    rows: usize,
    cols: usize,
    elements: Vec<T>,
    first: usize,
}

impl<T: LuElement> Updated<T> {
    fn new(rows: usize) -> Self {
        // As many bytes in every type.
        let cols = (2 * COLUMNS).max(rows) / COLUMNS * COLUMNS * (size_of::<f64>() / size_of::<T>());
        Self { rows, cols, elements: noise(rows * cols), first: 0 }
    }

    /// A panel of the first columns, and the median of the rates in which it is factored, Gflop/s.
    fn panel(&self, kernel: &dyn Kernel, width: usize, budget: Budget<'_>) -> (PackedPanel<T>, f64) {
        let (seconds, clock) = budget;
        let original = &self.elements[..self.rows * width];
        let flops = (width * width) as f64 * (self.rows as f64 - width as f64 / 3.0);
        let (mut rates, mut memory) = (Vec::new(), Vec::new());
        let start = clock();
        loop {
            let mut block = original.to_vec();
            let began = clock();
            let panel = PackedPanel::factor(kernel, ViewMut::row_major(&mut block, self.rows, width), memory);
            rates.push(flops / (clock() - began).as_secs_f64().max(1e-9) / 1e9);
            if rates.len() >= 3 && (clock() - start).as_secs_f64() >= seconds {
                rates.sort_by(f64::total_cmp);
                return (panel, rates[rates.len() / 2]);
            }
            memory = panel.into_memory();
        }
    }

    /// The rate at which this thread updates columns of a matrix of order `n` with a panel, Gflop/s. The measured columns are
    /// short, so the triangle at their top takes more of the time than in a large matrix: it is measured apart.
    fn rate(&mut self, kernel: &dyn Kernel, panel: &PackedPanel<T>, n: usize, budget: Budget<'_>) -> f64 {
        let width = panel.width();
        let whole = self.seconds(kernel, panel, budget);
        let mut top = self.elements[..width * self.cols].to_vec();
        let top = PackedPanel::factor(kernel, ViewMut::new(&mut top, width, width, self.cols, 1), Vec::new());
        let triangle = self.seconds(kernel, &top, (budget.0 / 4.0, budget.1)).min(whole / 2.0);
        // The mean length of the columns of all updates, each weighted by its operations.
        let below = (n / 4 * 3).max(self.rows) - width;
        let stretch = below as f64 / (self.rows - width).max(1) as f64;
        let flops = (width * COLUMNS * (2 * below + width)) as f64;
        flops / (triangle + (whole - triangle) * stretch) / 1e9
    }

    /// Seconds of an update of `COLUMNS` columns as long as the panel.
    fn seconds(&mut self, kernel: &dyn Kernel, panel: &PackedPanel<T>, (seconds, clock): Budget<'_>) -> f64 {
        let (mut updates, mut scratch) = (0, Vec::new());
        let start = clock();
        while updates < 2 || (clock() - start).as_secs_f64() < seconds {
            let columns = ViewMut::new(&mut self.elements[self.first..], panel.rows(), COLUMNS, self.cols, 1);
            panel.update(kernel, columns, &mut scratch);
            updates += 1;
            self.first = (self.first + COLUMNS) % self.cols;
        }
        (clock() - start).as_secs_f64().max(1e-9) / f64::from(updates)
    }
}

/// Bytes a second that this thread reads.
fn read_rate<T: LuElement>() -> f64 {
    let x: Vec<T> = noise(READ_ELEMENTS);
    let y = vec![T::ONE; READ_ELEMENTS / 64];
    let start = Instant::now();
    let sum = x.chunks_exact(y.len()).map(|part| dot(part, &y).to_f64()).sum::<f64>();
    let bytes = (READ_ELEMENTS * size_of::<T>()) as f64;
    std::hint::black_box(sum);
    bytes / start.elapsed().as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_kernel::{Choice, KernelName, pick};
    use bramble_matrix::DType;

    #[test]
    fn tasks_are_measured_in_the_memory_that_there_is_and_with_little_not_at_all() {
        let kernel = pick(Choice::Named(KernelName::Simd), DType::F64, 0.0).unwrap().kernel;
        let start = Instant::now();
        let clock = || start.elapsed();
        let measured = |bytes: u64| probe_tasks::<f64>(&*kernel, 20_000, 2, bytes, &clock);
        assert_eq!(measured(0), None);
        assert_eq!(measured(4 * 8 * 767 * 767), None);
        let found = measured(4 * 8 * 768 * 768).unwrap();
        let [narrow, wide] = found.update_gflops;
        assert!(narrow > 0.0 && wide > 0.0 && found.panel_gflops > 0.0, "{found:?}");
    }
}
