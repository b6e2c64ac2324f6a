//! The causes that a failed call may have: something in the world must explain each failure.
//!
//! Place in the flow: `client.rs` asks when a call has failed.
//!
//! Invariant: a failure without a cause is a violation.
//!
//! Deliberately absent: the reverse, calls that should have failed: their results are compared with the model.

use super::calls::ArrayCall;
use super::world::StruckClient;
use bramble_arrays::{ArrayError, GivesUp, ReducedFrom};

/// How a call has failed.
#[derive(Debug)]
pub(super) enum CallFailure {
    GaveUp(GivesUp),
    Error(ArrayError<String>),
}

/// A call that has failed, and its world.
pub(super) struct FailedCall<'a> {
    pub(super) call: &'a ArrayCall,
    /// What had struck the client before the call, and after.
    pub(super) before: StruckClient,
    pub(super) after: StruckClient,
    /// Connections that were lost while arrays were restored.
    pub(super) lost_in_restores: u64,
    /// Whether the client has freed arrays.
    pub(super) has_freed: bool,
}

/// Runs that a call may have at most, less one.
const LOSSES_MAX: u64 = 15;

/// Checks that a failure has a cause.
pub(super) fn check_cause(failed: &FailedCall<'_>, failure: &CallFailure) {
    let has_cause = match failure {
        CallFailure::GaveUp(GivesUp::TooOften(_)) => failed.after.losses - failed.before.losses >= LOSSES_MAX,
        CallFailure::GaveUp(GivesUp::Unrestored(why)) => failed.may_be_unrestored(why),
        CallFailure::Error(error) => failed.may_have(error),
    };
    assert!(has_cause, "violation: {} has failed without a cause: {failure:?}", failed.call.text());
}

impl FailedCall<'_> {
    /// Whether an array may not have been restored.
    fn may_be_unrestored(&self, why: &str) -> bool {
        if self.after.losses == 0 {
            return false;
        }
        if why.contains("was changed since") {
            return self.after.changes > 0;
        }
        // Of a freed operand that this process can read, the part is made again from that.
        if why.contains("from which it was made, was freed") {
            return self.has_freed;
        }
        if let Some(has_cause) = self.may_refuse(why, StruckClient::default()) {
            return has_cause;
        }
        why.contains("the machines have left") || self.lost_in_restores >= LOSSES_MAX
    }

    /// Whether a machine's refusal, or a changed source, has a cause since `before`; `None`: the failure is another.
    fn may_refuse(&self, why: &str, before: StruckClient) -> Option<bool> {
        let after = self.after;
        if why.contains("no room") {
            return Some(after.refusals > before.refusals);
        }
        if why.contains("holds other elements") {
            return Some(after.garbled > before.garbled);
        }
        // A placed operand that travels may have been changed before the call.
        why.contains("changed meanwhile").then_some(after.changes > 0)
    }

    fn may_have(&self, error: &ArrayError<String>) -> bool {
        let (before, after) = (self.before, self.after);
        match error {
            ArrayError::PartLost(_) => false,
            ArrayError::Operands(why) => {
                let is_product = matches!(self.call, ArrayCall::Reduce(_, ReducedFrom::Product { .. }));
                is_product && why.contains("is cut along the depth")
            }
            ArrayError::Failed(why) => self.may_refuse(why, before).unwrap_or(false),
            ArrayError::Wrong(_) => {
                after.wrong_steps > before.wrong_steps || after.changes > 0 || after.corrupted > 0
            }
            ArrayError::Layout(_) => matches!(self.call, ArrayCall::Put(..) | ArrayCall::Make(..)),
            ArrayError::Shell(_) => after.shell_errors > before.shell_errors,
        }
    }
}
