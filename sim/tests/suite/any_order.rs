//! The real state machines of both ends, whose deliveries, job completions and fills come in any order that a link allows,
//! with real numbers in the matrices. In any order, C is the product, to the bit, by every strategy; no worker ever stores
//! more than its grant; no two workers write the same part of C at once.

use crate::drawn;
use bramble_matrix::Layout;
use bramble_plan::{
    Base, LinkRate, Machine, OperandSource, PlanOptions, Problem, Strategy as Cutting, Sums, TileSize, decide,
};
use bramble_schedule::primary::{
    Operands, Outgoing, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred, ResultPlace,
};
use bramble_sim::{ChosenOrder, OrderSetting};
use bramble_wire::limits::SILENCE_MAX;
use bramble_wire::message::ResultHead;
use drawn::{check_complete, cutting, problem};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn c_is_the_product_by_every_strategy_whatever_happens_first(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        memories in proptest::collection::vec(10_000u64..400_000, 1..6),
        strategy in cutting(), reproducible in any::<bool>(), shared in 0u8..4,
        col_major in any::<bool>(), reads_c in any::<bool>(), generated in any::<bool>(),
        relay in any::<bool>(), breaks in any::<bool>(), columns in prop_oneof![Just(0u64), 1u64..10],
        slow in proptest::collection::vec(prop_oneof![Just(1u32), 1u32..12], 0..6), steals in any::<bool>(),
        choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let setting = OrderSetting {
            cut, memories, shared, col_major, relay, breaks, slow, steals, columns, ..OrderSetting::PLAIN
        };
        let wish = PlanOptions {
            strategy: Some(strategy),
            reproducible: reproducible && strategy.levels == 0,
            ..PlanOptions::AUTO
        };
        if let Some(mut order) = ChosenOrder::new(&p, &setting, &wish) {
            order.run(&choices);
            check_complete(&order);
            if wish.reproducible {
                prop_assert_eq!(order.primary().plan().sums, Sums::Chained);
            }
        }
    }
}

#[test]
fn products_that_once_failed_are_right() {
    let once = [
        ([36, 5, 4], 1, 1, vec![160_000, 160_512], 2, 0),
        ([12, 7, 2], 3, 2, vec![20_000, 33_536, 33_536], 1, 3),
    ];
    for ([m, n, k], tile, depth, memories, levels, shared) in once {
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let setting = OrderSetting { cut, memories, shared, relay: true, ..OrderSetting::PLAIN };
        let strategy = Some(Cutting { base: Base::Naive, levels });
        let wish = PlanOptions { strategy, ..PlanOptions::AUTO };
        for seed in 0..20 {
            let mut order = ChosenOrder::new(&problem(m, n, k, false, false), &setting, &wish).unwrap();
            order.run(&drawn::shuffled(seed, 3000));
            check_complete(&order);
        }
    }
}

#[test]
fn blocks_that_come_back_in_any_order_keep_their_panels_apart() {
    // Blocks of one tile each: the second may come back long before the first.
    for seed in 0..200u32 {
        let p = problem(24, 24, 16, false, false);
        let mut order = world(&p, 4, 4, &[5 * 512 + 8 * 32 + 100]).unwrap();
        let blocks = order.primary().plan().members[0].blocks().count();
        assert!(blocks >= 18, "{blocks}");
        let choices: Vec<u32> =
            (0..4000u32).map(|i| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(7)).collect();
        order.run(&choices);
        check_complete(&order);
    }
}

/// Workers over links that move bytes, `reuse`.
fn world(p: &Problem, tile: u64, depth: u64, memories: &[u64]) -> Option<ChosenOrder> {
    let cut = TileSize { tile: Some(tile), depth: Some(depth) };
    let setting = OrderSetting {
        cut,
        memories: memories.to_vec(),
        shared: 0,
        col_major: false,
        relay: false,
        breaks: false,
        slow: vec![],
        steals: true,
        ..OrderSetting::PLAIN
    };
    ChosenOrder::new(
        p,
        &setting,
        &PlanOptions { strategy: Some(Cutting::plain(Base::Reuse)), ..PlanOptions::AUTO },
    )
}

