//! The verbs of a lab on Linux: network namespaces with control groups.
//!
//! Place in the flow: independent of the other verbs. `file` reads the description, `up` creates the lab by `network`
//! and `limits`, `state` records it on disk, `enter` runs commands in it, `status` shows it, `down` removes it.
//!
//! Invariants: the list of everything to create is on disk before creation starts, and every name contains the lab's
//! name, so `down` finds everything after a crash at any moment. The host's network is not changed: the bridge is in
//! a separate namespace without a connection to the outside. Only processes inside the lab are ended.
//!
//! Deliberately absent: packet loss and delay, other disks, other processors; a machine of a lab is this machine,
//! slowed down.

mod down;
mod enter;
mod file;
mod limits;
mod network;
mod process;
mod run;
mod state;
mod status;
mod tool;
mod up;

use crate::{LabCommand, VerbParser};
use bramble_report::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(command: &LabCommand, parse: VerbParser) -> Result<Exit, Failure> {
    only_root(command)?;
    match command {
        LabCommand::Up(args) => up::run(args),
        LabCommand::Run(args) => run::run(args, parse),
        LabCommand::Exec(args) => enter::exec(args),
        LabCommand::Status(args) => status::run(args),
        LabCommand::Down(args) => down::run(args),
        LabCommand::Enter(args) => enter::start(args),
        LabCommand::Called(args) => enter::called(args),
    }
}

/// Only root can create namespaces and control groups.
fn only_root(command: &LabCommand) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let verb = match command {
        LabCommand::Up(_) => "up",
        LabCommand::Run(_) => "run",
        LabCommand::Exec(_) | LabCommand::Enter(_) | LabCommand::Called(_) => "exec",
        LabCommand::Status(_) => "status",
        LabCommand::Down(_) => "down",
    };
    let why = "only root may create and enter network namespaces and control groups";
    Err(Failure::failed(format!("lab {verb}: {why}; use sudo bramble lab {verb}")))
}

/// Parses `--cores`.
pub(crate) fn cores(text: &str) -> Result<f64, String> {
    let (least, most) = file::CORES;
    let cores = text.parse::<f64>().ok().filter(|cores| (least..=most).contains(cores));
    cores.ok_or_else(|| format!("use a number from {least} to {most}"))
}
