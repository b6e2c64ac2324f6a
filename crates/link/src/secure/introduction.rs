//! The introduction: the 64 bytes with which each end of a connection states its version and proves a key.
//!
//! Place in the flow: after TLS is set up and before the first frame. Pure functions from bytes to bytes
//! (docs/wire-format.md, to the byte).
//!
//! Invariants: an introduction does not contain the key. A proof is valid for one connection, one role and one
//! version text: it covers all other bytes, and a number that only the two ends of this connection know. The
//! comparison takes the same time for all inputs. No length is chosen by the peer.
//!
//! Deliberately absent: the derivation of that number (`mod.rs`), and the rights of a proven peer.

use crate::{ClusterKey, LinkError};
use ring::hmac;

/// Length of an introduction.
pub(crate) const BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"BRMB";
/// Length of the version text.
const VERSION_BYTES: usize = 20;
/// Bytes that the proof covers: all bytes before it.
const COVERED_BYTES: usize = 32;
/// The prefix of the message that the proof authenticates; the number and the covered bytes follow.
const LABEL: &[u8] = b"bramble proof 1";

/// The role of an end in the handshake. An end never accepts its own role, so an introduction cannot be reflected
/// to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeRole {
    /// The end that made the connection.
    Dialler,
    /// The end that accepted the connection.
    Listener,
}

/// Protocol number and version of this program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) protocol: u16,
    pub(crate) version: &'static str,
}

impl Program {
    /// The introduction of this end.
    pub(crate) fn introduce(&self, role: HandshakeRole, key: &ClusterKey, binding: &[u8; 32]) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&self.protocol.to_le_bytes());
        out[6] = code(role);
        out[8..12].copy_from_slice(&key.id_bytes());
        let version = &self.version.as_bytes()[..self.version.len().min(VERSION_BYTES)];
        out[12..12 + version.len()].copy_from_slice(version);
        let tag = hmac::sign(&hmac_key(key), &covered(binding, &out));
        out[COVERED_BYTES..].copy_from_slice(tag.as_ref());
        out
    }

    /// Checks that the peer runs the same protocol.
    pub(crate) fn check_version(&self, other: &UnprovenIntroduction<'_>) -> Result<(), LinkError> {
        if other.protocol == self.protocol {
            return Ok(());
        }
        Err(LinkError::Untrusted(format!(
            "it is bramble {} with protocol {}, this is {} with protocol {}; install the same version on both",
            other.version(),
            other.protocol,
            self.version,
            self.protocol
        )))
    }
}

/// An introduction of the peer: its form is checked, its proof is not.
#[derive(Debug)]
pub(crate) struct UnprovenIntroduction<'a> {
    bytes: &'a [u8; BYTES],
    pub(crate) protocol: u16,
    /// The key that the peer claims to hold.
    pub(crate) key_id: [u8; 4],
}

impl<'a> UnprovenIntroduction<'a> {
    /// Parses the introduction of an end with that role.
    pub(crate) fn read(bytes: &'a [u8; BYTES], from: HandshakeRole) -> Result<Self, LinkError> {
        if bytes[..4] != MAGIC || bytes[6] != code(from) || bytes[7] != 0 {
            let what = "it does not introduce itself as a bramble does";
            return Err(LinkError::Untrusted(what.to_owned()));
        }
        let protocol = u16::from_le_bytes([bytes[4], bytes[5]]);
        Ok(Self { bytes, protocol, key_id: [bytes[8], bytes[9], bytes[10], bytes[11]] })
    }

    /// Whether the proof shows that the peer holds the key.
    pub(crate) fn proves(&self, key: &ClusterKey, binding: &[u8; 32]) -> bool {
        let tag = &self.bytes[COVERED_BYTES..];
        hmac::verify(&hmac_key(key), &covered(binding, self.bytes), tag).is_ok()
    }

    /// The version text without characters that a terminal could interpret.
    fn version(&self) -> String {
        let raw = &self.bytes[12..12 + VERSION_BYTES];
        raw.iter().take_while(|b| b.is_ascii_graphic()).map(|b| char::from(*b)).collect()
    }
}

fn code(role: HandshakeRole) -> u8 {
    match role {
        HandshakeRole::Dialler => 0,
        HandshakeRole::Listener => 1,
    }
}

fn hmac_key(key: &ClusterKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key.bytes())
}

fn covered(binding: &[u8; 32], introduction: &[u8; BYTES]) -> Vec<u8> {
    [LABEL, binding, &introduction[..COVERED_BYTES]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::array::uniform32;
    use proptest::prelude::*;

    const HERE: Program = Program { protocol: 2, version: "0.1.0" };

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_bytes([byte; ClusterKey::BYTES])
    }

    #[test]
    fn a_proof_is_good_for_one_key_one_connection_and_one_role() {
        let sent = HERE.introduce(HandshakeRole::Dialler, &key(1), &[9; 32]);
        let read = UnprovenIntroduction::read(&sent, HandshakeRole::Dialler).unwrap();
        assert!(read.proves(&key(1), &[9; 32]));
        assert!(!read.proves(&key(2), &[9; 32]));
        assert!(!read.proves(&key(1), &[8; 32]));
        assert!(UnprovenIntroduction::read(&sent, HandshakeRole::Listener).is_err());
        assert_eq!(read.version(), "0.1.0");
    }

    #[test]
    fn every_bit_of_it_counts() {
        let sent = HERE.introduce(HandshakeRole::Listener, &key(1), &[9; 32]);
        for bit in 0..BYTES * 8 {
            let mut changed = sent;
            changed[bit / 8] ^= 1 << (bit % 8);
            let good = UnprovenIntroduction::read(&changed, HandshakeRole::Listener)
                .is_ok_and(|i| i.proves(&key(1), &[9; 32]));
            assert!(!good, "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named_and_cannot_play_with_the_terminal() {
        let mut sent =
            Program { protocol: 7, version: "9.9.9" }.introduce(HandshakeRole::Listener, &key(1), &[0; 32]);
        let text = |sent: &[u8; BYTES]| {
            let read = UnprovenIntroduction::read(sent, HandshakeRole::Listener).unwrap();
            HERE.check_version(&read).unwrap_err().to_string()
        };
        assert!(text(&sent).contains("bramble 9.9.9 with protocol 7, this is 0.1.0 with protocol 2"));
        sent[12..17].copy_from_slice(b"1\x1b[2J");
        assert!(text(&sent).contains("bramble 1 with"));
    }

    proptest! {
        #[test]
        fn no_other_bytes_prove_anything(bytes in uniform32(any::<u8>()), tail in uniform32(any::<u8>())) {
            let mut all = [0; BYTES];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            for role in [HandshakeRole::Dialler, HandshakeRole::Listener] {
                all[..4].copy_from_slice(&MAGIC);
                (all[6], all[7]) = (code(role), 0);
                prop_assert!(!UnprovenIntroduction::read(&all, role).unwrap().proves(&key(3), &[1; 32]));
            }
        }
    }
}
