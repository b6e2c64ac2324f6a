//! The lease of parts: an idle primary gives up its placed matrices when another primary needs the memory.
//!
//! Place in the flow: a connection that holds parts reports when it becomes idle and when a product begins. A request that
//! finds too little memory asks idle connections to end, if their lease is over. Such a connection ends with its parts; its
//! primary puts them again at its next product.
//!
//! Invariants: a connection with a product is never asked, and no connection is asked for its own request. Without another
//! request, parts stay for any time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a connection with parts may be idle while another one needs its memory.
pub(crate) const IDLE_LEASE: Duration = Duration::from_secs(10 * 60);

/// The activity of a connection that holds parts, and the request that it end.
#[derive(Debug, Default)]
pub(crate) struct HoldActivity {
    state: Mutex<ActivityState>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct ActivityState {
    /// When the last product ended; `None` during a product.
    idle_since: Option<Instant>,
    /// Whether another request wants the memory. Forgotten when a product begins.
    is_asked: bool,
}

impl HoldActivity {
    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of a product, or the beginning of one.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        *self.state() = ActivityState { idle_since: is_idle.then(Instant::now), is_asked: false };
    }

    /// Asks the connection to end, if it has been idle for that long; whether it was asked.
    pub(super) fn ask_if_idle(&self, lease: Duration) -> bool {
        let mut state = self.state();
        let is_over = state.idle_since.is_some_and(|since| since.elapsed() >= lease);
        if is_over {
            state.is_asked = true;
            self.asked.notify_one();
        }
        is_over
    }

    /// Waits until the idle connection is asked to end.
    pub(crate) async fn asked(&self) {
        while !self.state().is_asked {
            self.asked.notified().await;
        }
    }
}
