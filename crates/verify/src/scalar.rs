//! The arithmetic of the check for each element type: how sums are accumulated in a pass, and how an
//! element is recomputed more exactly than by any kernel.
//!
//! Invariants: integers wrap exactly (all sums are taken mod 2^64 in i64 and compared mod 2^w). f32 is
//! summed in f64, where products of two f32 are exact and the check's own error is about 2^-29 of the
//! kernel's. f64 is summed as an unevaluated pair `s + c` by Knuth's two-sum.
//!
//! Written for auto-vectorisation: fixed lanes and no branches. A fused multiply-add is used only where the code is
//! compiled for processors with that instruction (`HasFma`): baseline x86-64 would call a library function for each.

use bramble_matrix::Element;
use pulp::{Arch, Simd, WithSimd};

/// Whether the instructions in use include a fused multiply-add. A constant once `with_widest_vectors` is inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HasFma(bool);

impl HasFma {
    /// For code outside `with_widest_vectors`.
    pub(super) const NO: Self = Self(false);
}

/// An element type that can be checked.
pub(super) trait Scalar: Element {
    /// The type in which the check computes: f64 or i64.
    type X: Element;
    /// The value, exactly.
    fn widen(self) -> Self::X;
    /// `s + c <- s + c + m * x`.
    fn step(s: &mut Self::X, c: &mut Self::X, m: Self::X, x: Self::X);
    /// `hi + lo <- hi + lo + a * b`, more exactly than the type's own arithmetic, and `mag <- mag + |a * b|` for floats.
    fn term(a: Self::X, b: Self::X, hi: &mut Self::X, lo: &mut Self::X, mag: &mut Self::X, fused: HasFma);
    /// `term` for every element of `b`.
    #[inline(always)]
    fn axpy(
        a: Self::X,
        b: &[Self::X],
        hi: &mut [Self::X],
        lo: &mut [Self::X],
        mag: &mut [Self::X],
        fused: HasFma,
    ) {
        for (((b, hi), lo), mag) in b.iter().zip(hi).zip(lo).zip(mag) {
            Self::term(a, *b, hi, lo, mag, fused);
        }
    }
    /// Folds lanes of pairs `s + c` into one pair.
    fn fold(s: &[Self::X], c: &[Self::X]) -> [Self::X; 2] {
        let mut sum = [Self::X::ZERO; 2];
        for (s, c) in s.iter().zip(c) {
            let [hi, lo] = &mut sum;
            Self::step(hi, lo, *s, Self::X::ONE);
            *lo = lo.plus(*c);
        }
        sum
    }
}

/// A floating-point element type.
pub(super) trait Real: Scalar<X = f64> {
    /// Unit roundoff: half the distance from 1 to the next number.
    const UNIT: f64;
    /// Largest finite number.
    const LARGEST: f64;
    /// Smallest normal number: the most that an operation may lose to underflow, gradual or flushed to zero.
    const SMALLEST: f64;
}

impl Real for f32 {
    const UNIT: f64 = Self::EPSILON as f64 / 2.0;
    const LARGEST: f64 = Self::MAX as f64;
    const SMALLEST: f64 = Self::MIN_POSITIVE as f64;
}

impl Real for f64 {
    const UNIT: Self = Self::EPSILON / 2.0;
    const LARGEST: Self = Self::MAX;
    const SMALLEST: Self = Self::MIN_POSITIVE;
}

impl Scalar for f32 {
    type X = f64;
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn step(s: &mut f64, _: &mut f64, m: f64, x: f64) {
        *s += m * x;
    }
    #[inline(always)]
    fn term(a: f64, b: f64, hi: &mut f64, _: &mut f64, mag: &mut f64, _: HasFma) {
        let p = a * b;
        *hi += p;
        *mag += p.abs();
    }
}

impl Scalar for f64 {
    type X = Self;
    #[inline(always)]
    fn widen(self) -> Self {
        self
    }
    /// Rounds the product; adds it without rounding.
    #[inline(always)]
    fn step(s: &mut Self, c: &mut Self, m: Self, x: Self) {
        let (sum, error) = two_sum(*s, m * x);
        *s = sum;
        *c += error;
    }
    #[inline(always)]
    fn term(a: Self, b: Self, hi: &mut Self, lo: &mut Self, mag: &mut Self, fused: HasFma) {
        let (p, e) = two_product(a, b, fused);
        let (sum, d) = two_sum(*hi, p);
        *hi = sum;
        *lo += d + e;
        *mag += p.abs();
    }
}

