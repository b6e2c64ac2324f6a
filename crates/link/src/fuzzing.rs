//! Entry points for the fuzzer: the parsers of bytes that come before a proof, without sockets.
//!
//! Deliberately absent: everything but bytes in and a verdict out.

use crate::secure::introduction::{BYTES, HandshakeRole, Program, UnprovenIntroduction};
use crate::secure::tls::TlsConfig;
use crate::{ClusterKey, LinkError};
use rustls::Connection;
use std::cell::OnceCell;

const PROGRAM: Program = Program { protocol: 2, version: "fuzz" };

thread_local! {
    static TLS: OnceCell<TlsConfig> = const { OnceCell::new() };
}

fn with_tls<T>(work: impl FnOnce(&TlsConfig) -> T) -> T {
    TLS.with(|tls| work(tls.get_or_init(|| TlsConfig::new().unwrap_or_else(|e| panic!("no TLS here: {e}")))))
}

/// The first bytes of a dialler of this program.
pub fn dialler_hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let connection = with_tls(TlsConfig::dial);
    let mut connection = connection.unwrap_or_else(|e| panic!("no connection: {e}"));
    // Writing to memory cannot fail.
    let _ = connection.write_tls(&mut bytes);
    bytes
}

/// Feeds bytes of an unproven dialler to a listener. True if they completed a TLS handshake, which must not happen.
pub fn listener_hears(bytes: &[u8]) -> bool {
    with_tls(TlsConfig::listen).is_ok_and(|connection| hears(connection, bytes))
}

/// The same for a dialler and the bytes of an unproven listener.
pub fn dialler_hears(bytes: &[u8]) -> bool {
    with_tls(TlsConfig::dial).is_ok_and(|connection| hears(connection, bytes))
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

/// Parses an introduction: whether it proves the key to a connection with that number.
pub fn introduced(
    bytes: &[u8; BYTES],
    key: &ClusterKey,
    number: &[u8; 32],
    dialled: bool,
) -> Result<bool, LinkError> {
    let claim = UnprovenIntroduction::read(
        bytes,
        if dialled { HandshakeRole::Dialler } else { HandshakeRole::Listener },
    )?;
    // For the text of the error, which contains text of the stranger.
    if let Err(e) = PROGRAM.check_version(&claim) {
        let text = e.to_string();
        assert!(text.chars().all(|c| !c.is_control()), "a stranger's text reaches the terminal: {text:?}");
    }
    Ok(claim.proves(key, number))
}

/// The correct introduction.
pub fn introduction(key: &ClusterKey, number: &[u8; 32], dialled: bool) -> [u8; BYTES] {
    PROGRAM.introduce(if dialled { HandshakeRole::Dialler } else { HandshakeRole::Listener }, key, number)
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
