//! The code that a stranger's bytes reach: TLS of both roles, the introduction, and the text of a key.
//!
//! Promises: no input completes TLS without its secrets, or proves a key without it; one
//! connection takes little memory, whatever lengths it announces; a stranger's version text cannot control
//! the terminal.

use crate::memory::within;
use bramble_link::ClusterKey;
use bramble_link::fuzzing::{dialler_hears, dialler_hello, introduced, introduction, listener_hears};

/// TLS holds at most 64 KiB of a handshake, received and decoded.
const BYTES_MAX: usize = 512 << 10;
const NUMBER: [u8; 32] = [7; 32];

/// The first byte picks the code that reads the rest.
pub fn handshake(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 5 {
        0 => within(BYTES_MAX, || assert!(!listener_hears(bytes), "TLS finished without its secrets")),
        1 => within(BYTES_MAX, || assert!(!dialler_hears(bytes), "TLS finished without its secrets")),
        2 => raw(bytes),
        3 => changed(bytes),
        _ => text(bytes),
    }
}

fn key() -> ClusterKey {
    ClusterKey::from_bytes([3; ClusterKey::BYTES])
}

/// Any 64 bytes as an introduction.
fn raw(bytes: &[u8]) {
    let mut all = [0; 64];
    let len = bytes.len().min(64);
    all[..len].copy_from_slice(&bytes[..len]);
    for dialled in [false, true] {
        let is_right = all == introduction(&key(), &NUMBER, dialled);
        let proves = introduced(&all, &key(), &NUMBER, dialled).unwrap_or(false);
        assert_eq!(proves, is_right, "a wrong introduction passes");
    }
}

/// The right introduction with some bytes changed: (place, difference) each.
fn changed(bytes: &[u8]) {
    let mut all = introduction(&key(), &NUMBER, true);
    let right = all;
    for change in bytes.chunks_exact(2) {
        all[usize::from(change[0] % 64)] ^= change[1];
    }
    let proves = introduced(&all, &key(), &NUMBER, true).unwrap_or(false);
    assert_eq!(proves, all == right, "a wrong introduction passes");
    let _ = introduced(&all, &key(), &[8; 32], false);
}

/// A key's text: a parsed key prints as the same text, up to case, blanks and hyphens.
fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    within(BYTES_MAX, || match ClusterKey::parse(text) {
        Ok(key) => {
            let again = ClusterKey::parse(&key.to_text()).unwrap_or_else(|e| panic!("its own text: {e}"));
            assert_eq!(again.to_text(), key.to_text());
        }
        Err(e) => assert!(e.to_string().chars().all(|c| !c.is_control())),
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    let hello = dialler_hello();
    let alert = [0x15, 3, 3, 0, 2, 2, 40];
    let long = [0x16, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff];
    vec![
        with(0, &hello),
        with(0, &hello[..hello.len() / 2]),
        with(0, &alert),
        with(0, &long),
        with(0, b"GET / HTTP/1.1\r\n\r\n"),
        with(1, &[0x16, 3, 3, 0, 4, 2, 0, 0, 0]),
        with(1, &alert),
        with(1, &long),
        with(2, &introduction(&key(), &NUMBER, true)),
        with(2, &introduction(&key(), &NUMBER, false)),
        with(3, &[]),
        with(3, &[12, 0x1b, 4, 1]),
        with(4, key().to_text().as_bytes()),
        with(4, b"bramble2-"),
    ]
}
