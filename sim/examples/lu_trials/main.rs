//! Trials of factorisations on a ring of machines, by seed, on all cores; or the events of one.
//!
//! ```text
//! cargo run -p bramble-sim --example lu_trials -- [--seeds N] [--from N] [--most N]
//! cargo run -p bramble-sim --example lu_trials -- --seed N
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)] // A program of developers.

#[path = "../trials/mod.rs"]
mod trials;

use bramble_sim::{LuTrialResult, lu_trial_outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let counts = |one: &LuTrialResult| {
        let mut counts = vec![("events", one.events)];
        counts.extend(one.seen.fields());
        counts
    };
    trials::Trials { run: lu_trial_outcome, counts, seeds: 2000 }.main()
}
