//! `bramble lab`: a cluster of network namespaces on this machine, for trying out, testing and measuring.
//!
//! Place in the flow: independent of products. The program parses the options; the verbs create, enter, show and
//! remove labs.
//!
//! Invariant: the host's network is not changed, and only processes inside a lab are ended.
//!
//! Deliberately absent: the verbs that run inside a lab. The program parses and runs them; it tells this crate by a
//! `VerbParser` which machines their options name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
#[cfg_attr(target_os = "linux", path = "linux/mod.rs")]
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod verbs;

pub use args::LabCommand;

use bramble_cluster::args::MachineArgs;
use bramble_report::exit::{Exit, Failure};
use std::ffi::OsString;

/// The verb that `lab run` runs, as the program parses it.
#[derive(Debug)]
pub enum RunVerb {
    /// A verb that uses the lab's machines.
    OnTeam {
        /// Its options that name machines.
        machines: Box<MachineArgs>,
        /// Words that name it, before its options.
        words: usize,
    },
    /// A verb that uses no machines.
    Other,
    /// The parser has printed help or an error; the exit code.
    Answered(Exit),
}

/// Parses a verb and its options.
pub type VerbParser = fn(&[OsString]) -> RunVerb;

/// Runs the verb.
pub fn run(command: &LabCommand, parse: VerbParser) -> Result<Exit, Failure> {
    verbs::run(command, parse)
}
