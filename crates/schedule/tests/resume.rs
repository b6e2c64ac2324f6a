//! Resumed products: for any set of complete tiles when a primary dies, and any workers afterwards, C is the
//! product, by the same operations in the same order as in one run.

#![allow(clippy::unwrap_used)] // A test may panic.

mod world;

use bramble_plan::{Base, PlanOptions, Problem, Strategy as Cutting, TileSize};
use proptest::prelude::*;
use world::{Setting, World, cutting, problem};

/// One run of a product: when it ends, from 0 to 1000 of an undisturbed run; every n-th complete tile is
/// unknown afterwards.
type Life = (u64, usize);

/// Runs a product in several runs, each on other workers, and compares it with a single run. Returns the
/// complete tiles at the beginning of each run; `None` if it does not fit.
fn revived(
    p: &Problem,
    settings: &[Setting],
    lives: &[Life],
    wish: &PlanOptions,
    choices: &[u32],
) -> Option<Vec<usize>> {
    let mut whole = World::new(p, &Setting { deaths: Vec::new(), ..settings[0].clone() }, wish)?;
    whole.run(&[]);
    assert_eq!(whole.failed, None);
    let mut world = World::new(p, &settings[0], wish)?;
    let mut there = Vec::new();
    for (at, (when, nth)) in lives.iter().enumerate() {
        world.run_for(world.events + 1 + whole.events * when / 1000, choices);
        let mut next = world.resumed(p, &settings[(at + 1) % settings.len()], wish, *nth)?;
        if let Err(why) = &next {
            // The workers of a later run may be too small for a cell.
            assert!(why.contains("bytes of memory"), "{why}");
            next = world.resumed(p, &settings[0], wish, *nth)?;
        }
        world = next.ok()?;
        there.push(world.committed.len());
    }
    world.run(choices);
    assert_eq!(world.failed, None);
    assert_eq!((world.primary.tiles_left(), world.primary.sums_under_way()), (0, (0, 0)));
    assert_eq!(world.committed.len() as u64, world.primary.plan().tiles());
    assert!(world.c == world.expected, "C is not the product");
    assert_eq!(world.traces, whole.traces);
    let taken: f64 = world.primary.reassigned_parts().iter().map(|(_, part)| part).sum();
    assert!(taken < 1.0 + 1e-9, "{taken} of the work");
    assert!(world.primary.moved().iter().all(|moved| moved.from < settings[0].memories.len().max(8)));
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
        let setting = Setting { cut, memories: first, shared, relay, steals, columns, recovers: true, ..Setting::PLAIN };
        let other = Setting { memories: second, deaths, reserve: true, columns: 0, ..setting.clone() };
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
    for (base, levels, reproducible) in world::kinds() {
        for seed in 0..6u64 {
            let p = problem(45, 40, 50, seed.is_multiple_of(2), seed.is_multiple_of(3));
            let wish =
                PlanOptions { strategy: Some(Cutting { base, levels }), reproducible, ..PlanOptions::AUTO };
            let setting = Setting {
                cut: TileSize { tile: Some(4), depth: Some(4) },
                memories: vec![400_000, 60_000, 200_000, 90_000],
                relay: seed % 3 != 1,
                recovers: true,
                ..Setting::PLAIN
            };
            let other =
                Setting { memories: vec![400_000; 1 + seed as usize % 3], reserve: true, ..setting.clone() };
            let choices: Vec<u32> =
                (0..4000).map(|i: u32| i.wrapping_mul(2_654_435_761).rotate_left(11)).collect();
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
    let setting = Setting {
        cut: TileSize { tile: Some(4), depth: Some(40) },
        memories: vec![20_000; 2],
        recovers: true,
        ..Setting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Naive)), ..PlanOptions::AUTO };
    let mut world = World::new(&p, &setting, &wish).unwrap();
    let mut whole = World::new(&p, &setting, &wish).unwrap();
    whole.run(&[]);
    world.run_for(whole.events / 2, &[]);
    world.primary(bramble_schedule::primary::PrimaryEvent::Stop);
    let (sent, before) = (world.sent_elements, world.committed.len());
    world.run_more(20_000);
    assert_eq!(world.sent_elements, sent);
    assert!(world.committed.len() > before && world.primary.tiles_left() > 0, "{before} tiles were there");
    let next = world.resumed(&p, &setting, &wish, 0).unwrap();
    let mut next = next.unwrap();
    next.run(&[]);
    assert!(next.c == next.expected && next.failed.is_none());
}

#[test]
fn in_a_product_that_was_complete_no_current_peer_made_a_tile() {
    let p = problem(40, 40, 40, false, false);
    let setting = Setting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![200_000; 3],
        recovers: true,
        ..Setting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    let mut whole = World::new(&p, &setting, &wish).unwrap();
    whole.run(&[]);
    assert!(whole.primary.owner_of(0, 0).is_some());
    let next = whole.resumed(&p, &setting, &wish, 0).unwrap().unwrap();
    assert_eq!((next.primary.tiles_left(), next.primary.owner_of(0, 0)), (0, None));
}
