//! Runs a verb's work on one event loop until it ends or a signal comes.
//!
//! Invariant: a signal drops all work on the loop, and with it unfinished files and child processes. Work that can
//! save completed results gets a few seconds to do so; a second signal drops it at once.

use crate::signals::StopSignals;
use bramble_report::exit::{Exit, Failure};
use rustix::io::Errno;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// How long work may take to save completed results.
const DRAINING: Duration = Duration::from_secs(3);

/// Pairs of sockets that are as many descriptors as an event loop takes for itself, with some to spare.
const LOOP_PAIRS: usize = 4;

/// How the work ended.
pub enum Completion<T> {
    /// The result of the work.
    Done(T),
    /// A signal came first; its exit code.
    Signal(Exit),
}

/// Runs the work, which may spawn local tasks, until it ends or a signal comes.
pub fn done_or_signal<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<Completion<T>, Failure> {
    done_or_stopped(work, &|| false)
}

/// The same for work that can save completed results: `stop` asks it to, and returns whether there is anything to
/// save.
pub fn done_or_stopped<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &dyn Fn() -> bool,
) -> Result<Completion<T>, Failure> {
    let runtime = runtime()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, first(work, stop));
    // Dropping the tasks removes the unfinished files that they own.
    drop(local);
    runtime.shutdown_background();
    result
}

/// An event loop on this thread.
pub fn runtime() -> Result<Runtime, Failure> {
    let cannot = |e: io::Error| match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => Failure::failed(format!("cannot start: {e}; allow more of them (ulimit -n)")),
        _ => Failure::failed(format!("cannot start: {e}")),
    };
    // The loop's own part for signals panics where it gets no descriptors, so they are tried before.
    let tried: io::Result<Vec<_>> = (0..LOOP_PAIRS).map(|_| UnixStream::pair()).collect();
    drop(tried.map_err(cannot)?);
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)
}

async fn first<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &dyn Fn() -> bool,
) -> Result<Completion<T>, Failure> {
    let broken = |e: io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut signals = StopSignals::new().map_err(broken)?;
    let mut work = std::pin::pin!(work);
    let exit = tokio::select! {
        result = &mut work => return Ok(Completion::Done(result?)),
        exit = signals.next() => exit,
    };
    if stop() {
        tokio::select! {
            result = &mut work => match result {
                Ok(done) => return Ok(Completion::Done(done)),
                Err(failure) if failure.exit != Exit::Interrupted => return Err(failure),
                Err(_) => {}
            },
            () = tokio::time::sleep(DRAINING) => {}
            _ = signals.next() => {}
        }
    }
    Ok(Completion::Signal(exit))
}
