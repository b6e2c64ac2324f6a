//! Strassen's method and block multiplication with other kernels: errors of floats, bits, and the parsing of names.
//! (`contract.rs` tests integers, and accesses outside the operands.)

use crate::common;
use bramble_kernel::{
    Choice, Kernel, KernelElement, KernelName, Product, open, open_on, pick, workspace_bytes,
};
use bramble_matrix::{DType, Winograd};
use common::{Float, Layout, Operand};
use proptest::prelude::*;
use std::sync::Arc;

fn kernel(text: &str, threads: usize) -> Arc<dyn Kernel> {
    open_on(text.parse().unwrap(), threads).unwrap()
}

/// One case: dimensions, layouts of A, B and C, alpha and beta, cut-off and threads.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: (usize, usize, usize),
    layouts: [Layout; 3],
    scales: (f64, f64),
    cutoff: u32,
    threads: usize,
}

/// The largest element of a sum of products in f64, and the largest error of the kernel.
fn error<T: Float>(case: Case) -> (f64, f64) {
    let Case { size: (m, n, k), layouts: [in_a, in_b, in_c], scales: (alpha, beta), cutoff, threads } = case;
    let (a, b) = (Operand::<T>::noise(m, k, in_a, 1), Operand::<T>::noise(k, n, in_b, 2));
    let old = Operand::<T>::noise(m, n, in_c, 3);
    let mut c = old.clone();
    let (x, y) = (T::from_f64(alpha), T::from_f64(beta));
    let product = Product::new(x, a.view(), b.view(), y, c.view_mut());
    kernel(&format!("strassen:simd:{cutoff}"), threads).multiply(T::any(product));
    let mut worst = 0f64;
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k).map(|d| a.view().at(i, d).to_f64() * b.view().at(d, j).to_f64()).sum();
            let want = alpha * sum + beta * old.view().at(i, j).to_f64();
            worst = worst.max((c.view().at(i, j).to_f64() - want).abs());
        }
    }
    for ((new, old), is_element) in c.data.iter().zip(&old.data).zip(old.elements()) {
        assert!(is_element || new == old, "{case:?}: wrote a gap");
    }
    (bound::<T>(case), worst)
}

/// Higham, *Accuracy and Stability of Numerical Algorithms*, theorem 23.3, for Winograd's form with all numbers at most 1,
/// where n0 is the depth of the parts; and for the rest the classical bound. The check's own sums are in f64.
fn bound<T: Float>(case: Case) -> f64 {
    let Case { size: (m, n, k), scales: (alpha, beta), cutoff, .. } = case;
    let rules = Winograd { cutoff: u64::from(cutoff) };
    let levels = rules.levels(m as u64, n as u64, k as u64);
    let (part, depth) = ((k >> levels) as f64, k as f64);
    let fast = 18f64.powi(levels as i32) * (part * part + 6.0 * part);
    let rest = (depth + 12.0) * (alpha.abs() * depth + beta.abs());
    (alpha.abs() * fast + rest) * (T::UNIT + 2.0 * f64::UNIT) * 1.001
}

fn any_case() -> impl Strategy<Value = Case> {
    let layout = || prop::sample::select(Layout::ALL.to_vec());
    let scale = || prop::sample::select(vec![0.0, 1.0, -1.0, 2.5]);
    let sizes = (0..120usize, 0..120usize, 0..120usize);
    (sizes, [layout(), layout(), layout()], (scale(), scale()), 1..40u32, 1..4usize)
        .prop_map(|(size, layouts, scales, cutoff, threads)| Case { size, layouts, scales, cutoff, threads })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn floats_are_within_the_norm_wise_bound(case in any_case()) {
        let (bound, worst) = error::<f32>(case);
        prop_assert!(worst <= bound, "f32: off by {worst:e} > {bound:e}");
        let (bound, worst) = error::<f64>(case);
        prop_assert!(worst <= bound, "f64: off by {worst:e} > {bound:e}");
    }

    #[test]
    fn threads_and_strides_change_no_bit(case in any_case()) {
        let (m, n, k) = case.size;
        for text in [format!("strassen:simd:{}", case.cutoff), "blocked:simd:512".to_owned()] {
            let run = |threads: usize, layouts: [Layout; 2]| {
                let a = Operand::<f32>::noise(m, k, layouts[0], 1);
                let b = Operand::<f32>::noise(k, n, layouts[1], 2);
                let mut c = Operand::<f32>::noise(m, n, Layout::PaddedRows, 3);
                let (alpha, beta) = (case.scales.0 as f32, case.scales.1 as f32);
                kernel(&text, threads).multiply(Product::new(alpha, a.view(), b.view(), beta, c.view_mut()).into());
                c.data
            };
            prop_assert_eq!(run(1, [Layout::Rows; 2]), run(case.threads, [case.layouts[0], case.layouts[1]]));
        }
    }
}

