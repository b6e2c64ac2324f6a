//! Workers that are lost in the middle of a product: C is the product, by the same operations in the same
//! order as without losses.

use crate::drawn;
use bramble_matrix::Layout;
use bramble_plan::{Base, OperandSource, Plan, PlanOptions, Problem, Strategy as Cutting, TileSize};
use bramble_schedule::primary::{Operands, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred};
use bramble_sim::{ChosenOrder, OrderSetting};
use bramble_wire::limits::PING_AFTER;
use bramble_wire::message::ResultHead;
use drawn::{calm, check_complete, cutting, problem, shuffled};
use proptest::prelude::*;
use std::time::Duration;

/// Losses: when, from 0 to 1000 of an undisturbed run, and a number that chooses the worker and how it dies.
fn deaths() -> impl Strategy<Value = Vec<(u64, u32)>> {
    proptest::collection::vec((0u64..1000, any::<u32>()), 0..6)
}

/// Runs a product with losses, at parts of the same product without. `None` if it does not fit.
fn survived(p: &Problem, setting: &OrderSetting, wish: &PlanOptions, choices: &[u32]) -> Option<ChosenOrder> {
    let mut unhurt = ChosenOrder::new(p, &calm(setting), wish)?;
    unhurt.run(&[]);
    check_complete(&unhurt);
    let at = |per_mille: u64| 1 + unhurt.events() * per_mille / 1000;
    let deaths = setting.deaths.iter().map(|(when, how)| (at(*when), *how)).collect();
    let joins = setting.joins.iter().map(|(when, memory)| (at(*when), *memory)).collect();
    let mut order = ChosenOrder::new(p, &OrderSetting { deaths, joins, ..setting.clone() }, wish)?;
    order.run(choices);
    if let Some(why) = order.failed() {
        // The other workers may be too small for a cell of the lost work; the reserve never is.
        assert!(why.contains("bytes of memory") && !setting.reserve, "{why}");
        return Some(order);
    }
    check_complete(&order);
    Some(order)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn c_is_the_product_whichever_workers_die(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        memories in proptest::collection::vec(10_000u64..400_000, 1..6),
        strategy in cutting(), reproducible in any::<bool>(), shared in prop_oneof![Just(0u8), Just(3u8)],
        reads_c in any::<bool>(), generated in any::<bool>(),
        relay in any::<bool>(), breaks in any::<bool>(), columns in prop_oneof![Just(0u64), 1u64..10],
        slow in proptest::collection::vec(prop_oneof![Just(1u32), 1u32..12], 0..6), steals in any::<bool>(),
        reserve in any::<bool>(), deaths in deaths(),
        joins in proptest::collection::vec((0u64..1000, 10_000u64..400_000), 0..4),
        choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let setting = OrderSetting {
            cut, memories, shared, relay, breaks, slow, steals, columns, reserve, deaths, joins, recovers: true,
            ..OrderSetting::PLAIN
        };
        let wish = PlanOptions {
            strategy: Some(strategy),
            reproducible: reproducible && strategy.levels == 0,
            ..PlanOptions::AUTO
        };
        survived(&p, &setting, &wish, &choices);
    }
}

#[test]
fn a_worker_whose_link_has_broken_is_not_the_one_that_is_left() {
    // The first death breaks a link, which the primary notices later; until then the other worker must not die.
    let p = problem(17, 1, 11, false, false);
    let setting = OrderSetting {
        cut: TileSize { tile: Some(1), depth: Some(4) },
        memories: vec![12_640],
        deaths: vec![(561, (3 << 8) | 1), (565, 0)],
        joins: vec![(0, 12_640)],
        recovers: true,
        ..OrderSetting::PLAIN
    };
    let wish =
        PlanOptions { strategy: Some(Cutting { base: Base::Box3(1, 1, 3), levels: 0 }), ..PlanOptions::AUTO };
    for seed in 0..200 {
        survived(&p, &setting, &wish, &shuffled(seed, 1000)).unwrap();
    }
}

