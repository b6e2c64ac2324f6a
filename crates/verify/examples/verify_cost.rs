//! Measures what verification costs: `cargo run --release -p bramble-verify --example verify_cost [n] [threads]`.
//!
//! Also measures the scan of the operands' scaling, which reads A and B.
//!
//! The product itself is not computed: A is the identity plus zeros, so that A B = C holds. The check costs the
//! same as for any other product, since no row raises an alarm.
#![allow(clippy::print_stdout)]

use bramble_matrix::{Buffer, DType, Element, Layout, Matrix, MatrixError, Shape, SharedBytes};
use bramble_verify::{Check, Effort, scaling, verify};
use std::sync::Arc;
use std::time::Instant;

/// A square matrix with the given elements.
fn matrix<T: Element>(
    n: usize,
    layout: Layout,
    at: impl Fn(usize, usize) -> T,
) -> Result<Matrix, MatrixError> {
    let mut buffer = Buffer::zeroed(n * n * size_of::<T>())?;
    for (i, x) in buffer.elements_mut::<T>().iter_mut().enumerate() {
        *x = if layout == Layout::RowMajor { at(i / n, i % n) } else { at(i % n, i / n) };
    }
    let owner: SharedBytes = Arc::new(buffer);
    Matrix::from_shared("example", owner, 0, Shape::new(n as u64, n as u64), T::DTYPE, layout)
}

/// A pseudo-random element; small integers, so that C is exact for every type.
fn element<T: Element>(i: usize, j: usize) -> T {
    let mixed = (i as u64 ^ (j as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    T::from_i64((mixed >> 44) as i64 - (1 << 19))
}

fn measure_scaling(a: &Matrix, b: &Matrix, threads: usize) -> Result<(), MatrixError> {
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        let found = scaling(a, b, threads)?;
        best = best.min(start.elapsed().as_secs_f64());
        assert!(found.is_finite, "{found}");
    }
    let (name, layout) = (a.dtype(), a.layout());
    let elements = a.shape().rows * a.shape().cols + b.shape().rows * b.shape().cols;
    let speed = (elements as usize * name.size_bytes()) as f64 / best / 1e9;
    println!("{name} operands {layout:?} scaling: {:.1} ms, {speed:.1} GB/s", best * 1e3);
    Ok(())
}

fn measure<T: Element>(n: usize, threads: usize) -> Result<(), MatrixError> {
    for layout in [Layout::RowMajor, Layout::ColMajor] {
        let a = matrix::<T>(n, layout, |i, j| if i == j { T::ONE } else { T::ZERO })?;
        let b = matrix::<T>(n, layout, element)?;
        let c = matrix::<T>(n, Layout::RowMajor, element)?;
        if T::DTYPE.is_float() {
            measure_scaling(&a, &b, threads)?;
        }
        for effort in [Effort::Fast, Effort::Full] {
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
            let mut best = f64::INFINITY;
            let mut ratio = 0.0;
            for _ in 0..5 {
                let start = Instant::now();
                let verdict = verify(&check)?;
                best = best.min(start.elapsed().as_secs_f64());
                assert!(verdict.passed, "{:?}", verdict.fault);
                ratio = verdict.worst_ratio;
            }
            let name = T::DTYPE;
            println!("{name} n={n} operands {layout:?} {effort}: {:.1} ms, ratio {ratio:.2e}", best * 1e3);
        }
    }
    Ok(())
}

fn main() -> Result<(), MatrixError> {
    let mut args = std::env::args().skip(1).map_while(|arg| arg.parse().ok());
    let (n, threads) = (args.next().unwrap_or(4096), args.next().unwrap_or(2));
    for dtype in DType::ALL {
        match dtype {
            DType::F32 => measure::<f32>(n, threads)?,
            DType::F64 => measure::<f64>(n, threads)?,
            DType::I32 => measure::<i32>(n, threads)?,
            DType::I64 => measure::<i64>(n, threads)?,
        }
    }
    Ok(())
}
