//! Faults in the timing mode: what they cost can be worked out by hand, every product ends, twice alike.

#![allow(clippy::unwrap_used)] // A test may panic.

use bramble_matrix::DType;
use bramble_plan::{Cut, LinkRate, Machine, Plan, Preference, Problem, Relay, Strategy, Wish, decide};
use bramble_schedule::limits::SILENCE_MAX;
use bramble_sim::{Faults, Report, Setting, simulate_with};
use std::time::Duration;

/// A primary of so many Gflop/s, and workers of ten each, on links of a gigabyte a second.
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
        sends_a: true,
        sends_b: true,
    };
    let strategy = Some(strategy.parse::<Strategy>().unwrap());
    let wish = Wish { strategy, who: Preference::Workers, reproducible, relay, ..Wish::AUTO };
    let cut = Cut { tile: Some(100), depth: Some(100) };
    decide(&p, cut, &machines[0], &machines[1..], &wish).unwrap().plan
}

/// Without faults, and with those of a text, in which times may be parts of the undisturbed time.
fn both(plan: &Plan, machines: &[Machine], text: &str) -> (Report, Report) {
    let calm = simulate_with(plan, machines, &Setting::measured(), &Faults::default());
    let whole = Some(Duration::from_secs_f64(calm.seconds));
    let faults = Faults::read(text, whole).unwrap();
    let struck = simulate_with(plan, machines, &Setting::measured(), &faults);
    (calm, struck)
}

#[test]
fn one_of_three_that_is_killed_at_half_time_leaves_its_half_and_what_it_had_done_to_the_others() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    let (calm, struck) = both(&plan, &machines, "kill:w2@50%");
    assert_eq!((calm.losses.len(), struck.losses.len()), (0, 1));
    let loss = &struck.losses[0];
    assert_eq!((loss.machine, loss.why.as_str()), (2, "it closed the connection"));
    // Noticed at once. Its C was not home: a third of all work is done again by two, from half time on.
    assert!((loss.at_s - 0.5 * calm.seconds).abs() < 0.01 * calm.seconds, "{loss:?}");
    assert!(loss.part > 0.25 && loss.part < 0.36, "{loss:?}");
    let longer = struck.seconds / calm.seconds;
    assert!(longer > 1.4 && longer < 1.75, "{longer}: half of two thirds is left, and a third is added");
    assert!(struck.flops() > calm.flops() * 1.1, "what was lost is done again");
    assert!((calm.flops() - plan.problem.flops()).abs() < 1.0, "{} products", calm.flops());
    assert!(struck.failed.is_none() && calm.failed.is_none());
}

#[test]
fn who_is_switched_off_is_given_up_after_the_silence_and_who_is_killed_at_once() {
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
fn who_has_a_link_that_carries_next_to_nothing_is_given_up_and_others_make_what_waits_behind_it() {
    let machines = machines(0.1, 3);
    for (strategy, relay) in [("reuse", Relay::Off), ("square:2", Relay::Off), ("summa:1x3", Relay::On)] {
        let plan = planned(&machines, strategy, relay, false);
        // 200 kB/s: a third of C would take half a minute.
        let (calm, slow) = both(&plan, &machines, "slow:w1@50%../5000");
        let [lost] = &slow.losses[..] else { panic!("{strategy}: {:?}", slow.losses) };
        assert!(lost.machine == 1 && lost.why.contains("too slow"), "{strategy}: {lost:?}");
        // It is looked at twice, for two seconds each; the first time when the product is two seconds old.
        assert!((4.0..8.0).contains(&lost.at_s), "{strategy}: {lost:?}");
        assert!(
            slow.failed.is_none() && slow.seconds < lost.at_s + 8.0 * calm.seconds,
            "{strategy}: {calm:?} {slow:?}"
        );
        // Where nobody could make it sooner it is waited for: 3 MB/s is slow, and enough.
        let (_, enough) = both(&plan, &machines, "slow:w1@50%../300");
        assert!(enough.losses.is_empty(), "{strategy}: {:?}", enough.losses);
    }
}

#[test]
fn who_stands_still_for_long_is_given_up_and_comes_in_again_and_who_does_so_briefly_is_not() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    let (calm, brief) = both(&plan, &machines, "pause:w1@20%..60%");
    assert!(brief.losses.is_empty() && brief.comings.is_empty());
    assert!(brief.seconds > calm.seconds);
    // All three, for long: the product waits for those that come in again.
    let text = "pause:w1@0.05s..20s,pause:w2@0.05s..20s,pause:w3@0.05s..20s";
    let (_, long) = both(&plan, &machines, text);
    assert_eq!(long.losses.len(), 3, "{:?}", long.losses);
    assert!(long.failed.is_none());
    let again: Vec<usize> = long.comings.iter().map(|c| c.machine).collect();
    assert_eq!(again, [1, 2, 3]);
    // One that is killed meanwhile does not.
    let (_, killed) = both(&plan, &machines, &format!("{text},kill:w2@15s,kill:w3@0.1s"));
    let again: Vec<usize> = killed.comings.iter().map(|c| c.machine).collect();
    assert_eq!((again, killed.losses.len()), (vec![1], 3));
    assert!(long.seconds > 20.0 && long.machines.iter().skip(4).any(|m| m.flops > 0.0));
}

