//! Runs a verb's work on one event loop until it ends or a signal comes.
//!
//! Invariant: with the signal everything that was begun on the loop is dropped, files and processes with it. Work that can
//! keep what is done has a few seconds for that; a second signal drops it at once.

use crate::exit::{Exit, Failure};
use crate::signals::Signals;
use std::future::Future;
use std::time::Duration;
use tokio::task::LocalSet;

/// How long work may take to keep what is done.
const DRAINING: Duration = Duration::from_secs(3);

/// How it ended.
pub(crate) enum Ended<T> {
    Done(T),
    Signal(Exit),
}

/// Does the work, which may start tasks of its own.
pub(crate) fn done_or_signal<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<Ended<T>, Failure> {
    done_or_stopped(work, &|| false)
}

/// The same for work that can keep what is done: `stop` asks it to, and says whether there is anything to be kept.
pub(crate) fn done_or_stopped<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &dyn Fn() -> bool,
) -> Result<Ended<T>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, first(work, stop));
    // Tasks hold what is unfinished; with them it goes.
    drop(local);
    runtime.shutdown_background();
    result
}

async fn first<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &dyn Fn() -> bool,
) -> Result<Ended<T>, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new().map_err(broken)?;
    let mut work = std::pin::pin!(work);
    let exit = tokio::select! {
        result = &mut work => return Ok(Ended::Done(result?)),
        exit = signals.next() => exit,
    };
    if stop() {
        tokio::select! {
            result = &mut work => match result {
                Ok(done) => return Ok(Ended::Done(done)),
                Err(failure) if failure.exit != Exit::Interrupted => return Err(failure),
                Err(_) => {}
            },
            () = tokio::time::sleep(DRAINING) => {}
            _ = signals.next() => {}
        }
    }
    Ok(Ended::Signal(exit))
}
