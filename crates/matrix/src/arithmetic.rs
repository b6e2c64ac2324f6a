//! The arithmetic that portable code needs of the four element types.
//!
//! Place in the flow: the reference kernel, the verification and the views are generic over `Element`.
//!
//! Invariant: integers wrap on overflow as NumPy's do.

use bramble_base::DType;
use std::fmt;

/// What generic code may do with an element. Integer operations wrap.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + PartialOrd + fmt::Debug + 'static {
    /// The type's description as a value.
    const DTYPE: DType;
    /// Additive identity.
    const ZERO: Self;
    /// Multiplicative identity.
    const ONE: Self;
    /// `self + other`, wrapping for integers.
    fn plus(self, other: Self) -> Self;
    /// `self - other`, wrapping for integers.
    fn minus(self, other: Self) -> Self;
    /// `self * other`, wrapping for integers.
    fn times(self, other: Self) -> Self;
    /// The nearest value to `x`: rounds for floats, truncates and saturates for integers.
    fn from_f64(x: f64) -> Self;
    /// The value as f64 (i64 beyond 2^53 rounds).
    fn to_f64(self) -> f64;
    /// The value of an integer: wraps for `i32`, rounds for floats.
    fn from_i64(x: i64) -> Self;
}

macro_rules! element {
    ($t:ty, $dtype:expr, $plus:expr, $minus:expr, $times:expr) => {
        impl Element for $t {
            const DTYPE: DType = $dtype;
            const ZERO: Self = 0 as $t;
            const ONE: Self = 1 as $t;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                $minus(self, other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $times(self, other)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_i64(x: i64) -> Self {
                x as $t
            }
        }
    };
}

element!(f32, DType::F32, |a: f32, b: f32| a + b, |a: f32, b: f32| a - b, |a: f32, b: f32| a * b);
element!(f64, DType::F64, |a: f64, b: f64| a + b, |a: f64, b: f64| a - b, |a: f64, b: f64| a * b);
element!(i32, DType::I32, i32::wrapping_add, i32::wrapping_sub, i32::wrapping_mul);
element!(i64, DType::I64, i64::wrapping_add, i64::wrapping_sub, i64::wrapping_mul);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_as_numpys_do() {
        assert_eq!(i32::MAX.plus(1), i32::MIN);
        assert_eq!(i64::MAX.times(2), -2);
        assert_eq!(i32::MIN.minus(1), i32::MAX);
    }
}
