//! Runs trials of many seeds on all cores.

use std::sync::atomic::{AtomicU64, Ordering};

/// Violations that are reported.
const TOLD_MAX: usize = 5;

/// How many seeds a test runs: those of BRAMBLE_SIM_SEEDS (the part `simulator` of the soak tier), or the usual ones.
pub(crate) fn number(usual: u64) -> u64 {
    std::env::var("BRAMBLE_SIM_SEEDS").map_or(usual, |text| text.parse().unwrap())
}

/// The results of the seeds 0 to `seeds` − 1, in their order. Panics with the first violations; `example` repeats them.
pub(crate) fn all<T: Send>(
    seeds: u64,
    example: &str,
    outcome: impl Fn(u64) -> Result<T, String> + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(0);
    let some = || {
        let mut found = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return found;
            }
            found.push((seed, outcome(seed)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut found: Vec<(u64, Result<T, String>)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    found.sort_by_key(|(seed, _)| *seed);
    let (mut right, mut failed) = (Vec::new(), Vec::new());
    for (seed, result) in found {
        match result {
            Ok(result) => right.push(result),
            Err(why) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    let told = failed[..failed.len().min(TOLD_MAX)].join("\n");
    let repeat = format!("cargo run -p bramble-sim --example {example} -- --seed N");
    assert!(failed.is_empty(), "{} seeds with violations\n{told}\n  {repeat}", failed.len());
    right
}
