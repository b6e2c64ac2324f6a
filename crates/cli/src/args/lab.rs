//! The options of `bramble lab`.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // Options are understood everywhere, and used on Linux.

use crate::quantity::rate;
use clap::{Args, Subcommand};
use std::ffi::OsString;

/// What labs are called unless told otherwise.
const DEFAULT_NAME: &str = "lab";
/// Longest name of a lab: it is part of the names of namespaces and control groups.
const NAME_BYTES_MAX: usize = 20;

#[derive(Subcommand, Debug)]
pub(crate) enum LabCommand {
    /// Make the machines, start a worker in each, and wait until all listen
    Up(LabUpArgs),
    /// Run multiply, plan or nodes on the lab's primary, with the lab's machines as workers
    Run(LabRunArgs),
    /// Run any command inside one of the machines
    Exec(LabExecArgs),
    /// Show the machines, their limits, and what their workers and links have done
    Status(LabStatusArgs),
    /// End everything that runs in the lab, and remove it
    Down(LabNameArgs),
    /// Becomes a command inside a machine; `lab up` starts workers so.
    #[command(hide = true)]
    Enter(LabExecArgs),
    /// Becomes a command on a host that is called so; for what `lab` itself starts.
    #[command(hide = true)]
    Called(LabCalledArgs),
}

/// Which lab.
#[derive(Args, Debug)]
pub(crate) struct LabNameArgs {
    /// Which lab; several can be there at once
    #[arg(long, value_name = "LAB", default_value = DEFAULT_NAME, value_parser = lab_name)]
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct LabUpArgs {
    /// A description: a path to a TOML file (docs/lab.md), or an example: four, mixed, tiny8, slow-link
    #[arg(value_name = "FILE|NAME", default_value = "four")]
    pub(crate) description: String,
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// Rate of the link of every machine but the primary, as in 200Mbit/s, instead of what the description says
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) link: Option<u64>,
    /// Processor time of every machine but the primary, as in 0.25, instead of what the description says
    #[arg(long, value_name = "X", value_parser = crate::lab::cores)]
    pub(crate) cores: Option<f64>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LabRunArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// A verb of bramble with its options: multiply, plan or nodes
    #[arg(value_name = "VERB", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LabExecArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// In which machine: its name or its address
    #[arg(long, value_name = "MACHINE", default_value = "primary")]
    pub(crate) at: String,
    /// A command with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LabStatusArgs {
    #[command(flatten)]
    pub(crate) lab: LabNameArgs,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LabCalledArgs {
    /// The namespace of names that is not to be changed
    pub(crate) outside: u64,
    /// What the host is called
    pub(crate) host: OsString,
    /// A command with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// No hyphens: what belongs to a lab is called `bramble-LAB-…`, and no lab's beginning may be that of another.
fn lab_name(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    match text.len() {
        1..=NAME_BYTES_MAX if is_plain => Ok(text.to_owned()),
        _ => Err(format!("use small letters, digits and _, {NAME_BYTES_MAX} at most")),
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
