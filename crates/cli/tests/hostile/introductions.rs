//! TLS is set up, which anyone can do; the proof of the key is missing, wrong, replayed or of another key.

use crate::client::{Sealed, client_config, connect, introduction, is_timeout, seal};
use crate::worker::{KEY, SOON, Trust, Worker, honest_digest, within};
use bramble_wire::limits::PROTOCOL;
use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// No bytes.
const NOTHING: [u8; 0] = [];
const OTHER_KEY: [u8; 20] = [0x33; 20];

fn sealed(address: SocketAddr) -> Sealed {
    seal(connect(address), &client_config(true)).unwrap()
}

/// The worker's answer to these bytes over TLS, until it closes.
fn answer(mut sealed: Sealed, bytes: &[u8]) -> Vec<u8> {
    let _ = sealed.write_all(bytes);
    let mut got = Vec::new();
    match sealed.read_to_end(&mut got) {
        Err(e) if is_timeout(&e) => panic!("it keeps a stranger"),
        _ => got,
    }
}

#[test]
fn no_answer_without_a_proof_of_the_key_for_this_connection() {
    let worker = Worker::start(Trust::Keyed);
    let one = || sealed(worker.address);
    let proof = |sealed: &Sealed, key: &[u8; 20], role| introduction(sealed, key, PROTOCOL, role);
    let own_key_id = bramble_link::ClusterKey::from_bytes(OTHER_KEY).id();

    let wrong_key = one();
    let bytes = proof(&wrong_key, &OTHER_KEY, 0);
    assert_eq!(answer(wrong_key, &bytes), NOTHING);
    worker.says(&own_key_id);

    // The id of the right key with the proof of another key.
    let wrong_proof = one();
    let mut bytes = proof(&wrong_proof, &OTHER_KEY, 0);
    bytes[8..12].copy_from_slice(&proof(&wrong_proof, &KEY, 0)[8..12]);
    assert_eq!(answer(wrong_proof, &bytes), NOTHING);
    worker.says("it does not prove this cluster's key");

    let listener_role = one();
    let bytes = proof(&listener_role, &KEY, 1);
    assert_eq!(answer(listener_role, &bytes), NOTHING);
    worker.says("it does not introduce itself as a bramble does");

    let (other_connection, this) = (one(), one());
    let bytes = proof(&other_connection, &KEY, 0);
    assert_eq!(answer(this, &bytes), NOTHING);

    let changed_protocol = one();
    let mut bytes = proof(&changed_protocol, &KEY, 0);
    bytes[4] ^= 0x40;
    assert_eq!(answer(changed_protocol, &bytes), NOTHING);

    let mut bytes = proof(&one(), &KEY, 0);
    bytes.fill(0xff);
    assert_eq!(answer(one(), &bytes), NOTHING);
    worker.is_well();
}

#[test]
fn another_protocol_is_reported_only_to_holders_of_the_key() {
    let worker = Worker::start(Trust::Keyed);
    let newer = sealed(worker.address);
    let bytes = introduction(&newer, &KEY, 77, 0);
    let want = introduction(&newer, &KEY, PROTOCOL, 1);
    assert_eq!(answer(newer, &bytes), want);
    worker.says("with protocol 77");
    let stranger = sealed(worker.address);
    let bytes = introduction(&stranger, &OTHER_KEY, 78, 0);
    assert_eq!(answer(stranger, &bytes), NOTHING);
    worker.says("with protocol 78");
    worker.is_well();
}

#[test]
fn an_introduction_may_stop_anywhere() {
    let worker = Worker::start(Trust::Keyed);
    for end in 0..64 {
        let mut stranger = sealed(worker.address);
        let bytes = introduction(&stranger, &KEY, PROTOCOL, 0);
        stranger.write_all(&bytes[..end]).unwrap();
        stranger.conn.send_close_notify();
        assert_eq!(answer(stranger, &[]), NOTHING, "after {end} bytes");
    }
    worker.says("it left without proving a key");
    worker.is_well();
}

