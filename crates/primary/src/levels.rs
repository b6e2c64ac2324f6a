//! Kernels that multiply by Strassen's method: what a product with them may not promise, and what its check has to know.
//!
//! Place in the flow: after the machines have said which kernels they use, and again when C is checked.
//!
//! Invariants: integers are exact with every kernel, so nothing of this is about them; what a check is told covers every
//! machine that could compute, whether it did or not.

use crate::PrimaryError;
use crate::opening::Session;
use bramble_kernel::Choice;
use bramble_matrix::{DType, TileLevels, Winograd};
use bramble_plan::{Grid, Wish};

/// The rules by which a machine's kernel cuts products, by the name that it said: a name, and perhaps what its bits depend
/// on behind a space. `None` for classical kernels and unknown ones.
pub(crate) fn rules(kernel: &str, dtype: DType) -> Option<Winograd> {
    of_kernel(kernel.split(' ').next().unwrap_or_default(), dtype)
}

/// The same for a kernel by the name that a user types.
pub(crate) fn of_kernel(name: &str, dtype: DType) -> Option<Winograd> {
    name.parse::<Choice>().ok()?.levels(dtype).filter(|_| dtype.is_float())
}

/// Of all machines that may compute, the rules of those kernels; and the wish, with what goes with them. Refuses what was
/// asked for and cannot be had.
pub(crate) fn considered(
    sessions: &[&Session],
    dtype: DType,
    wish: Wish,
) -> Result<(Vec<Winograd>, Wish), PrimaryError> {
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
    // Levels of a plan on top of these are out of the question, so none are planned.
    Ok((rules, Wish { elementwise: true, ..wish }))
}

/// Refuses a machine that comes later, where the check of C would not know how its kernel cuts products.
pub(crate) fn expected(session: &Session, dtype: DType, known: &[Winograd]) -> Result<(), PrimaryError> {
    match rules(&session.welcome.kernel, dtype) {
        Some(found) if !known.contains(&found) => Err(PrimaryError::Failed(format!(
            "{} computes with the kernel {}, and nobody did when the product began: what it makes could not be checked",
            session.name, session.welcome.kernel
        ))),
        _ => Ok(()),
    }
}

/// What the check is told of tiles that such kernels may have made.
pub(crate) fn tiles(rules: &[Winograd], grid: Option<&Grid>) -> Vec<TileLevels> {
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
    fn rules_are_read_from_what_machines_say() {
        let cutoff = |kernel: &str| rules(kernel, DType::F32).map(|rules| rules.cutoff);
        assert_eq!(cutoff("strassen:simd:300 without fused multiply-add"), Some(300));
        assert_eq!(cutoff("strassen:blis"), Some(bramble_kernel::cutoff(DType::F32)));
        assert_eq!((cutoff("simd"), cutoff("blocked:simd"), cutoff("a newer one")), (None, None, None));
        assert_eq!(rules("strassen:simd:300", DType::I64), None, "integers are exact");
    }
}
