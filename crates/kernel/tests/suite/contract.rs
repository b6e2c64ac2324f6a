//! Every kernel on this machine, checked against the contract with plain loops.

use crate::common;
use std::sync::Arc;

use bramble_kernel::{Choice, Kernel, KernelElement, KernelName, Product, factors, open, open_on};
use bramble_matrix::{DType, View, ViewMut};
use common::{Float, Layout, Operand, noise};
use proptest::prelude::*;

/// Kernels with a base kernel, and their numbers of threads: with small pieces, so that there are many.
const OVER: [(&str, usize); 4] = [
    ("blocked:simd:512", 2),
    ("blocked:reference:7", 1),
    ("strassen:simd:2", 1),
    ("strassen:reference:5", 2),
];

/// Available kernels for this type, without the reference, that satisfy the whole contract: Strassen's method is
/// exact for integers only.
fn kernels(dtype: DType) -> Vec<Arc<dyn Kernel>> {
    let plain = KernelName::ALL[1..].iter().filter_map(|&n| open(n).ok());
    let over = OVER.map(|(name, threads)| (name.parse::<Choice>().unwrap(), threads));
    let over = over.into_iter().filter(|(choice, _)| !dtype.is_float() || choice.levels(dtype).is_none());
    let over = over.map(|(choice, threads)| open_on(choice, threads).unwrap());
    plain.chain(over).filter(|k| k.supports(dtype)).collect()
}

/// One case: dimensions, layouts of A, B and C, alpha and beta.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: (usize, usize, usize),
    layouts: [Layout; 3],
    alpha: f64,
    beta: f64,
}

/// The allowed values of an element: the value by definition (floats: summed in f64), and the error that the
/// rounding of any order of summation may cause.
struct Truth<T> {
    exact: Vec<T>,
    near: Vec<(f64, f64)>,
}

fn truth<T: KernelElement>(case: Case, a: View<'_, T>, b: View<'_, T>, old: View<'_, T>) -> Truth<T> {
    let (m, n, k) = case.size;
    let rows: Vec<Vec<T>> = (0..m).map(|i| (0..k).map(|d| a.at(i, d)).collect()).collect();
    let cols: Vec<Vec<T>> = (0..n).map(|j| (0..k).map(|d| b.at(d, j)).collect()).collect();
    let (alpha, beta) = (T::from_f64(case.alpha), T::from_f64(case.beta));
    let unit = if T::DTYPE == DType::F32 { f32::UNIT } else { f64::UNIT };
    let rounding = 2.0 * (k + 4) as f64 * unit / (1.0 - (k + 4) as f64 * unit);
    let mut truth = Truth { exact: Vec::new(), near: Vec::new() };
    for (i, row) in rows.iter().enumerate() {
        for (j, col) in cols.iter().enumerate() {
            let (pairs, before) = (row.iter().zip(col), old.at(i, j));
            if T::DTYPE.is_float() {
                let (sum, size) = pairs
                    .map(|(x, y)| x.to_f64() * y.to_f64())
                    .fold((0.0, 0.0), |(s, t), p| (s + p, t + f64::abs(p)));
                let (scaled, kept) = (case.alpha * sum, case.beta * before.to_f64());
                let bound = rounding * (case.alpha.abs() * size + kept.abs());
                truth.near.push((scaled + kept, bound));
            } else {
                let sum = pairs.fold(T::ZERO, |sum, (x, y)| sum.plus(x.times(*y)));
                truth.exact.push(alpha.times(sum).plus(beta.times(before)));
            }
        }
    }
    truth
}

