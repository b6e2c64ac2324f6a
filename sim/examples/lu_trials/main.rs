//! Trials of factorisations on a ring of machines, by seed, on all cores; or the events of one.
//!
//! ```text
//! cargo run -p bramble-sim --example lu_trials -- [--seeds N] [--from N] [--most N]
//! cargo run -p bramble-sim --example lu_trials -- --seed N
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)] // A program of developers.

use bramble_sim::{LuRareEvents, lu_trial_outcome};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() -> ExitCode {
    // Violations are values here.
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mut seed, mut seeds, mut from, mut most) = (None, 2000, 0, 20);
    for pair in words.chunks(2) {
        match (pair[0].as_str(), pair.get(1).and_then(|value| value.parse::<u64>().ok())) {
            ("--seed", Some(value)) => seed = Some(value),
            ("--seeds", Some(value)) => seeds = value,
            ("--from", Some(value)) => from = value,
            ("--most", Some(value)) => most = value,
            (name, _) => {
                eprintln!("{name}: there are --seed, --seeds, --from and --most, each with a number");
                return ExitCode::from(2);
            }
        }
    }
    match seed {
        Some(seed) => one(seed),
        None => many(from, seeds, most),
    }
}

fn one(seed: u64) -> ExitCode {
    let (result, log) = lu_trial_outcome(seed, true);
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
    let (next, end) = (AtomicU64::new(from), from.saturating_add(seeds));
    let found = Mutex::new((LuRareEvents::default(), 0, Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let result = lu_trial_outcome(seed, false).0;
            let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
            match result {
                Ok(result) => (found.0, found.1) = (found.0.plus(&result.seen), found.1 + result.events),
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
    let (seen, events, mut failed) = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let seen: Vec<String> = seen.fields().iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!("{events} events: {}", seen.join(", "));
    failed.sort_unstable();
    failed.iter().for_each(|(seed, why)| println!("seed {seed}: {}", why.replace('\n', " ")));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
