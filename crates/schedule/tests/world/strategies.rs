//! Strategies for the tests.

use bramble_plan::{Base, Strategy as Cutting};
use proptest::prelude::*;

/// Any strategy.
pub(crate) fn cutting() -> impl Strategy<Value = Cutting> {
    let base = prop_oneof![
        Just(Base::Naive),
        (1u32..5).prop_map(Base::Row),
        (1u32..5).prop_map(Base::Square),
        Just(Base::Reuse),
        Just(Base::Cuboid),
        (1u32..4, 1u32..4, 1u32..4).prop_map(|(a, b, c)| Base::Box3(a, b, c)),
        (1u32..4, 1u32..4).prop_map(|(r, c)| Base::Summa(r, c)),
    ];
    (base, 0u32..3).prop_map(|(base, levels)| Cutting { base, levels })
}

/// One of each kind: base, levels, whether bits are those of one machine.
pub(crate) fn kinds() -> [(Base, u32, bool); 13] {
    [
        (Base::Naive, 0, false),
        (Base::Naive, 0, true),
        (Base::Row(3), 0, false),
        (Base::Square(3), 0, true),
        (Base::Reuse, 0, false),
        (Base::Reuse, 0, true),
        (Base::Cuboid, 0, false),
        (Base::Box3(2, 1, 2), 0, false),
        (Base::Box3(2, 1, 2), 0, true),
        (Base::Summa(2, 2), 0, false),
        (Base::Square(2), 1, false),
        (Base::Box3(1, 1, 3), 1, false),
        (Base::Reuse, 2, false),
    ]
}
