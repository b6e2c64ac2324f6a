//! Wrong tiles: their makers are known, other workers recompute them, and C is the product, by the same
//! operations in the same order.

use crate::drawn;
use bramble_matrix::Digest128;
use bramble_plan::{Base, PlanOptions, Problem, Strategy as Cutting, TileSize};
use bramble_schedule::primary::{
    InspectionEnd, InspectionEvent, InspectionTask, PrimaryAction, PrimaryEvent, Recomputation,
};
use bramble_sim::{ChosenOrder, OrderSetting};
use drawn::{check_complete, cutting, problem, shuffled};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Runs a product in which one worker's results are wrong, and has the wrong tiles recomputed. Returns their
/// number; `None` if the product does not fit.
fn mended(
    p: &Problem,
    setting: &OrderSetting,
    wish: &PlanOptions,
    liar: usize,
    choices: &[u32],
) -> Option<usize> {
    let mut order = ChosenOrder::new(p, setting, wish)?;
    // Not the reserve, which is never lost: if its results were wrong and all other workers were lost, none
    // would be left.
    let liar = liar % order.primary().plan().members.len();
    order.lies(liar);
    order.run_to_inspection(choices);
    assert_eq!(order.failed(), None);
    let wrong = order.wrong_tiles();
    let all = order.tiles();
    let makers = order.primary().makers(&all);
    let by_liar: Vec<(usize, u64)> =
        all.iter().zip(&makers).filter(|(_, makers)| makers.contains(&liar)).map(|(tile, _)| *tile).collect();
    assert_eq!(wrong, by_liar);
    assert!(makers.iter().all(|makers| !makers.is_empty()), "nobody made a tile");
    assert!(order.primary().has_workers_besides(&[liar]), "there is a reserve");
    order.finish(choices);
    if order.failed().is_some() {
        // Every worker may have made a part of some suspect tile; or the remaining ones have too little memory, which is checked.
        let verdict = order.inspected().0;
        assert!(verdict.is_none_or(|verdict| verdict.end == InspectionEnd::NoOtherWorker), "{verdict:?}");
        return Some(0);
    }
    check_complete(&order);
    let (verdict, recomputed) = order.inspected();
    let verdict = verdict.unwrap();
    let again = order.primary().makers(&recomputed);
    assert!(again.iter().all(|makers| !makers.is_empty() && !makers.contains(&liar)), "{again:?}");
    assert!(verdict.wrong.iter().all(|results| results.makers.contains(&liar)), "{verdict:?}");
    let counted: u64 = verdict.wrong.iter().map(|results| results.tiles).sum();
    assert_eq!(counted, wrong.len() as u64, "each wrong tile counts, and no other");
    Some(wrong.len())
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
        let setting = OrderSetting {
            cut, memories, shared, relay, steals, columns, slow, deaths, joins,
            recovers: true, reserve: true, ..OrderSetting::PLAIN
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
    for (base, levels, reproducible) in drawn::kinds() {
        for seed in 0..6u32 {
            let p = problem(45, 40, 50, seed.is_multiple_of(2), seed.is_multiple_of(3));
            let wish =
                PlanOptions { strategy: Some(Cutting { base, levels }), reproducible, ..PlanOptions::AUTO };
            let setting = OrderSetting {
                steals: seed % 2 == 1,
                slow: vec![1, 3],
                reserve: true,
                ..drawn::four_machines(seed % 3 != 1)
            };
            let found = mended(&p, &setting, &wish, seed as usize % 4, &shuffled(seed, 4000));
            wrong += found.unwrap_or_else(|| panic!("{base:?} does not fit"));
        }
    }
    assert!(wrong > 1000, "{wrong} tiles were wrong");
}

/// A product of two workers whose tiles are all complete, and which is being inspected.
fn all_there(base: Base) -> ChosenOrder {
    let p = problem(20, 20, 20, false, false);
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![200_000; 2],
        recovers: true,
        ..OrderSetting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(base)), ..PlanOptions::AUTO };
    let mut order = ChosenOrder::new(&p, &setting, &wish).unwrap();
    order.run_to_inspection(&[]);
    order
}

#[test]
fn without_an_unsuspected_worker_nothing_can_be_recomputed() {
    let order = all_there(Base::Box3(1, 1, 2));
    assert_eq!(order.primary().makers(&[(0, 3)]), [[0, 1]], "k is cut between them");
    assert!(!order.primary().has_workers_besides(&[0, 1]) && order.primary().has_workers_besides(&[1]));
    assert!(order.primary().owner_of(0, 0).is_none());
}

#[test]
fn while_c_is_looked_at_workers_hear_that_the_primary_is_there_and_may_leave() {
    let mut order = all_there(Base::Reuse);
    let mut now = Duration::from_secs(1000);
    for peer in 0..2 {
        order.primary_mut().handle(PrimaryEvent::Alive { peer }, now);
    }
    now += Duration::from_secs(3);
    let actions = order.primary_mut().handle(PrimaryEvent::Tick, now);
    assert!(actions.iter().filter(|a| matches!(a, PrimaryAction::Ping(..))).count() == 2, "{actions:?}");
    assert!(
        order.primary_mut().handle(PrimaryEvent::Lost { peer: 0, why: "it left".into() }, now).is_empty()
    );
    assert!(order.primary().losses().is_empty(), "it did its part");
    assert!(order.primary().has_workers_besides(&[]) && !order.primary().has_workers_besides(&[1]));
}

#[test]
fn if_the_remaining_workers_are_lost_recomputing_fails() {
    let mut order = all_there(Base::Reuse);
    let now = Duration::from_secs(1000);
    let tile = order.primary().plan().tile_at(0, 0).unwrap();
    let maker = order.primary().owner_of(0, 0).unwrap();
    let tell =
        |order: &mut ChosenOrder, event| order.primary_mut().handle(PrimaryEvent::Inspection(event), now);
    let fault = Some((0, 0));
    let actions = tell(&mut order, InspectionEvent::Checked { fault, is_one_kernel: true });
    let asks = |actions: &[PrimaryAction], task: InspectionTask| {
        assert!(matches!(actions, [PrimaryAction::Inspection(asked)] if *asked == task), "{actions:?}");
    };
    asks(&actions, InspectionTask::Locate { round: 1 });
    let located = InspectionEvent::Located { tiles: vec![tile], proven_wrong: BTreeSet::new() };
    asks(&tell(&mut order, located), InspectionTask::Digest(vec![tile]));
    let digests = BTreeMap::from([(tile, Digest128([1; 16]))]);
    let actions = tell(&mut order, InspectionEvent::Digested(digests));
    let (tiles, makers) = (vec![tile], vec![maker]);
    let recomputation = Recomputation { tiles, makers, suspect: Some(maker) };
    asks(&actions[..1], InspectionTask::Recompute(recomputation));
    let sent_to =
        actions.iter().filter_map(|a| if let PrimaryAction::Send(peer, _) = a { Some(*peer) } else { None });
    assert!(sent_to.collect::<BTreeSet<_>>() == BTreeSet::from([1 - maker]), "{actions:?}");
    let actions =
        order.primary_mut().handle(PrimaryEvent::Lost { peer: 1 - maker, why: "it left".into() }, now);
    assert!(matches!(&actions[..], [.., PrimaryAction::Fail(_)]), "{actions:?}");
    assert!(!order.primary().has_workers_besides(&[]), "it is over, though {maker} is here");
}
