//! Operations on contiguous lines: the innermost loops of panels and of triangular systems with one right-hand side.
//!
//! Invariant: the bits depend on the lengths only, not on the machine: no fused multiply-add, and a dot product has
//! [`LANES`] partial sums whatever the width of the machine's vectors.

use super::LuElement;

/// Partial sums of a dot product: four vectors of the widest machines, which hide the latency of an addition.
const LANES: usize = 32;

/// `Σ x[i] y[i]`. Panics if the lengths differ: a bug of the caller.
pub fn dot<T: LuElement>(x: &[T], y: &[T]) -> T {
    assert_eq!(x.len(), y.len(), "a dot product of lines of one length");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut sums = [T::ZERO; LANES];
            let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
            for (x, y) in xs.iter().zip(ys) {
                for lane in 0..LANES {
                    sums[lane] = sums[lane].plus(x[lane].times(y[lane]));
                }
            }
            let rest = x_rest.iter().zip(y_rest).fold(T::ZERO, |sum, (x, y)| sum.plus(x.times(*y)));
            sums.iter().fold(rest, |sum, lane| sum.plus(*lane))
        },
    )
}

/// `Σ x[i] y[i]` in f64, whatever the type of `x`: each product is rounded once, from the exact `x[i]`. Panics if the lengths
/// differ: a bug of the caller.
pub fn dot_in_f64<T: LuElement>(x: &[T], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "a dot product of lines of one length");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut sums = [0.0; LANES];
            let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
            for (x, y) in xs.iter().zip(ys) {
                for lane in 0..LANES {
                    sums[lane] += x[lane].to_f64() * y[lane];
                }
            }
            let rest = x_rest.iter().zip(y_rest).fold(0.0, |sum, (x, y)| sum + x.to_f64() * y);
            sums.iter().fold(rest, |sum, lane| sum + lane)
        },
    )
}

/// Rounds `from` to `to`, and returns the sum of the absolute values of `from`, which is not finite if one of them is not.
/// Panics if the lengths differ: a bug of the caller.
pub(super) fn round_line<T: LuElement>(from: &[f64], to: &mut [T]) -> f64 {
    assert_eq!(from.len(), to.len(), "lines of one length");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut sums = [0.0; LANES];
            let ((xs, x_rest), (ys, y_rest)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
            for (x, y) in xs.iter().zip(ys) {
                for lane in 0..LANES {
                    sums[lane] += x[lane].abs();
                    y[lane] = T::from_f64(x[lane]);
                }
            }
            y_rest.iter_mut().zip(x_rest).for_each(|(y, x)| *y = T::from_f64(*x));
            x_rest.iter().chain(&sums).fold(0.0, |sum, x| sum + x.abs())
        },
    )
}

/// `y[i] -= a x[i]`. Panics if the lengths differ: a bug of the caller.
pub fn subtract_multiple<T: LuElement>(y: &mut [T], a: T, x: &[T]) {
    assert_eq!(x.len(), y.len(), "lines of one length");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || subtract(y, a, x),
    );
}

/// The same inside of code that was compiled for the machine's vectors.
#[inline(always)]
pub(super) fn subtract<T: LuElement>(y: &mut [T], a: T, x: &[T]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = y.minus(a.times(*x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_a_line_counts_once() {
        for len in 0..200 {
            let x: Vec<f64> = (0..len).map(f64::from).collect();
            let ones = vec![1.0; x.len()];
            let sum = f64::from(len * (len - 1).max(0) / 2);
            assert_eq!(dot(&x, &ones), sum, "{len}");
            let narrow: Vec<f32> = (0..len).map(|i| i as f32).collect();
            // f32 would round these products.
            let factors = vec![1.0 + f64::from(f32::EPSILON) / 4.0; narrow.len()];
            let exact = sum + sum * f64::from(f32::EPSILON) / 4.0;
            assert!((dot_in_f64(&narrow, &factors) - exact).abs() <= 1e-13 * exact, "{len}");
            let signed: Vec<f64> = x.iter().map(|x| if x % 2.0 == 0.0 { 0.1 - x } else { *x }).collect();
            let mut rounded = vec![0.0f32; signed.len()];
            let total = round_line(&signed, &mut rounded);
            assert!(
                (total - signed.iter().map(|x| x.abs()).sum::<f64>()).abs() <= 1e-12 * sum.max(1.0),
                "{len}"
            );
            assert!(rounded.iter().zip(&signed).all(|(y, x)| *y == *x as f32), "{len}");
            let mut y = x.clone();
            subtract_multiple(&mut y, 2.0, &x);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == -x), "{len}");
        }
    }
}
