//! Measures one thread on the jobs of a large product, without any communication: a block of C and two steps of
//! panels, in a worker's memory layout, are multiplied step by step, with the same cache misses as in a product.
//!
//! `cargo run --release -p bramble-kernel --example jobs [TILE [DEPTH [ROWS [COLS [SECONDS [KERNEL]]]]]]`: f32, a block of
//! ROWS × COLS tiles. One JSON object, `gflops` by the wall clock.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program for people.

use bramble_kernel::{Choice, KernelElement, KernelName, Product};
use bramble_matrix::{DType, View, ViewMut};
use std::time::Instant;

fn main() {
    let argument =
        |at: usize, default: usize| std::env::args().nth(at).map_or(default, |x| x.parse().unwrap());
    let (tile, depth) = (argument(1, 512), argument(2, 512));
    let (rows, cols, seconds) = (argument(3, 8), argument(4, 8), argument(5, 10) as f64);
    let name: KernelName = std::env::args().nth(6).map_or(KernelName::Simd, |name| name.parse().unwrap());
    let kernel = bramble_kernel::pick(Choice::Named(name), DType::F32, 0.0).unwrap().kernel;
    let matrix = |elements: usize, by: usize| -> Vec<f32> {
        (0..elements).map(|i| (i * by % 17) as f32 - 8.0).collect()
    };
    // Two steps of panels: one is computed while the other arrives.
    let panels = |count: usize, by: usize| -> Vec<Vec<Vec<f32>>> {
        (0..2).map(|step| (0..count).map(|i| matrix(tile * depth, by + i + step)).collect()).collect()
    };
    let (a, b) = (panels(rows, 5), panels(cols, 7));
    let mut c: Vec<Vec<f32>> = (0..rows * cols).map(|i| matrix(tile * tile, 3 + i)).collect();
    let began = Instant::now();
    let mut jobs = 0u64;
    'product: for step in (0..2).cycle() {
        for i in 0..rows {
            for j in 0..cols {
                let (left, right) =
                    (View::row_major(&a[step][i], tile, depth), View::row_major(&b[step][j], depth, tile));
                let target = ViewMut::row_major(&mut c[i * cols + j], tile, tile);
                kernel.multiply(f32::any(Product::new(1.0, left, right, 1.0, target)));
                jobs += 1;
                if began.elapsed().as_secs_f64() > seconds {
                    break 'product;
                }
            }
        }
    }
    let flops = 2.0 * (tile * tile * depth) as f64 * jobs as f64;
    let rate = flops / began.elapsed().as_secs_f64() / 1e9;
    println!(
        "{{\"tile\": {tile}, \"depth\": {depth}, \"rows\": {rows}, \"cols\": {cols}, \"jobs\": {jobs}, \"gflops\": {rate:.3}}}"
    );
}
