//! `bramble lab` on systems without network namespaces: an error.
//!
//! Place in the flow: replaces `lab` where the system is not Linux.
//!
//! Invariant: nothing is created.
//!
//! Deliberately absent: a lab of virtual machines.

use crate::{LabCommand, VerbParser};
use bramble_report::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(_: &LabCommand, _: VerbParser) -> Result<Exit, Failure> {
    let why = "its machines are network namespaces and control groups, which only Linux has";
    Err(Failure::failed(format!("lab: {why}; use a Linux machine, or a virtual one")))
}

/// Parses `--cores`.
pub(crate) fn cores(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "use a number".to_owned())
}
