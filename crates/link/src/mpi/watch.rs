//! A deadline for a call of the library that waits for other ranks.
//!
//! Place in the flow: around entering and ending MPI, and around ending the job. Those calls wait for every rank, for ever for
//! one that is stopped, and no call of the library can end them. So a second thread waits for the deadline, and then ends this
//! process; the launcher (mpirun) then ends the other ranks.
//!
//! Invariant: once the watch is dropped, nothing is done any more, unless it has begun.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// Runs to the deadline, or until it is dropped.
pub(super) struct Watch(Option<Sender<()>>);

impl Watch {
    /// Calls `late` on another thread when `patience` is over. Where there can be no thread, there is no deadline.
    pub(super) fn start(patience: Duration, late: impl FnOnce() + Send + 'static) -> Self {
        let (over, is_over) = channel::<()>();
        let watch = move || {
            if is_over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                late();
            }
        };
        Self(Builder::new().name("mpi deadline".to_owned()).spawn(watch).is_ok().then_some(over))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The channel is closed with its sender, which ends the thread.
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_come_back_is_seen() {
        let (tell, told) = channel();
        let _watch = Watch::start(Duration::from_millis(1), move || tell.send(()).unwrap_or_default());
        // However long it takes until the thread has its turn.
        assert_eq!(told.recv(), Ok(()));
    }

    #[test]
    fn a_call_that_comes_back_is_not() {
        let (tell, told) = channel();
        drop(Watch::start(Duration::MAX, move || tell.send(()).unwrap_or_default()));
        // The thread ends and drops its closure, and with it the sender.
        assert!(told.recv().is_err());
    }
}
