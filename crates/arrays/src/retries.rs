//! Whether a call runs again after a machine with a part was lost.
//!
//! Place in the flow: a caller runs an operation; if a part is lost, it restores all arrays and runs the operation again.
//!
//! Invariants: a call runs at most `RESTORES_MAX` times. An array that cannot be restored ends only calls that need it: such a
//! call finds the part lost again, and the reason why it could not be restored is its error.

use alloc::string::String;

/// How often a call may run.
const RESTORES_MAX: usize = 16;

/// The runs of one call.
#[derive(Debug, Default)]
pub struct LossRetries {
    runs: usize,
    /// Why some array could not be restored.
    unrestored: Option<String>,
}

/// Why a call does not run again.
#[derive(Debug, PartialEq, Eq)]
pub enum GivesUp {
    /// What it needs could not be restored.
    Unrestored(String),
    /// Machines were lost that often.
    TooOften(usize),
}

impl LossRetries {
    /// A part was found lost: whether all arrays should be restored, and the call run again.
    pub fn again(&mut self) -> Result<(), GivesUp> {
        if let Some(why) = self.unrestored.take() {
            return Err(GivesUp::Unrestored(why));
        }
        self.runs += 1;
        if self.runs < RESTORES_MAX { Ok(()) } else { Err(GivesUp::TooOften(self.runs)) }
    }

    /// Some array could not be restored.
    pub fn unrestored(&mut self, why: String) {
        self.unrestored = Some(why);
    }
}
