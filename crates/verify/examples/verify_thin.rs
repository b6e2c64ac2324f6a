//! Measures what verification costs where a side of C is short: `cargo run --release -p bramble-verify --example
//! verify_thin [threads]`. Beside it, how long reading the operands and C once takes, which no check can do without.
#![allow(clippy::print_stdout)]

use bramble_matrix::{Buffer, DType, Layout, Matrix, MatrixError, Shape, SharedBytes};
use bramble_verify::{Check, Effort, verify};
use std::sync::Arc;
use std::time::Instant;

/// Elements that are all 1, so that C is `k` all over.
fn matrix(rows: usize, cols: usize, layout: Layout, x: f64) -> Result<Matrix, MatrixError> {
    let mut buffer = Buffer::zeroed(rows * cols * 8)?;
    buffer.elements_mut::<f64>().fill(x);
    let owner: SharedBytes = Arc::new(buffer);
    Matrix::from_shared("example", owner, 0, Shape::new(rows as u64, cols as u64), DType::F64, layout)
}

/// Seconds that it takes to add up some memory on all threads.
fn read(matrices: &[&Matrix], threads: usize) -> f64 {
    let start = Instant::now();
    let mut sum = 0.0;
    for matrix in matrices {
        let shape = matrix.shape();
        let all = bramble_matrix::Rect::new(
            bramble_matrix::Span::new(0, shape.rows),
            bramble_matrix::Span::new(0, shape.cols),
        );
        let Some(lines) = matrix.lines(all) else { continue };
        let view = lines.view::<f64>();
        let data = view.data();
        sum += std::thread::scope(|scope| {
            let parts = data.chunks(data.len().div_ceil(threads));
            let parts: Vec<_> = parts.map(|part| scope.spawn(|| add(part))).collect();
            parts.into_iter().map(|part| part.join().unwrap_or(f64::NAN)).sum::<f64>()
        });
    }
    assert!(sum > 0.0, "all elements are above 0");
    start.elapsed().as_secs_f64()
}

fn add(data: &[f64]) -> f64 {
    let mut sums = [0.0; 32];
    for chunk in data.as_chunks::<32>().0 {
        for i in 0..32 {
            sums[i] += chunk[i];
        }
    }
    sums.iter().sum()
}

fn main() -> Result<(), MatrixError> {
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(2);
    let (rows, cols) = (Layout::RowMajor, Layout::ColMajor);
    let shapes = [
        (1, 20_000_000, 1, rows, rows),
        (8, 2_000_000, 8, cols, rows),
        (8, 2_000_000, 8, rows, rows),
        (64, 1_000_000, 64, cols, rows),
        (8000, 8000, 1, rows, rows),
        (8000, 8000, 1, cols, rows),
        (8000, 1, 8000, rows, rows),
    ];
    for (m, k, n, a_layout, b_layout) in shapes {
        let (a, b) = (matrix(m, k, a_layout, 1.0)?, matrix(k, n, b_layout, 1.0)?);
        let c = matrix(m, n, rows, k as f64)?;
        let mut best = [f64::INFINITY; 3];
        for _ in 0..5 {
            best[0] = best[0].min(read(&[&a, &b, &c], threads));
            for (best, effort) in best[1..].iter_mut().zip([Effort::Fast, Effort::Full]) {
                let start = Instant::now();
                let check = Check {
                    a: &a,
                    b: &b,
                    c: &c,
                    c0: None,
                    alpha: 1.0,
                    beta: 0.0,
                    levels: 0,
                    tiles: &[],
                    effort,
                    seed: 1,
                    threads,
                };
                let verdict = verify(&check)?;
                assert!(verdict.passed, "{:?}", verdict.fault);
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        let [read, fast, full] = best.map(|s| s * 1e3);
        println!("{m} x {k} x {n}, A {a_layout:?}: read {read:.1} ms, fast {fast:.1} ms, full {full:.1} ms");
    }
    Ok(())
}
