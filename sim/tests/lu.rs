//! Thousands of factorisations on rings of machines, with faults (docs/simulator.md).

#![allow(clippy::unwrap_used)] // A test may panic.

use bramble_sim::{LuRareEvents, LuTrialResult, lu_trial_outcome, run_lu_trial};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of trials.
const SEEDS: u64 = 2000;
/// Violations that are reported.
const TOLD_MAX: usize = 5;

/// Runs all seeds on all cores.
fn all() -> Vec<(u64, Result<LuTrialResult, String>)> {
    let next = AtomicU64::new(0);
    let some = || {
        let mut found = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return found;
            }
            found.push((seed, lu_trial_outcome(seed, false).0));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn with_any_faults_the_factors_are_right_or_a_loss_ends_the_run() {
    let mut found = all();
    found.sort_by_key(|(seed, _)| *seed);
    let failed: Vec<String> = found
        .iter()
        .filter_map(|(seed, result)| Some(format!("seed {seed}: {}", result.as_ref().err()?)))
        .collect();
    let told = failed[..failed.len().min(TOLD_MAX)].join("\n");
    assert!(
        failed.is_empty(),
        "{} seeds with violations\n{told}\n  cargo run -p bramble-sim --example lu_trials -- --seed N",
        failed.len()
    );
    let seen =
        found.iter().fold(LuRareEvents::default(), |sum, (_, one)| sum.plus(&one.as_ref().unwrap().seen));
    println!("{seen:?}");
    // Rare events must have occurred: exclusive minima, in the order of `fields`.
    let least = [
        SEEDS / 10,
        SEEDS / 10,
        SEEDS / 4,
        20 * SEEDS,
        SEEDS,
        SEEDS / 4,
        SEEDS / 10,
        2 * SEEDS,
        SEEDS / 4,
        SEEDS / 10,
        SEEDS / 20,
        SEEDS / 4,
        SEEDS / 10,
        SEEDS / 10,
        SEEDS / 20,
        SEEDS / 40,
    ];
    for ((what, times), least) in seen.fields().into_iter().zip(least) {
        assert!(times > least, "{what}: {times} times only, not {least}; {seen:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_factorisation_event_by_event() {
    for seed in 0..100 {
        let (first, events) = lu_trial_outcome(seed, true);
        assert_eq!(first.unwrap(), run_lu_trial(seed), "seed {seed}");
        assert_eq!(events, lu_trial_outcome(seed, true).1, "seed {seed}");
    }
    assert_ne!(run_lu_trial(0).hash, run_lu_trial(1).hash);
}
