//! The command that starts the processes of MPI, on this machine or on several.
//!
//! Place in the flow: `mod.rs` says how many processes of how many threads; this file starts them, and waits.
//!
//! Invariants: the command runs in the user's folder, so that its words may name files there; each process goes to the folder
//! of the input where that exists, which only the first one needs. The number of threads is part of the command line, since not
//! every launcher hands on variables. The launcher gets SIGTERM when the verb ends early, and ends its processes.
//!
//! Deliberately absent: which machines there are. The user's own host file or queue says that.

use super::files::{OfficialProgram, folder_of};
use super::layout::ProcessGrid;
use bramble_report::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// What each process runs: it goes to the folder of the input if it has that, and looks for the program also where this
/// machine has it.
const START: &str = r#"cd "$0" 2>/dev/null; PATH="$PATH:$1"; shift; exec "$@""#;

/// Variables that say how many threads a process has, for the usual libraries.
const THREADS: [&str; 4] = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS"];

/// The command, and the program that it starts.
#[derive(Debug)]
pub(super) struct MpiLauncher {
    words: Vec<String>,
    pub(super) program: OfficialProgram,
    /// The folder of the program on this machine.
    folder: PathBuf,
}

impl MpiLauncher {
    /// The launcher of this command, by default `mpirun`. Errors name the program or command that is missing.
    pub(super) fn find(command: Option<&str>) -> Result<Self, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let Some((program, folder)) = OfficialProgram::found(&path) else {
            return Err(Failure::failed(
                "--official: neither xhpl nor hpcc is on the path; install hpcc with 'sudo apt install hpcc' (Debian, Ubuntu, \
                 Raspberry Pi OS), or add the folder of xhpl to PATH",
            ));
        };
        let words: Vec<String> = command.unwrap_or("mpirun").split_whitespace().map(str::to_owned).collect();
        let Some(first) = words.first() else {
            return Err(Failure::usage(
                "--launcher: names no command; use one such as 'mpirun --hostfile hosts'",
            ));
        };
        let is_there =
            if first.contains('/') { Path::new(first).is_file() } else { folder_of(&path, first).is_some() };
        match (is_there, command) {
            (true, _) => Ok(Self { words, program, folder }),
            (false, None) => Err(Failure::failed(format!(
                "--official: {} needs mpirun, which is not on the path",
                program.name()
            ))),
            (false, Some(_)) => Err(Failure::failed(format!(
                "--launcher: there is no command '{first}' on the path; install it, or name it with its folder"
            ))),
        }
    }

    /// Runs the program, with its input in that folder. An error is a line of its output.
    pub(super) async fn run(&self, folder: &Path, layout: ProcessGrid) -> Result<(), String> {
        let first = self.words.first().map_or("", String::as_str);
        let mut command = Command::new(first);
        command.args(&self.words[1..]).args(["-n", &layout.processes().to_string(), "sh", "-c", START]);
        command.arg(folder).arg(&self.folder).arg("env");
        command.args(THREADS.map(|variable| format!("{variable}={}", layout.threads)));
        command.arg(self.program.name());
        // Open MPI binds each process to one core, and refuses root, unless it is told otherwise; others ignore these.
        command
            .env("OMPI_MCA_hwloc_base_binding_policy", "none")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        if layout.is_one_each {
            // Otherwise Open MPI would fill the first machine before the second, up to version 4 and from version 5 on.
            command.env("OMPI_MCA_rmaps_base_mapping_policy", "node");
            command.env("PRTE_MCA_rmaps_default_mapping_policy", "node");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| format!("{first}: {e}"))?;
        let mut running = Running(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        let done = child.wait_with_output().await.map_err(|e| format!("{first}: {e}"))?;
        running.0 = None;
        if done.status.success() {
            return Ok(());
        }
        let said = [done.stderr, done.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Err(format!("{} ({})", reason(&said), done.status))
    }
}

/// Sends SIGTERM to the launcher when it is dropped before the program has ended.
struct Running(Option<Pid>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // An error means that it has just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// The line that says why the program failed: HPL marks it with `>>>`; else the last one that has a letter, since Open MPI
/// frames its own in dashes.
fn reason(said: &[String; 2]) -> String {
    let lines = || said.iter().flat_map(|text| text.lines().map(str::trim));
    let marked = lines().find(|line| line.starts_with(">>>"));
    let has_letter = |line: &&str| line.contains(char::is_alphabetic);
    let last = || said.iter().find_map(|text| text.lines().map(str::trim).rfind(has_letter));
    marked.or_else(last).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_hpls_own_line_or_the_last_with_a_letter() {
        let said = |err: &str, out: &str| reason(&[err.to_owned(), out.to_owned()]);
        assert_eq!(said("no BLAS\n", ""), "no BLAS");
        assert_eq!(said("----\nmpirun: exit code 1\n----\n", "rows"), "mpirun: exit code 1");
        assert_eq!(
            said("HPL ERROR\n>>> cannot open file HPL.dat <<<\nmpirun: gone\n---", ""),
            ">>> cannot open file HPL.dat <<<"
        );
        assert_eq!(said("", " last \n\n"), "last");
        assert_eq!(said("", ""), "it said nothing");
    }
}
