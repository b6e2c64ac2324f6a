//! Measures one thread on products with little work per byte: dot products, matrix times vector, a few rows or
//! columns with a large depth, and outer products. The best of some rounds, with operands larger than any cache.
//!
//! `cargo run --release -p bramble-kernel --example thin [MIB [KERNEL]]`: one JSON object per line, gigabytes of A,
//! B and C per second. The letter after an operand gives its storage order: by rows or by columns.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program for people.

use bramble_kernel::{Choice, Kernel, KernelElement, KernelName, Product};
use bramble_matrix::{DType, View, ViewMut};
use std::time::Instant;

const ROUNDS: usize = 7;

fn main() {
    let mib = std::env::args().nth(1).map_or(128, |x| x.parse().unwrap());
    let name: KernelName = std::env::args().nth(2).map_or(KernelName::Simd, |name| name.parse().unwrap());
    for dtype in [DType::F64, DType::F32, DType::I64] {
        if !name.supports(dtype) {
            continue;
        }
        let kernel = bramble_kernel::pick(Choice::Named(name), dtype, 0.0).unwrap().kernel;
        match dtype {
            DType::F64 => all::<f64>(&*kernel, mib),
            DType::F32 => all::<f32>(&*kernel, mib),
            _ => all::<i64>(&*kernel, mib),
        }
    }
}

fn all<T: KernelElement>(kernel: &dyn Kernel, mib: usize) {
    let elements = (mib << 20) / size_of::<T>();
    let deep = |m: usize, n: usize| (m, n, elements / (m + n));
    one::<T>(kernel, "dot", deep(1, 1), false, true);
    let side = elements.isqrt();
    one::<T>(kernel, "A x, A by rows", (side, 1, side), true, true);
    one::<T>(kernel, "A x, A by columns", (side, 1, side), false, true);
    one::<T>(kernel, "A x, tile of 256 rows", (256, 1, elements / 256), true, true);
    for edge in [4, 8, 16, 64] {
        one::<T>(kernel, "X'X", deep(edge, edge), false, true);
        one::<T>(kernel, "XX'", deep(edge, edge), true, false);
    }
    one::<T>(kernel, "X Y, few columns", (elements / 64, 8, 64), true, true);
    one::<T>(kernel, "outer", (side, side, 1), true, true);
    one::<T>(kernel, "rank 8", (side, side, 8), true, true);
}

fn one<T: KernelElement>(
    kernel: &dyn Kernel,
    what: &str,
    (m, n, k): (usize, usize, usize),
    a_rows: bool,
    b_rows: bool,
) {
    let fill =
        |elements: usize| -> Vec<T> { (0..elements).map(|i| T::from_f64((i % 17) as f64 - 8.0)).collect() };
    let (a, b, mut c) = (fill(m * k), fill(k * n), fill(m * n));
    let view = |data, rows, cols, by_rows: bool| match by_rows {
        true => View::row_major(data, rows, cols),
        false => View::row_major(data, cols, rows).transposed(),
    };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (a, b) = (view(&a, m, k, a_rows), view(&b, k, n, b_rows));
        let product = Product::new(T::ONE, a, b, T::ZERO, ViewMut::row_major(&mut c, m, n));
        let began = Instant::now();
        kernel.multiply(T::any(product));
        best = best.min(began.elapsed().as_secs_f64());
    }
    let bytes = ((m * k + k * n + m * n) * size_of::<T>()) as f64;
    let gflops = 2.0 * m as f64 * n as f64 * k as f64 / best / 1e9;
    println!(
        "{{\"what\": \"{what}\", \"dtype\": \"{}\", \"m\": {m}, \"n\": {n}, \"k\": {k}, \
         \"gb_per_s\": {:.2}, \"gflops\": {gflops:.2}}}",
        T::DTYPE,
        bytes / best / 1e9
    );
}
