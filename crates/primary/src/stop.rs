//! A user who wants to end: what is complete is kept first, where that can be.

use std::cell::Cell;

/// Between who hears the signal and who carries out the product, both on one event loop.
#[derive(Debug, Default)]
pub struct Stop {
    is_armed: Cell<bool>,
    is_asked: Cell<bool>,
}

impl Stop {
    /// Asks the product to end. False where there is nothing that it could keep: then it is just dropped.
    pub fn ask(&self) -> bool {
        self.is_asked.set(true);
        self.is_armed.get()
    }

    /// Says whether a product is running that can keep what is complete.
    pub fn arm(&self, is_armed: bool) {
        self.is_armed.set(is_armed);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.get()
    }
}
