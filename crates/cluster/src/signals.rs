//! The signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed).
//!
//! Place in the flow: every long-running verb waits for these signals concurrently with its work.
//!
//! Invariant: a SIGHUP that was ignored when the process began, as under `nohup`, stays ignored.

use bramble_report::exit::Exit;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives the signals.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP is ignored.
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Installs the handlers.
    pub fn new() -> io::Result<Self> {
        let hang_up = if may_hang_up() { Some(signal(SignalKind::hangup())?) } else { None };
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up })
    }

    /// Waits for the next signal; returns its exit code.
    pub async fn next(&mut self) -> Exit {
        let Self { interrupt, terminate, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Exit::Interrupted,
            _ = terminate.recv() => Exit::Terminated,
            _ = hung_up => Exit::HungUp,
        }
    }
}

/// Whether to handle SIGHUP: only if the process did not inherit it as ignored. If this cannot be determined, as on
/// macOS, SIGHUP is left alone: it ends the process at once, unless it is ignored.
fn may_hang_up() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| !ignores_hang_up(&status))
}

/// Whether a process with this status ignores signal 1, the lowest bit of the mask.
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // If the line cannot be parsed, count SIGHUP as ignored: a handler would break `nohup`.
    mask.is_none_or(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = |mask: &str| format!("Name:\tbramble\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hang_up(&status("0000000000000001")) && ignores_hang_up(&status("0000000000001007")));
        assert!(!ignores_hang_up(&status("0000000000001000")));
        assert!(ignores_hang_up(&status("what")) && ignores_hang_up(""));
    }
}
