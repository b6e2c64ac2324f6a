//! Thousands of factorisations on rings of machines, with faults (docs/simulator.md).

#![allow(clippy::unwrap_used)] // A test may panic.

mod seeds;

use bramble_sim::{LuRareEvents, lu_trial_outcome, run_lu_trial};

/// Number of trials.
const SEEDS: u64 = 2000;

#[test]
fn with_any_faults_the_factors_are_right_or_losses_end_the_run() {
    let found = seeds::all(SEEDS, "lu_trials", |seed| lu_trial_outcome(seed, false).0);
    let seen = found.iter().fold(LuRareEvents::default(), |sum, one| sum.plus(&one.seen));
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
        SEEDS,
        2 * SEEDS,
        SEEDS / 4,
        SEEDS / 10,
        SEEDS / 20,
        SEEDS / 4,
        SEEDS / 10,
        SEEDS / 10,
        SEEDS / 10,
        SEEDS / 10,
        SEEDS / 40,
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
