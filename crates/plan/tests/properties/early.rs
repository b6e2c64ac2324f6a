//! Tiles that are complete early: at hardly any cost in time, and with the same bits.

use super::auto::{SHAPES, clusters};
use super::form::{assert_covers, assert_fits};
use super::*;

/// Operands in files of the right type; operands whose panels are made; and no journal.
const LYING: MadeOperands = MadeOperands { a: false, b: false };
const MADE: MadeOperands = MadeOperands { a: true, b: true };

fn early(options: PlanOptions, making: MadeOperands) -> PlanOptions {
    PlanOptions { tiles_early: Some(making), ..options }
}

/// A machine alone, as in a default local run.
fn alone(threads: u32, p: &Problem, options: &PlanOptions) -> Plan {
    let here = Machine { threads, link: None, ..machine("here", 30.0 * f64::from(threads), 16 << 30, 0.0) };
    decide(p, TileSize::default(), &here, &[], options).unwrap().plan
}

#[test]
fn a_machine_by_itself_completes_tiles_all_the_time() {
    let p = problem(8000, 8000, 8000);
    let classical = PlanOptions { elementwise: true, ..PlanOptions::AUTO };
    assert_eq!(alone(2, &p, &classical).complete_together(), 1.0, "one block of all of C");
    for (threads, most) in [(1, 0.02), (2, 0.02), (4, 0.04), (16, 0.13)] {
        let plan = alone(threads, &p, &early(classical, LYING));
        assert!(plan.complete_together() <= most, "{threads} threads: {}", plan.complete_together());
        assert_covers(&plan);
        // No thread has to wait for the next block, which arrives before the last one ends.
        let blocks: Vec<Block> = plan.members[0].blocks().collect();
        let wide = blocks.iter().filter(|b| b.count() >= u64::from(threads)).count();
        assert!(wide * 10 >= blocks.len() * 7, "{wide} of {}", blocks.len());
        assert!(plan.members[0].blocks_at_once >= 2);
    }
    // A product of a fraction of a second is not cut.
    let short = alone(2, &problem(1200, 1200, 1200), &early(PlanOptions::AUTO, LYING));
    assert_eq!(short.complete_together(), 1.0);
}

#[test]
fn sums_of_strassens_method_are_not_made_ever_again() {
    for (strategy, most) in [("strassen:1", 0.25), ("strassen:2", 0.5)] {
        let options = PlanOptions { strategy: Some(strategy.parse().unwrap()), ..PlanOptions::AUTO };
        let (p, early) = (problem(16_000, 16_000, 16_000), early(options, LYING));
        let (whole, plan) = (alone(2, &p, &options), alone(2, &p, &early));
        assert!(plan.complete_together() <= most, "{strategy}: {}", plan.complete_together());
        assert!(plan.predicted.machines[0].flops <= whole.predicted.machines[0].flops * 1.01, "{strategy}");
        assert_covers(&plan);
    }
}

#[test]
fn panels_that_are_made_are_not_made_ever_again() {
    let p = Problem {
        a_source: OperandSource::Generated,
        b_source: OperandSource::Generated,
        ..problem(8000, 8000, 8000)
    };
    let times = |plan: &Plan| {
        let (down, across, _) = plan.members[0].shares[0].blocks_each_way();
        (across, down)
    };
    let plan = alone(2, &p, &early(PlanOptions::AUTO, MADE));
    let (a, b) = times(&plan);
    assert!(a == 1 && b <= 4, "A is made {a} times, B {b} times");
    assert_covers(&plan);
}

#[test]
fn no_plan_takes_a_hundredth_longer_or_has_other_tiles() {
    let mut earlier = 0;
    for (name, primary, workers) in clusters() {
        for (m, n, k) in SHAPES.into_iter().step_by(if workers.len() > 500 { 5 } else { 1 }) {
            let p = problem(m, n, k);
            for local in [false, true] {
                let who = if local { Preference::Workers } else { Preference::Fastest };
                let options = PlanOptions { who, ..PlanOptions::AUTO };
                let Ok(Decision { plan, .. }) = decide(&p, TileSize::default(), &primary, &workers, &options)
                else {
                    continue;
                };
                let other =
                    decide(&p, TileSize::default(), &primary, &workers, &early(options, LYING)).unwrap().plan;
                let what = format!("{name}, {m} x {n} x {k}");
                assert_eq!(plan.regions, other.regions, "{what}");
                assert!(other.predicted.seconds <= plan.predicted.seconds * 1.01, "{what}");
                assert!(other.complete_together() <= plan.complete_together(), "{what}");
                assert_eq!(plan.keeps_bits(), other.keeps_bits(), "{what}");
                let cells = |plan: &Plan| -> Vec<_> {
                    plan.members
                        .iter()
                        .flat_map(|m| m.shares.iter().map(|s| (m.machine, s.region, s.cells, s.steps)))
                        .collect()
                };
                assert_eq!(cells(&plan), cells(&other), "{what}");
                if plan.tiles() < 20_000 {
                    let machines: Vec<Machine> = std::iter::once(&primary).chain(&workers).cloned().collect();
                    assert_fits(&other, &machines);
                }
                earlier += usize::from(other.complete_together() < plan.complete_together() / 2.0);
            }
        }
    }
    assert!(earlier > 20, "{earlier}");
}

#[test]
fn a_strategy_that_is_named_keeps_its_blocks_at_other_machines() {
    let p = problem(8000, 8000, 8000);
    let primary = machine("primary", 10.0, 8 << 30, 0.0);
    let workers = vec![machine("w", 50.0, 8 << 30, 1170.0); 4];
    for strategy in ["naive", "row:4", "square:4", "reuse", "summa:2x2", "cuboid"] {
        let plan = |options: &PlanOptions| {
            decide(&p, TileSize::default(), &primary, &workers, options).unwrap().plan
        };
        assert_eq!(plan(&early(by(strategy), LYING)), plan(&by(strategy)), "{strategy}");
    }
}