#[test]
fn operands_leave_the_primary_once_where_workers_pass_them_on() {
    let bases = [Base::Reuse, Base::Cuboid, Base::Summa(2, 2), Base::Summa(1, 4), Base::Box3(2, 2, 1)];
    for (seed, base) in bases.into_iter().enumerate() {
        let p = problem(48, 40, 56, false, false);
        let cut = TileSize { tile: Some(4), depth: Some(4) };
        let wish = PlanOptions { strategy: Some(Cutting::plain(base)), ..PlanOptions::AUTO };
        let mut sent = [0, 0];
        for (relay, columns) in [(false, 0), (true, 0), (true, 2), (true, 4), (true, 6)] {
            let setting = OrderSetting {
                cut,
                memories: vec![900_000; 4],
                shared: 0,
                col_major: false,
                relay,
                breaks: false,
                slow: vec![],
                steals: false,
                columns,
                ..OrderSetting::PLAIN
            };
            let mut order = ChosenOrder::new(&p, &setting, &wish).unwrap();
            let choices: Vec<u32> = (0..20_000u32)
                .map(|i| (i ^ seed as u32).wrapping_mul(2_654_435_761).rotate_left(7))
                .collect();
            order.run(&choices);
            check_complete(&order);
            assert_eq!(order.seen().relayed > 0, relay);
            sent[usize::from(relay)] = order.sent().0;
        }
        assert_eq!(sent[1], p.m * p.k + p.k * p.n, "{base:?}");
        assert!(sent[0] > sent[1] * 5 / 4, "{base:?}: {sent:?}");
    }
}

#[test]
fn unsolicited_results_are_refused() {
    let p = problem(8, 8, 8, false, false);
    let mut order = world(&p, 4, 4, &[100_000]).unwrap();
    order.inject(PrimaryEvent::Start);
    let store = order.announced_tile().unwrap();
    let good = ResultHead { c: store, epoch: 0, step_start: 0, step_end: 2, first_line: 0, lines: 4 };
    assert!(order.primary().expect(0, &good).is_ok());
    let bad = [
        ResultHead { c: good.c + 1000, ..good },
        ResultHead { c: u32::MAX, ..good },
        ResultHead { epoch: 1, ..good },
        ResultHead { step_start: 1, ..good },
        ResultHead { step_end: 1, ..good },
        ResultHead { first_line: 1, ..good },
        ResultHead { lines: 5, ..good },
        ResultHead { lines: 0, ..good },
        ResultHead { lines: u32::MAX, first_line: 0, ..good },
    ];
    for head in bad {
        assert!(order.primary().expect(0, &head).is_err(), "{head:?}");
    }
    // The test drops the actions: the tile has no elements.
    order.primary_mut().handle(PrimaryEvent::Landed { peer: 0, head: good }, Duration::from_secs(1));
    assert!(order.primary().expect(0, &good).is_err(), "a tile comes once");
}

#[test]
fn a_tile_that_comes_before_its_last_job_was_sent_is_refused() {
    // Four steps, and room for two.
    let p = problem(4, 4, 16, false, false);
    let mut order = world(&p, 4, 4, &[512 + 4 * 576]).unwrap();
    order.inject(PrimaryEvent::Start);
    let c = order.announced_tile().unwrap();
    for step_end in 1..=4 {
        let early = ResultHead { c, epoch: 0, step_start: 0, step_end, first_line: 0, lines: 1 };
        let error = order.primary().expect(0, &early).unwrap_err();
        assert!(error.0.contains("before"), "{error}");
    }
}

#[test]
fn more_credit_than_was_given_is_refused() {
    let p = problem(8, 8, 8, false, false);
    let mut order = world(&p, 4, 4, &[100_000]).unwrap();
    order.inject(PrimaryEvent::Start);
    order.inject(PrimaryEvent::Credit { peer: 0, bytes: 1 << 40 });
    assert!(order.failed().unwrap().contains("credit"));
}

