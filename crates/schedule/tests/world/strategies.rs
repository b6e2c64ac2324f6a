//! Strategies for the tests.

use bramble_plan::{Base, Strategy as Cutting};
use proptest::prelude::*;

/// Any strategy.
pub(crate) fn cutting() -> impl Strategy<Value = Cutting> {
    let base = proptest::array::uniform3(1u32..5)
        .prop_flat_map(|sizes| proptest::sample::select(Base::one_of_each(sizes).collect::<Vec<_>>()));
    (base, 0u32..3).prop_map(|(base, levels)| Cutting { base, levels })
}

/// One of each kind, and some with levels of Strassen–Winograd: base, levels, whether bits are those of one machine.
pub(crate) fn kinds() -> impl Iterator<Item = (Base, u32, bool)> {
    let plain =
        [false, true].into_iter().flat_map(|same| Base::one_of_each([2, 1, 2]).map(move |b| (b, 0, same)));
    plain.chain([(Base::Square(2), 1, false), (Base::Box3(1, 1, 3), 1, false), (Base::Reuse, 2, false)])
}
