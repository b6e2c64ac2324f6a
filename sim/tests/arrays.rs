//! Thousands of sequences of operations on placed matrices, with faults (docs/simulator.md).

#![allow(clippy::unwrap_used)] // A test may panic.

mod seeds;

use bramble_sim::{ArrayRareEvents, array_sequence_outcome, run_array_sequence};

/// Number of sequences.
const SEEDS: u64 = 5000;

#[test]
fn with_any_faults_arrays_are_right_and_nothing_is_left_behind() {
    let found = seeds::all(SEEDS, "arrays", |seed| array_sequence_outcome(seed, false).0);
    let seen = found.iter().fold(ArrayRareEvents::default(), |sum, one| sum.plus(&one.seen));
    println!("{seen:?}");
    // Rare events must have occurred: (count, exclusive minimum).
    let least = [
        (seen.losses, 2 * SEEDS),
        (seen.came_back, SEEDS / 2),
        (seen.again.restores, SEEDS / 2),
        (seen.again.put_again, SEEDS / 2),
        (seen.again.made_again, SEEDS / 4),
        (seen.refusals, SEEDS / 10),
        (seen.links, SEEDS / 10),
        (seen.links_ended, SEEDS / 200),
        (seen.fetches, SEEDS / 5),
        (seen.spreads, SEEDS / 100),
        (seen.wrong_steps, SEEDS / 20),
        (seen.wrong_found, SEEDS / 20),
        (seen.garbled[0], SEEDS / 50),
        (seen.garbled[1], SEEDS / 50),
        (seen.again.stale_found, SEEDS / 50),
        (seen.gave_up, SEEDS / 20),
        (seen.products, SEEDS / 2),
        (seen.both_placed, SEEDS / 20),
        (seen.succeeded, 5 * SEEDS),
        (seen.failed, SEEDS / 10),
    ];
    for ((what, _), (times, least)) in seen.fields().into_iter().zip(least) {
        assert!(times > least, "{what}: {times} times only, not {least}; {seen:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..60 {
        let (first, _) = array_sequence_outcome(seed, false);
        assert_eq!(first.unwrap(), run_array_sequence(seed), "seed {seed}");
    }
}
