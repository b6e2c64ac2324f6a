//! The two ends of a product as sans-IO state machines, and the messages between them.
//!
//! Place in the flow: after planning. The shells (`primary`, `worker`) pass events in and carry actions out;
//! a simulator can do the same.
//!
//! Invariants: all decisions go through `handle`. Every (tile, step) is added exactly once and in step order.
//! Memory at a worker never exceeds its grant: the primary spends credit before it sends, and the worker
//! checks it before it reserves. No call blocks.
//!
//! Deliberately absent: sockets, files, threads, clocks (time is an argument), kernels, matrix elements.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

use alloc::string::String;

pub mod clock;
pub mod journal;
pub mod limits;
pub mod lu;
pub mod message;
pub mod primary;
pub mod worker;

/// A violation of the protocol by the peer, in words for an error message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolError(pub String);

impl ProtocolError {
    /// An error with this text.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
