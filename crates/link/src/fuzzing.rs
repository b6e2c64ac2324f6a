//! Doors for the fuzzer: what strangers' bytes meet before anything is proven, without sockets.
//!
//! Deliberately absent: everything that is not bytes in, verdict out.

use crate::secure::introduction::{BYTES, Introduction, Program, Role};
use crate::secure::tls::Tls;
use crate::{ClusterKey, LinkError};
use rustls::Connection;
use std::cell::OnceCell;

const PROGRAM: Program = Program { protocol: 2, version: "fuzz" };

thread_local! {
    static TLS: OnceCell<Tls> = const { OnceCell::new() };
}

fn with_tls<T>(work: impl FnOnce(&Tls) -> T) -> T {
    TLS.with(|tls| work(tls.get_or_init(|| Tls::new().unwrap_or_else(|e| panic!("no TLS here: {e}")))))
}

/// What a dialler of ours says first.
pub fn dialler_hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let connection = with_tls(Tls::dial);
    let mut connection = connection.unwrap_or_else(|e| panic!("no connection: {e}"));
    // Writing to memory cannot fail.
    let _ = connection.write_tls(&mut bytes);
    bytes
}

/// Bytes of a stranger who has dialled. True where TLS was set up with them, which they cannot be.
pub fn listener_hears(bytes: &[u8]) -> bool {
    with_tls(Tls::listen).is_ok_and(|connection| hears(connection, bytes))
}

/// Bytes of a stranger who was dialled.
pub fn dialler_hears(bytes: &[u8]) -> bool {
    with_tls(Tls::dial).is_ok_and(|connection| hears(connection, bytes))
}

fn hears(mut connection: Connection, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match connection.read_tls(&mut rest) {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        if connection.process_new_packets().is_err() {
            return false;
        }
    }
    !connection.is_handshaking()
}

/// An introduction: whether it proves a key to a connection with that number.
pub fn introduced(
    bytes: &[u8; BYTES],
    key: &ClusterKey,
    number: &[u8; 32],
    dialled: bool,
) -> Result<bool, LinkError> {
    let claim = Introduction::read(bytes, if dialled { Role::Dialler } else { Role::Listener })?;
    // Made for its text, which comes from a stranger.
    if let Err(e) = PROGRAM.check_version(&claim) {
        let text = e.to_string();
        assert!(text.chars().all(|c| !c.is_control()), "a stranger's text reaches the terminal: {text:?}");
    }
    Ok(claim.proves(key, number))
}

/// The introduction that is right.
pub fn introduction(key: &ClusterKey, number: &[u8; 32], dialled: bool) -> [u8; BYTES] {
    PROGRAM.introduce(if dialled { Role::Dialler } else { Role::Listener }, key, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doors_tell_good_from_bad() {
        let (key, number) = (ClusterKey::from_bytes([1; 20]), [2; 32]);
        let good = introduction(&key, &number, true);
        assert!(introduced(&good, &key, &number, true).unwrap());
        assert!(introduced(&good, &key, &number, false).is_err());
        assert!(!listener_hears(&dialler_hello()) && !dialler_hears(b"HTTP/1.1 200 OK"));
    }
}