macro_rules! integer {
    ($t:ty) => {
        impl Scalar for $t {
            type X = i64;
            #[inline(always)]
            fn widen(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn step(s: &mut i64, _: &mut i64, m: i64, x: i64) {
                *s = s.wrapping_add(m.wrapping_mul(x));
            }
            #[inline(always)]
            fn term(a: i64, b: i64, hi: &mut i64, _: &mut i64, _: &mut i64, _: HasFma) {
                *hi = hi.wrapping_add(a.wrapping_mul(b));
            }
        }
    };
}
integer!(i32);
integer!(i64);

/// Runs `work` compiled for the widest vectors that this processor has. The closure and every function that it calls must
/// be `#[inline(always)]`.
pub(super) fn with_widest_vectors(work: impl FnMut(HasFma)) {
    /// Calls the closure as `FnMut`: an `FnOnce` would be called through a function that is compiled for the baseline.
    struct Work<F>(F);
    impl<F: FnMut(HasFma)> WithSimd for Work<F> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(mut self, _: S) {
            // All vector instructions that `Arch` chooses among (AVX2, AVX-512, Neon) come with a fused multiply-add.
            (self.0)(HasFma(!S::IS_SCALAR));
        }
    }
    Arch::new().dispatch(Work(work));
}

/// Whether `x` <= `limit`; false for NaN.
#[inline(always)]
pub(super) fn within(x: f64, limit: f64) -> bool {
    x <= limit
}

/// `a + b` as rounded sum and exact error (Knuth, TAOCP 2, 4.2.2 theorem B).
#[inline(always)]
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// The leading 26 bits of `x`, and the remainder. Masking bits never overflows for a finite `x`, unlike Veltkamp's
/// multiplication.
#[inline(always)]
fn split(x: f64) -> (f64, f64) {
    let high = f64::from_bits(x.to_bits() & !0x7ff_ffff);
    (high, x - high)
}

/// `a * b` as rounded product and its error: exactly by a fused multiply-add, else (Dekker 1971) to about 2^-78 of the
/// product, since the pieces `al * bl` have up to 54 bits, one more than f64 holds.
#[inline(always)]
pub(super) fn two_product(a: f64, b: f64, fused: HasFma) -> (f64, f64) {
    let p = a * b;
    if fused.0 {
        return (p, a.mul_add(b, -p));
    }
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    (p, ((ah * bh - p) + ah * bl + al * bh) + al * bl)
}

/// `scale * (hi + lo)` added to the pair `sum`.
pub(super) fn add_scaled(sum: [f64; 2], scale: f64, [hi, lo]: [f64; 2]) -> [f64; 2] {
    let (p, e) = two_product(scale, hi, HasFma::NO);
    let (s, d) = two_sum(sum[0], p);
    [s, sum[1] + (d + (e + scale * lo))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_product_is_the_same_with_and_without_a_fused_multiply_add() {
        let numbers = [1.0 + f64::EPSILON, 0.1, -3.0e7, 1.0 / 3.0, -7.5, 1e-100, 9.87654321e150];
        for a in numbers {
            for b in numbers {
                let (product, error) = two_product(a, b, HasFma::NO);
                with_widest_vectors(
                    #[inline(always)]
                    |has_fma| {
                        let (fused_product, fused_error) = two_product(a, b, has_fma);
                        assert_eq!(fused_product, product, "{a} * {b}");
                        let difference = (fused_error - error).abs();
                        assert!(difference <= product.abs() * 2f64.powi(-78), "{a} * {b}: {difference}");
                    },
                );
            }
        }
    }

    #[test]
    fn pairs_hold_what_single_numbers_lose() {
        let (s, e) = two_sum(1.0, 1e-30);
        assert_eq!((s, e), (1.0, 1e-30));
        let x = 1.0 + f64::EPSILON;
        let (p, e) = two_product(x, x, HasFma::NO);
        assert_eq!(p, 1.0 + 2.0 * f64::EPSILON);
        assert_eq!(e, f64::EPSILON * f64::EPSILON);
        let (p, e) = two_product(f64::MAX, 0.5, HasFma::NO);
        assert_eq!((p, e), (f64::MAX / 2.0, 0.0));
    }

    #[test]
    fn lanes_fold_without_loss() {
        let s = [1e16, 1.0, -1e16, 1.0];
        let [hi, lo] = f64::fold(&s, &[0.0; 4]);
        assert_eq!(hi + lo, 2.0);
    }
}
