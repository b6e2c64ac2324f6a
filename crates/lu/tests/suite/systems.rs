//! Factorisations and solutions of small systems, checked by their definition: every order, block width and number of threads.
use bramble_kernel::lu::LuElement;
use bramble_lu::{
    Elimination, LuError, LuFactors, LuKernels, LuOptions, MatrixNorms, MixedSystem, ReadMatrix,
    WorkingMatrix, hpl, load, residual,
};
use bramble_matrix::{DType, Layout, Matrix, Shape, SharedBytes};
use proptest::prelude::*;
use std::sync::Arc;

fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state ^ (state >> 33)) as i64 >> 11) as f64 / (1u64 << 52) as f64
    };
    (0..len).map(|_| next()).collect()
}

fn bytes<T: LuElement>(elements: &[T]) -> SharedBytes {
    Arc::new(bytemuck::cast_slice::<T, u8>(elements).to_vec())
}

/// A matrix of these elements in rows, stored in rows or in columns.
fn matrix<T: LuElement>(elements: &[f64], rows: usize, cols: usize, layout: Layout) -> Matrix {
    let at = |at: usize| match layout {
        Layout::RowMajor => elements[at],
        Layout::ColMajor => elements[at % rows.max(1) * cols + at / rows.max(1)],
    };
    let stored: Vec<T> = (0..rows * cols).map(|i| T::from_f64(at(i))).collect();
    Matrix::from_shared("A", bytes(&stored), 0, Shape::new(rows as u64, cols as u64), T::DTYPE, layout)
        .unwrap()
}

fn kernels(dtype: DType, threads: usize) -> LuKernels {
    LuKernels::open(None, dtype, 0.0, threads).unwrap()
}

/// A, loaded and factored with right-hand sides b that ride along.
struct Case<T> {
    a: Matrix,
    elements: Vec<f64>,
    b: Vec<f64>,
    width: usize,
    norms: MatrixNorms,
    working: WorkingMatrix,
    factors: LuFactors<T>,
}

fn case<T: LuElement>(n: usize, width: usize, options: LuOptions, layout: Layout, seed: u64) -> Case<T> {
    // Rounded to f32, so that both types have the same matrix.
    let rounded =
        |len: usize, seed| numbers(len, seed).into_iter().map(|x| f64::from(x as f32)).collect::<Vec<_>>();
    let (elements, b) = (rounded(n * n, seed), rounded(n * width, seed + 1));
    let (a, right) = (matrix::<T>(&elements, n, n, layout), matrix::<T>(&b, n, width, Layout::RowMajor));
    let working = WorkingMatrix::zeros::<T>(n, n + width).unwrap();
    let norms = load::<T, T>(&a, &working, 0, options.threads).unwrap();
    load::<T, T>(&right, &working, n, 1).unwrap();
    let factors = LuFactors::new(&working, n, &kernels(T::DTYPE, options.threads), options).unwrap();
    Case { a, elements, b, width, norms, working, factors }
}

fn wide<T: LuElement>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

impl<T: LuElement> Case<T> {
    /// Asserts a backward error of at most 16 n u.
    fn assert_solves(&self, x: &[T], what: &str) {
        let n = self.a.shape().rows as usize;
        let found =
            residual(&self.a, &self.norms, &self.b, &wide(x), self.width, &kernels(DType::F64, 1)).unwrap();
        assert!(found.backward_error <= 16.0 * n as f64 * T::UNIT, "{what}: {:e}", found.backward_error);
    }
}

fn solve_case<T: LuElement>(n: usize, width: usize, options: LuOptions, layout: Layout) {
    let what = format!("{n} {width} {options:?} {layout:?} {}", T::DTYPE);
    let mut case = case::<T>(n, width, options, layout, n as u64 * 7 + width as u64);
    case.factors.check().unwrap();
    let riding = case.factors.back_substitute(width);
    case.assert_solves(&riding, &what);
    case.factors = case.factors.finished(&case.working).unwrap();
    let mut x: Vec<T> = case.b.iter().map(|x| T::from_f64(*x)).collect();
    case.factors.solve(&mut x, width);
    case.assert_solves(&x, &what);
    let row = case.elements.chunks_exact(n.max(1)).map(|row| row.iter().map(|x| x.abs()).sum::<f64>());
    assert!((row.fold(0.0, f64::max) - case.norms.inf).abs() <= 1e-12 * case.norms.inf, "{what}");
}

