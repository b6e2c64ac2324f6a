//! What machines tell each other and what a journal records, to the byte, and every limit of the protocol.
//!
//! Place in the flow: the state machines of `schedule` and the shells make and read these; `link` moves them without
//! looking inside.
//!
//! Invariants: bytes from another machine or from a file never panic, and take memory in proportion to their number.
//! Each message and each journal has exactly one encoding.
//!
//! Deliberately absent: what a message leads to (`schedule`), frames (`link`), matrix elements.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

use alloc::string::String;

pub mod journal;
pub mod limits;
pub mod message;

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
