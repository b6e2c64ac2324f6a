//! GMRES on systems whose solutions are known, and on those that end the iteration early.

use super::*;
use crate::{LuFactors, LuKernels, LuOptions, MatrixNorms, ReadMatrix, WorkingMatrix, load};
use bramble_kernel::KernelName;
use bramble_kernel::lu::LuElement;
use bramble_matrix::{DType, Layout, Matrix, Shape};
use proptest::prelude::*;
use std::convert::Infallible;
use std::sync::Arc;

fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

fn product(a: &[f64], x: &[f64]) -> Vec<f64> {
    a.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum()).collect()
}

/// Runs the iteration on a matrix in rows, without a preconditioner.
fn plain(a: &[f64], r: &[f64], enough: f64, iterations_max: usize) -> Correction {
    let multiply = |z: &[f64]| Ok::<_, Infallible>(product(a, z));
    match correction(r, enough, iterations_max, |v| Ok(v.to_vec()), multiply) {
        Ok(found) => found,
        Err(never) => match never {},
    }
}

fn distance(x: &[f64], y: &[f64]) -> f64 {
    norm(&x.iter().zip(y).map(|(x, y)| x - y).collect::<Vec<f64>>())
}

/// The cyclic shift: GMRES finds nothing before the last of n iterations.
fn shift(n: usize) -> Vec<f64> {
    (0..n * n).map(|at| if at % n == (at / n + 1) % n { 1.0 } else { 0.0 }).collect()
}

#[test]
fn a_right_hand_side_of_zeros_takes_no_iteration() {
    let found = plain(&shift(4), &[0.0; 4], 0.0, 10);
    assert_eq!((found.d, found.iterations), (vec![0.0; 4], 0));
}

#[test]
fn a_matrix_on_which_the_iteration_stagnates_gives_zeros_until_its_order() {
    let r = [1.0, 0.0, 0.0, 0.0, 0.0];
    for iterations_max in 0..5 {
        let found = plain(&shift(5), &r, 1e-12, iterations_max);
        assert_eq!((found.d, found.iterations), (vec![0.0; 5], iterations_max));
    }
    let found = plain(&shift(5), &r, 1e-12, 50);
    assert!(found.iterations == 5 && distance(&product(&shift(5), &found.d), &r) < 1e-12);
}

#[test]
fn numbers_that_are_none_end_the_iteration_with_what_was_found_before() {
    for bad in [f64::NAN, f64::INFINITY] {
        let found = plain(&[bad, 0.0, 0.0, 1.0], &[1.0, 2.0], 0.0, 10);
        assert_eq!((found.d, found.iterations), (vec![0.0; 2], 1), "in A");
        let found = plain(&[1.0, 0.0, 0.0, 1.0], &[1.0, bad], 0.0, 10);
        assert_eq!((found.d, found.iterations), (vec![0.0; 2], 0), "in r");
    }
}

#[test]
fn a_singular_matrix_ends_the_iteration() {
    // Zero on the first vector: nothing is found.
    let found = plain(&[0.0; 4], &[1.0, 2.0], 0.0, 10);
    assert_eq!((found.d, found.iterations), (vec![0.0; 2], 1));
    // A projection: the part of r in its range is solved for.
    let found = plain(&[1.0, 0.0, 0.0, 0.0], &[3.0, 4.0], 1e-12, 10);
    let left = distance(&product(&[1.0, 0.0, 0.0, 0.0], &found.d), &[3.0, 4.0]);
    assert!((left - 4.0).abs() < 1e-12 && found.iterations <= 2, "{left}");
}

#[test]
fn norms_beyond_the_range_of_the_squares_are_right() {
    for scale in [1e200, 1e-200] {
        assert!((norm(&[3.0 * scale, -4.0 * scale]) / scale - 5.0).abs() < 1e-14);
    }
    assert_eq!((norm(&[]), norm(&[0.0, f64::INFINITY])), (0.0, f64::INFINITY));
    assert!(norm(&[1.0, f64::NAN, f64::INFINITY]).is_nan());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_known_solution_is_found_in_as_many_iterations_as_rows_and_more_never_make_the_residual_larger(
        n in 1..24usize, seed in 0..1_000_000u64,
    ) {
        let mut a = numbers(n * n, seed);
        (0..n).for_each(|i| a[i * n + i] += 3.0);
        let x = numbers(n, seed + 1);
        let r = product(&a, &x);
        let left: Vec<f64> =
            (0..=n).map(|most| distance(&product(&a, &plain(&a, &r, 0.0, most).d), &r)).collect();
        prop_assert!(left.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-12) + 1e-12), "{left:?}");
        prop_assert!(distance(&plain(&a, &r, 0.0, n).d, &x) <= 1e-10 * norm(&x).max(1.0));
    }
}

/// A matrix with the given singular values: between reflections with two random vectors.
fn with_singular_values(values: &[f64]) -> Vec<f64> {
    let n = values.len();
    let reflection = |v: &[f64], i: usize, j: usize| {
        f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j] / v.iter().map(|v| v * v).sum::<f64>()
    };
    let (v, w) = (numbers(n, 5), numbers(n, 6));
    let element = |i, j| (0..n).map(|k| reflection(&v, i, k) * values[k] * reflection(&w, k, j)).sum();
    (0..n * n).map(|at| element(at / n, at % n)).collect()
}