#[test]
fn systems_of_all_small_orders_are_solved() {
    for n in 0..=40 {
        for (width, block, threads) in [(1, 4, 1), (3, 7, 2), (0, 16, 3), (9, 40, 2)] {
            solve_case::<f64>(n, width, LuOptions { threads, block }, Layout::RowMajor);
            solve_case::<f32>(n, width, LuOptions { threads, block }, Layout::ColMajor);
        }
    }
    solve_case::<f64>(300, 5, LuOptions { threads: 2, block: 32 }, Layout::ColMajor);
    solve_case::<f32>(257, 1, LuOptions { threads: 4, block: 16 }, Layout::RowMajor);
}

/// A with its rows exchanged, minus L U, relative to the rounding that |L| |U| allows.
fn error_of(elements: &[f64], rows: usize, cols: usize, factors: &LuFactors<f64>) -> f64 {
    let Elimination { pivots, .. } = factors.elimination();
    let mut want: Vec<&[f64]> = elements.chunks_exact(cols).collect();
    pivots.iter().enumerate().for_each(|(i, p)| want.swap(i, *p));
    let view = factors.view();
    let mut worst: f64 = 0.0;
    for (i, row) in want.iter().enumerate().take(rows) {
        for (j, want) in row.iter().enumerate() {
            let terms = (0..=i.min(j).min(pivots.len() - 1)).map(|k| {
                let l = if k == i { 1.0 } else { view.at(i, k) };
                l * view.at(k, j)
            });
            let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + f64::abs(x)));
            worst = worst.max((sum - want).abs() / (size + want.abs()).max(f64::MIN_POSITIVE));
        }
    }
    worst / (pivots.len() as f64 * <f64 as LuElement>::UNIT)
}

