#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use bramble_kernel::{KernelName, lu::PackedPanel, open};
use bramble_matrix::ViewMut;
use std::time::Instant;
fn main() {
    let k = open(KernelName::Simd).unwrap();
    for (rows, w) in [
        (8000usize, 256usize),
        (4000, 256),
        (2000, 256),
        (8000, 192),
        (8000, 128),
        (8000, 64),
        (8000, 32),
        (8000, 16),
        (2000, 16),
    ] {
        let pitch = 8008;
        let mut s = 1u64;
        let a: Vec<f64> = (0..rows * pitch)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1);
                (s >> 11) as f64 / 9e15 - 0.5
            })
            .collect();
        let mut best = f64::INFINITY;
        let mut mem = Vec::new();
        let n = if rows * w > 500_000 { 3 } else { 10 };
        for _ in 0..n {
            let mut b = a.clone();
            let t = Instant::now();
            let p =
                PackedPanel::factor(&*k, ViewMut::new(&mut b, rows, w, pitch, 1), std::mem::take(&mut mem));
            best = best.min(t.elapsed().as_secs_f64());
            mem = p.into_memory();
        }
        println!(
            "{rows} x {w}: {:.2} ms {:.1} Gflop/s",
            best * 1e3,
            (w * w) as f64 * (rows as f64 - w as f64 / 3.0) / best / 1e9
        );
    }
}
