//! A deadline for a call of the library that waits for other ranks.
//!
//! Place in the flow: around entering and leaving MPI, and around aborting the job. Those calls wait for every
//! rank, for ever if one is stopped, and no MPI function can end them. So a second thread waits for the deadline
//! and then ends this process; the launcher (mpirun) ends the other ranks.
//!
//! Invariant: after the watch is dropped, the handler does not start.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// Runs until the deadline, or until it is dropped.
pub(super) struct DeadlineWatch(Option<Sender<()>>);

impl DeadlineWatch {
    /// Calls `late` on another thread after `patience`. If no thread can be started, there is no deadline.
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

impl Drop for DeadlineWatch {
    fn drop(&mut self) {
        // Dropping the sender closes the channel, which ends the thread.
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_come_back_is_seen() {
        let (tell, told) = channel();
        let _watch =
            DeadlineWatch::start(Duration::from_millis(1), move || tell.send(()).unwrap_or_default());
        // However late the thread is scheduled.
        assert_eq!(told.recv(), Ok(()));
    }

    #[test]
    fn a_call_that_comes_back_is_not() {
        let (tell, told) = channel();
        drop(DeadlineWatch::start(Duration::MAX, move || tell.send(()).unwrap_or_default()));
        // The thread ends and drops its closure, and with it the sender.
        assert!(told.recv().is_err());
    }
}