#[test]
fn work_of_the_dead_is_done_by_every_strategy() {
    let (mut staged, mut nowhere, mut losses, mut relayed) = (0, 0, 0, 0);
    for (base, levels, reproducible) in drawn::kinds() {
        for seed in 0..8u32 {
            let p = problem(45, 40, 50, seed.is_multiple_of(2), seed.is_multiple_of(3));
            let wish =
                PlanOptions { strategy: Some(Cutting { base, levels }), reproducible, ..PlanOptions::AUTO };
            let mix = |salt: u32| (seed ^ salt << 8).wrapping_mul(2_654_435_761).rotate_left(15);
            let setting = OrderSetting {
                cut: TileSize { tile: Some(4), depth: Some(4) },
                memories: vec![400_000, 60_000, 200_000, 90_000],
                shared: if seed % 4 == 3 { 3 } else { 0 },
                relay: seed % 3 != 1,
                breaks: seed % 5 == 0,
                slow: if seed % 3 == 0 { vec![1, 7] } else { vec![] },
                steals: seed % 2 == 0,
                columns: u64::from(mix(9) % 16).saturating_sub(7),
                reserve: true,
                recovers: true,
                deaths: (0..1 + seed % 4).map(|n| (u64::from(mix(n) % 1000), mix(n + 5))).collect(),
                ..OrderSetting::PLAIN
            };
            let order = survived(&p, &setting, &wish, &shuffled(seed, 4000));
            let order = order.unwrap_or_else(|| panic!("{base:?} does not fit"));
            staged += order.seen().staged;
            nowhere += order.seen().thrown_away;
            relayed += order.seen().relayed;
            losses += order.primary().losses().len();
        }
    }
    let seen = format!("{losses} losses, {staged} staged, {nowhere} thrown away, {relayed} relayed");
    println!("{seen}");
    assert!(losses > 150 && staged > 1000 && nowhere > 25 && relayed > 1000, "{seen}");
}

/// A product of 8 by 8 tiles on this many workers.
fn some(workers: usize, shared: u8, reserve: bool) -> ChosenOrder {
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![100_000; workers],
        shared,
        reserve,
        recovers: true,
        ..OrderSetting::PLAIN
    };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    ChosenOrder::new(&problem(32, 32, 32, true, false), &setting, &wish).unwrap()
}

#[test]
fn a_worker_that_breaks_the_protocol_is_disconnected_and_its_work_reassigned() {
    let mut order = some(2, 0, false);
    order.inject(PrimaryEvent::Start);
    order.inject(PrimaryEvent::Credit { peer: 0, bytes: 1 << 40 });
    order.go_on(&[]);
    check_complete(&order);
    let losses = order.primary().losses();
    assert_eq!((losses.len(), losses[0].peer), (1, 0));
    assert!((0.2..0.8).contains(&losses[0].part) && losses[0].items > 1, "{losses:?}");
}

#[test]
fn workers_that_are_silent_are_cut_and_the_reserve_does_their_work() {
    let mut order = some(3, 0, true);
    order.inject(PrimaryEvent::Start);
    order.wait(Duration::from_secs(60));
    order.go_on(&[]);
    check_complete(&order);
    assert_eq!(order.primary().losses().len(), 3);
}

#[test]
fn a_worker_that_is_told_nothing_for_long_hears_that_the_primary_is_there() {
    // The worker has all that it needs and frees memory every second; the primary has nothing else to send.
    let mut primary = primary(plan(1, 4), &[100_000], false);
    let mut said = Duration::ZERO;
    for seconds in 1..60 {
        let now = Duration::from_secs(seconds);
        assert!(primary.handle(PrimaryEvent::Alive { peer: 0 }, now).is_empty());
        let actions = primary.handle(PrimaryEvent::Tick, now);
        if matches!(actions[..], [PrimaryAction::Ping(0, _)]) {
            said = now;
        }
        assert!(now - said <= 2 * PING_AFTER, "nothing was said to it from {said:?} to {now:?}");
    }
}

