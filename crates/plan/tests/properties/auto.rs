//! The choice of Bramble: predicted to be no slower than any alternative, except for the sake of the bits.

use super::*;

/// A cluster: the primary, then workers.
pub(super) fn clusters() -> Vec<(&'static str, Machine, Vec<Machine>)> {
    let board = |name: &str, gflops: f64, gib: u64, rate: f64| machine(name, gflops, gib << 30, rate);
    let laptop = Machine { threads: 8, ..board("laptop", 150.0, 16, 0.0) };
    let slow_primary = board("primary", 10.0, 4, 0.0);
    let many = |count: usize, one: Machine| vec![one; count];
    let mixed: Vec<Machine> = (0..12u32)
        .map(|i| {
            let (gflops, gib) = (5.0 + 13.0 * f64::from(i * 7 % 12), 1 << (i % 4));
            let rate = if i % 5 == 0 { 11.5 } else { 117.0 };
            Machine { threads: 1 + i % 6, ..board(&format!("mixed{i}"), gflops, gib, rate) }
        })
        .collect();
    let tiny: Vec<Machine> = (0..6u32).map(|i| machine("tiny", 8.0, (4 << 20) << (i % 3), 117.0)).collect();
    vec![
        ("a laptop and 4 Pi 4", laptop.clone(), many(4, board("pi4", 9.0, 4, 117.0))),
        ("8 Pi 5", board("pi5", 30.0, 8, 0.0), many(8, board("pi5", 30.0, 6, 117.0))),
        ("64 equal", slow_primary.clone(), many(64, board("node", 30.0, 8, 1170.0))),
        ("1,000", laptop.clone(), many(1000, board("node", 30.0, 4, 1170.0))),
        ("mixed", slow_primary.clone(), mixed),
        ("slow links", laptop, many(6, board("far", 100.0, 8, 3.0))),
        ("tiny memories", slow_primary, tiny),
    ]
}

pub(super) const SHAPES: [(u64, u64, u64); 12] = [
    (1, 1, 1),
    (2000, 2000, 2000),
    (8192, 8192, 8192),
    (30_000, 30_000, 30_000),
    (100_000, 100, 100),
    (500, 500, 2_000_000),
    (40_000, 40_000, 500),
    (1, 100_000, 100_000),
    (100_000, 1, 100_000),
    (20_011, 7919, 4099),
    (256, 65_536, 8192),
    (1, 1, 10_000_000),
];

/// All strategies that a user may type, with parameters that fit the number of machines.
fn strategies(machines: usize) -> Vec<String> {
    let side = machines.isqrt().max(1);
    let cube = ((machines as f64 / 2.0).cbrt().floor() as usize).max(1);
    let fixed =
        ["naive", "row:4", "row:8", "square:4", "square:8", "reuse", "cuboid", "strassen:1", "strassen:2"];
    let mut all: Vec<String> = fixed.iter().map(|s| (*s).to_owned()).collect();
    all.push(format!("summa:{side}x{}", machines / side));
    all.push(format!("cuboid:{cube}x{cube}x{}", machines / cube / cube));
    all
}

#[test]
fn what_is_chosen_is_predicted_to_be_the_fastest() {
    let mut looked_at = 0;
    for (name, primary, workers) in clusters() {
        for (m, n, k) in SHAPES.into_iter().step_by(if workers.len() > 500 { 3 } else { 1 }) {
            let p = problem(m, n, k);
            let auto = decide(&p, TileSize::default(), &primary, &workers, &PlanOptions::AUTO).unwrap();
            let seconds = auto.plan.predicted.seconds;
            let alone = decide(&p, TileSize::default(), &primary, &[], &PlanOptions::AUTO)
                .unwrap()
                .plan
                .predicted
                .seconds;
            // The fastest of all considered plans, or one that keeps the bits of one machine and is nearly as fast.
            let fastest = auto.considered[0].seconds;
            assert!(seconds == fastest || (auto.plan.keeps_bits() && seconds <= 1.04 * fastest));
            assert!(fastest <= alone, "{name}, {m} x {n} x {k}: {fastest} s, {alone} s alone");
            for strategy in strategies(workers.len()) {
                let Ok(other) = decide(&p, TileSize::default(), &primary, &workers, &by(&strategy)) else {
                    continue;
                };
                // With smaller tiles, which are tried only if the default ones fit nowhere, the grid is different.
                if other.sentence.contains("do not fit the memory") {
                    continue;
                }
                let other = other.plan.predicted;
                // A plan whose sums do not fit the primary cannot be chosen.
                let fits = other.primary_memory_bytes <= primary.memory_bytes;
                assert!(
                    !fits || fastest <= other.seconds,
                    "{name}, {m} x {n} x {k}: {fastest} s by {}, {} s by {strategy}",
                    auto.considered[0].strategy,
                    other.seconds
                );
                looked_at += 1;
            }
            assert!(auto.plan.bound.seconds <= seconds);
            let used = auto.plan.members.iter().filter(|m| m.machine > 0).count();
            assert_eq!(used + auto.left_out.len(), workers.len());
        }
    }
    assert!(looked_at > 6 * 12 * 8, "{looked_at}");
}

