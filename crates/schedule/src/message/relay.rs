//! The messages of relaying: who knows whom, what is passed on, and the pieces themselves.
//!
//! Place in the flow: after the welcomes the primary introduces workers to each other (`Neighbour`), they meet (`Join`)
//! and say so (`Reached`). Later it tells who has a matrix to whom it goes (`Forward`); the lines travel from worker to
//! worker (`PieceHead`). Where a link between two workers ends, the one that waited says what it has (`Missing`), and the
//! primary sends the rest.
//!
//! Deliberately absent: credit between workers. Whoever is to receive a piece was told by the primary to reserve it, from
//! the credit that the primary has there.

use super::{Reader, Writer};
use crate::ProtocolError;
use crate::limits::FORWARDS_MAX;

/// One order: pass a stored matrix on, as soon as it is whole. It takes one of the uses that the matrix was announced
/// with. 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Id of the matrix here.
    pub id: u32,
    /// To which machine of the plan; `Forward::NOBODY` gives the use up.
    pub to: u32,
    /// Its id there.
    pub id_there: u32,
}

impl Forward {
    /// Who does not exist.
    pub const NOBODY: u32 = u32::MAX;
}

/// The bytes of a list of orders.
pub fn encode_forwards(forwards: &[Forward]) -> Vec<u8> {
    assert!(forwards.len() <= FORWARDS_MAX, "a list of orders that is too long");
    let mut w = Writer::default();
    w.count(forwards.len());
    for forward in forwards {
        w.u32(forward.id);
        w.u32(forward.to);
        w.u32(forward.id_there);
    }
    w.finish()
}

/// Reads a list of orders.
pub fn decode_forwards(head: &[u8]) -> Result<Vec<Forward>, ProtocolError> {
    let mut r = Reader::new(head);
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

/// Another worker of this product.
#[derive(Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its number in the plan.
    pub peer: u32,
    /// This worker's own number.
    pub me: u32,
    /// Whether this end dials; the other waits to be dialled.
    pub dials: bool,
    /// A key that only these two and the primary have; it proves nothing but this pair.
    pub key: [u8; 20],
    /// What the dialling end names in its `Join`, so that the other knows for which session it comes.
    pub ticket: [u8; 16],
    /// Where the other listens, as the primary saw it; empty where this end does not dial.
    pub address: String,
}

impl Neighbour {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.peer);
        w.u32(self.me);
        w.u8(u8::from(self.dials));
        w.raw(&self.key);
        w.raw(&self.ticket);
        w.text(&self.address);
        w.finish()
    }

    /// Reads one.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let (peer, me, dials) = (r.u32()?, r.u32()?, flag(r.u8()?)?);
        let (key, ticket) = (r.array()?, r.array()?);
        let address = r.text()?;
        r.end()?;
        if peer == Forward::NOBODY || peer == me {
            return Err(ProtocolError::new("a neighbour that cannot be"));
        }
        Ok(Self { peer, me, dials, key, ticket, address })
    }
}

/// Keys belong into no log.
impl std::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, me, dials, address, .. } = self;
        write!(f, "Neighbour {{ peer: {peer}, me: {me}, dials: {dials}, address: {address:?} }}")
    }
}

/// Whether a worker can pass matrices on to another, and the other to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The other.
    pub peer: u32,
    /// Whether there is a link.
    pub is_there: bool,
    /// If not, why.
    pub why: String,
}

impl Reached {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.peer);
        w.u8(u8::from(self.is_there));
        w.text(&self.why);
        w.finish()
    }

    /// Reads one.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
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
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        self.ticket.to_vec()
    }

    /// Reads one.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let ticket = r.array()?;
        r.end()?;
        Ok(Self { ticket })
    }
}

/// Head of a piece: which lines of which matrix, by the receiver's id. The body has whole lines. 12 bytes.
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
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        [self.id, self.first_line, self.lines].into_iter().for_each(|x| w.u32(x));
        w.finish()
    }

    /// Reads one.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let piece = Self { id: r.u32()?, first_line: r.u32()?, lines: r.u32()? };
        r.end()?;
        Ok(piece)
    }
}

/// A matrix whose other lines will not come from where they were to come. 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its id.
    pub id: u32,
    /// Lines that are there, from the first on: the primary sends those after them.
    pub lines: u32,
}

impl Missing {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.id);
        w.u32(self.lines);
        w.finish()
    }

    /// Reads one.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
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