#[test]
fn a_cut_is_said_once_and_nothing_is_sent_after_it() {
    let mut order = some(2, 0, false);
    let start = order.primary_mut().handle(PrimaryEvent::Start, Duration::ZERO);
    let sent = start.iter().filter(|a| matches!(a, PrimaryAction::Send(0, _))).count();
    assert!(sent > 0);
    let late = Duration::from_secs(60);
    order.primary_mut().handle(PrimaryEvent::Alive { peer: 1 }, late);
    let cut = order.primary_mut().handle(PrimaryEvent::Tick, late);
    let [PrimaryAction::Disconnect { peer: 0, why }, PrimaryAction::Ping(1, _)] = &cut[..] else {
        panic!("{cut:?}")
    };
    assert!(why.contains("silent"), "{why}");
    for event in [
        PrimaryEvent::Tick,
        PrimaryEvent::Credit { peer: 0, bytes: 64 },
        PrimaryEvent::Sent { peer: 0, bytes: 1 },
    ] {
        let after = order.primary_mut().handle(event, late);
        assert!(after.is_empty(), "{after:?}");
    }
    let lost = order.primary_mut().handle(PrimaryEvent::Lost { peer: 0, why: "cut".into() }, late);
    assert!(lost.iter().all(|a| matches!(a, PrimaryAction::Send(1, _))), "{lost:?}");
}

#[test]
fn without_any_machine_left_the_product_ends_and_the_last_one_is_named() {
    let mut order = some(2, 0, false);
    order.inject(PrimaryEvent::Start);
    for peer in 0..2 {
        assert_eq!(order.failed(), None);
        order.inject(PrimaryEvent::Lost { peer, why: "it was switched off".into() });
    }
    let why = order.failed().unwrap();
    assert!(
        why.contains("every machine was lost") && why.contains("w1 as the last: it was switched off"),
        "{why}"
    );
}

#[test]
fn threads_of_the_primary_itself_cannot_be_lost() {
    let mut order = some(2, 3, false);
    order.inject(PrimaryEvent::Start);
    order.inject(PrimaryEvent::Lost { peer: 1, why: "a panic".into() });
    assert!(order.failed().unwrap().contains("w1: a panic"));
}

/// A plan of 8 by 8 tiles, or of one, for this many workers without relaying.
fn plan(workers: usize, edge: u64) -> Plan {
    let cut = TileSize { tile: Some(4), depth: Some(4) };
    let setting = OrderSetting { cut, memories: vec![100_000; workers], ..OrderSetting::PLAIN };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    ChosenOrder::new(&problem(edge, edge, 32, false, false), &setting, &wish)
        .unwrap()
        .primary()
        .plan()
        .clone()
}

/// Its product on peers with these credits, of which the last may be the reserve.
fn primary(plan: Plan, credits: &[u64], reserve: bool) -> Primary {
    let peer = |(at, credit_bytes): (usize, &u64)| PeerInfo {
        name: format!("w{at}"),
        credit_bytes: *credit_bytes,
        shares_memory: reserve && at + 1 == credits.len(),
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e6,
        link_bytes_per_s: None,
        is_reserve: reserve && at + 1 == credits.len(),
    };
    let (a_layout, b_layout) = (Layout::RowMajor, Layout::RowMajor);
    let operands = Operands {
        a_layout,
        b_layout,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
        unplaced: [None; 2],
        reads_c: false,
    };
    let mut primary =
        Primary::new(plan, operands, credits.iter().enumerate().map(peer).collect()).recovering();
    primary.handle(PrimaryEvent::Start, Duration::ZERO);
    primary
}

/// The peers to which something is sent when a peer is lost.
fn lose(primary: &mut Primary, peer: usize) -> Vec<usize> {
    let actions = primary.handle(PrimaryEvent::Lost { peer, why: "it died".into() }, Duration::ZERO);
    primary.validate_tiles();
    let mut to: Vec<usize> = actions
        .iter()
        .filter_map(|a| if let PrimaryAction::Send(to, _) = a { Some(*to) } else { None })
        .collect();
    to.dedup();
    to
}

