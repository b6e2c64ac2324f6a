//! Messages: what the heads of frames say (docs/wire-format.md, to the byte).
//!
//! Invariants: little-endian, fixed-width integers; decoding checks every length and every value and
//! rejects trailing bytes, so that one message has one encoding. Bodies (matrix bytes) are not touched
//! here.
//!
//! Kind numbers 6 (relay), 7 (free) and 8 (cancel) are reserved: operands carry the number of jobs that
//! use them, which frees them, and closing the link cancels.

mod log;
mod session;
mod store;
mod wire;

pub use log::{LogHead, Pong, Wants, Work, WorkRecord};
pub use session::{Bye, Hello, IoReport, ThreadReport, Welcome};
pub use store::{Generated, Job, MatrixHeader, Operation, ResultHead, Source, StoreHead, Then};
pub use wire::{Reader, Writer};

use crate::ProtocolError;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Primary to worker, first frame.
    Hello,
    /// Worker to primary, its answer.
    Welcome,
    /// Matrices, and the jobs behind them.
    Store,
    /// Lines of a finished tile.
    Result,
    /// Bytes of memory that have become free at the worker.
    Credit,
    /// Are you there? The body, if any, is forgotten (it measures the link).
    Ping,
    /// Yes.
    Pong,
    /// Why this end is about to close.
    Error,
    /// No more jobs (primary), the account of the session (worker).
    Bye,
    /// When jobs ran, for a primary that asked.
    Log,
}

impl Kind {
    /// The kind with that number.
    pub fn from_code(code: u8) -> Result<Self, ProtocolError> {
        Ok(match code {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Store,
            4 => Self::Result,
            5 => Self::Credit,
            9 => Self::Ping,
            10 => Self::Pong,
            11 => Self::Error,
            12 => Self::Bye,
            18 => Self::Log,
            _ => return Err(ProtocolError::new(format!("a message of unknown kind {code}"))),
        })
    }

    /// Its number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Store => 3,
            Self::Result => 4,
            Self::Credit => 5,
            Self::Ping => 9,
            Self::Pong => 10,
            Self::Error => 11,
            Self::Bye => 12,
            Self::Log => 18,
        }
    }
}

/// A whole message of the kinds that are just one number: credit (bytes) and ping (nonce).
pub fn encode_number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Reads a message that is just one number.
pub fn decode_number(head: &[u8]) -> Result<u64, ProtocolError> {
    let mut reader = Reader::new(head);
    let number = reader.u64()?;
    reader.end()?;
    Ok(number)
}

/// An error message: text for a person.
pub fn encode_error(text: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.text(text);
    writer.finish()
}

/// Reads an error message.
pub fn decode_error(head: &[u8]) -> Result<String, ProtocolError> {
    let mut reader = Reader::new(head);
    let text = reader.text()?;
    reader.end()?;
    Ok(text)
}

#[cfg(test)]
mod tests;
