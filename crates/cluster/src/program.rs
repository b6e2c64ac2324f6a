//! The command that runs this program again: as a local worker, as the worker of a lab machine, as the child of a benchmark.
//!
//! Place in the flow: everything that starts processes of this program asks here. A host process that is another program (a
//! Python interpreter that has loaded Bramble as a module) states its command once, before it runs anything.
//!
//! Invariant: the command is stated at most once in a process.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

static STATED: OnceLock<Vec<OsString>> = OnceLock::new();

/// States the words that run this program, if its file alone does not. Later calls change nothing.
pub fn run_as(words: Vec<OsString>) {
    // A host process states the same words each time.
    let _ = STATED.set(words);
}

/// The words that run this program; an error if its file is gone.
pub fn words() -> io::Result<Vec<OsString>> {
    match STATED.get() {
        Some(words) => Ok(words.clone()),
        None => Ok(vec![std::env::current_exe()?.into_os_string()]),
    }
}

/// The command that runs this program, still without arguments.
pub fn command() -> io::Result<Command> {
    let mut words = words()?.into_iter();
    let program = words.next().ok_or_else(|| io::Error::other("no command runs this program"))?;
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}
