//! Thousands of products with faults, and all trials that once failed (docs/simulator.md).

use crate::seeds;
use bramble_sim::{Faults, Outcome, PLACED_SEEDS, Scenario, TrialResult, outcome, shrunk};
use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of trials, if BRAMBLE_SIM_SEEDS names no other.
const USUAL: u64 = 5000;
/// One of this many trials is run twice.
const AGAIN: u64 = 100;
/// Violations that are shrunk and reported.
const TOLD_MAX: usize = 5;

/// Describes violations, with the fewest faults, and the commands to repeat them.
fn told(failed: Vec<Outcome>) -> String {
    let mut text = String::new();
    let count = failed.len();
    for found in failed.into_iter().take(TOLD_MAX).map(shrunk) {
        let (seed, faults) = (found.scenario.seed, found.scenario.faults.to_string());
        let what = found.result.unwrap_err();
        writeln!(text, "\nseed {seed}: {what}\n  {}", found.scenario).unwrap();
        writeln!(text, "  cargo run -p bramble-sim --example swarm -- --seed {seed} --faults '{faults}'")
            .unwrap();
    }
    format!("{count} seeds with violations\n{text}")
}

/// Runs seeds on all cores; returns the outcomes in their order.
fn all(seeds: Range<u64>) -> Vec<Outcome> {
    let next = AtomicU64::new(seeds.start);
    let some = || {
        let mut found = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return found;
            }
            let first = outcome(Scenario::of(seed));
            if seed.is_multiple_of(AGAIN) {
                let again = outcome(Scenario::of(seed));
                assert_eq!(first.result, again.result, "seed {seed} is not the same twice");
            }
            found.push(first);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut found: Vec<Outcome> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    found.sort_by_key(|outcome| outcome.scenario.seed);
    found
}

#[test]
fn with_any_faults_c_is_right_or_no_machine_could_finish_it() {
    let many = seeds::number(USUAL);
    let found = all(0..many);
    let (right, failed): (Vec<Outcome>, Vec<Outcome>) = found.into_iter().partition(|o| o.result.is_ok());
    assert!(failed.is_empty(), "{}", told(failed));
    let tried: Vec<TrialResult> = right.into_iter().map(|o| o.result.unwrap()).collect();
    let sum = |of: &dyn Fn(&TrialResult) -> u64| tried.iter().map(of).sum::<u64>();
    // Rare events must have occurred: (name, count, exclusive minimum).
    let seen = [
        ("losses", sum(&|t| t.losses as u64), many / 2),
        ("moves", sum(&|t| t.moves as u64), many),
        ("pieces relayed", sum(&|t| t.seen.relayed), 10 * many),
        ("missed", sum(&|t| t.seen.missed), many / 10),
        ("silent neighbours", sum(&|t| t.seen.parted), many / 50),
        ("waited for the link", sum(&|t| t.seen.waits.for_link), 2 * many),
        ("additions waited", sum(&|t| t.seen.waits.for_threads), many),
        ("staged", sum(&|t| t.seen.staged), many),
        ("thrown away", sum(&|t| t.seen.thrown_away), many / 50),
        ("left behind", sum(&|t| t.seen.left_behind), many / 50),
        ("broken off", sum(&|t| t.seen.broken_off), many / 50),
        ("silent", sum(&|t| t.seen.lost_as.silent), many / 20),
        ("too slow", sum(&|t| t.seen.lost_as.too_slow), 0),
        ("joined", sum(&|t| t.seen.joined), many / 4),
        ("comers worked", sum(&|t| t.seen.comers_worked), many / 10),
        ("left out", sum(&|t| t.seen.lost_as.left_out), 0),
        ("mended", sum(&|t| t.seen.mended), many / 2),
        ("deaths of the primary", sum(&|t| t.seen.deaths.all), many / 20),
        ("of them while the journal was written", sum(&|t| t.seen.deaths.torn), many / 100),
        ("tiles kept", sum(&|t| t.seen.deaths.tiles_kept), many / 5),
        ("odd clocks", sum(&|t| t.seen.odd_clocks), many / 10),
    ];
    println!("{seen:?}");
    for (what, times, least) in seen {
        assert!(times > least, "{what}: {times} times only; {seen:?}");
    }
    let without_c = sum(&|t| u64::from(t.failed.is_some()));
    assert!(without_c < many / 10, "{without_c} trials made no C");
}

/// Products with a placed operand fail more often: no other machine may hold a lost part, and the primary may be unable to
/// read it.
#[test]
fn with_a_placed_operand_c_is_right_or_a_part_was_lost() {
    let many = seeds::number(USUAL);
    let found = all(PLACED_SEEDS..PLACED_SEEDS + many / 5);
    let (right, failed): (Vec<Outcome>, Vec<Outcome>) = found.into_iter().partition(|o| o.result.is_ok());
    assert!(failed.is_empty(), "{}", told(failed));
    assert!(right.iter().all(|o| o.scenario.plan.ownership.is_some()));
    let without_c =
        right.iter().filter(|o| o.result.as_ref().is_ok_and(|t| t.failed.is_some())).count() as u64;
    assert!((many / 50..many / 8).contains(&without_c), "{without_c} trials made no C");
    let sent: u64 = right.iter().map(|o| o.result.as_ref().map_or(0, |t| t.seen.parts_sent)).sum();
    assert!(sent > many / 5, "{sent} panels of lost parts were sent");
}

/// Seeds that once failed: number, faults (`-` for its own, or `none`), and the failure.
#[test]
fn seeds_that_once_failed_pass() {
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut count = 0;
    for line in lines {
        let mut words = line.splitn(3, ' ');
        let (Some(seed), Some(faults), Some(what)) = (words.next(), words.next(), words.next()) else {
            panic!("{line}: expected a seed, its faults or -, and the failure");
        };
        let drawn = Scenario::of(seed.parse().unwrap());
        let faults = match faults {
            "-" => drawn.faults.clone(),
            "none" => Faults::default(),
            text => text.parse().unwrap(),
        };
        let found = outcome(Scenario { faults, ..drawn });
        assert!(found.result.is_ok(), "{what} is back: {}", told(vec![found]));
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn a_trial_is_reproducible_and_depends_on_its_faults() {
    for seed in 0..20 {
        let scenario = Scenario::of(seed);
        let first = outcome(scenario.clone()).result.unwrap();
        assert_eq!(first, outcome(scenario.clone()).result.unwrap());
        let calm = outcome(Scenario { faults: Faults::default(), ..scenario.clone() }).result.unwrap();
        assert!(scenario.faults.0.is_empty() || calm.hash != first.hash, "{}", scenario.faults);
    }
}
