//! `bramble lab` where there are no network namespaces: it says so.
//!
//! Place in the flow: in place of `lab`, on systems other than Linux.
//!
//! Invariant: nothing is made.
//!
//! Deliberately absent: a lab by virtual machines.

use crate::args::LabCommand;
use crate::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(_: &LabCommand) -> Result<Exit, Failure> {
    let why = "its machines are network namespaces and control groups, which only Linux has";
    Err(Failure::failed(format!("lab: {why}; use a Linux machine, or a virtual one")))
}

/// Processor time as `--cores` takes it.
pub(crate) fn cores(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "use a number".to_owned())
}
