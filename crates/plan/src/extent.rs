//! Whether the sums of Strassen's method could overflow the element type although C does not.
//!
//! Place in the flow: called with the largest elements of A, B and the old C, before a plan or a kernel with levels
//! is used.
//!
//! Invariant: without an objection, no number that `L` levels compute exceeds a quarter of the largest one of the
//! type. With a and b the largest elements of A and B: a sum of panels has at most 4 terms per level, so it is at
//! most 4^L a (or b). A level makes sums of at most 18 products of halves of the depth, so no result or part of one
//! exceeds 9^L k a b, before and after `alpha`; with the old C times `beta`, to which steps are added, the sum of
//! both counts. (c12 and c22 have the 18 terms: Higham, *Accuracy and Stability of Numerical Algorithms*, 23.2.2.)
//!
//! Deliberately absent: scaling by powers of two. A classical product needs none.

use bramble_base::DType;
use bramble_base::float::log2;

/// Powers of two between the bound and the largest number: the verification of C needs two, and rounding errors are
/// smaller.
const MARGIN_BITS: f64 = 2.0;

/// The magnitude of the numbers of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Element type.
    pub dtype: DType,
    /// Columns of A.
    pub k: u64,
    /// Largest absolute value in A.
    pub a: f64,
    /// Largest absolute value in B.
    pub b: f64,
    /// Largest absolute value in the old C; 0 if it is not read.
    pub old_c: f64,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of the old C.
    pub beta: f64,
    /// Whether all elements are finite numbers.
    pub is_finite: bool,
}

/// The reason against Strassen's method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StrassenObjection {
    /// Strassen's method would spread a NaN or an infinity to unrelated elements of C.
    NotFinite,
    /// Alpha or beta, which is applied to the elements of each product before these are added, is too large or too
    /// small for the type.
    Factor(DType),
    /// Sums could exceed the largest number of the type.
    Overflow(Extent),
}

impl Extent {
    /// The reason against that many levels, if any. Integers have none: their sums wrap, and the result is exact.
    pub fn objection(&self, levels: u32) -> Option<StrassenObjection> {
        if levels == 0 || !self.dtype.is_float() {
            return None;
        }
        if !self.is_finite {
            return Some(StrassenObjection::NotFinite);
        }
        if !(self.dtype.holds_factor(self.alpha) && self.dtype.holds_factor(self.beta)) {
            return Some(StrassenObjection::Factor(self.dtype));
        }
        let largest = if self.dtype == DType::F32 { f64::from(f32::MAX) } else { f64::MAX };
        let limit = log2(largest) - MARGIN_BITS;
        let levels = f64::from(levels);
        // Logarithms, because the products themselves may overflow. That of 0 is -∞.
        let sums = log2(self.a.max(self.b)) + 2.0 * levels;
        let terms = log2(self.a) + log2(self.b) + log2(self.k as f64);
        let products = terms + levels * log2(9.0) + log2(self.alpha.abs().max(1.0));
        let old = log2(self.old_c) + log2(self.beta.abs().max(1.0));
        let together = if old == f64::NEG_INFINITY { products } else { products.max(old) + 1.0 };
        (sums > limit || together > limit).then_some(StrassenObjection::Overflow(*self))
    }
}