#[test]
fn if_no_worker_has_memory_for_a_lost_cell_the_error_names_the_bytes() {
    let mut primary = primary(plan(2, 32), &[100_000, 1000], false);
    let actions = primary.handle(PrimaryEvent::Lost { peer: 0, why: "gone".into() }, Duration::ZERO);
    let Some(PrimaryAction::Fail(why)) = actions.last() else { panic!("{actions:?}") };
    // Panels of two steps, each with two uses at most, and a tile.
    assert!(why.contains("worker w0 was lost (gone)") && why.contains(" 2816 bytes"), "{why}");
}

#[test]
fn a_worker_that_joins_after_the_end_has_a_number_and_no_work() {
    let mut primary = primary(plan(1, 32), &[100_000], false);
    let actions = primary.handle(PrimaryEvent::Lost { peer: 0, why: "gone".into() }, Duration::ZERO);
    assert!(matches!(actions.last(), Some(PrimaryAction::Fail(_))), "{actions:?}");
    let late = PeerInfo {
        name: "late".into(),
        credit_bytes: 100_000,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e6,
        link_bytes_per_s: None,
        is_reserve: false,
    };
    assert!(primary.handle(PrimaryEvent::Joined(late), Duration::ZERO).is_empty());
    // The shell uses the number of such a worker, and checks its messages like any others.
    assert_eq!(primary.peer_status(1).jobs_given, 0);
    let head = ResultHead { c: 0, epoch: 0, step_start: 0, step_end: 1, first_line: 0, lines: 1 };
    assert!(primary.expect(1, &head).is_err());
    assert!(primary.handle(PrimaryEvent::Alive { peer: 1 }, Duration::ZERO).is_empty());
    primary.validate();
}

#[test]
fn work_that_goes_down_with_every_machine_ends_at_the_primary_itself() {
    // One tile, and workers that have no share in the plan.
    let mut primary = primary(plan(1, 4), &[100_000; 8], true);
    for peer in 0..3 {
        assert_eq!(lose(&mut primary, peer), [peer + 1]);
    }
    // Four more workers are connected and idle.
    assert_eq!(lose(&mut primary, 3), [7]);
}

#[test]
fn a_worker_that_joins_gets_work_and_is_a_new_peer_if_it_was_lost_before() {
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![100_000],
        recovers: true,
        steals: true,
        reserve: true,
        // Two workers join; then the two original ones or the first to join dies.
        joins: vec![(100, 100_000), (200, 100_000)],
        deaths: vec![(500, 0)],
        ..OrderSetting::PLAIN
    };
    let order = survived(&problem(64, 64, 64, true, false), &setting, &wish, &shuffled(1, 4000)).unwrap();
    let part = |to: usize| order.primary().moved().iter().filter(|m| m.to == to).map(|m| m.part).sum::<f64>();
    assert_eq!((order.primary().losses().len(), order.primary().losses()[0].peer), (1, 0));
    // The reserve has number 1, and is not needed.
    assert!(part(1) == 0.0 && part(2) > 0.1 && part(3) > 0.1, "{:?}", order.primary().moved());
}

#[test]
fn the_reserve_gets_no_work_while_active_workers_can_take_it() {
    let mut primary = primary(plan(2, 32), &[100_000; 3], true);
    lose(&mut primary, 0);
    assert!(primary.moved().iter().all(|m| (m.from, m.to) == (0, 1)), "{:?}", primary.moved());
    assert_eq!(lose(&mut primary, 1), [2]);
    assert_eq!(primary.losses().len(), 2);
}

#[test]
fn blocks_of_a_large_machine_are_cut_for_a_small_one() {
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO };
    let setting = OrderSetting {
        cut: TileSize { tile: Some(4), depth: Some(4) },
        memories: vec![90_000, 9_000],
        recovers: true,
        deaths: vec![(0, 1)],
        ..OrderSetting::PLAIN
    };
    let p = problem(120, 120, 12, true, false);
    let order = survived(&p, &setting, &wish, &[]).unwrap();
    let member = &order.primary().plan().members[1];
    assert!(member.memory_bytes > 50_000 && member.block_count() > 2, "{member:?}");
    assert_eq!((order.primary().losses().len(), order.primary().losses()[0].peer), (1, 1));
}
