//! Wrong tiles: their makers are known, other workers recompute them, and C is the product, by the same
//! operations in the same order.

#![allow(clippy::unwrap_used)] // A test may panic.

mod world;

use bramble_base::Digest128;
use bramble_plan::{Base, PlanOptions, Problem, Strategy as Cutting, TileSize};
use bramble_schedule::primary::{
    InspectionEnd, InspectionEvent, InspectionTask, PrimaryAction, PrimaryEvent, Recomputation,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::{Setting, World, cutting, problem};

/// Runs a product in which one worker's results are wrong, and has the wrong tiles recomputed. Returns their
/// number; `None` if the product does not fit.
fn mended(p: &Problem, setting: &Setting, wish: &PlanOptions, liar: usize, choices: &[u32]) -> Option<usize> {
    let mut whole =
        World::new(p, &Setting { deaths: Vec::new(), joins: Vec::new(), ..setting.clone() }, wish)?;
    whole.run(&[]);
    let mut world = World::new(p, setting, wish)?;
    world.primary = world.primary.inspected();
    // Not the reserve, which is never lost: if its results were wrong and all other workers were lost, none
    // would be left.
    let liar = liar % world.primary.plan().members.len();
    world.liar = Some(liar);
    world.run(choices);
    if let Some(why) = &world.failed {
        panic!("{why}");
    }
    let wrong = world.wrong_tiles();
    let regions = world.primary.plan().regions.iter().enumerate();
    let all: Vec<(usize, u64)> =
        regions.flat_map(|(at, r)| (0..r.tiles()).map(move |tile| (at, tile))).collect();
    let makers = world.primary.makers(&all);
    let by_liar: BTreeSet<(usize, u64)> =
        all.iter().zip(&makers).filter(|(_, makers)| makers.contains(&liar)).map(|(tile, _)| *tile).collect();
    assert_eq!(wrong.iter().map(|(tile, _)| *tile).collect::<BTreeSet<_>>(), by_liar);
    assert!(makers.iter().all(|makers| !makers.is_empty()), "nobody made a tile");
    assert!(world.primary.has_workers_besides(&[liar]), "there is a reserve");
    let verdict = world.inspect(choices);
    match verdict.end {
        InspectionEnd::Right => {}
        // All workers may have made a part of some suspect tile.
        InspectionEnd::NoOtherWorker => return Some(0),
        end => panic!("{end:?}"),
    }
    assert_eq!((world.primary.tiles_left(), world.primary.sums_under_way()), (0, (0, 0)));
    let recomputed: Vec<(usize, u64)> = world.recomputed.iter().copied().collect();
    let again = world.primary.makers(&recomputed);
    assert!(again.iter().all(|makers| !makers.is_empty() && !makers.contains(&liar)), "{again:?}");
    assert!(verdict.wrong.iter().all(|results| results.makers.contains(&liar)), "{verdict:?}");
    let counted: u64 = verdict.wrong.iter().map(|results| results.tiles).sum();
    assert_eq!(counted, wrong.len() as u64, "each wrong tile counts, and no other");
    assert_eq!(world.committed.len() as u64, world.primary.plan().tiles());
    assert!(world.c == world.expected, "C is not the product");
    assert_eq!(world.traces, whole.traces);
    world.primary(PrimaryEvent::Accepted);
    let (primary, now) = (&mut world.primary, Duration::from_secs(1 << 20));
    assert!(primary.handle(PrimaryEvent::Tick, now).is_empty(), "it is over");
    Some(wrong.len())
}

fn shuffled(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i ^ seed.rotate_left(7)).wrapping_mul(2_654_435_761).rotate_left(11)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn c_is_the_product_whichever_worker_is_faulty(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        memories in proptest::collection::vec(10_000u64..400_000, 1..6), liar in 0usize..8,
        strategy in cutting(), reproducible in any::<bool>(), shared in prop_oneof![Just(0u8), Just(1u8), Just(3u8)],
        reads_c in any::<bool>(), generated in any::<bool>(), relay in any::<bool>(), steals in any::<bool>(),
        columns in prop_oneof![Just(0u64), 1u64..10], deaths in proptest::collection::vec((0u64..1500, any::<u32>()), 0..3),
        joins in proptest::collection::vec((0u64..1000, 10_000u64..400_000), 0..2),
        slow in proptest::collection::vec(1u32..5, 0..4), choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        // The worker in the primary's memory must have room for the largest cell.
        let memories: Vec<u64> = memories.into_iter().chain([400_000]).collect();
        let setting = Setting {
            cut, memories, shared, relay, steals, columns, slow, deaths, joins, recovers: true, reserve: true, ..Setting::PLAIN
        };
        let wish = PlanOptions {
            strategy: Some(strategy),
            reproducible: reproducible && strategy.levels == 0,
            ..PlanOptions::AUTO
        };
        let peers = setting.memories.len();
        mended(&p, &setting, &wish, liar % peers, &choices);
    }
}

