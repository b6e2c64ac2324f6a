//! Measures each kernel on this machine, against the peak of its cores.
//!
//! `cargo run --release -p bramble-kernel --example rates [-- [--json] [DTYPE...]]`
//!
//! Rates are in Gflop/s (Gop/s for integers), 2 m n k operations a product, the best of several; with
//! several threads each multiplies matrices of its own, and the rates are added.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A program for people.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use bramble_kernel::{Kernel, KernelElement, KernelName, Product, open, peak, quiet_blas_threads};
use bramble_matrix::{DType, View, ViewMut};

/// m, n and k: one step of a tile, and a square product.
const SHAPES: [(usize, usize, usize); 2] = [(512, 512, 1024), (1024, 1024, 1024)];

fn main() {
    quiet_blas_threads();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let json = words.iter().any(|word| word == "--json");
    let wanted: Vec<DType> = words.iter().filter_map(|word| DType::parse(word)).collect();
    if !json {
        println!(
            "{:<5} {:<10} {:>15} {:>8} {:>10} {:>8}",
            "type", "kernel", "m x n x k", "threads", "Gop/s", "of peak"
        );
    }
    for dtype in DType::ALL.into_iter().filter(|d| wanted.is_empty() || wanted.contains(d)) {
        for name in KernelName::ALL.into_iter().filter(|name| name.supports(dtype)) {
            match open(name) {
                Ok(kernel) => measure(&kernel, dtype, json),
                Err(error) => eprintln!("{error}"),
            }
        }
    }
}

fn measure(kernel: &Arc<dyn Kernel>, dtype: DType, json: bool) {
    for shape in SHAPES {
        for threads in [1, 2] {
            let each = match dtype {
                DType::F32 => on_threads::<f32>(kernel, shape, threads),
                DType::F64 => on_threads::<f64>(kernel, shape, threads),
                DType::I32 => on_threads::<i32>(kernel, shape, threads),
                DType::I64 => on_threads::<i64>(kernel, shape, threads),
            };
            let (gops, limit) =
                (each.iter().map(|x| x.0).sum::<f64>(), each.iter().map(|x| x.1).sum::<f64>());
            let ((m, n, k), name, part) = (shape, kernel.name(), gops / limit);
            if json {
                println!(
                    r#"{{"schema":"bramble.kernel-rate/1","dtype":"{dtype}","kernel":"{name}","m":{m},"n":{n},"k":{k},"threads":{threads},"gflops":{gops:.2},"peak_gflops":{limit:.2}}}"#
                );
            } else {
                let size = format!("{m}x{n}x{k}");
                println!("{dtype:<5} {name:<10} {size:>15} {threads:>8} {gops:>10.1} {:>7.0}%", part * 100.0);
            }
        }
    }
}

/// Rate and peak of each of several threads that multiply at the same time.
fn on_threads<T: KernelElement>(
    kernel: &Arc<dyn Kernel>,
    shape: (usize, usize, usize),
    threads: usize,
) -> Vec<(f64, f64)> {
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| one::<T>(&**kernel, shape, &start))).collect();
        all.into_iter().map(|thread| thread.join().expect("kernels do not panic")).collect()
    })
}

fn one<T: KernelElement>(
    kernel: &dyn Kernel,
    (m, n, k): (usize, usize, usize),
    start: &Barrier,
) -> (f64, f64) {
    let fill = |len: usize| (0..len).map(|i| T::from_f64((i % 17) as f64 - 8.0)).collect::<Vec<T>>();
    let (a, b, mut c) = (fill(m * k), fill(k * n), fill(m * n));
    let mut seconds = || {
        let (a, b) = (View::row_major(&a, m, k), View::row_major(&b, k, n));
        let product = T::any(Product::new(T::ONE, a, b, T::ONE, ViewMut::row_major(&mut c, m, n)));
        let clock = Instant::now();
        kernel.multiply(product);
        clock.elapsed().as_secs_f64()
    };
    let slow = kernel.name() == KernelName::Reference.as_str();
    if !slow {
        seconds();
    }
    start.wait();
    let turns = if slow { 1 } else { 12 };
    let best = (0..turns).map(|_| seconds()).fold(f64::INFINITY, f64::min);
    start.wait();
    (2.0 * (m * n * k) as f64 / best / 1e9, peak(T::DTYPE))
}
