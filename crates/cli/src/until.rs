//! Runs a verb's work on one event loop until it ends or a signal comes.
//!
//! Invariant: with the signal everything that was begun on the loop is dropped, files and processes with it.

use crate::exit::{Exit, Failure};
use std::future::Future;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

/// How it ended.
pub(crate) enum Ended<T> {
    Done(T),
    Signal(Exit),
}

/// Does the work, which may start tasks of its own.
pub(crate) fn done_or_signal<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<Ended<T>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, first(work));
    // Tasks hold what is unfinished; with them it goes.
    drop(local);
    runtime.shutdown_background();
    result
}

async fn first<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<Ended<T>, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    tokio::select! {
        result = work => Ok(Ended::Done(result?)),
        _ = interrupt.recv() => Ok(Ended::Signal(Exit::Interrupted)),
        _ = terminate.recv() => Ok(Ended::Signal(Exit::Terminated)),
    }
}
