//! Measures the parts of one step of a factorisation, one thread, against a product of the update's shape.
//!
//! `cargo run --release -p bramble-kernel --example lu_parts [-- ROWS WIDTH COLUMNS [KERNEL]]`
//!
//! A panel of ROWS × WIDTH, and the update of COLUMNS columns with it, of f64: the exchange of rows, the triangle (U of those
//! columns), and the product below; then the whole update, which a kernel may do faster than its parts. Milliseconds and Gflop/s,
//! the median of several. To compare two versions of the code, run their programs in turns.
#![allow(clippy::print_stdout)] // A program for people.

use std::time::Instant;

use bramble_kernel::lu::{PackedPanel, Triangle, exchange_rows, solve_triangle};
use bramble_kernel::{AnyProduct, KernelName, Product, grid_mut, open, quiet_blas_threads};
use bramble_matrix::{View, ViewMut};

fn main() {
    quiet_blas_threads();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: usize| match words.get(at) {
        Some(word) => word.parse().unwrap_or_else(|error| panic!("{word}: {error}; give ROWS WIDTH COLUMNS")),
        None => or,
    };
    let (rows, width, columns) = (number(0, 4096), number(1, 256), number(2, 2048));
    assert!((1..=rows).contains(&width), "WIDTH is from 1 to ROWS");
    let name = words.get(3).map_or(Ok(KernelName::Simd), |word| word.parse());
    let kernel = name.and_then(open).unwrap_or_else(|error| panic!("{error}"));
    let noise = |count: usize| -> Vec<f64> {
        let mut state = 1u64;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
            })
            .collect()
    };
    let fresh = noise(rows * width);
    let mut matrix = noise(rows * columns);
    let (m, n, k) = (rows as f64, columns as f64, width as f64);
    let mut made = None;
    show("panel", m * k * k - k * k * k / 3.0, || {
        let mut block = fresh.clone();
        let start = Instant::now();
        made = Some(PackedPanel::factor(&*kernel, ViewMut::row_major(&mut block, rows, width), Vec::new()));
        start.elapsed().as_secs_f64()
    });
    let Some(panel) = made else { return };
    let mut timed = |name: &str, operations: f64, task: &mut dyn FnMut(ViewMut<'_, f64>)| {
        show(name, operations, || {
            let start = Instant::now();
            task(ViewMut::row_major(&mut matrix, rows, columns));
            start.elapsed().as_secs_f64()
        });
    };
    timed("exchange of rows", 0.0, &mut |mut all| exchange_rows(&mut all, panel.pivots()));
    let mut u = noise(width * columns);
    timed("triangle", k * k * n, &mut |_| {
        solve_triangle(
            &*kernel,
            Triangle::UnitLower,
            panel.factors(0..width),
            ViewMut::row_major(&mut u, width, columns),
        );
    });
    let u = noise(width * columns);
    timed("product", 2.0 * (m - k) * n * k, &mut |all| {
        let Some(below) =
            grid_mut(all, std::slice::from_ref(&(width..rows)), std::slice::from_ref(&(0..columns))).pop()
        else {
            return;
        };
        let (l, u) = (panel.factors(width..rows), View::row_major(&u, width, columns));
        kernel.multiply(AnyProduct::F64(Product::new(-1.0, l, u, 1.0, below)));
    });
    let mut scratch = Vec::new();
    timed("update", (2.0 * (m - k) + k) * n * k, &mut |all| panel.update(&*kernel, all, &mut scratch));
}

fn show(name: &str, operations: f64, mut task: impl FnMut() -> f64) {
    let mut taken: Vec<f64> = (0..7).map(|_| task()).collect();
    taken.sort_by(f64::total_cmp);
    let seconds = taken[taken.len() / 2];
    println!("{name:<18} {:9.3} ms {:8.1} Gflop/s", seconds * 1e3, operations / seconds / 1e9);
}