/// A square product with odd sides, larger than one piece if requested.
fn square<T: KernelElement>(text: &str, threads: usize, n: usize) -> Vec<T> {
    let (a, b) = (Operand::<T>::noise(n, n, Layout::Rows, 1), Operand::<T>::noise(n, n, Layout::Cols, 2));
    let mut c = Operand::<T>::noise(n, n, Layout::Rows, 3);
    kernel(text, threads).multiply(T::any(Product::new(T::ONE, a.view(), b.view(), T::ONE, c.view_mut())));
    c.data
}

#[test]
fn over_simd_blocks_have_the_bits_of_simd() {
    // Depths at which simd's slices and the pieces would end at different places after a careless cut.
    for n in [513, 1025, 1026, 1027] {
        assert_eq!(square::<f32>("blocked:simd:512", 2, n), square::<f32>("simd", 1, n), "{n}");
    }
}

#[test]
fn integers_are_exact_through_three_levels_and_odd_sizes() {
    for n in [255, 257, 263] {
        assert_eq!(square::<i32>("strassen:simd:30", 2, n), square::<i32>("simd", 1, n));
        assert_eq!(square::<i64>("strassen:simd:30", 1, n), square::<i64>("simd", 1, n));
    }
}

#[test]
fn what_is_longer_than_a_piece_is_cut() {
    let k = usize::try_from(Winograd::PIECE).unwrap() + 3;
    let (a, b) =
        (Operand::<i64>::noise(9, k, Layout::Rows, 1), Operand::<i64>::noise(k, 11, Layout::Rows, 2));
    let run = |text: &str| {
        let mut c = Operand::<i64>::noise(9, 11, Layout::Rows, 3);
        kernel(text, 2).multiply(Product::new(3, a.view(), b.view(), 5, c.view_mut()).into());
        c.data
    };
    assert_eq!(run("strassen:simd:2"), run("simd"));
    let bytes = |k| workspace_bytes([9, 11, k], DType::I64, 2, false);
    assert!(bytes(k) > bytes(100), "a second piece is added to the first");
}

#[test]
fn the_error_is_norm_wise_only() {
    // One row of A is tiny: classically its products are as accurate as all others; here the errors of the other
    // rows swamp them.
    let n = 64;
    let mut a = Operand::<f32>::noise(n, n, Layout::Rows, 1);
    a.data[..n].iter_mut().for_each(|x| *x *= 2f32.powi(-30));
    let b = Operand::<f32>::noise(n, n, Layout::Rows, 2);
    let worst_of_the_row = |text: &str| {
        let mut c = Operand::<f32>::filled(n, n, Layout::Rows, 0.0);
        kernel(text, 1).multiply(Product::new(1.0, a.view(), b.view(), 0.0, c.view_mut()).into());
        let error = |j: usize| {
            let terms = (0..n).map(|d| f64::from(a.view().at(0, d)) * f64::from(b.view().at(d, j)));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + x.abs()));
            (f64::from(c.view().at(0, j)) - sum).abs() / (size * f32::UNIT * (n + 4) as f64)
        };
        (0..n).map(error).fold(0.0, f64::max)
    };
    assert!(worst_of_the_row("simd") < 1.0);
    assert!(worst_of_the_row("strassen:simd:16") > 1e3, "then nothing would have to be said about it");
}

#[test]
fn a_kernel_over_another_takes_what_that_one_takes() {
    assert!(kernel("strassen", 1).supports(DType::I32) && kernel("blocked", 1).supports(DType::F64));
    if open(KernelName::OpenBlas).is_ok() {
        assert!(!kernel("strassen:openblas", 1).supports(DType::I32));
    }
    let refused = pick("strassen:openblas".parse().unwrap(), DType::I32, 1e12).unwrap_err().to_string();
    assert_eq!(refused, "the kernel 'openblas' does not multiply i32; these do: reference, simd");
}

#[test]
fn auto_never_takes_one_whose_errors_are_larger() {
    for dtype in DType::ALL {
        let picked = pick(Choice::Auto, dtype, 1e13).unwrap();
        let choice: Choice = picked.kernel.name().parse().unwrap();
        assert_eq!(choice.levels(dtype), None);
        assert!(picked.rates.iter().all(|(name, _)| !name.contains("strassen")));
    }
}

#[test]
fn scratch_covers_the_workspace_of_any_product() {
    let scratch = kernel("strassen", 1).scratch_bytes();
    assert!(scratch >= workspace_bytes([50_000; 3], DType::F64, 1, true) + kernel("simd", 1).scratch_bytes());
}
