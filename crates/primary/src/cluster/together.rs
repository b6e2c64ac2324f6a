//! Machines that are done wait for the others, and hear from this process meanwhile.
//!
//! Place in the flow: parts of one put travel at once; a machine with a small part, or with none, has nothing to do for as long
//! as the slowest link needs.
//!
//! Invariant: a machine that waits hears from the primary every `PING_AFTER`: it gives up a primary that is silent.

use crate::measure::ping;
use crate::opening::{LostConnection, Session};
use bramble_wire::limits::{PING_AFTER, SILENCE_MAX};
use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// Machines with something to do. All of them are on one event loop.
pub(super) struct Together {
    busy: Cell<usize>,
    over: Notify,
}

impl Together {
    /// That many machines have something to do.
    pub(super) fn of(busy: usize) -> Rc<Self> {
        Rc::new(Self { busy: Cell::new(busy), over: Notify::new() })
    }

    /// One of them is done, or lost.
    pub(super) fn done(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
        if self.busy.get() == 0 {
            self.over.notify_waiters();
        }
    }

    /// Pings a machine until all are done; or why it is lost.
    pub(super) async fn wait(&self, mut session: Session) -> Result<Session, LostConnection> {
        while self.busy.get() > 0 {
            tokio::select! {
                biased;
                () = self.over.notified() => return Ok(session),
                () = tokio::time::sleep(PING_AFTER) => {}
            }
            if session.link.shares_memory {
                continue;
            }
            let why = match tokio::time::timeout(SILENCE_MAX, ping(&mut session.link, 0, 0)).await {
                Ok(Ok(_)) => continue,
                Ok(Err(why)) => why,
                Err(_) => format!("it has been silent for {} s", SILENCE_MAX.as_secs()),
            };
            return Err(LostConnection { name: session.name, why });
        }
        Ok(session)
    }
}