#[test]
fn factors_of_matrices_of_any_shape_multiply_to_the_matrix() {
    for (rows, cols) in [(1, 1), (5, 3), (3, 5), (40, 25), (25, 40), (64, 64), (70, 1), (1, 70), (130, 90)] {
        for (block, threads) in [(4, 1), (16, 2), (200, 3)] {
            let elements = numbers(rows * cols, (rows * cols) as u64);
            let a = matrix::<f64>(&elements, rows, cols, Layout::RowMajor);
            let (working, options) =
                (WorkingMatrix::zeros::<f64>(rows, cols).unwrap(), LuOptions { threads, block });
            load::<f64, f64>(&a, &working, 0, threads).unwrap();
            let factors =
                LuFactors::new(&working, rows.min(cols), &kernels(DType::F64, threads), options).unwrap();
            let factors = factors.finished(&working).unwrap();
            let error = error_of(&elements, rows, cols, &factors);
            assert!(error <= 4.0, "{rows} x {cols} {options:?}: {error}");
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let of = |threads| {
        let case = case::<f64>(150, 4, LuOptions { threads, block: 16 }, Layout::RowMajor, 5);
        wide(&case.factors.back_substitute(4)).into_iter().map(f64::to_bits).collect::<Vec<_>>()
    };
    let one = of(1);
    assert!([2, 3, 8].into_iter().all(|threads| of(threads) == one));
}

#[test]
fn transposed_systems_are_solved() {
    for n in [1, 2, 17, 90] {
        let mut case = case::<f64>(n, 1, LuOptions { threads: 1, block: 16 }, Layout::RowMajor, 9);
        case.factors = case.factors.finished(&case.working).unwrap();
        let mut x = case.b.clone();
        case.factors.solve_transposed(&mut x);
        for j in 0..n {
            let sum: f64 = (0..n).map(|i| case.elements[i * n + j] * x[i]).sum();
            let size: f64 = (0..n).map(|i| (case.elements[i * n + j] * x[i]).abs()).sum();
            assert!((sum - case.b[j]).abs() <= 1e-13 * n as f64 * (size + case.b[j].abs()), "{n} {j}");
        }
    }
}

/// ‖A⁻¹‖₁ column by column.
fn exact_inverse_norm(factors: &LuFactors<f64>, n: usize) -> f64 {
    let column = |j: usize| {
        let mut x = vec![0.0; n];
        x[j] = 1.0;
        factors.solve(&mut x, 1);
        x.iter().map(|x| x.abs()).sum::<f64>()
    };
    (0..n).map(column).fold(0.0, f64::max)
}

#[test]
fn the_condition_is_estimated_from_below_and_closely() {
    for n in [1, 2, 5, 30, 80] {
        for seed in 0..20 {
            let mut case =
                case::<f64>(n, 1, LuOptions { threads: 1, block: 16 }, Layout::RowMajor, 100 + seed);
            case.factors = case.factors.finished(&case.working).unwrap();
            let exact = case.norms.one * exact_inverse_norm(&case.factors, n);
            let estimate = case.factors.condition(&case.norms);
            assert!(
                estimate <= exact * (1.0 + 1e-9) && estimate >= exact / 10.0,
                "{n} {seed}: {estimate} of {exact}"
            );
        }
    }
}

fn factored(elements: &[f64], n: usize) -> LuFactors<f64> {
    let a = matrix::<f64>(elements, n, n, Layout::RowMajor);
    let working = WorkingMatrix::zeros::<f64>(n, n).unwrap();
    load::<f64, f64>(&a, &working, 0, 1).unwrap();
    LuFactors::new(&working, n, &kernels(DType::F64, 1), LuOptions { threads: 2, block: 8 }).unwrap()
}

#[test]
fn a_singular_matrix_is_named_with_its_column() {
    let n = 30;
    for column in [0, 13, 29] {
        let mut elements = numbers(n * n, 3);
        elements.chunks_exact_mut(n).for_each(|row| row[column] = 0.0);
        let factors = factored(&elements, n);
        let error = factors.check().unwrap_err();
        assert!(
            matches!(error, LuError::Singular { column: found } if found == column),
            "{error} for {column}"
        );
        assert_eq!(factors.condition(&MatrixNorms::default()), f64::INFINITY);
    }
}

#[test]
fn a_nearly_singular_matrix_is_named_with_its_column() {
    let n = 30;
    for (column, source) in [(8, 3), (29, 0), (1, 0)] {
        let mut elements = numbers(n * n, 3);
        elements.chunks_exact_mut(n).for_each(|row| row[column] = 3.0 * row[source]);
        let a = matrix::<f64>(&elements, n, n, Layout::RowMajor);
        let working = WorkingMatrix::zeros::<f64>(n, n).unwrap();
        let norms = load::<f64, f64>(&a, &working, 0, 1).unwrap();
        let options = LuOptions { threads: 2, block: 8 };
        let factors = LuFactors::<f64>::new(&working, n, &kernels(DType::F64, 1), options).unwrap();
        let factors = factors.finished(&working).unwrap();
        assert_eq!(factors.weakest_column(), Some(column));
        assert!(factors.condition(&norms) > 1e14 || factors.check().is_err());
    }
}

#[test]
fn growth_beyond_the_range_is_named_with_its_column() {
    // Wilkinson's matrix doubles the last column at each step.
    let n = 40;
    let elements: Vec<f64> = (0..n * n)
        .map(|at| match (at / n, at % n) {
            (_, j) if j == n - 1 => 1e300,
            (i, j) if i == j => 1.0,
            (i, j) if i > j => -1.0,
            _ => 0.0,
        })
        .collect();
    let error = factored(&elements, n).check().unwrap_err();
    assert!(matches!(error, LuError::Overflow { column: 39, .. }), "{error}");
}

#[test]
fn an_element_that_is_no_number_is_named_with_its_place() {
    for layout in [Layout::RowMajor, Layout::ColMajor] {
        for (place, value) in [((0, 0), f64::NAN), ((17, 29), f64::INFINITY), ((29, 3), f64::NEG_INFINITY)] {
            let mut elements = numbers(900, 4);
            elements[place.0 * 30 + place.1] = value;
            let working = WorkingMatrix::zeros::<f64>(30, 30).unwrap();
            let error =
                load::<f64, f64>(&matrix::<f64>(&elements, 30, 30, layout), &working, 0, 2).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("row {}, column {} is {value}", place.0, place.1)), "{text}");
        }
    }
}