/// The f32 factors of a matrix in rows, and what its system needs.
struct Case {
    a: Matrix,
    norms: MatrixNorms,
    working: WorkingMatrix,
}

impl Case {
    fn new(elements: &[f64]) -> Self {
        let n = elements.len().isqrt();
        let bytes: Vec<u8> = bytemuck::cast_slice(elements).to_vec();
        let shape = Shape::new(n as u64, n as u64);
        let a = Matrix::from_shared("A", Arc::new(bytes), 0, shape, DType::F64, Layout::RowMajor).unwrap();
        let working = WorkingMatrix::zeros::<f32>(n, n).unwrap();
        let norms = load::<f64, f32>(&a, &working, 0, 1).unwrap();
        Self { a, norms, working }
    }

    /// Calls `with` with the system and its kernels for that number of threads.
    fn system<R>(&self, threads: usize, with: impl FnOnce(MixedSystem<'_>) -> R) -> R {
        let open = |dtype| LuKernels::open(Some(KernelName::Simd), dtype, 0.0, threads).unwrap();
        let (kernels, options) = (open(DType::F64), LuOptions { threads, block: 16 });
        let n = self.working.rows();
        let factors = LuFactors::<f32>::new(&self.working, n, &open(DType::F32), options).unwrap();
        let factors = factors.finished(&self.working).unwrap();
        let a = ReadMatrix { a: &self.a, norms: &self.norms, kernels: &kernels };
        with(MixedSystem { a: &a, factors: &factors })
    }
}

/// A matrix of condition 10⁹: plain refinement does not converge.
fn hard(n: usize) -> Vec<f64> {
    with_singular_values(&(0..n).map(|i| if i == n / 2 { 1e-9 } else { 1.0 }).collect::<Vec<f64>>())
}

#[test]
fn a_condition_beyond_f32_is_solved_by_gmres_and_not_by_plain_corrections() {
    let n = 60;
    let (a, b) = (hard(n), numbers(2 * n, 9));
    Case::new(&a).system(2, |system| {
        let plain = system.refine(&b, 2, 0).unwrap();
        assert!(!plain.has_converged && plain.iterations == 0, "{plain:?}");
    });
    Case::new(&a).system(2, |system| {
        let found = system.refine(&b, 2, 100).unwrap();
        assert!(found.has_converged && (2..=20).contains(&found.iterations), "{found:?}");
        assert!(found.residual.backward_error <= (n as f64).sqrt() * <f64 as LuElement>::UNIT);
    });
    Case::new(&a).system(1, |system| {
        // The budget holds for all right-hand sides together.
        let found = system.refine(&b, 2, 1).unwrap();
        assert!(!found.has_converged && found.iterations == 1, "{found:?}");
    });
}

#[test]
fn a_preconditioner_in_f32_arithmetic_takes_more_iterations() {
    let n = 60;
    let (elements, b) = (hard(n), numbers(n, 9));
    Case::new(&elements).system(1, |system| {
        let in_f32 = |v: &[f64]| {
            let mut z = v.to_vec();
            system.factors.solve_rows(&mut z, 1).map(|()| z)
        };
        let in_f64 = |v: &[f64]| {
            let mut z = v.to_vec();
            system.factors.solve_in_f64(&mut z).map(|()| z)
        };
        let multiply = |z: &[f64]| Ok::<_, LuError>(product(&elements, z));
        let iterations = |found: Result<Correction, LuError>| found.unwrap().iterations;
        let enough = 1e-12 * norm(&b);
        let low = iterations(correction(&b, enough, n, in_f32, multiply));
        let high = iterations(correction(&b, enough, n, in_f64, multiply));
        assert!(high < low, "{high} {low}");
    });
}

#[test]
fn a_solution_that_is_right_already_takes_no_iteration() {
    let n = 20;
    let elements: Vec<f64> = with_singular_values(&vec![2.0; n]);
    Case::new(&elements).system(1, |system| {
        let zero = system.gmres(&vec![0.0; n], vec![0.0; n], 10).unwrap();
        assert_eq!((zero.x, zero.iterations, zero.has_converged), (vec![0.0; n], 0, true));
        let b = numbers(n, 3);
        let found = system.gmres(&b, vec![0.0; n], 50).unwrap();
        let again = system.gmres(&b, found.x.clone(), 50).unwrap();
        assert!(found.has_converged && found.iterations > 0 && again.iterations == 0, "{found:?}");
        let nothing = system.gmres(&b, vec![0.0; n], 0).unwrap();
        assert!(!nothing.has_converged && nothing.iterations == 0 && nothing.x == vec![0.0; n]);
    });
}

#[test]
fn numbers_that_are_none_do_not_count_as_converged() {
    let n = 20;
    Case::new(&hard(n)).system(1, |system| {
        let mut b = numbers(n, 3);
        b[4] = f64::NAN;
        let found = system.gmres(&b, vec![0.0; n], 50).unwrap();
        assert!(!found.has_converged && found.residual.backward_error.is_infinite(), "{found:?}");
        let found = system.refine(&b, 1, 50).unwrap();
        assert!(!found.has_converged, "{found:?}");
    });
}
