//! `bramble lab`: a cluster of network namespaces on this machine, to try a cluster before there is one, to test with,
//! and to measure on.
//!
//! Place in the flow: beside the other verbs. `file` says what is to be made, `up` makes it by `network` and `limits`, `state`
//! remembers it, `enter` runs commands in it, `status` looks at it, `down` removes it.
//!
//! Invariants: what is going to be made is on disk before any of it is made, and everything has the lab's name in its own,
//! so that `down` finds all of it after a crash at any moment. Nothing of the host's network is touched: the bridge is in a
//! namespace of its own, which has no way out. No process is ended but those that are inside the lab.
//!
//! Deliberately absent: loss and delay of packets, other disks, other processors; a machine of a lab is this machine, slower.

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

use crate::args::LabCommand;
use crate::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(command: &LabCommand) -> Result<Exit, Failure> {
    only_root(command)?;
    match command {
        LabCommand::Up(args) => up::run(args),
        LabCommand::Run(args) => run::run(args),
        LabCommand::Exec(args) => enter::exec(args),
        LabCommand::Status(args) => status::run(args),
        LabCommand::Down(args) => down::run(args),
        LabCommand::Enter(args) => enter::start(args),
        LabCommand::Called(args) => enter::called(args),
    }
}

/// Namespaces and control groups are root's.
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
    let why = "only root may make and enter network namespaces and control groups";
    Err(Failure::failed(format!("lab {verb}: {why}; use sudo bramble lab {verb}")))
}

/// Processor time as `--cores` takes it.
pub(crate) fn cores(text: &str) -> Result<f64, String> {
    let (least, most) = file::CORES;
    let cores = text.parse::<f64>().ok().filter(|cores| (least..=most).contains(cores));
    cores.ok_or_else(|| format!("use a number from {least} to {most}"))
}
