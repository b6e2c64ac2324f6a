//! What goes with a kernel that multiplies by Strassen's method, on the command line.
//!
//! Place in the flow: between arguments and requests: which tiles it is given where nobody says, and what cannot be
//! asked for beside it.
//!
//! Invariant: tiles are a function of the product's sizes, its type and the kernel's name, so that C's bits do not depend
//! on the machines.

use crate::exit::Failure;
use bramble_kernel::Choice;
use bramble_matrix::DType;
use bramble_plan::{Cut, Strategy};

/// Tiles that a product should have before they are made large enough for a second level.
const TILES_WANTED: u64 = 64;
/// And for a first.
const TILES_LEAST: u64 = 4;

/// The tiles and steps for a product m × n, k deep: what was asked for, else tiles that are worth a level or two. They are
/// larger than those of other kernels, and so fewer.
pub(crate) fn cut(asked: Cut, kernel: Choice, [m, n, k]: [u64; 3], dtype: DType) -> Cut {
    let Some(rules) = kernel.levels(dtype) else { return asked };
    let tiles = |edge: u64| (m / edge) * (n / edge);
    let worth = |levels: u32, wanted: u64| {
        let edge = rules.cutoff.max(1) << levels;
        (tiles(edge) >= wanted && k >= edge).then_some(edge)
    };
    let Some(edge) = worth(2, TILES_WANTED).or_else(|| worth(1, TILES_LEAST)) else { return asked };
    // Even parts of a side, none of them shorter than that.
    let even = |side: u64| side.div_ceil(side / edge);
    let tile = asked.tile.unwrap_or_else(|| even(m).max(even(n)));
    Cut { tile: Some(tile), depth: Some(asked.depth.unwrap_or_else(|| even(k))) }
}

/// Refuses what such a kernel cannot promise. `elementwise`: whether each element is to be as accurate as classically.
pub(crate) fn check(
    kernel: Choice,
    strategy: Option<Strategy>,
    elementwise: bool,
    dtype: DType,
) -> Result<(), Failure> {
    if !is_norm_wise(kernel, dtype) {
        return Ok(());
    }
    if elementwise {
        return Err(Failure::usage(format!(
            "--kernel {kernel}: its error is bounded by norms only, and --elementwise asks for more; use another kernel"
        )));
    }
    match strategy.filter(|s| s.levels > 0) {
        None => Ok(()),
        Some(strategy) => Err(Failure::usage(format!(
            "--kernel {kernel}: levels inside tiles and above them (--strategy {strategy}) cannot be checked together; use \
             one of both"
        ))),
    }
}

/// Whether products of that kernel have errors that only norms bound.
pub(crate) fn is_norm_wise(kernel: Choice, dtype: DType) -> bool {
    dtype.is_float() && kernel.levels(dtype).is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    const NOTHING: Cut = Cut { tile: None, depth: None };

    fn cut_of(kernel: &str, sizes: [u64; 3]) -> (Option<u64>, Option<u64>) {
        let Cut { tile, depth } = cut(NOTHING, kernel.parse().unwrap(), sizes, DType::F64);
        (tile, depth)
    }

    #[test]
    fn tiles_are_worth_a_level_where_there_are_enough_of_them() {
        assert_eq!(cut_of("simd", [8192; 3]), (None, None));
        assert_eq!(cut_of("strassen:simd:1024", [8192; 3]), (Some(2048), Some(2048)));
        assert_eq!(cut_of("strassen:simd:1024", [32768; 3]), (Some(4096), Some(4096)));
        assert_eq!(cut_of("strassen:simd:100", [1010, 900, 333]), (Some(225), Some(333)));
        assert_eq!(cut_of("strassen:simd:1024", [3000, 3000, 9000]), (None, None), "too few tiles");
        assert_eq!(cut_of("strassen:simd:1024", [9000, 9000, 2000]), (None, None), "too flat");
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        let asked = Cut { tile: Some(300), depth: None };
        let cut = cut(asked, "strassen:simd:64".parse().unwrap(), [1000; 3], DType::F64);
        assert_eq!((cut.tile, cut.depth), (Some(300), Some(143)));
    }

    #[test]
    fn what_cannot_be_promised_is_refused_for_floats() {
        let (kernel, strategy) = ("strassen".parse().unwrap(), Some("strassen:1".parse().unwrap()));
        assert!(
            check(kernel, None, true, DType::F64).is_err()
                && check(kernel, strategy, false, DType::F32).is_err()
        );
        assert!(
            check(kernel, strategy, true, DType::I32).is_ok()
                && check(kernel, None, false, DType::F64).is_ok()
        );
        assert!(check("blocked".parse().unwrap(), strategy, true, DType::F64).is_ok());
    }
}
