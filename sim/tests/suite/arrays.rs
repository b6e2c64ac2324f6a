//! Thousands of sequences of operations on placed matrices, with faults (docs/simulator.md).

use crate::seeds;
use bramble_sim::{ArrayRareEvents, array_sequence_outcome, run_array_sequence};

/// Number of sequences, if BRAMBLE_SIM_SEEDS names no other.
const USUAL: u64 = 1500;

#[test]
fn with_any_faults_arrays_are_right_and_nothing_is_left_behind() {
    let many = seeds::number(USUAL);
    let found = seeds::all(many, "arrays", |seed| array_sequence_outcome(seed, false).0);
    let seen = found.iter().fold(ArrayRareEvents::default(), |sum, one| sum.plus(&one.seen));
    println!("{seen:?}");
    // Rare events must have occurred: (count, exclusive minimum).
    let least = [
        (seen.losses, 2 * many),
        (seen.came_back, many / 2),
        (seen.again.restores, many / 2),
        (seen.again.put_again, many / 2),
        (seen.again.made_again, many / 4),
        (seen.refusals, many / 10),
        (seen.links, many / 10),
        (seen.links_ended, many / 200),
        (seen.fetches, many / 5),
        (seen.spreads, many / 100),
        (seen.wrong_steps, many / 20),
        (seen.wrong_found, many / 20),
        (seen.garbled[0], many / 50),
        (seen.garbled[1], many / 50),
        (seen.again.stale_found, many / 50),
        (seen.gave_up, many / 20),
        (seen.products, many / 2),
        (seen.both_placed, many / 20),
        (seen.succeeded, 5 * many),
        (seen.failed, many / 10),
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
