//! What programs that run trials by seed have in common: their options, all seeds on all cores, and the events of one seed.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of events, with their names.
type Counts = Vec<(&'static str, u64)>;
/// The result of a trial or its violation, and its events as text.
type Tried<T> = (Result<T, String>, Vec<String>);
/// The sums of all counts, and the seeds with violations.
type Found = (Counts, Vec<(u64, String)>);

/// A kind of trial.
pub(crate) struct Trials<T> {
    /// Runs the trial of a seed; with its events as text if the flag is set.
    pub(crate) run: fn(u64, bool) -> Tried<T>,
    /// The counts of a trial, with their names.
    pub(crate) counts: fn(&T) -> Counts,
    /// Seeds, if none are stated.
    pub(crate) seeds: u64,
}

impl<T: std::fmt::Debug> Trials<T> {
    /// Runs what the command line asks for.
    pub(crate) fn main(&self) -> ExitCode {
        // Violations are values here.
        std::panic::set_hook(Box::new(|_| {}));
        let words: Vec<String> = std::env::args().skip(1).collect();
        let (mut seed, mut seeds, mut from, mut most) = (None, self.seeds, 0, 20);
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
            Some(seed) => self.one(seed),
            None => self.many(from, seeds, most),
        }
    }

    /// Prints the events of one trial, and its result.
    fn one(&self, seed: u64) -> ExitCode {
        let (result, log) = (self.run)(seed, true);
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

    /// Runs seeds on all cores, until `most` of them have violations.
    fn many(&self, from: u64, seeds: u64, most: u64) -> ExitCode {
        let (next, end) = (AtomicU64::new(from), from.saturating_add(seeds));
        let found: Mutex<Found> = Mutex::default();
        let (run, counts) = (self.run, self.counts);
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return;
                }
                let result = run(seed, false).0;
                let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
                match result {
                    Ok(result) => {
                        let new = counts(&result);
                        if found.0.is_empty() {
                            found.0 = new;
                        } else {
                            found.0.iter_mut().zip(new).for_each(|(sum, one)| sum.1 += one.1);
                        }
                    }
                    Err(why) => {
                        found.1.push((seed, why));
                        if found.1.len() as u64 >= most {
                            next.store(end, Ordering::Relaxed);
                        }
                    }
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (sums, mut failed) = found.into_inner().unwrap_or_else(|e| e.into_inner());
        let sums: Vec<String> = sums.iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!("{}", sums.join(", "));
        failed.sort_unstable();
        failed.iter().for_each(|(seed, why)| println!("seed {seed}: {}", why.replace('\n', " ")));
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
