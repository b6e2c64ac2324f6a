//! Accuracy of a measured product: compares a few rows with the same rows computed in doubled precision.
//!
//! Invariants: integers have to be exact; errors of floats are relative to the error bound of the kernel, which for
//! Strassen's method is norm-wise (docs/verification.md describes both).

use crate::args::BenchSize;
use bramble_kernel::{Choice, KernelElement};
use bramble_matrix::{DType, Winograd};

/// The rows that are checked: the first, the last and one in the middle.
fn rows(m: usize) -> Vec<usize> {
    let mut rows = vec![0, m / 3, m - 1];
    rows.dedup();
    rows
}

/// The largest error of C = A B relative to the kernel's error bound; `None` if an integer is wrong. A, B and C have
/// contiguous rows; floats have absolute values of at most 1.
pub(crate) fn of_bound<T: KernelElement>(
    choice: Choice,
    BenchSize { m, k, n }: BenchSize,
    a: &[T],
    b: &[T],
    c: &[T],
) -> Option<f64> {
    let unit = if T::DTYPE == DType::F32 { f64::from(f32::EPSILON) / 2.0 } else { f64::EPSILON / 2.0 };
    let norm_wise = choice.levels(T::DTYPE).map(|rules| norm_wise(rules, [m, n, k]) * unit);
    let mut worst = 0f64;
    for i in rows(m) {
        let (row_a, row_c) = (&a[i * k..(i + 1) * k], &c[i * n..(i + 1) * n]);
        if !T::DTYPE.is_float() {
            let mut row = vec![T::ZERO; n];
            for (l, x) in row_a.iter().enumerate() {
                row.iter_mut().zip(&b[l * n..]).for_each(|(sum, y)| *sum = sum.plus(x.times(*y)));
            }
            if row != row_c {
                return None;
            }
            continue;
        }
        for (c, [high, low, size]) in row_c.iter().zip(exact(row_a, b, n)) {
            let error = ((c.to_f64() - high) - low).abs();
            // The contract's bound, 2 γ(k+4), to first order.
            let bound = norm_wise.unwrap_or(2.0 * (k + 4) as f64 * unit * size);
            worst = worst.max(error / bound.max(f64::MIN_POSITIVE));
        }
    }
    Some(worst)
}

/// A row of A B in doubled precision (sum and correction), and Σ |a b|.
fn exact<T: KernelElement>(row: &[T], b: &[T], n: usize) -> Vec<[f64; 3]> {
    let mut sums = vec![[0f64; 3]; n];
    for (l, x) in row.iter().enumerate() {
        let x = x.to_f64();
        for ([high, low, size], y) in sums.iter_mut().zip(&b[l * n..]) {
            let y = y.to_f64();
            let product = x * y;
            let sum = *high + product;
            let part = sum - *high;
            // The rounding errors of the sum (Knuth) and of the product.
            *low += (*high - (sum - part)) + (product - part) + x.mul_add(y, -product);
            *high = sum;
            *size += product.abs();
        }
    }
    sums
}

/// Theorem 23.3 of Higham's *Accuracy and Stability of Numerical Algorithms* for Winograd's variant, with absolute
/// values of at most 1, for each piece of the depth, plus the error of adding the pieces.
fn norm_wise(rules: Winograd, [m, n, k]: [usize; 3]) -> f64 {
    let longest = |side: usize| Winograd::longest(side as u64);
    let levels = rules.levels(longest(m), longest(n), longest(k));
    let (pieces, part) = (Winograd::pieces(k as u64).count() as f64, (longest(k) >> levels) as f64);
    let fast = 18f64.powi(levels as i32) * (part * part + 6.0 * part);
    pieces * fast + (pieces + 16.0) * k as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_products_are_within_the_bound_and_wrong_ones_are_not() {
        let (size, choice) = (BenchSize { m: 4, k: 5, n: 3 }, Choice::Auto);
        let a: Vec<f32> = (0..20).map(|i| i as f32 * 0.037 - 0.4).collect();
        let b: Vec<f32> = (0..15).map(|i| 0.9 - i as f32 * 0.11).collect();
        let mut c: Vec<f32> =
            (0..12).map(|at| (0..5).map(|l| a[at / 3 * 5 + l] * b[l * 3 + at % 3]).sum()).collect();
        let error = of_bound(choice, size, &a, &b, &c).unwrap_or(9.0);
        assert!(error < 1.0, "{error}");
        c[11] += 0.01;
        assert!(of_bound(choice, size, &a, &b, &c).is_some_and(|error| error > 1.0));
    }

    #[test]
    fn integers_have_to_be_exact() {
        let size = BenchSize { m: 2, k: 1, n: 1 };
        assert_eq!(of_bound(Choice::Auto, size, &[3, i32::MAX], &[2], &[6, -2]), Some(0.0));
        assert_eq!(of_bound(Choice::Auto, size, &[3, i32::MAX], &[2], &[6, -1]), None);
    }

    #[test]
    fn the_exact_row_has_more_digits_than_its_elements() {
        let (row, b) = ([1.0, 1e-20, -1.0], [1.0, 1.0, 1.0]);
        let [high, low, size] = exact(&row, &b, 1)[0];
        assert_eq!((high + low, size), (1e-20, 2.0));
    }
}