#[test]
fn a_silent_worker_is_asked_and_then_given_up() {
    let p = problem(8, 8, 8, false, false);
    let mut order = world(&p, 4, 4, &[100_000]).unwrap();
    order.inject(PrimaryEvent::Start);
    let asked = order.primary_mut().handle(PrimaryEvent::Tick, Duration::from_secs(3));
    assert!(asked.iter().any(|a| matches!(a, PrimaryAction::Ping(0, _))), "{asked:?}");
    order.primary_mut().handle(PrimaryEvent::Alive { peer: 0 }, Duration::from_secs(4));
    let second = Duration::from_secs(1);
    let later = order.primary_mut().handle(PrimaryEvent::Tick, 3 * second + SILENCE_MAX);
    assert!(!later.iter().any(|a| matches!(a, PrimaryAction::Fail(_))), "{later:?}");
    let given_up = order.primary_mut().handle(PrimaryEvent::Tick, 5 * second + SILENCE_MAX);
    assert!(
        given_up.iter().any(|a| matches!(a, PrimaryAction::Fail(why) if why.contains("silent"))),
        "{given_up:?}"
    );
}

/// A primary with one worker, `naive`.
fn primary(p: &Problem, tile: u64, depth: u64, memory_bytes: u64) -> Primary {
    let machine = Machine {
        name: "w".into(),
        threads: 1,
        gflops: 1.0,
        peak_gflops: 3.0,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    let cut = TileSize { tile: Some(tile), depth: Some(depth) };
    let wish = PlanOptions { strategy: Some(Cutting::plain(Base::Naive)), ..PlanOptions::AUTO };
    let plan = decide(p, cut, &machine, std::slice::from_ref(&machine), &wish).unwrap().plan;
    let peer = PeerInfo {
        name: "w".into(),
        credit_bytes: memory_bytes,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e6,
        link_bytes_per_s: None,
        is_reserve: false,
    };
    let layout = Layout::RowMajor;
    let operands = Operands {
        a_layout: layout,
        b_layout: layout,
        a_source: p.a_source,
        b_source: OperandSource::Sent,
        unplaced: [None; 2],
        reads_c: p.reads_c,
    };
    Primary::new(plan, operands, vec![peer])
}

#[test]
fn a_million_blocks_cost_no_more_memory_than_the_ones_in_flight() {
    let p = problem(2_000_000, 2_000_000, 1000, false, false);
    let mut primary = primary(&p, 2000, 1000, 4 << 30);
    assert_eq!(primary.plan().results(), 1_000_000);
    let sent = primary.handle(PrimaryEvent::Start, Duration::ZERO);
    let bytes = |a: &PrimaryAction| match a {
        PrimaryAction::Send(_, message) => Outgoing::wire_bytes(message),
        _ => 0,
    };
    let queued: usize = sent.iter().map(bytes).sum();
    assert!(queued > 0 && queued < 6 << 20, "{queued} bytes in the link");
}

#[test]
fn every_strategy_runs_on_small_machines_and_large_ones() {
    // The property above skips products that do not fit; here none may be skipped.
    let kinds =
        (0..3u32).flat_map(|levels| Base::one_of_each([2, 1, 3]).map(move |base| Cutting { base, levels }));
    for (number, strategy) in kinds.enumerate() {
        for (shared, reproducible) in
            [(0, false), (1, false), (2, false), (3, false), (0, true), (1, true), (2, true), (3, true)]
        {
            let wish = PlanOptions {
                strategy: Some(strategy),
                reproducible: reproducible && strategy.levels == 0,
                ..PlanOptions::AUTO
            };
            let p = problem(29, 23, 31, number % 2 == 0, number % 3 == 0);
            let cut = TileSize { tile: Some(5), depth: Some(4) };
            let memories = vec![500_000, 300_000, 900_000];
            let (relay, breaks, slow) = (number % 3 != 1, number % 5 == 0, vec![1, 9]);
            let col_major = number % 4 == 0;
            let setting = OrderSetting {
                cut,
                memories,
                shared,
                col_major,
                relay,
                breaks,
                slow,
                steals: true,
                columns: number as u64 % 9,
                ..OrderSetting::PLAIN
            };
            let mut order =
                ChosenOrder::new(&p, &setting, &wish).unwrap_or_else(|| panic!("{strategy} does not fit"));
            order.run(&[]);
            check_complete(&order);
        }
    }
}

#[test]
fn a_worker_that_keeps_its_first_tile_does_not_fill_the_primary_with_sums_that_wait() {
    let p = problem(8, 8, 64, false, false);
    let mut primary = primary(&p, 4, 1, 100_000);
    let mut actions = VecDeque::from(primary.handle(PrimaryEvent::Start, Duration::ZERO));
    let (mut first, mut aside_bytes) = (None, 0);
    let most = primary.plan().predicted.primary_memory_bytes;
    while let Some(action) = actions.pop_front() {
        let (peer, message) = match action {
            PrimaryAction::Send(peer, message) => (peer, message),
            PrimaryAction::Merge { .. } => {
                aside_bytes -= 4 * 4 * 8;
                continue;
            }
            _ => continue,
        };
        let bytes = message.wire_bytes();
        actions.extend(primary.handle(PrimaryEvent::Sent { peer, bytes }, Duration::ZERO));
        for job in &message.head.jobs {
            if *first.get_or_insert(job.c) == job.c {
                continue;
            }
            let (step_start, step_end) = (job.step, job.step + 1);
            let head = ResultHead { c: job.c, epoch: 0, step_start, step_end, first_line: 0, lines: 4 };
            if primary.expect(peer, &head).unwrap().place == ResultPlace::PartialSum {
                aside_bytes += 4 * 4 * 8;
                assert!(aside_bytes <= most, "{aside_bytes} bytes wait, {most} are predicted");
            }
            actions.extend(primary.handle(PrimaryEvent::Landed { peer, head }, Duration::ZERO));
            // Two panels and a tile, at the minimum charge of a matrix.
            let bytes = 3 * 512;
            actions.extend(primary.handle(PrimaryEvent::Credit { peer, bytes }, Duration::ZERO));
        }
    }
    assert_ne!(primary.tiles_left(), 0);
}

/// A product on workers of which the second takes `times` times as long as the others.
fn slowed(strategy: Cutting, shared: u8, reproducible: bool, slow: u32, seed: u32) -> ChosenOrder {
    let wish = PlanOptions { strategy: Some(strategy), reproducible, ..PlanOptions::AUTO };
    let p = problem(36, 40, 64, seed.is_multiple_of(2), seed.is_multiple_of(3));
    let cut = TileSize { tile: Some(4), depth: Some(4) };
    let memories = vec![60_000; 4];
    let setting = OrderSetting {
        cut,
        memories,
        shared,
        col_major: seed.is_multiple_of(5),
        slow: vec![1, slow],
        steals: true,
        columns: u64::from(seed % 9),
        relay: seed.is_multiple_of(2),
        breaks: seed.is_multiple_of(3),
        ..OrderSetting::PLAIN
    };
    let choices: Vec<u32> =
        (0..2000u32).map(|i| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(11)).collect();
    let mut order =
        ChosenOrder::new(&p, &setting, &wish).unwrap_or_else(|| panic!("{strategy} does not fit"));
    order.run(&choices);
    check_complete(&order);
    let mut still = ChosenOrder::new(&p, &OrderSetting { steals: false, ..setting }, &wish).unwrap();
    still.run(&[]);
    check_complete(&still);
    assert!(still.primary().moved().is_empty());
    order
}

#[test]
fn unsent_work_of_a_slow_worker_is_stolen_and_changes_no_bit() {
    let kinds = [
        (Base::Reuse, 0, false),
        (Base::Reuse, 0, true),
        (Base::Naive, 0, false),
        (Base::Naive, 0, true),
        (Base::Row(3), 0, false),
        (Base::Square(3), 0, true),
        (Base::Cuboid, 0, false),
        (Base::Box3(2, 1, 2), 0, false),
        (Base::Box3(2, 1, 2), 0, true),
        (Base::Summa(2, 2), 0, false),
        (Base::Square(1), 1, false),
    ];
    for (base, levels, reproducible) in kinds {
        for shared in [0, 1, 3] {
            let (mut times, mut sums) = (0, 0);
            for seed in 0..4 {
                let order = slowed(Cutting { base, levels }, shared, reproducible, 4 + 3 * seed, seed);
                let moved = order.primary().moved();
                times += moved.iter().map(|m| m.times).sum::<u64>();
                sums += order.sent().1;
            }
            let what =
                format!("{base:?}, {levels} levels, {reproducible}, {shared}: {times} moves, {sums} sums");
            // Merged sums of the later half of k are not divided, and the slow worker has those.
            assert!(times > 0 || (matches!(base, Base::Box3(..)) && !reproducible), "nothing moved: {what}");
            // One block per worker: only its unsent part can move, continuing its sum.
            let one_block = matches!(base, Base::Reuse | Base::Summa(..));
            assert!(sums > 0 || !one_block, "no block was divided: {what}");
        }
    }
}