#[test]
fn a_refined_solution_is_as_good_as_one_in_f64() {
    for (n, width) in [(1, 1), (60, 1), (200, 3)] {
        let options = LuOptions { threads: 2, block: 16 };
        let (elements, b) = (numbers(n * n, 8), numbers(n * width, 9));
        let a = matrix::<f64>(&elements, n, n, Layout::RowMajor);
        let working = WorkingMatrix::zeros::<f32>(n, n).unwrap();
        let norms = load::<f64, f32>(&a, &working, 0, 2).unwrap();
        let factors = LuFactors::<f32>::new(&working, n, &kernels(DType::F32, 2), options).unwrap();
        let factors = factors.finished(&working).unwrap();
        let (norms, kernels) = (&norms, &kernels(DType::F64, 2));
        let full = ReadMatrix { a: &a, norms, kernels };
        let system = MixedSystem { a: &full, factors: &factors };
        let refined = system.refine(&b, width, 10).unwrap();
        assert!(refined.has_converged && refined.rounds > 0 && refined.iterations == 0, "{refined:?}");
        assert!(refined.residual.backward_error <= (n as f64).sqrt() * <f64 as LuElement>::UNIT);
    }
}

#[test]
fn refinement_of_a_matrix_that_f32_cannot_represent_says_that_it_failed() {
    // Two rows that differ by less than the precision of f32.
    let a = matrix::<f64>(&[1.0, 1.0, 1.0, 1.0 + 1e-12], 2, 2, Layout::RowMajor);
    let working = WorkingMatrix::zeros::<f32>(2, 2).unwrap();
    let norms = load::<f64, f32>(&a, &working, 0, 1).unwrap();
    let options = LuOptions { threads: 1, block: 2 };
    let factors = LuFactors::<f32>::new(&working, 2, &kernels(DType::F32, 1), options).unwrap();
    let factors = factors.finished(&working).unwrap();
    let (norms, kernels) = (&norms, &kernels(DType::F64, 1));
    for iterations_max in [0, 10] {
        let full = ReadMatrix { a: &a, norms, kernels };
        let system = MixedSystem { a: &full, factors: &factors };
        let refined = system.refine(&[1.0, 2.0], 1, iterations_max).unwrap();
        assert!(!refined.has_converged, "{refined:?}");
    }
}

#[test]
fn hpls_system_is_solved_and_a_wrong_solution_is_found() {
    for n in [1, 64, 65, 200] {
        let options = LuOptions { threads: 2, block: 32 };
        let working = WorkingMatrix::zeros::<f64>(n, n + 1).unwrap();
        hpl::generate(&working, 2);
        let factors = LuFactors::<f64>::new(&working, n, &kernels(DType::F64, 2), options).unwrap();
        let mut x = factors.back_substitute(1);
        let check = hpl::check(&x, 2, &kernels(DType::F64, 2));
        assert!(check.is_valid(), "{n}: {check:?}");
        assert!(
            check.b_inf <= 0.5 && check.norms.max <= 0.5 && check.norms.inf <= n as f64 / 2.0,
            "{check:?}"
        );
        x[n / 2] += 1e-6 * check.x_inf;
        assert!(!hpl::check(&x, 2, &kernels(DType::F64, 2)).is_valid(), "{n}");
        x[n / 2] = f64::NAN;
        assert!(!hpl::check(&x, 2, &kernels(DType::F64, 2)).is_valid(), "{n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_system_is_solved(
        n in 1..120usize, width in 0..6usize, threads in 1..5usize, block in 1..70usize, is_row in any::<bool>(),
    ) {
        let layout = if is_row { Layout::RowMajor } else { Layout::ColMajor };
        solve_case::<f64>(n, width, LuOptions { threads, block }, layout);
        solve_case::<f32>(n, width, LuOptions { threads, block }, layout);
    }
}
