//! Machines that die in mid-product: whoever dies, and when, C is the product, made by the same operations in the same order
//! as if nobody had died.

#![allow(clippy::unwrap_used)] // A test may panic.

mod world;

use bramble_plan::{Base, Cut, Strategy as Cutting, Wish};
use proptest::prelude::*;
use world::{Setting, World, cutting, problem};

/// Deaths: when, from 0 to 1000 of an undisturbed run, and who and how.
fn deaths() -> impl Strategy<Value = Vec<(u64, u32)>> {
    proptest::collection::vec((0u64..1000, any::<u32>()), 0..6)
}

/// Runs a product in which machines die, and checks it against the same without deaths. `None` where it does not fit.
fn survived(p: &bramble_plan::Problem, setting: &Setting, wish: &Wish, choices: &[u32]) -> Option<World> {
    let still = Setting { deaths: Vec::new(), ..setting.clone() };
    let mut unhurt = World::new(p, &still, wish)?;
    unhurt.run(&[]);
    assert_eq!(unhurt.failed, None);
    let at = |per_mille: u64| 1 + unhurt.events * per_mille / 1000;
    let deaths = setting.deaths.iter().map(|(when, how)| (at(*when), *how)).collect();
    let mut world = World::new(p, &Setting { deaths, ..setting.clone() }, wish)?;
    world.run(choices);
    if let Some(why) = &world.failed {
        // The others may be too small for a cell of what it had; the reserve never is.
        assert!(why.contains("bytes of memory") && !setting.reserve, "{why}");
        return Some(world);
    }
    assert_eq!(world.primary.tiles_left(), 0);
    assert_eq!(world.primary.sums_under_way(), (0, 0));
    assert_eq!(world.primary.progress(), 1.0);
    assert!(world.c == world.expected, "C is not the product");
    assert_eq!(world.traces, unhurt.traces);
    let predicted = world.primary.plan().predicted.primary_memory_bytes;
    assert!(world.aside_bytes_max as u64 <= predicted, "{} of {predicted}", world.aside_bytes_max);
    Some(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn c_is_the_product_whoever_dies(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        memories in proptest::collection::vec(10_000u64..400_000, 1..6),
        strategy in cutting(), reproducible in any::<bool>(), shared in prop_oneof![Just(0u8), Just(3u8)],
        reads_c in any::<bool>(), generated in any::<bool>(),
        relay in any::<bool>(), breaks in any::<bool>(), columns in prop_oneof![Just(0u64), 1u64..10],
        slow in proptest::collection::vec(prop_oneof![Just(1u32), 1u32..12], 0..6), steals in any::<bool>(),
        reserve in any::<bool>(), deaths in deaths(),
        choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        let cut = Cut { tile: Some(tile), depth: Some(depth) };
        let setting = Setting {
            cut, memories, shared, relay, breaks, slow, steals, columns, reserve, deaths, recovers: true,
            ..Setting::PLAIN
        };
        let wish = Wish { strategy: Some(strategy), reproducible: reproducible && strategy.levels == 0, ..Wish::AUTO };
        survived(&p, &setting, &wish, &choices);
    }
}