/// Forwards one connection to the worker; returns the bytes that the dialler sent.
fn record_one(listener: &TcpListener, worker: SocketAddr) -> Vec<u8> {
    let (near, _) = listener.accept().unwrap();
    let far = connect(worker);
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let (mut kept, mut some) = (Vec::new(), vec![0; 64 << 10]);
            while let Ok(count @ 1..) = from.read(&mut some) {
                kept.extend_from_slice(&some[..count]);
                if to.write_all(&some[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
            kept
        })
    };
    let sent = pass(near.try_clone().unwrap(), far.try_clone().unwrap());
    let answered = pass(far, near);
    answered.join().unwrap();
    sent.join().unwrap()
}

#[test]
fn a_session_that_was_recorded_cannot_be_played_again() {
    let worker = Worker::start(Trust::Keyed);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = worker.address;
    let recording = std::thread::spawn(move || record_one(&listener, to));
    honest_digest(Trust::Keyed, &[address]);
    let sent = recording.join().unwrap();
    assert!(sent.len() > 100_000, "{} bytes are no product", sent.len());
    worker.says("served");
    for bytes in [&sent[..], &sent[..600]] {
        let mut socket = connect(worker.address);
        let _ = socket.write_all(bytes);
        let mut got = Vec::new();
        let _ = socket.read_to_end(&mut got);
        assert!(got.len() < 1000, "{} bytes were answered to a recording", got.len());
    }
    worker.says("TLS cannot be set up with it");
    assert_eq!(worker.log().matches("served").count(), 1);
    worker.is_well();
}

/// Creates correctly encrypted records without content.
struct EmptyRecords {
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl EmptyRecords {
    fn of(sealed: Sealed) -> (Self, TcpStream) {
        let (connection, socket) = sealed.into_parts();
        let (number, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key.as_ref(), iv.as_ref()),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&CHACHA20_POLY1305, key.as_ref(), iv.as_ref())
            }
            _ => panic!("a cipher that docs/wire-format.md does not name"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap());
        (Self { key, iv: iv.try_into().unwrap(), number }, socket)
    }

    fn next(&mut self, out: &mut Vec<u8>) {
        let head = [0x17, 3, 3, 0, 17];
        let mut nonce = self.iv;
        for (byte, count) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= count;
        }
        self.number += 1;
        // Only the content type, without content.
        let mut content = vec![0x17];
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(head), &mut content)
            .unwrap();
        out.extend_from_slice(&head);
        out.extend_from_slice(&content);
    }
}

/// Sends records without content until the other end closes, for at most eight seconds; returns their bytes.
fn flood_with_nothing(sealed: Sealed) -> usize {
    let (mut records, mut socket) = EmptyRecords::of(sealed);
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(8) {
        let mut bytes = Vec::new();
        (0..3000).for_each(|_| records.next(&mut bytes));
        if socket.write_all(&bytes).is_err() {
            break;
        }
        sent += bytes.len();
    }
    sent
}

#[test]
fn records_without_content_do_not_keep_the_worker_busy() {
    let worker = Worker::start(Trust::Keyed);
    std::thread::scope(|scope| {
        let floods: Vec<_> =
            (0..3).map(|_| scope.spawn(|| flood_with_nothing(sealed(worker.address)))).collect();
        worker.is_well_below(u64::MAX);
        for flood in floods {
            let sent = flood.join().unwrap();
            // The worker reads little; the rest is in socket buffers.
            assert!(sent < 16 << 20, "{sent} bytes were taken from a stranger");
        }
    });
    worker.says("TooManyEmptyFragments");
    worker.is_well();
}

#[test]
fn a_member_that_sends_records_without_content_blocks_no_other() {
    let worker = Worker::start(Trust::Keyed);
    let mut member = sealed(worker.address);
    let own = introduction(&member, &KEY, PROTOCOL, 0);
    member.write_all(&own).unwrap();
    member.read_exact(&mut [0; 64]).unwrap();
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood_with_nothing(member));
        std::thread::sleep(Duration::from_millis(200));
        honest_digest(Trust::Keyed, &[worker.address]);
        flood.join().unwrap();
    });
    // It sent no hello in time.
    assert!(within(SOON, || worker.fds_more() == 0));
    worker.is_well();
}
