//! `bramble bench`: measurements of this machine that anyone can repeat with one command.
//!
//! Place in the flow: beside the products; each verb below is a file or a folder; all draw by `chart`.
//!
//! Invariants: whoever is compared takes turns, so that a disturbance hits all alike; medians with their spread, never a
//! single run; what was disturbed is said.
//!
//! Deliberately absent: other programs. What Bramble is compared with is in `bench/*.py`.

mod accumulate;
mod chart;
mod error;
mod kernel;
mod machine;
mod plot;
mod report;
mod show;

use crate::args::BenchCommand;
use crate::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(command: &BenchCommand) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Kernel(args) => kernel::rates(args),
        BenchCommand::Threads(args) => kernel::threads(args),
        BenchCommand::Accumulate(args) => accumulate::run(args),
        BenchCommand::Report(args) => report::run(args),
    }
}
