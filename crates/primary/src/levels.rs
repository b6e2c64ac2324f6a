//! Kernels that use Strassen's method: which wishes they rule out, and what the check has to know of them.
//!
//! Place in the flow: after the machines have named their kernels, and again when C is checked.
//!
//! Invariants: integers are exact with every kernel and not concerned; the check allows for every machine that could compute,
//! whether it did or not.

use bramble_kernel::Choice;
use bramble_matrix::{DType, Winograd};
use bramble_plan::{Grid, PlanOptions};
use bramble_sessions::{PrimaryError, Session};
use bramble_verify::TileLevels;

/// The rules by which a machine's kernel cuts products. `kernel` is the name from its welcome, possibly followed by a space and
/// what its bits depend on. `None` for classical and unknown kernels.
pub(crate) fn rules(kernel: &str, dtype: DType) -> Option<Winograd> {
    rules_by_name(kernel.split(' ').next().unwrap_or_default(), dtype)
}

/// The same for a kernel by its option name.
pub(crate) fn rules_by_name(name: &str, dtype: DType) -> Option<Winograd> {
    name.parse::<Choice>().ok()?.levels(dtype).filter(|_| dtype.is_float())
}

/// The rules of all kernels among machines that may compute, and the wish, adapted to them. Refuses wishes that these kernels
/// cannot meet.
pub(crate) fn adapt_wish(
    sessions: &[&Session],
    dtype: DType,
    wish: PlanOptions,
) -> Result<(Vec<Winograd>, PlanOptions), PrimaryError> {
    let found = sessions.iter().filter_map(|s| Some((*s, rules(&s.welcome.kernel, dtype)?)));
    let found: Vec<(&Session, Winograd)> = found.collect();
    let Some((session, _)) = found.first() else { return Ok((Vec::new(), wish)) };
    let (who, kernel) = (&session.name, &session.welcome.kernel);
    if wish.elementwise {
        return Err(PrimaryError::Failed(format!(
            "--elementwise: {who} computes with the kernel {kernel}, whose error is bounded by norms only; use another \
             --kernel, or leave it out"
        )));
    }
    if let Some(strategy) = wish.strategy.filter(|s| s.levels > 0) {
        return Err(PrimaryError::Failed(format!(
            "--strategy {strategy}: {who} computes with the kernel {kernel}; levels above tiles and inside them cannot be \
             checked together: use another strategy, or another --kernel"
        )));
    }
    let mut rules: Vec<Winograd> = found.into_iter().map(|(_, rules)| rules).collect();
    rules.sort_unstable();
    rules.dedup();
    // Levels of the plan on top of levels in kernels could not be checked, so none are planned.
    Ok((rules, PlanOptions { elementwise: true, ..wish }))
}

/// Refuses a machine that joins with a Strassen kernel whose rules the check of C does not allow for.
pub(crate) fn check_joining_kernel(
    session: &Session,
    dtype: DType,
    known: &[Winograd],
) -> Result<(), PrimaryError> {
    match rules(&session.welcome.kernel, dtype) {
        Some(found) if !known.contains(&found) => Err(PrimaryError::Failed(format!(
            "{} computes with the kernel {}, which no machine had when the product began: its results could not be checked",
            session.name, session.welcome.kernel
        ))),
        _ => Ok(()),
    }
}

/// The levels inside tiles that the check has to allow for.
pub(crate) fn tile_levels(rules: &[Winograd], grid: Option<&Grid>) -> Vec<TileLevels> {
    let of = |grid: &Grid| {
        let (tile_rows, tile_cols, depth) = (grid.tile_rows, grid.tile_cols, grid.depth);
        let tiles = rules.iter().map(move |rules| TileLevels { tile_rows, tile_cols, depth, rules: *rules });
        tiles.collect()
    };
    grid.map(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_from_kernel_names() {
        let cutoff = |kernel: &str| rules(kernel, DType::F32).map(|rules| rules.cutoff);
        assert_eq!(cutoff("strassen:simd:300 without fused multiply-add"), Some(300));
        assert_eq!(cutoff("strassen:blis"), Some(bramble_kernel::cutoff(DType::F32)));
        assert_eq!((cutoff("simd"), cutoff("blocked:simd"), cutoff("a newer one")), (None, None, None));
        assert_eq!(rules("strassen:simd:300", DType::I64), None, "integers are exact");
    }
}
