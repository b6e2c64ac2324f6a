//! Resumed products: for any set of complete tiles when a primary dies, and any workers afterwards, C is the
//! product, by the same operations in the same order as in one run.

use crate::drawn;
use bramble_plan::{Base, PlanOptions, Problem, Strategy as Cutting, TileSize};
use bramble_sim::{ChosenOrder, OrderSetting};
use drawn::{calm, check_complete, cutting, problem, shuffled};
use proptest::prelude::*;

/// One run of a product: when it ends, from 0 to 1000 of an undisturbed run; every n-th complete tile is
/// unknown afterwards.
type Life = (u64, usize);

/// Runs a product in several runs, each on other workers. Returns the
/// complete tiles at the beginning of each run; `None` if it does not fit.
fn revived(
    p: &Problem,
    settings: &[OrderSetting],
    lives: &[Life],
    wish: &PlanOptions,
    choices: &[u32],
) -> Option<Vec<usize>> {
    let mut order = ChosenOrder::new(p, &settings[0], wish)?;
    let mut there = Vec::new();
    for (at, (when, nth)) in lives.iter().enumerate() {
        let mut whole = ChosenOrder::new(p, &calm(&settings[0]), wish)?;
        whole.run(&[]);
        check_complete(&whole);
        order.run_for(1 + whole.events() * when / 1000, choices);
        let mut next = order.resumed(p, &settings[(at + 1) % settings.len()], wish, *nth)?;
        if let Err(why) = &next {
            // The workers of a later run may be too small for a cell.
            assert!(why.contains("bytes of memory"), "{why}");
            next = order.resumed(p, &settings[0], wish, *nth)?;
        }
        order = next.ok()?;
        there.push(order.complete_tiles().len());
    }
    order.run(choices);
    check_complete(&order);
    let taken: f64 = order.primary().reassigned_parts().iter().map(|(_, part)| part).sum();
    assert!(taken < 1.0 + 1e-9, "{taken} of the work");
    assert!(order.primary().moved().iter().all(|moved| moved.from < settings[0].memories.len().max(8)));
    Some(there)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn c_is_the_product_however_often_the_primary_dies(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        first in proptest::collection::vec(10_000u64..400_000, 1..6),
        second in proptest::collection::vec(10_000u64..400_000, 1..6),
        strategy in cutting(), reproducible in any::<bool>(), shared in prop_oneof![Just(0u8), Just(1u8), Just(3u8)],
        reads_c in any::<bool>(), generated in any::<bool>(), relay in any::<bool>(), steals in any::<bool>(),
        columns in prop_oneof![Just(0u64), 1u64..10], deaths in proptest::collection::vec((0u64..1000, any::<u32>()), 0..2),
        lives in proptest::collection::vec((0u64..1100, 0usize..6), 1..4),
        choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let deaths = if shared == 1 { Vec::new() } else { deaths };
        let setting = OrderSetting {
            cut, memories: first, shared, relay, steals, columns, recovers: true, ..OrderSetting::PLAIN
        };
        let other = OrderSetting { memories: second, deaths, reserve: true, columns: 0, ..setting.clone() };
        let wish = PlanOptions {
            strategy: Some(strategy),
            reproducible: reproducible && strategy.levels == 0,
            ..PlanOptions::AUTO
        };
        revived(&p, &[setting, other], &lives, &wish, &choices);
    }
}

#[test]
fn every_strategy_goes_on() {
    let mut known = 0;
    for (base, levels, reproducible) in drawn::kinds() {
        for seed in 0..6u64 {
            let p = problem(45, 40, 50, seed.is_multiple_of(2), seed.is_multiple_of(3));
            let wish =
                PlanOptions { strategy: Some(Cutting { base, levels }), reproducible, ..PlanOptions::AUTO };
            let setting = drawn::four_machines(seed % 3 != 1);
            let other = OrderSetting {
                memories: vec![400_000; 1 + seed as usize % 3],
                reserve: true,
                ..setting.clone()
            };
            let choices = shuffled(0, 4000);
            let lives = [(300 + 100 * seed, 0), (200, 3)];
            let there = revived(&p, &[setting, other], &lives, &wish, &choices);
            known += there.unwrap_or_else(|| panic!("{base:?} does not fit")).iter().sum::<usize>();
        }
    }
    assert!(known > 2000, "{known} tiles were there when a run went on");
}

#[test]
fn a_stopped_product_sends_nothing_more_and_results_under_way_land() {
    let p = problem(40, 40, 40, false, false);
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(40) },
        memories: vec![20_000; 2],
        recovers: true,
        ..OrderSetting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Naive)), ..PlanOptions::AUTO };
    let mut order = ChosenOrder::new(&p, &setting, &wish).unwrap();
    let mut whole = ChosenOrder::new(&p, &setting, &wish).unwrap();
    whole.run(&[]);
    order.run_for(whole.events() / 2, &[]);
    order.inject(bramble_schedule::primary::PrimaryEvent::Stop);
    let (sent, before) = (order.sent().0, order.complete_tiles().len());
    order.run_more(20_000);
    assert_eq!(order.sent().0, sent);
    assert!(
        order.complete_tiles().len() > before && order.primary().tiles_left() > 0,
        "{before} tiles were there"
    );
    let next = order.resumed(&p, &setting, &wish, 0).unwrap();
    let mut next = next.unwrap();
    next.run(&[]);
    check_complete(&next);
}

#[test]
fn in_a_product_that_was_complete_no_current_peer_made_a_tile() {
    let p = problem(40, 40, 40, false, false);
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![200_000; 3],
        recovers: true,
        ..OrderSetting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    let mut whole = ChosenOrder::new(&p, &setting, &wish).unwrap();
    whole.run(&[]);
    assert!(whole.primary().owner_of(0, 0).is_some());
    let next = whole.resumed(&p, &setting, &wish, 0).unwrap().unwrap();
    assert_eq!((next.primary().tiles_left(), next.primary().owner_of(0, 0)), (0, None));
}
