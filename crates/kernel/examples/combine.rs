//! Measures sums of matrices by layout: `cargo run --release -p bramble-kernel --example combine [EDGE]`.
//! GB/s count two reads and one write of each element.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program for people.

use bramble_kernel::{Sign, combine};
use bramble_matrix::{View, ViewMut};
use std::time::Instant;

fn main() {
    let edge = std::env::args().nth(1).map_or(2048, |text| text.parse().unwrap());
    let (a, b) = (vec![1.5f64; edge * edge], vec![2.5f64; edge * edge]);
    let mut c = vec![0f64; edge * edge];
    let by_rows = |data| View::row_major(data, edge, edge);
    for (name, a_turned, b_turned) in
        [("rows + rows", false, false), ("columns + rows", true, false), ("columns + columns", true, true)]
    {
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let (x, y) = (by_rows(&a), by_rows(&b));
            let x = if a_turned { x.transposed() } else { x };
            let y = if b_turned { y.transposed() } else { y };
            let began = Instant::now();
            combine(x, Sign::Minus, y, 0.0, ViewMut::row_major(&mut c, edge, edge));
            best = best.min(began.elapsed().as_secs_f64());
        }
        println!("{name:20} {:6.1} GB/s", 24.0 * (edge * edge) as f64 / best / 1e9);
    }
}