/// Multiplies with each kernel, and compares each element with the truth. Gaps in C must be unchanged.
fn check<T: KernelElement>(kernels: &[Arc<dyn Kernel>], case: Case) {
    let (m, n, k) = case.size;
    let [in_a, in_b, in_c] = case.layouts;
    let (a, b) = (Operand::<T>::noise(m, k, in_a, 1), Operand::<T>::noise(k, n, in_b, 2));
    let old = Operand::<T>::noise(m, n, in_c, 3);
    let truth = truth(case, a.view(), b.view(), old.view());
    for kernel in kernels {
        let mut c = old.clone();
        let (alpha, beta) = (T::from_f64(case.alpha), T::from_f64(case.beta));
        kernel.multiply(T::any(Product::new(alpha, a.view(), b.view(), beta, c.view_mut())));
        for (at, &(want, bound)) in truth.near.iter().enumerate() {
            let error = (c.view().at(at / n, at % n).to_f64() - want).abs();
            assert!(error <= bound, "{} {case:?} {at}: off by {error:e} > {bound:e}", kernel.name());
        }
        for (at, want) in truth.exact.iter().enumerate() {
            assert_eq!(c.view().at(at / n, at % n), *want, "{} {case:?} {at}", kernel.name());
        }
        for ((new, old), is_element) in c.data.iter().zip(&old.data).zip(old.elements()) {
            assert!(is_element || new == old, "{} {case:?}: wrote a gap", kernel.name());
        }
    }
}

const SCALES: [f64; 4] = [0.0, 1.0, -1.0, 2.5];

fn small_sizes<T: KernelElement>() {
    let (kernels, mut turn) = (kernels(T::DTYPE), 0);
    for m in 0..=17 {
        for n in 0..=17 {
            for k in 0..=17 {
                // Layouts and scales alternate; their periods mix well.
                turn += 1;
                let layouts = [turn, turn / 5, turn / 25].map(|t| Layout::ALL[t % 5]);
                let (alpha, beta) = (SCALES[(turn / 3) % 4], SCALES[(turn / 7) % 4]);
                check::<T>(&kernels, Case { size: (m, n, k), layouts, alpha, beta });
            }
        }
    }
}

#[test]
fn all_small_sizes_f32() {
    small_sizes::<f32>();
}

#[test]
fn all_small_sizes_f64() {
    small_sizes::<f64>();
}

#[test]
fn all_small_sizes_i32() {
    small_sizes::<i32>();
}

#[test]
fn all_small_sizes_i64() {
    small_sizes::<i64>();
}

fn odd_sizes<T: KernelElement>() {
    let kernels = kernels(T::DTYPE);
    for size in [(33, 129, 65), (257, 61, 300), (1, 700, 515), (600, 1, 513), (61, 67, 1025)] {
        for in_a in [Layout::Rows, Layout::Cols] {
            for in_b in [Layout::Rows, Layout::Cols] {
                let layouts = [in_a, in_b, Layout::PaddedRows];
                check::<T>(&kernels, Case { size, layouts, alpha: 1.0, beta: 1.0 });
            }
        }
        for in_c in [Layout::PaddedCols, Layout::Spread] {
            let layouts = [Layout::Spread, Layout::PaddedRows, in_c];
            check::<T>(&kernels, Case { size, layouts, alpha: -1.0, beta: 0.0 });
        }
    }
}

#[test]
fn odd_sizes_in_all_layouts() {
    odd_sizes::<f32>();
    odd_sizes::<f64>();
    odd_sizes::<i32>();
    odd_sizes::<i64>();
}

fn any_case() -> impl Strategy<Value = Case> {
    let layout = || prop::sample::select(Layout::ALL.to_vec());
    let scale = || prop::sample::select(SCALES.to_vec());
    ((0..150usize, 0..150usize, 0..150usize), [layout(), layout(), layout()], scale(), scale())
        .prop_map(|(size, layouts, alpha, beta)| Case { size, layouts, alpha, beta })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_layouts_and_scales(case in any_case()) {
        check::<f32>(&kernels(DType::F32), case);
        check::<f64>(&kernels(DType::F64), case);
        check::<i32>(&kernels(DType::I32), case);
        check::<i64>(&kernels(DType::I64), case);
    }
}

fn scales<T: KernelElement>() {
    for alpha in SCALES {
        for beta in SCALES {
            let layouts = [Layout::Rows, Layout::Cols, Layout::PaddedRows];
            check::<T>(&kernels(T::DTYPE), Case { size: (21, 35, 40), layouts, alpha, beta });
        }
    }
}

