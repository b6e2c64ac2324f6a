//! Products and strategies for the tests whose events happen in a chosen order.

#![allow(dead_code)] // Each of the tests beside it uses another part of it.

use bramble_matrix::DType;
use bramble_plan::{Base, OperandSource, Problem, Strategy as Cutting, TileSize};
use bramble_sim::{ChosenOrder, OrderSetting};
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

/// A product.
pub(crate) fn problem(m: u64, n: u64, k: u64, reads_c: bool, generated: bool) -> Problem {
    Problem {
        m,
        n,
        k,
        dtype: DType::F64,
        reads_c,
        a_source: OperandSource::generated_if(generated),
        b_source: OperandSource::Sent,
    }
}

/// Four machines of unequal memory that recover from wrong tiles and losses, and compute tiles and steps of four.
pub(crate) fn four_machines(relay: bool) -> OrderSetting {
    OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![400_000, 60_000, 200_000, 90_000],
        relay,
        recovers: true,
        ..OrderSetting::PLAIN
    }
}

/// Choices that differ by a seed.
pub(crate) fn shuffled(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i ^ seed.rotate_left(7)).wrapping_mul(2_654_435_761).rotate_left(11)).collect()
}

/// The same machines, of which none dies or joins.
pub(crate) fn calm(setting: &OrderSetting) -> OrderSetting {
    OrderSetting { deaths: Vec::new(), joins: Vec::new(), ..setting.clone() }
}

/// The product is complete, and right to the bit: each tile was made by the plan's operations in the plan's order.
pub(crate) fn check_complete(order: &ChosenOrder) {
    assert_eq!((order.failed(), order.primary().tiles_left()), (None, 0));
    assert_eq!(order.primary().sums_under_way(), (0, 0));
    assert_eq!(order.primary().progress(), 1.0);
    assert_eq!(order.complete_tiles().len() as u64, order.primary().plan().tiles());
    assert!(order.is_right(), "C has other bits than the plan gives: {:?}", order.wrong_tiles());
}
