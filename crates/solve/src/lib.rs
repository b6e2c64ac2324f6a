//! The verbs `solve` (A X = B), `lu` (P A = L U) and `bench hpl`, on the threads of this machine or on workers, and `plan lu`.
//!
//! Place in the flow: the program opens the matrices that the command line names; `solve` and `factor` here check that they form
//! a system that fits in memory, call the crate `lu`, check the result, and write it.
//!
//! Invariants: memory is checked before any work; a result appears under its name complete or not at all; a solution whose
//! backward error is too large, and factors that do not multiply to the matrix, are not kept.
//!
//! Deliberately absent: anything that computes elements.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod factor_workers;
mod factors;
pub mod hpl;
mod on_workers;
mod planned;
mod refined;
mod report;
mod setup;
mod system;
mod workers;
mod workers_report;
mod write;

pub use args::{LuArgs, SolveArgs};
pub use factors::factor;
pub use planned::{PlanLuArgs, lu_machines, plan_lu};
pub use system::solve;

use bramble_cluster::until::{Completion, done_or_signal};
use bramble_lu::LuError;
use bramble_report::exit::{Exit, Failure};

/// Runs `work` on a thread of its own until it ends or a signal comes. `finish` gets its result on this thread.
fn run<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    finish: impl FnOnce(R) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let waiting = async {
        let (send, receive) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || drop(send.send(work())));
        // The thread's own message has said why.
        let ended = receive
            .await
            .map_err(|_| Failure::failed("a thread ended early; please report this bug of bramble"));
        ended?
    };
    match done_or_signal(waiting)? {
        Completion::Done(result) => finish(result),
        Completion::Signal(exit) => Ok(exit),
    }
}

/// An error of the factorisation as a failure with its exit code.
fn failure(e: LuError) -> Failure {
    match e {
        LuError::Matrix(e) => e.into(),
        other => Failure::failed(other.to_string()),
    }
}