#[test]
fn all_pairs_of_scales() {
    scales::<f32>();
    scales::<f64>();
    scales::<i32>();
    scales::<i64>();
}

fn poison<T: Float>() {
    let reference = open(KernelName::Reference).unwrap();
    let strassen = open_on("strassen:simd:3".parse().unwrap(), 2).unwrap();
    for kernel in kernels(T::DTYPE).into_iter().chain([reference, strassen]) {
        for (m, n, k) in [(1, 1, 1), (1, 9, 4), (9, 1, 4), (3, 4, 2), (16, 16, 16), (65, 70, 600), (5, 6, 0)]
        {
            for layout in Layout::ALL {
                let (a, b) = (Operand::<T>::noise(m, k, layout, 1), Operand::<T>::noise(k, n, layout, 2));
                let mut c = Operand::<T>::filled(m, n, layout, T::nan());
                kernel.multiply(T::any(Product::new(T::ONE, a.view(), b.view(), T::ZERO, c.view_mut())));
                let clean =
                    |c: &Operand<T>| (0..m).all(|i| (0..n).all(|j| !c.view().at(i, j).to_f64().is_nan()));
                assert!(clean(&c), "{}: C was read at {m}x{n}x{k} {layout:?}", kernel.name());

                let nan_a = Operand::<T>::filled(m, k, layout, T::nan());
                let nan_b = Operand::<T>::filled(k, n, layout, T::nan());
                for beta in [T::ZERO, T::from_f64(0.5)] {
                    let mut c = Operand::<T>::noise(m, n, layout, 3);
                    kernel.multiply(T::any(Product::new(
                        T::ZERO,
                        nan_a.view(),
                        nan_b.view(),
                        beta,
                        c.view_mut(),
                    )));
                    assert!(clean(&c), "{}: A or B was read at {m}x{n}x{k} {layout:?}", kernel.name());
                }
            }
        }
    }
}

#[test]
fn poisoned_operands_that_must_not_be_read_are_not() {
    poison::<f32>();
    poison::<f64>();
}

#[test]
fn strides_of_zero_are_read_as_they_say() {
    let row: Vec<f64> = noise(9, 5);
    for name in KernelName::ALL {
        let Ok(kernel) = open(name) else { continue };
        let (a, ones) = (View::new(&row, 4, 9, 0, 1), [1.0; 1]);
        let b = View::new(&ones, 9, 3, 0, 0);
        let mut c = [0.0; 12];
        kernel.multiply(Product::new(1.0, a, b, 0.0, ViewMut::row_major(&mut c, 4, 3)).into());
        let sum: f64 = row.iter().sum();
        assert!(c.iter().all(|x| (x - sum).abs() < 1e-14), "{name}: {c:?}");
    }
}

fn concurrent<T: KernelElement>() {
    for kernel in kernels(T::DTYPE) {
        let (a, b) = (noise::<T>(130 * 210, 1), noise::<T>(210 * 150, 2));
        let run = || {
            let mut c = noise::<T>(130 * 150, 3);
            let (a, b) = (View::row_major(&a, 130, 210), View::row_major(&b, 210, 150));
            let view = ViewMut::row_major(&mut c, 130, 150);
            kernel.multiply(T::any(Product::new(T::ONE, a, b, T::ONE, view)));
            c
        };
        let alone = run();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| assert_eq!(run(), alone, "{}", kernel.name())));
            }
        });
    }
}

#[test]
fn four_threads_at_once_get_the_bits_of_one() {
    concurrent::<f32>();
    concurrent::<f64>();
    concurrent::<i32>();
    concurrent::<i64>();
}

#[test]
#[should_panic(expected = "as many columns")]
fn operands_that_do_not_fit_are_refused() {
    let (a, b, mut c) = ([0f64; 6], [0f64; 6], [0f64; 4]);
    let (a, b) = (View::row_major(&a, 2, 3), View::row_major(&b, 2, 3));
    Product::new(1.0, a, b, 0.0, ViewMut::row_major(&mut c, 2, 2));
}