#[test]
fn every_strategy_is_mended() {
    let mut wrong = 0;
    for (base, levels, reproducible) in world::kinds() {
        for seed in 0..6u32 {
            let p = problem(45, 40, 50, seed.is_multiple_of(2), seed.is_multiple_of(3));
            let wish =
                PlanOptions { strategy: Some(Cutting { base, levels }), reproducible, ..PlanOptions::AUTO };
            let setting = Setting {
                cut: TileSize { tile: Some(4), depth: Some(4) },
                memories: vec![400_000, 60_000, 200_000, 90_000],
                relay: seed % 3 != 1,
                steals: seed % 2 == 1,
                slow: vec![1, 3],
                recovers: true,
                reserve: true,
                ..Setting::PLAIN
            };
            let found = mended(&p, &setting, &wish, seed as usize % 4, &shuffled(seed, 4000));
            wrong += found.unwrap_or_else(|| panic!("{base:?} does not fit"));
        }
    }
    assert!(wrong > 1000, "{wrong} tiles were wrong");
}

/// A product of two workers whose tiles are all complete, and which is being inspected.
fn all_there(base: Base) -> World {
    let p = problem(20, 20, 20, false, false);
    let setting = Setting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![200_000; 2],
        recovers: true,
        ..Setting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(base)), ..PlanOptions::AUTO };
    let mut world = World::new(&p, &setting, &wish).unwrap();
    world.primary = world.primary.inspected();
    world.run(&[]);
    world
}

#[test]
fn without_an_unsuspected_worker_nothing_can_be_recomputed() {
    let world = all_there(Base::Box3(1, 1, 2));
    assert_eq!(world.primary.makers(&[(0, 3)]), [[0, 1]], "k is cut between them");
    assert!(!world.primary.has_workers_besides(&[0, 1]) && world.primary.has_workers_besides(&[1]));
    assert!(world.primary.owner_of(0, 0).is_none());
}

#[test]
fn while_c_is_looked_at_workers_hear_that_the_primary_is_there_and_may_leave() {
    let mut world = all_there(Base::Reuse);
    let mut now = Duration::from_secs(1000);
    for peer in 0..2 {
        world.primary.handle(PrimaryEvent::Alive { peer }, now);
    }
    now += Duration::from_secs(3);
    let actions = world.primary.handle(PrimaryEvent::Tick, now);
    assert!(actions.iter().filter(|a| matches!(a, PrimaryAction::Ping(..))).count() == 2, "{actions:?}");
    assert!(world.primary.handle(PrimaryEvent::Lost { peer: 0, why: "it left".into() }, now).is_empty());
    assert!(world.primary.losses().is_empty(), "it did its part");
    assert!(world.primary.has_workers_besides(&[]) && !world.primary.has_workers_besides(&[1]));
}

#[test]
fn if_the_remaining_workers_are_lost_recomputing_fails() {
    let mut world = all_there(Base::Reuse);
    let now = Duration::from_secs(1000);
    let tile = world.primary.plan().tile_at(0, 0).unwrap();
    let maker = world.primary.owner_of(0, 0).unwrap();
    let tell = |world: &mut World, event| world.primary.handle(PrimaryEvent::Inspection(event), now);
    let fault = Some((0, 0));
    let actions = tell(&mut world, InspectionEvent::Checked { fault, is_one_kernel: true });
    let asks = |actions: &[PrimaryAction], task: InspectionTask| {
        assert!(matches!(actions, [PrimaryAction::Inspection(asked)] if *asked == task), "{actions:?}");
    };
    asks(&actions, InspectionTask::Locate { round: 1 });
    let located = InspectionEvent::Located { tiles: vec![tile], proven_wrong: BTreeSet::new() };
    asks(&tell(&mut world, located), InspectionTask::Digest(vec![tile]));
    let digests = BTreeMap::from([(tile, Digest128([1; 16]))]);
    let actions = tell(&mut world, InspectionEvent::Digested(digests));
    let (tiles, makers) = (vec![tile], vec![maker]);
    let recomputation = Recomputation { tiles, makers, suspect: Some(maker) };
    asks(&actions[..1], InspectionTask::Recompute(recomputation));
    let sent_to =
        actions.iter().filter_map(|a| if let PrimaryAction::Send(peer, _) = a { Some(*peer) } else { None });
    assert!(sent_to.collect::<BTreeSet<_>>() == BTreeSet::from([1 - maker]), "{actions:?}");
    let actions = world.primary.handle(PrimaryEvent::Lost { peer: 1 - maker, why: "it left".into() }, now);
    assert!(matches!(&actions[..], [.., PrimaryAction::Fail(_)]), "{actions:?}");
    assert!(!world.primary.has_workers_besides(&[]), "it is over, though {maker} is here");
}
