//! Processes, identified by id and start time, since ids are reused.
//!
//! Invariant: a signal is sent through a pidfd of exactly the identified process, never to a bare id.

use bramble_report::exit::Failure;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes that have not ended after this time are killed.
const END_DEADLINE: Duration = Duration::from_secs(3);
/// Time limit for killed processes to end.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(10);

/// A process, identified uniquely until reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Start time, in clock ticks since boot.
    started: u64,
}

/// The fields of a process's `stat` file that are used.
struct Stat {
    is_over: bool,
    started: u64,
    cpu_ticks: u64,
}

impl Process {
    /// The running process with this id; a zombie counts as ended.
    pub(super) fn of(pid: i32) -> Option<Self> {
        let stat = stat(pid)?;
        (!stat.is_over).then_some(Self { pid, started: stat.started })
    }

    /// This process.
    pub(super) fn own() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    pub(super) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Processor seconds of all its threads; `None` if it has ended.
    pub(super) fn cpu_s(self) -> Option<f64> {
        let stat = stat(self.pid).filter(|stat| stat.started == self.started && !stat.is_over)?;
        Some(stat.cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Sends a signal, if the process still runs.
    fn signal(self, signal: Signal) -> Result<(), Failure> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            // The pidfd belongs to the process that has the id now: check after opening it that this is still the
            // same process.
            Ok(handle) if self.is_alive() => pidfd_send_signal(&handle, signal),
            Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(e),
        };
        match sent {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(Failure::failed(format!("process {}: cannot be ended: {e}", self.pid))),
        }
    }
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name is in parentheses and may contain any character; the state is the next field.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        is_over: matches!(*fields.first()?, "Z" | "X" | "x"),
        started: number(19)?,
        cpu_ticks: number(11)? + number(12)?,
    })
}

/// All processes in these network namespaces.
pub(super) fn inside(namespaces: &[impl AsRef<Path>]) -> BTreeSet<Process> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let known: BTreeSet<(u64, u64)> = namespaces.iter().filter_map(|path| identity(path.as_ref())).collect();
    let mut found = BTreeSet::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(process) = Process::of(pid) else { continue };
        if identity(&entry.path().join("ns/net")).is_some_and(|own| known.contains(&own)) {
            found.insert(process);
        }
    }
    found
}

/// Ends all processes that `find` returns, repeatedly until there are none: first with SIGTERM, later with SIGKILL.
pub(super) fn end_all(find: impl Fn() -> BTreeSet<Process>) -> Result<(), Failure> {
    for (signal, deadline) in [(Signal::TERM, END_DEADLINE), (Signal::KILL, KILL_DEADLINE)] {
        let until = Instant::now() + deadline;
        let mut told = BTreeSet::new();
        loop {
            let left = find();
            if left.is_empty() {
                return Ok(());
            }
            for process in left.iter().filter(|p| !told.contains(*p)) {
                process.signal(signal)?;
            }
            told.extend(left);
            if Instant::now() > until {
                break;
            }
            std::thread::sleep(SOON);
        }
    }
    let left: Vec<String> = find().iter().map(|p| p.pid.to_string()).collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!("processes {} do not end, although killed", left.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_one_with_its_id_but_another_start_is_not() {
        let own = Process::own().unwrap();
        assert!(own.is_alive() && own.cpu_s().is_some());
        let other = Process { started: own.started + 1, ..own };
        assert!(!other.is_alive() && other.cpu_s().is_none());
        // The test process itself is not ended.
        other.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn names_with_brackets_and_blanks_do_not_move_the_fields() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 1234 99\n";
        let stat = parse_stat(text).unwrap();
        assert!(!stat.is_over && stat.started == 1234 && stat.cpu_ticks == 110);
        assert!(parse_stat(&text.replace(") S", ") Z")).unwrap().is_over);
        assert!(parse_stat("").is_none() && parse_stat("7 (a) S 1").is_none());
    }

    #[test]
    fn processes_in_a_namespace_are_found() {
        let own = Process::own().unwrap();
        assert!(inside(&["/proc/self/ns/net"]).contains(&own));
        assert!(inside(&["/proc/self/ns/uts", "/nonexistent"]).is_empty());
    }

    #[test]
    fn processes_that_ignore_sigterm_are_killed() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "trap '' TERM; exec sleep 60"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::of(pid).unwrap();
        end_all(|| [process].into_iter().filter(|p| p.is_alive()).collect()).unwrap();
        assert!(!process.is_alive());
        child.wait().unwrap();
    }
}
