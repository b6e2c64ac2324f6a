//! The lease of parts: who holds placed matrices and does nothing gives them back when another primary needs the memory.
//!
//! Place in the flow: a connection that holds parts says when it begins and ends to be idle; a request that finds no
//! memory asks here for those that have been idle for longer than the lease. Each is then ended, with its parts; its
//! primary puts them again when it needs them.
//!
//! Invariants: a connection is never asked while it has a product, and never for its own request. Without another
//! request, parts stay for any time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a connection with parts may be idle while another one needs its memory.
pub(crate) const IDLE_LEASE: Duration = Duration::from_secs(10 * 60);

/// Whether a connection that holds parts works, and the request that it end.
#[derive(Debug, Default)]
pub(crate) struct HoldActivity {
    /// Since when it has had no product; `None` while it has one.
    idle_since: Mutex<Option<Instant>>,
    asked: Notify,
}

impl HoldActivity {
    /// Records whether the connection has a product.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = is_idle.then(Instant::now);
    }

    /// Asks the connection to end, if it has been idle for that long; whether it was asked.
    pub(super) fn ask_if_idle(&self, lease: Duration) -> bool {
        let idle_since = *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = idle_since.is_some_and(|since| since.elapsed() >= lease);
        if is_over {
            self.asked.notify_one();
        }
        is_over
    }

    /// Waits until the connection is asked to end.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }
}
