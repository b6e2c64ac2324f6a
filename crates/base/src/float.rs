//! Functions of floats that Rust's `core` lacks, from the crate `libm`.
//!
//! Place in the flow: the cost model, the bound and the simulator compute with these.
//!
//! Invariants: `sqrt`, `floor`, `ceil`, `round` and `powi` give the bits that `std` gives on every processor with IEEE 754
//! arithmetic. `cbrt`, `log2` and `powf` may differ from a system's C library in the last bit, but they give the same bits on
//! every machine, which the C libraries do not.
//!
//! Deliberately absent: `f32`, and functions without a caller. `abs`, `min`, `max` and `clamp` are in `core`.

/// The square root, correctly rounded.
#[inline]
pub fn sqrt(x: f64) -> f64 {
    libm::sqrt(x)
}

/// The cube root.
#[inline]
pub fn cbrt(x: f64) -> f64 {
    libm::cbrt(x)
}

/// The largest integer that is not above `x`.
#[inline]
pub fn floor(x: f64) -> f64 {
    libm::floor(x)
}

/// The smallest integer that is not below `x`.
#[inline]
pub fn ceil(x: f64) -> f64 {
    libm::ceil(x)
}

/// The nearest integer; halves are rounded away from zero.
#[inline]
pub fn round(x: f64) -> f64 {
    libm::round(x)
}

/// The logarithm to base 2.
#[inline]
pub fn log2(x: f64) -> f64 {
    libm::log2(x)
}

/// `x` to the power of `y`.
#[inline]
pub fn powf(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// `x` to the power of `n`, by squaring, in the order of multiplications that `f64::powi` has.
pub fn powi(x: f64, n: u32) -> f64 {
    let (mut product, mut square, mut rest) = (1.0, x, n);
    loop {
        if rest & 1 == 1 {
            product *= square;
        }
        rest >>= 1;
        if rest == 0 {
            return product;
        }
        square *= square;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exact_functions_have_the_bits_of_the_standard_library(bits in any::<u64>(), near in -1e6f64..1e6) {
            for x in [f64::from_bits(bits), near, near.trunc() + 0.5, near * 1e-6] {
                let same = |ours: f64, std: f64| ours.to_bits() == std.to_bits() || ours.is_nan() && std.is_nan();
                prop_assert!(same(sqrt(x), x.sqrt()), "sqrt {x:e}");
                prop_assert!(same(floor(x), x.floor()), "floor {x:e}");
                prop_assert!(same(ceil(x), x.ceil()), "ceil {x:e}");
                prop_assert!(same(round(x), x.round()), "round {x:e}");
            }
        }

        #[test]
        fn powers_are_products_in_the_order_of_the_standard_library(x in -3f64..3.0, n in 0u32..40) {
            prop_assert_eq!(powi(x, n).to_bits(), x.powi(n.cast_signed()).to_bits());
        }

        #[test]
        fn other_functions_are_near_the_standard_library(x in 1e-3f64..1e12, y in -3f64..3.0) {
            let near = |ours: f64, std: f64| (ours - std).abs() <= 4.0 * f64::EPSILON * std.abs();
            prop_assert!(near(cbrt(x), x.cbrt()), "cbrt {x:e}");
            prop_assert!(near(log2(x), x.log2()), "log2 {x:e}");
            prop_assert!(near(powf(x, y), x.powf(y)), "{x:e} to {y:e}");
        }
    }

    #[test]
    fn cube_roots_of_cubes_are_whole() {
        for side in 0u32..2000 {
            assert_eq!(cbrt(f64::from(side).powi(3)), f64::from(side));
        }
    }
}
