//! A user's wish to end a run: complete tiles are recorded first, if there is a journal.

use std::cell::Cell;

/// Connects the signal handler with the running product; both are on one event loop.
#[derive(Debug, Default)]
pub struct Stop {
    is_armed: Cell<bool>,
    is_asked: Cell<bool>,
}

impl Stop {
    /// Asks the run to end. False if it has nothing to record: then the caller just drops it.
    pub fn ask(&self) -> bool {
        self.is_asked.set(true);
        self.is_armed.get()
    }

    /// Sets whether the running product could record complete tiles.
    pub fn arm(&self, is_armed: bool) {
        self.is_armed.set(is_armed);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.get()
    }
}
