//! Runs thousands of trials, or one: products with faults (docs/simulator.md).
//!
//! ```text
//! cargo run -p bramble-sim --example swarm -- --seeds 5000 [--from 0] [--most 10]
//! cargo run -p bramble-sim --example swarm -- --seed 17 [--faults 'kill:w3@2.5s,...']
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)] // It is what it is for.

use bramble_sim::{Faults, Outcome, Scenario, outcome, shrunk};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() -> ExitCode {
    match told(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(SwarmArgs { seed: Some(seed), faults, .. }) => one(seed, faults),
        Ok(SwarmArgs { seeds, from, most, .. }) => many(from, seeds, most),
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

/// The command line.
#[derive(Default)]
struct SwarmArgs {
    seed: Option<u64>,
    faults: Option<Faults>,
    seeds: u64,
    from: u64,
    /// Violations after which no more trials are run.
    most: u64,
}

fn told(words: &[String]) -> Result<SwarmArgs, String> {
    let mut told = SwarmArgs { seeds: 5000, most: 10, ..SwarmArgs::default() };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--seed" => told.seed = Some(number()?),
            "--seeds" => told.seeds = number()?,
            "--from" => told.from = number()?,
            "--most" => told.most = number()?,
            "--faults" => told.faults = Some(value.parse::<Faults>().map_err(|e| e.to_string())?),
            _ => {
                return Err(format!(
                    "{name} is not known; there are --seed, --faults, --seeds, --from, --most"
                ));
            }
        }
    }
    Ok(told)
}

/// Runs one trial and prints its result in full.
fn one(seed: u64, faults: Option<Faults>) -> ExitCode {
    let drawn = Scenario::of(seed);
    let scenario = Scenario { faults: faults.unwrap_or_else(|| drawn.faults.clone()), ..drawn };
    println!("seed {seed}: {scenario}\nfaults: {}", scenario.faults);
    match outcome(scenario).result {
        Ok(tried) => println!("{tried:#?}"),
        Err(what) => {
            println!("VIOLATION: {what}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Runs many trials on all cores.
fn many(from: u64, seeds: u64, most: u64) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(from);
    let failed: Mutex<Vec<Outcome>> = Mutex::new(Vec::new());
    let sums: Mutex<[u64; 15]> = Mutex::new([0; 15]);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + seeds {
                return;
            }
            let found = outcome(Scenario::of(seed));
            match &found.result {
                Ok(tried) => {
                    let few = u64::from(tried.failed.is_some());
                    let (seen, losses, moves) = (tried.seen, tried.losses as u64, tried.moves as u64);
                    let (came, events) = ([seen.joined, seen.comers_worked], tried.events);
                    let lives = [
                        seen.deaths.all,
                        seen.deaths.torn,
                        seen.deaths.tiles_kept,
                        seen.odd_clocks,
                        seen.lost_as.left_out,
                    ];
                    let new = [
                        1,
                        losses,
                        events,
                        seen.relayed,
                        moves,
                        few,
                        came[0],
                        came[1],
                        seen.lost_as.too_slow,
                    ];
                    let new = new.into_iter().chain(lives).chain([seen.parted]);
                    let mut sums = sums.lock().unwrap_or_else(|e| e.into_inner());
                    sums.iter_mut().zip(new).for_each(|(sum, new)| *sum += new);
                }
                Err(_) => {
                    let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
                    failed.push(found);
                    if failed.len() as u64 >= most {
                        next.store(from + seeds, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let sums = sums.into_inner().unwrap_or_else(|e| e.into_inner());
    let mut failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    failed.sort_by_key(|f| f.scenario.seed);
    let [right, losses, events, relayed, moves, without, joined, worked, slow, rest @ ..] = sums;
    let [deaths, torn, kept, odd, out, parted] = rest;
    println!(
        "{right} right ({without} without C), {losses} losses ({slow} of too slow links, {out} of machines excluded for \
         wrong results), {events} events, \
         {relayed} pieces relayed ({parted} silent neighbours), {moves} moves, {joined} joined and {worked} of them worked, \
         {deaths} deaths of the primary ({torn} while the journal was written), {kept} tiles kept, {odd} clock faults"
    );
    let count = failed.len();
    for found in failed {
        let found = shrunk(found);
        let (seed, faults) = (found.scenario.seed, found.scenario.faults.to_string());
        println!("seed {seed}: {}\n  {}", found.result.err().unwrap_or_default(), found.scenario);
        println!("  cargo run -p bramble-sim --example swarm -- --seed {seed} --faults '{faults}'");
    }
    if count > 0 {
        println!("{count} seeds with violations");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