#[test]
fn who_comes_in_again_or_for_the_first_time_takes_a_part() {
    let machines = machines(0.1, 4);
    // The fourth worker is not there when the product begins.
    let plan = planned(&machines[..4], "reuse", Relay::Off, false);
    let (calm, joined) = both(&plan, &machines, "join:w4@10%");
    assert_eq!(joined.comings.len(), 1);
    assert!(joined.seconds < 0.95 * calm.seconds, "{} {}", joined.seconds, calm.seconds);
    let (_, killed) = both(&plan, &machines, "kill:w1@10%");
    let (_, again) = both(&plan, &machines, "restart:w1@10%..15%");
    assert_eq!((again.losses.len(), again.comings[0].machine), (1, 1));
    assert!(again.seconds < killed.seconds, "{} {}", again.seconds, killed.seconds);
}

#[test]
fn a_machine_or_a_link_that_is_slow_for_a_while_costs_time_and_nobody_is_lost() {
    let machines = machines(0.1, 3);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    for text in ["busy:w1@0%..100%/4", "slow:w1@0%..100%/40"] {
        let (calm, struck) = both(&plan, &machines, text);
        assert!(struck.losses.is_empty(), "{text}: {:?}", struck.losses);
        assert!(struck.seconds > 1.05 * calm.seconds, "{text}: {} {}", struck.seconds, calm.seconds);
    }
}

#[test]
fn every_strategy_ends_whoever_is_lost_and_the_primary_alone_ends_it_when_all_are() {
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
            let one = simulate_with(&plan, &machines, &Setting::measured(), &faults);
            assert_eq!(one.failed, None, "{strategy}, {faults}");
            let other = simulate_with(&plan, &machines, &Setting::measured(), &faults);
            assert_eq!(one, other, "{strategy}, {faults}: it is another run the second time");
        }
    }
}

#[test]
fn a_product_for_which_nobody_has_memory_any_more_fails_and_says_so() {
    let mut machines = machines(1.0, 2);
    let plan = planned(&machines, "reuse", Relay::Off, false);
    machines[0].memory_bytes = 1000;
    let (_, struck) = both(&plan, &machines, "kill:w1@10%,kill:w2@20%");
    let why = struck.failed.unwrap();
    assert!(why.contains("bytes of memory"), "{why}");
    assert_eq!(struck.losses.len(), 2);
}

#[test]
fn faults_that_have_no_time_to_tell_are_refused() {
    for (text, workers, what) in [
        ("stall:w1@1s..", 3, "can be told"),
        ("cut:w1@1s", 3, "can be told"),
        ("slow:w1>p@1s..2s/4", 3, "name a worker"),
        ("kill:w4@1s", 3, "w1 to w3"),
        ("kill:w1@1s", 0, "there are no workers"),
    ] {
        let error = text.parse::<Faults>().unwrap().check_timed(workers).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(text), "{error}");
    }
}
