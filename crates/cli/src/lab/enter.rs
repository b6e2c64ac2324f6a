//! Becoming a command inside a machine: `lab exec`, and what `up` and `run` start.
//!
//! Invariants: the process stays the same from the first step to the last, so that terminal, signals and exit code are the
//! command's own. The network comes first: whoever is in a machine's namespace is found by `down`.
//! The last step is a host's name of the machine's own, without which programs such as MPI take all machines for one.
//!
//! Deliberately absent: other files. Paths are the host's.

use super::limits;
use super::network;
use super::state::{Folder, Lab, Machine};
use crate::args::{LabCalledArgs, LabExecArgs};
use crate::exit::{Exit, Failure};
use crate::key;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The machines of `multiply` and others.
pub(super) const HOSTS_VARIABLE: &str = "BRAMBLE_HOSTS";
/// Compute threads of this machine.
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

/// What `up` starts: the beginning of a process that outlives it. Its standard input is the lab's lock until it has entered.
pub(super) fn start(args: &LabExecArgs) -> Result<Exit, Failure> {
    rustix::process::setsid().map_err(|e| Failure::failed(format!("no session of its own: {e}")))?;
    let lab = Folder::of_maker(&args.lab.name)?;
    let machine = machine(&lab, &args.at)?;
    enter(machine)?;
    let mut command = becoming(machine, &args.command)?;
    command.stdin(Stdio::null()).current_dir("/");
    Err(become_it(command))
}

/// The last step, within a namespace of names. The host's own name is never changed.
pub(super) fn called(args: &LabCalledArgs) -> Result<Exit, Failure> {
    if names_here()? == args.outside {
        return Err(Failure::failed(
            "this host keeps its name: there is no namespace of names of a machine's own",
        ));
    }
    rustix::system::sethostname(args.host.as_encoded_bytes())
        .map_err(|e| Failure::failed(format!("the host cannot be called {}: {e}", args.host.display())))?;
    let [program, words @ ..] = args.command.as_slice() else {
        return Err(Failure::usage("lab exec: which command?"));
    };
    let e = Command::new(program).args(words).exec();
    Err(Failure::failed(format!("{}: cannot be run: {e}", program.display())))
}

/// The machine that the user names.
fn machine<'a>(lab: &'a Lab, name: &str) -> Result<&'a Machine, Failure> {
    lab.machine(name).ok_or_else(|| {
        let (lab_name, names) = (&lab.name, lab.names());
        Failure::usage(format!(
            "--at {name}: no machine of lab {lab_name}; its machines are primary, {names}"
        ))
    })
}

/// Moves this process, which has one thread, into a machine.
pub(super) fn enter(machine: &Machine) -> Result<(), Failure> {
    network::enter(&machine.namespace)?;
    limits::join(&machine.groups)
}

/// The command, with the name of the machine.
pub(super) fn becoming(machine: &Machine, words: &[impl AsRef<OsStr>]) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::failed(format!("this program's file cannot be found: {e}")))?;
    let mut command = Command::new("unshare");
    let outside = names_here()?.to_string();
    command.args(["--uts", "--"]).arg(program).args(["lab", "called", &outside, &machine.name, "--"]);
    command.args(words);
    Ok(command)
}

/// The number of the namespace of names that this process is in.
fn names_here() -> Result<u64, Failure> {
    let wrong = |e| Failure::failed(format!("this kernel has no namespaces of names (CONFIG_UTS_NS): {e}"));
    Ok(std::fs::metadata("/proc/self/ns/uts").map_err(wrong)?.ino())
}

/// What commands of the primary find: its workers, and the lab's key instead of the user's.
pub(super) fn set_environment(command: &mut Command, folder: &Folder, lab: &Lab) {
    command.env_remove(key::TEXT_VARIABLE).env_remove(key::FILE_VARIABLE);
    if lab.key {
        command.env(key::FILE_VARIABLE, folder.key());
    }
    let hosts: Vec<String> = lab.workers().iter().map(Machine::endpoint).collect();
    command.env(HOSTS_VARIABLE, hosts.join(","));
    if let (Some(threads), None) = (lab.primary().limits.threads, std::env::var_os(THREADS_VARIABLE)) {
        command.env(THREADS_VARIABLE, threads.to_string());
    }
}

/// Gives this process to the command; gives the reason if that cannot be.
pub(super) fn become_it(mut command: Command) -> Failure {
    let e = command.exec();
    Failure::failed(format!("unshare: cannot be run: {e}; install util-linux"))
}
