//! The two ends of a product as sans-IO state machines, and the messages between them.
//!
//! Place in the flow: after planning; the shells (`primary`, `worker`) carry events in and actions out,
//! and a simulator can do the same.
//!
//! Invariants: one door in, one door out. Every (tile, step) is added exactly once and in step order.
//! Memory at a worker never exceeds its grant: the primary spends credit before it sends, the worker
//! checks it before it reserves. Nothing here waits.
//!
//! Deliberately absent: sockets, files, threads, clocks (time is an argument), kernels, matrix elements.

pub mod clock;
pub mod journal;
pub mod limits;
pub mod message;
pub mod primary;
pub mod worker;

/// The other end broke the protocol: what it did, for a message that names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolError(pub String);

impl ProtocolError {
    /// An error that says `what`.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
