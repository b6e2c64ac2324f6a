//! Messages: the contents of frame heads (docs/wire-format.md, to the byte).
//!
//! Invariants: little-endian, fixed-width integers. Decoding checks every length and every value and rejects
//! trailing bytes, so each message has exactly one encoding. Bodies (matrix bytes) are not touched here.
//!
//! Kind number 8 (cancel) is reserved: closing the link ends a session.

mod fields;
mod log;
mod lu;
mod lu_rows;
mod make;
mod placed;
mod reduce;
mod relay;
mod session;
mod store;

pub use fields::{FieldReader, FieldWriter};
pub use log::{LogHead, Pong, Wants, Work, WorkRecord};
pub use lu::{LuBegin, LuFill, LuOrigin, LuPanelHead, LuRing, LuStatus, lu_frames};
pub use lu_rows::{LuPass, LuRows};
pub use make::{FetchHead, MakeHead, MakeStepForm};
pub use placed::{
    GetHead, PartHead, PartPiece, PartSource, PlacedHead, PutHead, PutOutcome, ResidentView, part_pieces,
};
pub use reduce::{ReduceHead, ReducedFactor, ReducedHead};
pub use relay::{Forward, Join, Missing, Neighbour, PieceHead, Reached, decode_forwards, encode_forwards};
pub use session::{Bye, Hello, IoReport, LuSpeeds, ThreadReport, Welcome};
pub use store::{Generated, Job, MatrixHeader, MatrixSource, Operation, ResultHead, StoreHead, Then};

use crate::ProtocolError;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Primary to worker, first frame.
    Hello,
    /// Worker to primary: the answer to `Hello`.
    Welcome,
    /// Matrices, and jobs that use them.
    Store,
    /// Lines of a finished tile.
    Result,
    /// Bytes of memory that the worker has freed.
    Credit,
    /// Heartbeat request. A body, if any, is ignored (it measures the link).
    Ping,
    /// Heartbeat answer.
    Pong,
    /// Why the sender is about to close the link.
    Error,
    /// No more jobs (primary); the account of the session (worker).
    Bye,
    /// Primary to worker: matrices to pass on to other workers.
    Relay,
    /// Primary to worker: another worker, and how the two connect.
    Neighbour,
    /// Whether two workers have connected, or lost their link: worker to primary, and primary to the second
    /// worker.
    Reached,
    /// Worker to worker: the first frame of each end.
    Join,
    /// Worker to worker: lines of a relayed matrix.
    Piece,
    /// Worker to primary: a matrix that another worker should have relayed does not arrive.
    Missing,
    /// When jobs ran, for a primary that asked.
    Log,
    /// Primary to worker: drop a part of an array.
    Free,
    /// Primary to worker: elements of a part of an array, to be held.
    Put,
    /// Worker to primary: the part is held, or refused.
    Placed,
    /// Primary or worker to worker: asks for a rectangle of an array.
    Get,
    /// Worker to primary or worker: elements of that rectangle.
    Part,
    /// Primary to worker: asks for the reduction of a part, or of a product of parts.
    Reduce,
    /// Worker to primary: bytes of that reduction.
    Reduced,
    /// Primary to worker: make a rectangle of a part of an array from parts that are there.
    Make,
    /// Primary to worker: get a rectangle of an array from another worker.
    Fetch,
    /// Primary to worker: a system that several machines factor together.
    LuBegin,
    /// Rows of a block column: primary to worker, of that system; worker to primary, of its factors.
    LuFill,
    /// Primary to worker: all machines have their columns.
    LuGo,
    /// Worker to worker: elements of a panel.
    LuPanel,
    /// Worker to worker: how many panels are spent (flow control).
    LuSpent,
    /// Worker to primary: the columns are there, eliminated, or checked.
    LuStatus,
    /// Right-hand sides, in either direction.
    LuRows,
    /// Primary to worker: compare your columns with their checksums.
    LuCheck,
    /// Primary to worker: asks for rows of a block column of the factors.
    LuFetch,
}

impl Kind {
    /// The kind with this number.
    pub fn from_code(code: u8) -> Result<Self, ProtocolError> {
        Ok(match code {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Store,
            4 => Self::Result,
            5 => Self::Credit,
            6 => Self::Relay,
            7 => Self::Free,
            9 => Self::Ping,
            10 => Self::Pong,
            11 => Self::Error,
            12 => Self::Bye,
            13 => Self::Neighbour,
            14 => Self::Reached,
            15 => Self::Join,
            16 => Self::Piece,
            17 => Self::Missing,
            18 => Self::Log,
            19 => Self::Put,
            20 => Self::Placed,
            21 => Self::Get,
            22 => Self::Part,
            25 => Self::Reduce,
            26 => Self::Reduced,
            27 => Self::Make,
            28 => Self::Fetch,
            29 => Self::LuBegin,
            30 => Self::LuFill,
            31 => Self::LuGo,
            32 => Self::LuPanel,
            33 => Self::LuSpent,
            34 => Self::LuStatus,
            35 => Self::LuRows,
            36 => Self::LuCheck,
            37 => Self::LuFetch,
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
            Self::Relay => 6,
            Self::Free => 7,
            Self::Ping => 9,
            Self::Pong => 10,
            Self::Error => 11,
            Self::Bye => 12,
            Self::Neighbour => 13,
            Self::Reached => 14,
            Self::Join => 15,
            Self::Piece => 16,
            Self::Missing => 17,
            Self::Log => 18,
            Self::Put => 19,
            Self::Placed => 20,
            Self::Get => 21,
            Self::Part => 22,
            Self::Reduce => 25,
            Self::Reduced => 26,
            Self::Make => 27,
            Self::Fetch => 28,
            Self::LuBegin => 29,
            Self::LuFill => 30,
            Self::LuGo => 31,
            Self::LuPanel => 32,
            Self::LuSpent => 33,
            Self::LuStatus => 34,
            Self::LuRows => 35,
            Self::LuCheck => 36,
            Self::LuFetch => 37,
        }
    }
}

/// Encodes a message that is a single number: credit (bytes), ping (nonce), free (array) or spent (panels).
pub fn encode_number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Decodes a message that is a single number.
pub fn decode_number(head: &[u8]) -> Result<u64, ProtocolError> {
    let mut reader = FieldReader::new(head);
    let number = reader.u64()?;
    reader.end()?;
    Ok(number)
}

/// Encodes an error message: text for a person.
pub fn encode_error(text: &str) -> Vec<u8> {
    let mut writer = FieldWriter::default();
    writer.text(text);
    writer.finish()
}

/// Decodes an error message.
pub fn decode_error(head: &[u8]) -> Result<String, ProtocolError> {
    let mut reader = FieldReader::new(head);
    let text = reader.text()?;
    reader.end()?;
    Ok(text)
}

#[cfg(test)]
mod tests;