/// Available kernels for floats, including `strassen`.
fn all_of_floats() -> Vec<Arc<dyn Kernel>> {
    let plain = KernelName::ALL.iter().filter_map(|&n| open(n).ok());
    plain.chain(OVER.map(|(name, threads)| open_on(name.parse().unwrap(), threads).unwrap())).collect()
}

/// `alpha * a * b + beta * old` of constant matrices m × k and k × n; all elements of the result are alike.
fn constant<T: KernelElement>(
    kernel: &dyn Kernel,
    (m, k, n): (usize, usize, usize),
    (alpha, a, b): (f64, f64, f64),
    (beta, old): (f64, f64),
) -> f64 {
    let (a, b) = (vec![T::from_f64(a); m * k], vec![T::from_f64(b); k * n]);
    let mut c = vec![T::from_f64(old); m * n];
    let operands = [View::row_major(&a, m, k), View::row_major(&b, k, n)];
    factors::multiply(kernel, alpha, operands, beta, ViewMut::row_major(&mut c, m, n));
    let (first, name) = (c[0].to_f64(), kernel.name());
    for x in c.iter().map(|x| x.to_f64()) {
        assert!(x.is_nan() || (x - first).abs() <= 1e-5 * first.abs(), "{name}: {x:e} and {first:e}");
    }
    c.iter().map(|x| x.to_f64()).find(|x| x.is_nan()).unwrap_or(first)
}

const THIN_AND_SQUARE: [(usize, usize, usize); 5] =
    [(1, 100, 8), (1, 100, 1), (8, 100, 1), (24, 40, 32), (600, 5, 520)];

#[test]
fn alpha_never_meets_an_operand_before_the_product_is_made() {
    for kernel in all_of_floats() {
        for size in THIN_AND_SQUARE {
            for old in [(0.0, f64::NAN), (1.0, 3.0), (2.0, 1.5)] {
                let want = if old.0 == 0.0 { 0.0 } else { 3.0 };
                let about = format!("{} {size:?} {old:?}", kernel.name());
                // alpha * a overflows, and a * b is 0.
                assert_eq!(constant::<f32>(&*kernel, size, (1e30, 1e20, 0.0), old), want, "{about}");
                assert_eq!(constant::<f32>(&*kernel, size, (1e30, 0.0, 1e20), old), want, "{about}");
                assert_eq!(constant::<f64>(&*kernel, size, (1e200, 1e200, 0.0), old), want, "{about}");
            }
            // alpha * a is below the smallest number, and a * b is not.
            let (got, want) =
                (constant::<f32>(&*kernel, size, (1e-20, 1e-30, 1e30), (0.0, 0.0)), size.1 as f64 * 1e-20);
            assert!((got / want - 1.0).abs() < 1e-4, "{} {size:?}: {got:e} for {want:e}", kernel.name());
        }
    }
}

#[test]
fn factors_that_f32_cannot_hold_are_applied_all_the_same() {
    let of = |kernel: &dyn Kernel, size, product, old| constant::<f32>(kernel, size, product, old);
    for kernel in all_of_floats() {
        for size @ (_, k, _) in THIN_AND_SQUARE {
            let k = k as f64;
            for (product, old, want) in [
                ((1e-46, 1e15, 1e15), (0.0, f64::NAN), k * 1e-16),
                ((1e-46, 1e15, 1e15), (1.0, 1e-16), (k + 1.0) * 1e-16),
                ((-1e-40, 1e15, 1e15), (2.0, 1e-10), -k * 1e-10 + 2e-10),
                ((1e39, 1e-15, 1e-15), (0.0, f64::NAN), k * 1e9),
                ((1e39, 1e-15, 1e-15), (-1.0, 1e9), (k - 1.0) * 1e9),
                ((1.0, 1.0, 1.0), (1e-46, 1e36), k + 1e-10),
                ((1.0, 1.0, 1.0), (1e40, 1e-38), k + 100.0),
            ] {
                let got = of(&*kernel, size, product, old);
                let about = format!("{} {size:?} {product:?} {old:?}: {got:e} for {want:e}", kernel.name());
                assert!((got / want - 1.0).abs() < 1e-4, "{about}");
            }
        }
    }
}
