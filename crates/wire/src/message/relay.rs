//! Messages for relaying: introductions of workers, relay orders, and the relayed pieces.
//!
//! Place in the flow: after the welcomes, the primary introduces workers to each other (`Neighbour`); they
//! connect (`Join`) and report it (`Reached`). Later the primary orders the holder of a matrix to pass it on
//! (`Forward`), and the lines travel from worker to worker (`PieceHead`). If a link between two workers ends,
//! the receiver requests the missing lines from the primary (`Missing`).

use super::{FieldReader, FieldWriter};
use crate::ProtocolError;
use crate::limits::FORWARDS_MAX;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// One order: pass a stored matrix on as soon as it is complete. It takes one of the matrix's announced uses.
/// 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Id of the matrix at the sender.
    pub id: u32,
    /// The receiving member of the plan; `Forward::NO_MEMBER` only releases the use.
    pub to: u32,
    /// Id of the matrix at the receiver.
    pub id_there: u32,
}

impl Forward {
    /// Number that no member has.
    pub const NO_MEMBER: u32 = u32::MAX;
}

/// Encodes a list of orders.
pub fn encode_forwards(forwards: &[Forward]) -> Vec<u8> {
    assert!(forwards.len() <= FORWARDS_MAX, "a list of orders that is too long");
    let mut w = FieldWriter::default();
    w.count(forwards.len());
    for forward in forwards {
        w.u32(forward.id);
        w.u32(forward.to);
        w.u32(forward.id_there);
    }
    w.finish()
}

/// Decodes a list of orders.
pub fn decode_forwards(head: &[u8]) -> Result<Vec<Forward>, ProtocolError> {
    let mut r = FieldReader::new(head);
    let count = usize::from(r.u16()?);
    if count > FORWARDS_MAX {
        return Err(ProtocolError::new(format!("{count} orders to relay")));
    }
    let mut forwards = Vec::new();
    for _ in 0..count {
        forwards.push(Forward { id: r.u32()?, to: r.u32()?, id_there: r.u32()? });
    }
    r.end()?;
    Ok(forwards)
}

/// Introduction to another worker of this product.
#[derive(Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Number of the other worker in the plan.
    pub peer: u32,
    /// Number of this worker in the plan.
    pub me: u32,
    /// Whether this worker dials; otherwise the other one does.
    pub dials: bool,
    /// Key of this pair, which only the two workers and the primary have.
    pub key: [u8; 20],
    /// Ticket that the dialling worker names in its `Join`, so that the other knows the session.
    pub ticket: [u8; 16],
    /// Address at which the other worker listens, as the primary saw it; empty if this worker does not dial.
    pub address: String,
}

impl Neighbour {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u32(self.peer);
        w.u32(self.me);
        w.u8(u8::from(self.dials));
        w.raw(&self.key);
        w.raw(&self.ticket);
        w.text(&self.address);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (peer, me, dials) = (r.u32()?, r.u32()?, flag(r.u8()?)?);
        let (key, ticket) = (r.array()?, r.array()?);
        let address = r.text()?;
        r.end()?;
        if peer == Forward::NO_MEMBER || peer == me {
            return Err(ProtocolError::new("a neighbour that cannot be"));
        }
        Ok(Self { peer, me, dials, key, ticket, address })
    }
}

/// Leaves out the key: keys do not belong into logs.
impl core::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { peer, me, dials, address, .. } = self;
        write!(f, "Neighbour {{ peer: {peer}, me: {me}, dials: {dials}, address: {address:?} }}")
    }
}

/// Whether two workers can pass matrices to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The other worker.
    pub peer: u32,
    /// Whether there is a link.
    pub is_there: bool,
    /// If not, the reason.
    pub why: String,
}

impl Reached {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u32(self.peer);
        w.u8(u8::from(self.is_there));
        w.text(&self.why);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let reached = Self { peer: r.u32()?, is_there: flag(r.u8()?)?, why: r.text()? };
        r.end()?;
        Ok(reached)
    }
}

/// The first frame of either end of a link between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The pair's ticket.
    pub ticket: [u8; 16],
}

impl Join {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        self.ticket.to_vec()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let ticket = r.array()?;
        r.end()?;
        Ok(Self { ticket })
    }
}

/// Head of a piece: some lines of a matrix, named with the receiver's id. The body has whole lines. 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceHead {
    /// Id of the matrix at the receiver.
    pub id: u32,
    /// First line in this frame.
    pub first_line: u32,
    /// Lines in this frame.
    pub lines: u32,
}

impl PieceHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        [self.id, self.first_line, self.lines].into_iter().for_each(|x| w.u32(x));
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let piece = Self { id: r.u32()?, first_line: r.u32()?, lines: r.u32()? };
        r.end()?;
        Ok(piece)
    }
}

/// A relayed matrix whose remaining lines do not arrive from the relaying worker. 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its id.
    pub id: u32,
    /// Number of lines that have arrived, from the first on: the primary sends the others.
    pub lines: u32,
}

impl Missing {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u32(self.id);
        w.u32(self.lines);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let missing = Self { id: r.u32()?, lines: r.u32()? };
        r.end()?;
        Ok(missing)
    }
}

fn flag(byte: u8) -> Result<bool, ProtocolError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ProtocolError::new("a flag that is neither yes nor no")),
    }
}
