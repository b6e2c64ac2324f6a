//! Faults in the timing mode: costs are compared with hand calculations, every product ends, and runs are reproducible.

use bramble_matrix::DType;
use bramble_plan::{
    LinkRate, Machine, OperandSource, Plan, PlanOptions, Preference, Problem, Relay, Strategy, TileSize,
    decide,
};
use bramble_sim::{Faults, SimReport, SimSetting, simulate_with};
use bramble_wire::limits::SILENCE_MAX;
use std::time::Duration;

/// A primary of this speed, and workers of 10 Gflop/s each, on links of 1 GB/s.
fn machines(primary_gflops: f64, workers: usize) -> Vec<Machine> {
    let machine = |name: String, gflops: f64, link| Machine {
        name,
        threads: 2,
        gflops,
        peak_gflops: gflops,
        memory_bytes: 1 << 30,
        link,
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    let link = Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 });
    let mut all = vec![machine("primary".into(), primary_gflops, None)];
    all.extend((1..=workers).map(|at| machine(format!("w{at}"), 10.0, link)));
    all
}

fn planned(machines: &[Machine], strategy: &str, relay: Relay, reproducible: bool) -> Plan {
    let p = Problem {
        m: 1500,
        n: 1400,
        k: 1600,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    };
    let strategy = Some(strategy.parse::<Strategy>().unwrap());
    let wish = PlanOptions { strategy, who: Preference::Workers, reproducible, relay, ..PlanOptions::AUTO };
    let cut = TileSize { tile: Some(100), depth: Some(100) };
    decide(&p, cut, &machines[0], &machines[1..], &wish).unwrap().plan
}

/// Runs without and with faults; times in the text may be parts of the time without faults.
fn both(plan: &Plan, machines: &[Machine], text: &str) -> (SimReport, SimReport) {
    let calm = simulate_with(plan, machines, &SimSetting::measured(), &Faults::default());
    let whole = Some(Duration::from_secs_f64(calm.seconds));
    let faults = Faults::read(text, whole).unwrap();
    let struck = simulate_with(plan, machines, &SimSetting::measured(), &faults);
    (calm, struck)
}

#[test]
fn the_work_of_one_of_three_machines_killed_at_half_time_is_reassigned() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    let (calm, struck) = both(&plan, &machines, "kill:w2@50%");
    assert_eq!((calm.losses.len(), struck.losses.len()), (0, 1));
    let loss = &struck.losses[0];
    assert_eq!((loss.machine, loss.why.as_str()), (2, "it closed the connection"));
    // Noticed at once. Its part of C had not returned: two machines redo a third of all work, from half time on.
    assert!((loss.at_s - 0.5 * calm.seconds).abs() < 0.01 * calm.seconds, "{loss:?}");
    assert!(loss.part > 0.25 && loss.part < 0.36, "{loss:?}");
    let longer = struck.seconds / calm.seconds;
    assert!(longer > 1.4 && longer < 1.75, "{longer}: half of two thirds is left, and a third is added");
    assert!(struck.flops() > calm.flops() * 1.1, "lost work is done again");
    assert!((calm.flops() - plan.problem.flops()).abs() < 1.0, "{} products", calm.flops());
    assert!(struck.failed.is_none() && calm.failed.is_none());
}

#[test]
fn a_machine_without_power_is_lost_after_the_silence_and_a_killed_one_at_once() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    let (calm, off) = both(&plan, &machines, "off:w1@30%");
    let silent_s = off.losses[0].at_s - 0.3 * calm.seconds;
    let most = SILENCE_MAX.as_secs_f64();
    assert!(silent_s >= most && silent_s <= most + 0.5, "{silent_s}");
    assert!(off.losses[0].why.contains("silent"), "{:?}", off.losses);
    assert!(off.seconds > most);
}

#[test]
fn a_machine_with_a_nearly_dead_link_is_lost_and_its_results_are_recomputed() {
    let machines = machines(0.1, 3);
    for (strategy, relay) in [("reuse", Relay::Off), ("square:2", Relay::Off), ("summa:1x3", Relay::On)] {
        let plan = planned(&machines, strategy, relay, false);
        // 200 kB/s: a third of C would take half a minute.
        let (calm, slow) = both(&plan, &machines, "slow:w1@50%../5000");
        let [lost] = &slow.losses[..] else { panic!("{strategy}: {:?}", slow.losses) };
        assert!(lost.machine == 1 && lost.why.contains("too slow"), "{strategy}: {lost:?}");
        // The link is measured twice, for two seconds each; the first time when the product is two seconds old.
        assert!((4.0..8.0).contains(&lost.at_s), "{strategy}: {lost:?}");
        assert!(
            slow.failed.is_none() && slow.seconds < lost.at_s + 8.0 * calm.seconds,
            "{strategy}: {calm:?} {slow:?}"
        );
        // If no machine could recompute the results sooner, the primary waits: 3 MB/s is slow, but enough.
        let (_, enough) = both(&plan, &machines, "slow:w1@50%../300");
        assert!(enough.losses.is_empty(), "{strategy}: {:?}", enough.losses);
    }
}

