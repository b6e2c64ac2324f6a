//! Frames: a 16-byte header, a small head, a body (docs/wire-format.md, to the byte).
//!
//! Invariants: a body is at most 1 MiB, so that a credit or a ping never waits for long behind data. The checksum
//! covers lengths, kind and head, and the body on links where its bytes can change in transit. The checksum of a
//! body is computed once for all receivers, and combined with that of each head.

use crate::{Body, LinkError, checksum};
use bytes::Bytes;
use std::time::Duration;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Longest body of a frame.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest head of a frame.
pub const HEAD_BYTES_MAX: usize = (1 << 16) - 1;

/// The first bytes of a TLS connection. Read as a header they would announce more bytes than any limit allows.
const TLS_HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// Length of the reference that is sent in place of a body which the receiver reads from a file.
pub(crate) const REFERENCE_BYTES: usize = 40;

const _: () = assert!(CHUNK_BYTES_MAX < 1 << 31 && HEAD_BYTES_MAX < 1 << 16);

/// The limits that a receiver enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Longest head.
    pub head_bytes: usize,
    /// Longest body.
    pub body_bytes: usize,
    /// The longest time without a byte within a frame.
    pub stall: Duration,
    /// The lowest rate within a frame, on average over `rate_window`.
    pub bytes_per_s_min: u64,
    /// The window over which `bytes_per_s_min` is measured.
    pub rate_window: Duration,
}

impl FrameLimits {
    /// Limits until the peer has proven its key.
    pub const STRANGER: Self = Self {
        head_bytes: 1024 - HEADER_BYTES,
        body_bytes: 0,
        stall: Duration::from_secs(5),
        ..Self::SESSION
    };
    /// Limits within a session.
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
    /// The kind of the frame; the link does not interpret it.
    pub kind: u8,
    /// Whether a file reference is sent in place of the body.
    pub is_reference: bool,
    /// Session number.
    pub session: u32,
    /// CRC-32C of the first 8 bytes, the head and, where the link sums bodies, the body.
    pub checksum: u32,
}

impl Header {
    /// Length of the body in memory. It was checked against a limit that is a `usize`.
    pub(crate) fn body_bytes(&self) -> usize {
        usize::try_from(self.body_bytes).unwrap_or(usize::MAX)
    }

    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&self.prefix());
        out[8..12].copy_from_slice(&self.session.to_le_bytes());
        out[12..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// The bytes of the header that the checksum covers.
    pub(crate) fn prefix(&self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[4..6].copy_from_slice(&self.head_bytes.to_le_bytes());
        out[6] = self.kind;
        out[7] = u8::from(self.is_reference);
        out
    }

    /// Parses a header and checks it against the limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limits: FrameLimits) -> Result<Self, LinkError> {
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
        // Only before a session can these bytes mean TLS; within one they are part of a length.
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
    /// The kind of the frame; the link does not interpret it.
    pub kind: u8,
    /// Small control part, parsed by the receiver before the body is placed.
    pub head: Bytes,
    /// Bulk part.
    pub body: Body,
}

impl Frame {
    /// A new frame. Panics if head or body exceed what a frame can carry: a bug of the caller.
    pub fn new(kind: u8, head: impl Into<Bytes>, body: Body) -> Self {
        let head = head.into();
        assert!(head.len() <= HEAD_BYTES_MAX, "a head of {} bytes", head.len());
        Self { kind, head, body }
    }

    /// Length of the frame on the wire.
    pub fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.head.len() + self.body.len()
    }

    /// The header for that session, with a checksum of header, head and body.
    pub fn header(&self, session: u32) -> Header {
        self.header_for(session, true)
    }

    /// The header of a frame that carries a file reference in place of its body; the checksum covers the reference.
    pub fn header_with(&self, session: u32, reference: &[u8; REFERENCE_BYTES]) -> Header {
        // Both are far below the limits of their fields.
        let body_bytes = u32::try_from(REFERENCE_BYTES).unwrap_or_default();
        let head_bytes = u16::try_from(self.head.len()).unwrap_or(u16::MAX);
        let mut header =
            Header { body_bytes, head_bytes, kind: self.kind, is_reference: true, session, checksum: 0 };
        let front = checksum::append(checksum::append(0, &header.prefix()), &self.head);
        header.checksum = checksum::append(front, reference);
        header
    }

    /// The header for that session. The checksum covers the body only if `sums_body`.
    pub(crate) fn header_for(&self, session: u32, sums_body: bool) -> Header {
        assert!(self.body.len() <= CHUNK_BYTES_MAX, "a body of {} bytes", self.body.len());
        let body_bytes = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let head_bytes = u16::try_from(self.head.len()).unwrap_or(u16::MAX);
        let mut header =
            Header { body_bytes, head_bytes, kind: self.kind, is_reference: false, session, checksum: 0 };
        let front = checksum::append(checksum::append(0, &header.prefix()), &self.head);
        header.checksum = match &self.body {
            Body::Shared(region) if sums_body => checksum::combine(front, region.checksum(), region.len()),
            Body::Shared(_) | Body::Empty | Body::Leased(_) => front,
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
            prop_assert_eq!(Header::decode(&header.encode(), FrameLimits::SESSION).unwrap(), header);
        }

        #[test]
        fn any_bytes_give_a_header_within_limits_or_an_error(bytes in any::<[u8; 16]>()) {
            if let Ok(h) = Header::decode(&bytes, FrameLimits::STRANGER) {
                prop_assert!(h.body_bytes == 0 && usize::from(h.head_bytes) < 1024);
            }
        }
    }
}
