//! Thousands of factorisations on rings of machines, with faults (docs/simulator.md).

use crate::seeds;
use bramble_sim::{LuRareEvents, lu_trial_outcome, run_lu_trial};

/// Number of trials, if BRAMBLE_SIM_SEEDS names no other.
const USUAL: u64 = 2000;

#[test]
fn with_any_faults_the_factors_are_right_or_losses_end_the_run() {
    let many = seeds::number(USUAL);
    let found = seeds::all(many, "lu_trials", |seed| lu_trial_outcome(seed, false).0);
    let seen = found.iter().fold(LuRareEvents::default(), |sum, one| sum.plus(&one.seen));
    println!("{seen:?}");
    // Rare events must have occurred: exclusive minima, in the order of `fields`, for at most the usual number of seeds.
    let many = many.min(USUAL);
    let least = [
        many / 10,
        many / 10,
        many / 4,
        20 * many,
        many,
        many / 4,
        many / 10,
        many,
        2 * many,
        many / 4,
        many / 10,
        many / 20,
        many / 4,
        many / 10,
        many / 10,
        many / 10,
        many / 10,
        many / 40,
        many / 20,
        many / 40,
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
