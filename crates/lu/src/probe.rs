//! Measures the rates that the time of a factorisation depends on, in about a second.
//!
//! Invariant: what all threads do at once in a factorisation is measured on all threads at once: they share caches, memory and
//! clock.

use crate::{LuKernels, LuOptions};
use bramble_kernel::lu::{LuElement, PackedPanel, dot};
use bramble_kernel::{Kernel, Product, rate};
use bramble_matrix::{View, ViewMut};
use std::time::Instant;

/// Seconds of each measurement.
const SECONDS: f64 = 0.25;
/// Rows of the measured panel and of the updated columns.
const ROWS: usize = 2048;
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
    let products = || rate(&*kernels.one, T::DTYPE, SECONDS, &|| start.elapsed());
    let panels = timed_panels::<T>(&*kernels.one, rows, options.block);
    LuProbe {
        product_gflops: on_all(options.threads, products),
        update_gflops: on_all(options.threads, || update_rate::<T>(&*kernels.one, rows, options.block)),
        panel_gflops: panels,
        read_bytes_per_s: read_rate::<T>(),
        read_all_bytes_per_s: on_all(options.threads, read_rate::<f64>),
    }
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

/// The median of the rates of panels, Gflop/s.
fn timed_panels<T: LuElement>(kernel: &dyn Kernel, rows: usize, width: usize) -> f64 {
    let original: Vec<T> = noise(rows * width);
    let flops = (width * width) as f64 * (rows as f64 - width as f64 / 3.0);
    let (mut rates, mut memory) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while rates.len() < 3 || start.elapsed().as_secs_f64() < SECONDS {
        let mut block = original.clone();
        let began = Instant::now();
        let panel = PackedPanel::factor(kernel, ViewMut::row_major(&mut block, rows, width), memory);
        rates.push(flops / began.elapsed().as_secs_f64().max(1e-9) / 1e9);
        memory = panel.into_memory();
    }
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The rate of updates by this thread, Gflop/s.
fn update_rate<T: LuElement>(kernel: &dyn Kernel, rows: usize, depth: usize) -> f64 {
    let (l, u): (Vec<T>, Vec<T>) = (noise(rows * depth), noise(depth * COLUMNS));
    // As many bytes in every type, so that the updated columns come from memory as in a factorisation.
    let cols = (2 * COLUMNS).max(rows) / COLUMNS * COLUMNS * (size_of::<f64>() / size_of::<T>());
    let mut c: Vec<T> = noise(rows * cols);
    let (mut products, mut first) = (0, 0);
    let start = Instant::now();
    while products < 2 || start.elapsed().as_secs_f64() < SECONDS {
        let target = ViewMut::new(&mut c[first..], rows, COLUMNS, cols, 1);
        let (l, u) = (View::new(&l, rows, depth, 1, rows), View::row_major(&u, depth, COLUMNS));
        kernel.multiply(T::any(Product::new(T::ZERO.minus(T::ONE), l, u, T::ONE, target)));
        products += 1;
        first = (first + COLUMNS) % cols;
    }
    let flops = 2.0 * (rows * depth * COLUMNS) as f64 * f64::from(products);
    flops / start.elapsed().as_secs_f64() / 1e9
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
