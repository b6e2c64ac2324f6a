//! Runs a command inside a machine of a lab: `lab exec`, and the processes that `up` and `run` start.
//!
//! Invariants: the process itself becomes the command (exec), so terminal, signals and exit code are those of the
//! command. It enters the network namespace first, so that `down` finds it from then on. The last step sets the
//! machine's own host name, without which programs such as MPI take all machines for the same one.
//!
//! Deliberately absent: a separate file system. Paths are those of the host.

use super::limits;
use super::network;
use super::state::{Folder, Lab, LabMachine};
use crate::args::{LabCalledArgs, LabExecArgs};
use bramble_cluster::key;
use bramble_cluster::program;
use bramble_report::exit::{Exit, Failure};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Environment variable with the list of workers.
pub(super) const HOSTS_VARIABLE: &str = "BRAMBLE_HOSTS";
/// Environment variable with the number of compute threads.
const THREADS_VARIABLE: &str = "BRAMBLE_THREADS";

/// `lab exec`.
pub(super) fn exec(args: &LabExecArgs) -> Result<Exit, Failure> {
    let (folder, lab) = Folder::to_enter(&args.lab.name)?;
    let machine = machine(&lab, &args.at)?;
    enter(machine)?;
    let mut command = becoming(machine, &args.command)?;
    set_environment(&mut command, &folder, &lab);
    Err(become_it(command))
}

/// The entry point of workers that `up` starts and that outlive it. Standard input is the lab's lock until the
/// process is inside.
pub(super) fn start(args: &LabExecArgs) -> Result<Exit, Failure> {
    rustix::process::setsid().map_err(|e| Failure::failed(format!("no session of its own: {e}")))?;
    let lab = Folder::of_maker(&args.lab.name)?;
    let machine = machine(&lab, &args.at)?;
    enter(machine)?;
    let mut command = becoming(machine, &args.command)?;
    command.stdin(Stdio::null()).current_dir("/");
    Err(become_it(command))
}

/// The last step, inside a new UTS namespace: sets the host name and runs the command. The host's own name is never
/// changed.
pub(super) fn called(args: &LabCalledArgs) -> Result<Exit, Failure> {
    if names_here()? == args.outside {
        return Err(Failure::failed(
            "refused: this process is in the host's own UTS namespace, and would rename the host",
        ));
    }
    rustix::system::sethostname(args.host.as_encoded_bytes())
        .map_err(|e| Failure::failed(format!("the host name {} cannot be set: {e}", args.host.display())))?;
    let [program, words @ ..] = args.command.as_slice() else {
        return Err(Failure::usage("lab exec: no command; name one"));
    };
    let e = Command::new(program).args(words).exec();
    Err(Failure::failed(format!("{}: cannot be run: {e}", program.display())))
}

/// The machine with the user's name for it.
fn machine<'a>(lab: &'a Lab, name: &str) -> Result<&'a LabMachine, Failure> {
    lab.machine(name).ok_or_else(|| {
        let (lab_name, names) = (&lab.name, lab.names());
        Failure::usage(format!(
            "--at {name}: no machine of lab {lab_name}; its machines are primary, {names}"
        ))
    })
}

/// Moves this single-threaded process into a machine.
pub(super) fn enter(machine: &LabMachine) -> Result<(), Failure> {
    network::enter(&machine.namespace)?;
    limits::join(&machine.groups)
}

/// The command that sets the machine's host name and then runs `words`.
pub(super) fn becoming(machine: &LabMachine, words: &[impl AsRef<OsStr>]) -> Result<Command, Failure> {
    let program =
        program::words().map_err(|e| Failure::failed(format!("this program's file cannot be found: {e}")))?;
    let mut command = Command::new("unshare");
    let outside = names_here()?.to_string();
    command.args(["--uts", "--"]).args(program).args(["lab", "called", &outside, &machine.name, "--"]);
    command.args(words);
    Ok(command)
}

/// The id of this process's UTS namespace.
fn names_here() -> Result<u64, Failure> {
    let wrong = |e| Failure::failed(format!("this kernel has no UTS namespaces (CONFIG_UTS_NS): {e}"));
    Ok(std::fs::metadata("/proc/self/ns/uts").map_err(wrong)?.ino())
}

/// The environment of commands on the primary: the workers, and the lab's key instead of the user's.
pub(super) fn set_environment(command: &mut Command, folder: &Folder, lab: &Lab) {
    command.env_remove(key::TEXT_VARIABLE).env_remove(key::FILE_VARIABLE);
    if lab.key {
        command.env(key::FILE_VARIABLE, folder.key());
    }
    let hosts: Vec<String> = lab.workers().iter().map(LabMachine::endpoint).collect();
    command.env(HOSTS_VARIABLE, hosts.join(","));
    if let (Some(threads), None) = (lab.primary().limits.threads, std::env::var_os(THREADS_VARIABLE)) {
        command.env(THREADS_VARIABLE, threads.to_string());
    }
}

/// Replaces this process by the command; returns only on failure.
pub(super) fn become_it(mut command: Command) -> Failure {
    let e = command.exec();
    Failure::failed(format!("unshare: cannot be run: {e}; install util-linux"))
}