#[test]
fn slow_links_leave_the_primary_alone_and_fast_ones_do_not() {
    let p = problem(2048, 2048, 2048);
    let primary = machine("laptop", 100.0, 1 << 32, 0.0);
    let slow = vec![machine("pi", 10.0, 1 << 30, 10.0); 4];
    let decision = decide(&p, TileSize::default(), &primary, &slow, &PlanOptions::AUTO).unwrap();
    assert!(decision.alone && decision.left_out.len() == 4, "{}", decision.sentence);
    let fast = vec![machine("server", 500.0, 1 << 32, 5000.0); 4];
    let decision = decide(&p, TileSize::default(), &primary, &fast, &PlanOptions::AUTO).unwrap();
    assert!(!decision.alone, "{}", decision.sentence);
}

#[test]
fn the_primary_helps_where_that_is_faster() {
    let p = problem(20_000, 20_000, 20_000);
    let primary = machine("laptop", 100.0, 1 << 34, 0.0);
    let workers = vec![machine("server", 100.0, 1 << 34, 1170.0); 2];
    let decision = decide(&p, TileSize::default(), &primary, &workers, &PlanOptions::AUTO).unwrap();
    assert_eq!(decision.plan.members.len(), 3, "{}", decision.sentence);
    assert!(decision.sentence.contains("and this machine"), "{}", decision.sentence);
}

#[test]
fn machines_that_cannot_be_planned_with_are_named() {
    let p = problem(4096, 4096, 4096);
    let primary = machine("laptop", 1.0, 1 << 34, 0.0);
    let bad = [0.0, -1.0, f64::NAN, f64::INFINITY];
    let mut workers: Vec<Machine> = bad.iter().map(|g| machine("speed", *g, 1 << 34, 117.0)).collect();
    workers.extend(bad.iter().map(|r| machine("link", 100.0, 1 << 34, *r)));
    workers.push(machine("good", 100.0, 1 << 34, 117.0));
    let decision = decide(&p, TileSize::default(), &primary, &workers, &PlanOptions::AUTO).unwrap();
    assert_eq!(decision.left_out.len(), 8);
    assert!(decision.left_out.iter().all(|l| l.reason.contains("to plan with")), "{:?}", decision.left_out);
}

#[test]
fn a_strategy_that_cannot_do_what_was_asked_is_refused() {
    let p = problem(100, 100, 3);
    let workers = [machine("w", 10.0, 1 << 30, 100.0)];
    let refused = |options: &PlanOptions, p: &Problem| match decide(
        p,
        TileSize::default(),
        &workers[0],
        &workers,
        options,
    ) {
        Err(PlanError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&by("strassen:2"), &p).contains("cannot be halved"));
    let p = problem(100, 100, 100);
    assert!(refused(&PlanOptions { reproducible: true, ..by("strassen:1") }, &p).contains("bits"));
    assert!(refused(&PlanOptions { elementwise: true, ..by("strassen:1") }, &p).contains("norms"));
    let options = PlanOptions { reproducible: true, ..PlanOptions::AUTO };
    let plan = decide(&p, TileSize::default(), &workers[0], &workers, &options).unwrap().plan;
    assert_eq!((plan.strategy.levels, plan.sums), (0, Sums::Chained));
}
