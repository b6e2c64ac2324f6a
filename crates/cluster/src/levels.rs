//! Tile sizes and option checks for kernels that use Strassen's method.
//!
//! Place in the flow: between arguments and requests: picks tile sizes that the user did not set, and refuses
//! incompatible options.
//!
//! Invariant: tiles are a function of the product's sizes, its type and the kernel's name, so that C's bits do not depend
//! on the machines.

use bramble_kernel::Choice;
use bramble_matrix::DType;
use bramble_plan::{Strategy, TileSize};
use bramble_report::exit::Failure;

/// Tiles that C must have at least if tiles are large enough for two levels.
const TILES_WANTED: u64 = 64;
/// The same for one level.
const TILES_LEAST: u64 = 4;

/// Tile size and step depth for an m × n product of depth k: the user's values, else tiles large enough for one or
/// two levels. These are larger, and so fewer, than those of other kernels.
pub fn cut(asked: TileSize, kernel: Choice, [m, n, k]: [u64; 3], dtype: DType) -> TileSize {
    let Some(rules) = kernel.levels(dtype) else { return asked };
    let tiles = |edge: u64| (m / edge) * (n / edge);
    let worth = |levels: u32, wanted: u64| {
        let edge = rules.cutoff.max(1) << levels;
        (tiles(edge) >= wanted && k >= edge).then_some(edge)
    };
    let Some(edge) = worth(2, TILES_WANTED).or_else(|| worth(1, TILES_LEAST)) else { return asked };
    // Equal parts of a side, none shorter than `edge`.
    let even = |side: u64| side.div_ceil(side / edge);
    let tile = asked.tile.unwrap_or_else(|| even(m).max(even(n)));
    TileSize { tile: Some(tile), depth: Some(asked.depth.unwrap_or_else(|| even(k))) }
}

/// Refuses options that a Strassen kernel cannot satisfy. `elementwise`: whether each element must be as accurate as
/// by the classical method.
pub fn check(
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
            "--kernel {kernel}: its error is bounded only by norms, and --elementwise requires a bound for each \
            element; use another kernel"
        )));
    }
    match strategy.filter(|s| s.levels > 0) {
        None => Ok(()),
        Some(strategy) => Err(Failure::usage(format!(
            "--kernel {kernel}: Strassen's method inside tiles cannot be verified together with that above tiles \
            (--strategy {strategy}); use one of both"
        ))),
    }
}

/// Whether the errors of this kernel are bounded only by norms.
pub fn is_norm_wise(kernel: Choice, dtype: DType) -> bool {
    dtype.is_float() && kernel.levels(dtype).is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    const NOTHING: TileSize = TileSize { tile: None, depth: None };

    fn cut_of(kernel: &str, sizes: [u64; 3]) -> (Option<u64>, Option<u64>) {
        let TileSize { tile, depth } = cut(NOTHING, kernel.parse().unwrap(), sizes, DType::F64);
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
        let asked = TileSize { tile: Some(300), depth: None };
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
