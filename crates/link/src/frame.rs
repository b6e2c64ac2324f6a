//! Frames: a 16-byte header, a small head, a body (docs/wire-format.md, to the byte).
//!
//! Invariants: a body is at most 1 MiB, so that a credit or a ping is never stuck for long behind data; the checksum covers
//! lengths, kind, head and, where it can change on the way, the body. A body's own checksum is computed once however many
//! receivers it goes to, and combined with that of each head.

use crate::{Body, LinkError, checksum};
use bytes::Bytes;
use std::time::Duration;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Longest body of a frame.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest head of a frame.
pub const HEAD_BYTES_MAX: usize = (1 << 16) - 1;

/// What a TLS connection begins with. As a header it would announce more bytes than any limit.
const TLS_HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// Bytes that stand for a body which the other end reads in a file.
pub(crate) const REFERENCE_BYTES: usize = 40;

const _: () = assert!(CHUNK_BYTES_MAX < 1 << 31 && HEAD_BYTES_MAX < 1 << 16);

/// What a receiver takes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest head.
    pub head_bytes: usize,
    /// Longest body.
    pub body_bytes: usize,
    /// A frame that has begun may stand still for that long.
    pub stall: Duration,
    /// It may not be slower than this, on average over `rate_window`.
    pub bytes_per_s_min: u64,
    /// See `bytes_per_s_min`.
    pub rate_window: Duration,
}

impl Limits {
    /// Before the other end is known.
    pub const STRANGER: Self = Self {
        head_bytes: 1024 - HEADER_BYTES,
        body_bytes: 0,
        stall: Duration::from_secs(5),
        ..Self::SESSION
    };
    /// In a session.
    pub const SESSION: Self = Self {
        head_bytes: HEAD_BYTES_MAX,
        body_bytes: CHUNK_BYTES_MAX,
        stall: Duration::from_secs(20),
        bytes_per_s_min: 4 << 10,
        rate_window: Duration::from_secs(30),
    };
}

/// The first bytes of a frame, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Bytes of the head.
    pub head_bytes: u16,
    /// What the frame is; the link does not care.
    pub kind: u8,
    /// Whether the body lies in a file that the receiver maps, and what comes says where.
    pub is_reference: bool,
    /// Number of the session.
    pub session: u32,
    /// CRC-32C of the first 8 bytes, the head and, where the link sums bodies, the body.
    pub checksum: u32,
}

impl Header {
    /// Bytes of the body, in memory. They were checked against a limit that is a `usize`.
    pub(crate) fn body_bytes(&self) -> usize {
        usize::try_from(self.body_bytes).unwrap_or(usize::MAX)
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&self.prefix());
        out[8..12].copy_from_slice(&self.session.to_le_bytes());
        out[12..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// The part that the checksum covers.
    pub(crate) fn prefix(&self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[4..6].copy_from_slice(&self.head_bytes.to_le_bytes());
        out[6] = self.kind;
        out[7] = u8::from(self.is_reference);
        out
    }

    /// Reads a header and checks it against the limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limits: Limits) -> Result<Self, LinkError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Self {
            body_bytes: word(0),
            head_bytes: u16::from_le_bytes([bytes[4], bytes[5]]),
            kind: bytes[6],
            is_reference: bytes[7] == 1,
            session: word(8),
            checksum: word(12),
        };
        let is_unknown = bytes[7] > 1 || header.is_reference && header.body_bytes() != REFERENCE_BYTES;
        // Only a stranger may begin so; later these are bytes of a length.
        if limits.body_bytes == 0 && bytes[..2] == TLS_HANDSHAKE {
            let what =
                "it speaks TLS: the other end has a cluster key and this one has none (see: bramble key)";
            return Err(LinkError::Foreign(what.to_owned()));
        }
        let too_long = usize::from(header.head_bytes) > limits.head_bytes
            || usize::try_from(header.body_bytes).map_or(true, |b| b > limits.body_bytes);
        if is_unknown || too_long {
            let (head, body) = (header.head_bytes, header.body_bytes);
            return Err(LinkError::Foreign(format!("a header announces {head} + {body} bytes")));
        }
        Ok(header)
    }
}

/// A frame to be sent.
pub struct Frame {
    /// What it is; the link does not care.
    pub kind: u8,
    /// Small control part, parsed by the receiver before the body is placed.
    pub head: Bytes,
    /// Bulk part.
    pub body: Body,
}

impl Frame {
    /// A frame. Panics where head or body are longer than a frame can carry: a bug of the caller.
    pub fn new(kind: u8, head: impl Into<Bytes>, body: Body) -> Self {
        let head = head.into();
        assert!(head.len() <= HEAD_BYTES_MAX, "a head of {} bytes", head.len());
        Self { kind, head, body }
    }

    /// Bytes on the wire.
    pub fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.head.len() + self.body.len()
    }

    /// The header for that session, with a checksum of everything.
    pub fn header(&self, session: u32) -> Header {
        self.header_for(session, true)
    }

    /// The header of a frame of which something goes that stands for its body; the checksum covers that.
    pub(crate) fn header_with(&self, session: u32, reference: &[u8; REFERENCE_BYTES]) -> Header {
        // Both are far below the limits of their fields.
        let body_bytes = u32::try_from(REFERENCE_BYTES).unwrap_or_default();
        let head_bytes = u16::try_from(self.head.len()).unwrap_or(u16::MAX);
        let mut header =
            Header { body_bytes, head_bytes, kind: self.kind, is_reference: true, session, checksum: 0 };
        let front = checksum::append(checksum::append(0, &header.prefix()), &self.head);
        header.checksum = checksum::append(front, reference);
        header
    }

    /// The header for that session, with a checksum of everything, or of all but the body.
    pub(crate) fn header_for(&self, session: u32, sums_body: bool) -> Header {
        assert!(self.body.len() <= CHUNK_BYTES_MAX, "a body of {} bytes", self.body.len());
        let body_bytes = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let head_bytes = u16::try_from(self.head.len()).unwrap_or(u16::MAX);
        let mut header =
            Header { body_bytes, head_bytes, kind: self.kind, is_reference: false, session, checksum: 0 };
        let front = checksum::append(checksum::append(0, &header.prefix()), &self.head);
        header.checksum = match &self.body {
            Body::Shared(region) if sums_body => checksum::combine(front, region.checksum(), region.len()),
            Body::Shared(_) | Body::Empty | Body::Lent(_) => front,
        };
        header
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame(kind {}, {} + {} bytes)", self.kind, self.head.len(), self.body.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(body in 0u32..=1 << 20, head in any::<u16>(), kind in any::<u8>(), session in any::<u32>(), checksum in any::<u32>()) {
            let header =
                Header { body_bytes: body, head_bytes: head, kind, is_reference: false, session, checksum };
            prop_assert_eq!(Header::decode(&header.encode(), Limits::SESSION).unwrap(), header);
        }

        #[test]
        fn any_bytes_give_a_header_within_limits_or_an_error(bytes in any::<[u8; 16]>()) {
            if let Ok(h) = Header::decode(&bytes, Limits::STRANGER) {
                prop_assert!(h.body_bytes == 0 && usize::from(h.head_bytes) < 1024);
            }
        }
    }
}
