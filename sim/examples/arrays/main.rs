//! Sequences of operations on placed matrices, by seed, on all cores; or the events of one.
//!
//! ```text
//! cargo run -p bramble-sim --example arrays -- [--seeds N] [--from N] [--most N]
//! cargo run -p bramble-sim --example arrays -- --seed N
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)] // A program of developers.

use bramble_sim::{ArrayRareEvents, array_sequence_outcome};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of an option.
fn option(name: &str) -> Option<u64> {
    let mut words = std::env::args().skip_while(|word| word != name);
    words.nth(1).and_then(|value| value.parse().ok())
}

fn main() -> ExitCode {
    // Violations are values here.
    std::panic::set_hook(Box::new(|_| {}));
    match option("--seed") {
        Some(seed) => one(seed),
        None => many(
            option("--from").unwrap_or(0),
            option("--seeds").unwrap_or(1000),
            option("--most").unwrap_or(20),
        ),
    }
}

fn one(seed: u64) -> ExitCode {
    let (result, log) = array_sequence_outcome(seed, true);
    log.iter().for_each(|line| println!("{line}"));
    match result {
        Ok(result) => {
            println!("{result:?}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("seed {seed}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, seeds: u64, most: u64) -> ExitCode {
    let (next, end) = (AtomicU64::new(from), from + seeds);
    let found = Mutex::new((ArrayRareEvents::default(), 0, Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let result = array_sequence_outcome(seed, false).0;
            let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
            match result {
                Ok(result) => (found.0, found.1) = (found.0.plus(&result.seen), found.1 + result.steps),
                Err(why) => {
                    found.2.push((seed, why));
                    if found.2.len() as u64 >= most {
                        next.store(end, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (seen, steps, mut failed) = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let seen: Vec<String> = seen.fields().iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!("{steps} events: {}", seen.join(", "));
    failed.sort_unstable();
    failed.iter().for_each(|(seed, why)| println!("seed {seed}: {why}"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
