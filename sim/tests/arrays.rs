//! Thousands of sequences of operations on placed matrices, with faults (docs/simulator.md).

#![allow(clippy::unwrap_used)] // A test may panic.

use bramble_sim::{ArrayRareEvents, ArraySequenceResult, array_sequence_outcome, run_array_sequence};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of sequences.
const SEEDS: u64 = 5000;
/// Violations that are reported.
const TOLD_MAX: usize = 5;

/// Runs all seeds on all cores.
fn all() -> Vec<(u64, Result<ArraySequenceResult, String>)> {
    let next = AtomicU64::new(0);
    let some = || {
        let mut found = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return found;
            }
            found.push((seed, array_sequence_outcome(seed, false).0));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn with_any_faults_arrays_are_right_and_nothing_is_left_behind() {
    let mut found = all();
    found.sort_by_key(|(seed, _)| *seed);
    let failed: Vec<String> = found
        .iter()
        .filter_map(|(seed, result)| Some(format!("seed {seed}: {}", result.as_ref().err()?)))
        .collect();
    let told = failed[..failed.len().min(TOLD_MAX)].join("\n");
    assert!(
        failed.is_empty(),
        "{} seeds with violations\n{told}\n  cargo run -p bramble-sim --example arrays -- --seed N",
        failed.len()
    );
    let seen =
        found.iter().fold(ArrayRareEvents::default(), |sum, (_, one)| sum.plus(&one.as_ref().unwrap().seen));
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
