//! The options of `bramble lab`.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // Options are parsed everywhere, but used only on Linux.

use bramble_report::quantity::rate;
use clap::{Args, Subcommand};
use std::ffi::OsString;

/// Default name of a lab.
const DEFAULT_NAME: &str = "lab";
/// Longest name of a lab, which is part of the names of namespaces and control groups.
const NAME_BYTES_MAX: usize = 20;

#[derive(Subcommand, Debug)]
#[allow(missing_docs)] // A comment here would become the help text of the verb.
pub enum LabCommand {
    /// Create the machines, start a worker in each, and wait until all listen
    Up(LabUpArgs),
    /// Run multiply, batch, solve, lu, bench hpl, plan or nodes on the lab's primary, with the lab's machines as workers
    Run(LabRunArgs),
    /// Run any command inside one of the machines
    Exec(LabExecArgs),
    /// Show the machines, their limits, and the activity of workers and links
    Status(LabStatusArgs),
    /// End all processes in the lab, and remove it
    Down(LabNameArgs),
    /// Runs a command inside a machine; `lab up` starts workers with it.
    #[command(hide = true)]
    Enter(LabExecArgs),
    /// Sets the host name and runs a command; only `lab` itself uses it.
    #[command(hide = true)]
    Called(LabCalledArgs),
}

/// Which lab.
#[derive(Args, Debug)]
pub struct LabNameArgs {
    /// Name of the lab; several labs can exist at once
    #[arg(long, value_name = "LAB", default_value = DEFAULT_NAME, value_parser = lab_name)]
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub struct LabUpArgs {
    /// A description: a path to a TOML file (docs/lab.md), or an example: four, mixed, tiny8, slow-link
    #[arg(value_name = "FILE|NAME", default_value = "four")]
    pub(crate) description: String,
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// Rate of the links of all machines but the primary, such as 200Mbit/s; overrides the description
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) link: Option<u64>,
    /// Processor time of all machines but the primary, such as 0.25; overrides the description
    #[arg(long, value_name = "X", value_parser = crate::verbs::cores)]
    pub(crate) cores: Option<f64>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub struct LabRunArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// Compute on the primary alone, within its limits, without the lab's workers
    #[arg(long)]
    pub(crate) alone: bool,
    /// A verb of bramble with its options: multiply, batch, solve, lu, bench hpl, plan or nodes
    #[arg(value_name = "VERB", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct LabExecArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// The machine, by name or address
    #[arg(long, value_name = "MACHINE", default_value = "primary")]
    pub(crate) at: String,
    /// A command with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct LabStatusArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub struct LabCalledArgs {
    /// Id of the host's own UTS namespace, which must not be changed
    pub(crate) outside: u64,
    /// The host name to set
    pub(crate) host: OsString,
    /// A command with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Parses the name of a lab. Hyphens are refused: objects of a lab are named `bramble-LAB-…`, and no lab's prefix may
/// match objects of another lab.
fn lab_name(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    match text.len() {
        1..=NAME_BYTES_MAX if is_plain => Ok(text.to_owned()),
        _ => Err(format!("use at most {NAME_BYTES_MAX} lower-case letters, digits and _")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labs_are_part_of_no_path_and_of_no_other_lab_s() {
        assert_eq!(lab_name("ci_2"), Ok("ci_2".to_owned()));
        for bad in ["", "a-b", "..", "a/b", "A", "a b", "a\n", "abcdefghijklmnopqrstu"] {
            assert!(lab_name(bad).is_err(), "{bad:?}");
        }
    }
}