#[test]
fn a_long_suspended_machine_is_lost_and_joins_again_but_not_a_briefly_suspended_one() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    let (calm, brief) = both(&plan, &machines, "pause:w1@20%..60%");
    assert!(brief.losses.is_empty() && brief.joins.is_empty());
    assert!(brief.seconds > calm.seconds);
    // All three, for long: the product waits until they join again.
    let text = "pause:w1@0.05s..20s,pause:w2@0.05s..20s,pause:w3@0.05s..20s";
    let (_, long) = both(&plan, &machines, text);
    assert_eq!(long.losses.len(), 3, "{:?}", long.losses);
    assert!(long.failed.is_none());
    let again: Vec<usize> = long.joins.iter().map(|c| c.machine).collect();
    assert_eq!(again, [1, 2, 3]);
    // A machine that is killed while suspended does not join again.
    let (_, killed) = both(&plan, &machines, &format!("{text},kill:w2@15s,kill:w3@0.1s"));
    let again: Vec<usize> = killed.joins.iter().map(|c| c.machine).collect();
    assert_eq!((again, killed.losses.len()), (vec![1], 3));
    assert!(long.seconds > 20.0 && long.machines.iter().skip(4).any(|m| m.flops > 0.0));
}

#[test]
fn a_machine_that_joins_or_returns_gets_work() {
    let machines = machines(0.1, 4);
    // The fourth worker joins later.
    let plan = planned(&machines[..4], "reuse", Relay::Off, false);
    let (calm, joined) = both(&plan, &machines, "join:w4@10%");
    assert_eq!(joined.joins.len(), 1);
    assert!(joined.seconds < 0.95 * calm.seconds, "{} {}", joined.seconds, calm.seconds);
    let (_, killed) = both(&plan, &machines, "kill:w1@10%");
    let (_, again) = both(&plan, &machines, "restart:w1@10%..15%");
    assert_eq!((again.losses.len(), again.joins[0].machine), (1, 1));
    assert!(again.seconds < killed.seconds, "{} {}", again.seconds, killed.seconds);
}

#[test]
fn a_temporarily_slow_machine_or_link_costs_time_but_is_not_lost() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    for text in ["busy:w1@0%..100%/4", "slow:w1@0%..100%/40"] {
        let (calm, struck) = both(&plan, &machines, text);
        assert!(struck.losses.is_empty(), "{text}: {:?}", struck.losses);
        assert!(struck.seconds > 1.05 * calm.seconds, "{text}: {} {}", struck.seconds, calm.seconds);
    }
}

#[test]
fn every_strategy_ends_with_any_losses_and_the_primary_alone_finishes_without_workers() {
    let machines = machines(3.0, 4);
    let all = "kill:w1@10%,kill:w2@20%,kill:w3@30%,kill:w4@40%";
    for (strategy, relay, reproducible) in [
        ("naive", Relay::Off, false),
        ("square:3", Relay::Off, false),
        ("reuse", Relay::On, false),
        ("summa:2x2", Relay::On, false),
        ("cuboid:1x2x2", Relay::Off, false),
        ("cuboid:2x1x2", Relay::Off, true),
        ("strassen:1", Relay::Off, false),
        ("strassen:1+summa:2x2", Relay::On, false),
    ] {
        let plan = planned(&machines, strategy, relay, reproducible);
        assert_eq!(plan.relay, relay == Relay::On, "{strategy}");
        let (calm, struck) = both(&plan, &machines, all);
        assert_eq!((&struck.failed, struck.losses.len()), (&None, 4), "{strategy}");
        assert_eq!(struck.tiles, calm.tiles, "{strategy}");
        assert!(struck.flops() > 0.0 && struck.losses.is_sorted_by(|a, b| a.at_s <= b.at_s), "{strategy}");
        for seed in 0..10 {
            let faults = Faults::timed_of(seed, &[1, 2, 3, 4], calm.seconds);
            assert_eq!(faults.check_timed(4), Ok(()));
            let one = simulate_with(&plan, &machines, &SimSetting::measured(), &faults);
            assert_eq!(one.failed, None, "{strategy}, {faults}");
            let other = simulate_with(&plan, &machines, &SimSetting::measured(), &faults);
            assert_eq!(one, other, "{strategy}, {faults}: the second run differs");
        }
    }
}

#[test]
fn a_product_that_fits_no_remaining_machine_fails_with_the_reason() {
    let mut machines = machines(1.0, 2);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    machines[0].memory_bytes = 1000;
    let (_, struck) = both(&plan, &machines, "kill:w1@10%,kill:w2@20%");
    let why = struck.failed.unwrap();
    assert!(why.contains("bytes of memory"), "{why}");
    assert_eq!(struck.losses.len(), 2);
}

#[test]
fn faults_that_the_timing_mode_does_not_support_are_refused() {
    for (text, workers, what) in [
        ("stall:w1@1s..", 3, "when a plan is timed"),
        ("cut:w1@1s", 3, "when a plan is timed"),
        ("slow:w1>p@1s..2s/4", 3, "name a worker"),
        ("kill:w4@1s", 3, "w1 to w3"),
        ("kill:w1@1s", 0, "there are no workers"),
    ] {
        let error = text.parse::<Faults>().unwrap().check_timed(workers).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(text), "{error}");
    }
}
