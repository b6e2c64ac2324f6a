//! Bytes that strangers send before any proof.

use crate::client::{client_config, connect, connection, frame, is_timeout};
use crate::support::{Random, hello};
use crate::worker::{Trust, Worker};
use bramble_wire::limits::HANDSHAKE_DEADLINE;
use bramble_wire::message::Kind;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

/// No bytes.
const NOTHING: [u8; 0] = [];

/// Sends bytes; returns the answer until the other end closes, which it has to.
fn answer(address: SocketAddr, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut socket = connect(address);
    let _ = socket.write_all(bytes);
    if ends {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut got = Vec::new();
    match socket.read_to_end(&mut got) {
        Err(e) if is_timeout(&e) => panic!("it keeps a stranger"),
        _ => got,
    }
}

/// The first TLS message of a dialler.
fn client_hello(raw_keys: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    connection(&client_config(raw_keys)).write_tls(&mut bytes).unwrap();
    bytes
}

/// A ClientHello of TLS 1.2 with one suite and no extensions.
fn old_client_hello() -> Vec<u8> {
    let mut hello = vec![0x03, 0x03];
    hello.extend_from_slice(&[7; 32]);
    hello.extend_from_slice(&[0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut bytes = vec![0x16, 0x03, 0x01, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    bytes.extend_from_slice(&hello);
    bytes
}

/// A hello of the protocol without keys.
fn plain_hello() -> Vec<u8> {
    frame(Kind::Hello.code(), 0, &hello().encode(), &[])
}

fn http() -> Vec<u8> {
    b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n".to_vec()
}

#[test]
fn no_stranger_gets_a_byte_from_a_worker_with_a_key() {
    let no_tls = "it does not speak TLS";
    let no_common = "TLS cannot be set up with it";
    let kinds: [(&str, Vec<u8>, &str); 10] = [
        ("an older bramble", plain_hello(), no_tls),
        ("a browser", http(), no_tls),
        ("random bytes", Random(1).bytes(300), no_tls),
        ("zeros", vec![0; 64], no_tls),
        ("ones", vec![0xff; 64 << 10], no_tls),
        ("TLS 1.2", old_client_hello(), no_common),
        ("TLS with certificates", client_hello(false), no_common),
        ("a huge record", [&[0x16, 3, 1, 0xff, 0xff][..], &vec![1; 64 << 10]].concat(), no_tls),
        ("sealed data before a handshake", [&[0x17, 3, 3, 0, 64][..], &[9; 64]].concat(), no_common),
        ("an alert", vec![0x15, 3, 3, 0, 2, 2, 40], "TLS cannot be set up"),
    ];
    let worker = Worker::start(Trust::Keyed);
    for (told, (name, bytes, why)) in kinds.iter().enumerate() {
        assert_eq!(answer(worker.address, bytes, false), NOTHING, "{name}");
        let count = |text: &str| worker.log().matches(text).count();
        let said = crate::worker::within(crate::worker::SOON, || count("bramble: connection of") == told + 1);
        assert!(said, "{name}:\n{}", worker.log());
        let last = worker.log().lines().last().unwrap().to_owned();
        assert!(last.contains(why), "{name}: {last}");
    }
    worker.is_well();
}

#[test]
fn a_handshake_may_stop_anywhere() {
    let worker = Worker::start(Trust::Keyed);
    let whole = client_hello(true);
    assert!(whole.len() < 1000);
    for end in 0..whole.len() {
        assert_eq!(answer(worker.address, &whole[..end], true), NOTHING, "after {end} bytes");
    }
    assert!(!answer(worker.address, &whole, true).is_empty(), "a whole ClientHello gets no answer");
    worker.says("it closed the connection before TLS was set up");
    worker.is_well();
}

#[test]
fn a_handshake_may_be_wrong_anywhere() {
    let worker = Worker::start(Trust::Keyed);
    let whole = client_hello(true);
    let mut random = Random(3);
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << random.below(8);
        // Random values in the handshake may have any bits: then TLS answers as usual.
        assert!(answer(worker.address, &changed, true).len() < 1500, "byte {at}");
    }
    worker.is_well();
}

#[test]
fn a_worker_without_a_key_tells_strangers_of_this_machine_why() {
    let worker = Worker::start(Trust::Keyless);
    let kinds = [
        ("a browser", http(), "not a frame of this protocol"),
        ("a bramble with a key", client_hello(true), "it speaks TLS"),
        ("random bytes", Random(2).bytes(300), "not a frame of this protocol"),
        ("ones", vec![0xff; 64 << 10], "not a frame of this protocol"),
        ("a long hello", frame(1, 0, &[1; 1009], &[]), "a header announces 1009 + 0 bytes"),
        ("a hello with a body", frame(1, 0, &[1; 20], &[1]), "a header announces 20 + 1 bytes"),
        ("a wrong checksum", [&plain_hello()[..12], &[0; 4], &plain_hello()[16..]].concat(), "damaged"),
        ("a session that is not open", frame(1, 7, &hello().encode(), &[]), "session 00000007"),
    ];
    for (name, bytes, why) in &kinds {
        assert!(answer(worker.address, bytes, false).len() < 400, "{name}");
        worker.says(why);
    }
    worker.is_well();
}

#[test]
fn a_handshake_that_grows_without_end_is_not_waited_for() {
    let worker = Worker::start(Trust::Keyed);
    // A ClientHello of 60,000 bytes, the longest that TLS accepts, in records of 16 KiB; nothing follows the first
    // 20.
    let record = [&[0x16, 3, 1, 0x40, 0][..], &[0; 1 << 14]].concat();
    let mut bytes = [record.clone(), record].concat();
    bytes[5..9].copy_from_slice(&[1, 0, 0xea, 0x60]);
    let began = Instant::now();
    assert_eq!(answer(worker.address, &bytes[..20_000], false), NOTHING);
    assert!(began.elapsed() < HANDSHAKE_DEADLINE);
    worker.says("it sent 16384 bytes and proved no key");
    worker.is_well();
}