impl core::fmt::Display for StrassenObjection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotFinite => f.write_str(
                "A, B or the old C holds a NaN or an infinity, which Strassen's method would spread",
            ),
            Self::Factor(dtype) => write!(f, "alpha or beta is outside the range of {dtype}"),
            Self::Overflow(Extent { dtype, a, b, old_c, .. }) => {
                write!(
                    f,
                    "its sums could overflow {dtype}: the largest elements are {a:.1e} in A and {b:.1e} in B"
                )?;
                if *old_c > 0.0 { write!(f, ", {old_c:.1e} in the old C") } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Extent = Extent {
        dtype: DType::F32,
        k: 64,
        a: 1.0,
        b: 1.0,
        old_c: 0.0,
        alpha: 1.0,
        beta: 0.0,
        is_finite: true,
    };

    fn overflows(extent: Extent, levels: u32) -> bool {
        matches!(extent.objection(levels), Some(StrassenObjection::Overflow(_)))
    }

    #[test]
    fn even_numbers_raise_no_objection_and_classical_products_never_do() {
        for dtype in DType::ALL {
            assert_eq!((0..=3).find_map(|levels| Extent { dtype, ..EVEN }.objection(levels)), None);
        }
        let wild = Extent { a: 2e38, b: 2e38, is_finite: false, ..EVEN };
        assert_eq!(wild.objection(0), None);
        assert_eq!(Extent { dtype: DType::I32, ..wild }.objection(2), None, "integers wrap");
        assert_eq!(
            Extent { a: 0.0, b: 3e38 / 64.0, ..EVEN }.objection(1),
            None,
            "a product with zeros is zero"
        );
    }

    #[test]
    fn sums_of_panels_products_and_the_old_c_each_count() {
        // Sums of elements only: the other operand is zero.
        assert!(
            overflows(Extent { a: 2e38, b: 0.0, ..EVEN }, 1)
                && overflows(Extent { b: 2e38, a: 0.0, ..EVEN }, 1)
        );
        assert!(
            !overflows(Extent { a: 2e37, b: 0.0, ..EVEN }, 1)
                && overflows(Extent { a: 2e37, b: 0.0, ..EVEN }, 2)
        );
        // 9^L k a b.
        let near = f64::from(f32::MAX) / 4.0 / (9.0 * 64.0);
        for (factor, is_over) in [(0.99, false), (1.01, true)] {
            let a = (near * factor).sqrt();
            assert_eq!(overflows(Extent { a, b: a, ..EVEN }, 1), is_over);
            assert_eq!(overflows(Extent { a: a / 3.0, b: a / 3.0, ..EVEN }, 2), is_over);
            assert_eq!(overflows(Extent { a: a / 8.0, b: a, k: 512, ..EVEN }, 1), is_over);
            assert_eq!(overflows(Extent { a: a / 8.0, b: a, alpha: -8.0, ..EVEN }, 1), is_over);
            assert_eq!(
                overflows(Extent { a, b: a, alpha: 0.125, ..EVEN }, 1),
                is_over,
                "products come before alpha"
            );
            let old = Extent { old_c: f64::from(f32::MAX) / 16.0 * factor, beta: -2.0, ..EVEN };
            assert_eq!(overflows(old, 1), is_over);
        }
        let both = Extent { a: (near * 0.7).sqrt(), b: (near * 0.7).sqrt(), ..EVEN };
        assert!(!overflows(both, 1));
        assert!(overflows(Extent { old_c: 1e37, beta: 1.0, ..both }, 1), "together they are too large");
    }

    #[test]
    fn doubles_have_their_own_range() {
        let of = |a: f64, b: f64| Extent { dtype: DType::F64, a, b, ..EVEN };
        assert!(
            !overflows(of(2e38, 2e38), 3)
                && overflows(of(1e308, 1e-300), 1)
                && overflows(of(1e200, 1e200), 1)
        );
        assert!(!overflows(of(1e-300, 1e-300), 3));
    }

    #[test]
    fn what_is_not_finite_and_factors_outside_the_range_are_named() {
        let text = |extent: Extent| extent.objection(1).map(|why| why.to_string()).unwrap_or_default();
        assert!(text(Extent { is_finite: false, ..EVEN }).contains("NaN"));
        assert!(text(Extent { alpha: 1e-46, ..EVEN }).contains("range of f32"));
        assert!(text(Extent { beta: 1e39, ..EVEN }).contains("range of f32"));
        assert_eq!(Extent { alpha: 1e-46, dtype: DType::F64, ..EVEN }.objection(1), None);
        let large = text(Extent { a: 2e38, ..EVEN });
        assert!(
            large.contains("overflow f32") && large.contains("2.0e38 in A") && !large.contains("old C"),
            "{large}"
        );
    }
}
