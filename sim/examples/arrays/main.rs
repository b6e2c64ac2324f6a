//! Sequences of operations on placed matrices, by seed, on all cores; or the events of one.
//!
//! ```text
//! cargo run -p bramble-sim --example arrays -- [--seeds N] [--from N] [--most N]
//! cargo run -p bramble-sim --example arrays -- --seed N
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)] // A program of developers.

#[path = "../trials/mod.rs"]
mod trials;

use bramble_sim::{ArraySequenceResult, array_sequence_outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let counts = |one: &ArraySequenceResult| {
        let mut counts = vec![("events", one.steps)];
        counts.extend(one.seen.fields());
        counts
    };
    trials::Trials { run: array_sequence_outcome, counts, seeds: 5000 }.main()
}
