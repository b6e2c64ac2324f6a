//! An attacker that sends an endless, fast stream of TLS records without data.
//!
//! rustls allows 32 empty records in a row, and 32 changes of keys without data between them; each makes room
//! for the other, so a stream of both is legal without end.

use super::*;
use ring::{aead, hkdf};
use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

/// Rounds of 32 empty records and a change of keys.
const ROUNDS: usize = 3000;
/// Records of 5 + 1 + 16 bytes, and one of 5 + 6 + 16.
const ROUND_BYTES: usize = 32 * 22 + 27;

#[derive(Debug, Default)]
struct Secret(Mutex<Vec<u8>>);

impl rustls::KeyLog for Secret {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of RFC 8446, section 7.1.
fn expand(secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let lengths = [0, u8::try_from(len).unwrap(), u8::try_from(label.len()).unwrap()];
    let info = [&lengths[..], label.as_bytes(), &[0]];
    let mut out = vec![0; len];
    let key = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    key.expand(&info, Length(len)).unwrap().fill(&mut out).unwrap();
    out
}

/// One direction of a connection whose secret is known.
struct Records {
    algorithm: &'static aead::Algorithm,
    secret: Vec<u8>,
    key: aead::LessSafeKey,
    iv: Vec<u8>,
    number: u64,
}

impl Records {
    fn new(algorithm: &'static aead::Algorithm, secret: Vec<u8>) -> Self {
        let key = aead::UnboundKey::new(algorithm, &expand(&secret, "key", algorithm.key_len())).unwrap();
        let iv = expand(&secret, "iv", aead::NONCE_LEN);
        Self { algorithm, key: aead::LessSafeKey::new(key), secret, iv, number: 0 }
    }

    /// A record of this content, whose last byte is its type.
    fn record(&mut self, content: &[u8], out: &mut Vec<u8>) {
        let len = u16::try_from(content.len() + 16).unwrap().to_be_bytes();
        let head = [0x17, 3, 3, len[0], len[1]];
        let mut nonce = [0; aead::NONCE_LEN];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        nonce.iter_mut().zip(&self.iv).for_each(|(a, b)| *a ^= b);
        self.number += 1;
        let (nonce, mut sealed) = (aead::Nonce::assume_unique_for_key(nonce), content.to_vec());
        self.key.seal_in_place_append_tag(nonce, aead::Aad::from(head), &mut sealed).unwrap();
        out.extend_from_slice(&head);
        out.extend_from_slice(&sealed);
    }

    fn round(&mut self, out: &mut Vec<u8>) {
        for _ in 0..32 {
            self.record(&[0x17], out);
        }
        self.record(&[24, 0, 0, 1, 0, 0x16], out);
        *self = Self::new(self.algorithm, expand(&self.secret, "traffic upd", 32));
    }
}

/// Sets TLS up, then sends all rounds at once.
fn attack(address: SocketAddr) {
    let secret = Arc::new(Secret::default());
    let mut config = TlsConfig::new().unwrap().dialling();
    config.key_log = secret.clone();
    let name = rustls::pki_types::ServerName::try_from("bramble").unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    while connection.is_handshaking() || connection.wants_write() {
        connection.complete_io(&mut stream).unwrap();
    }
    let algorithm = match connection.negotiated_cipher_suite().unwrap().suite() {
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256 => &aead::AES_128_GCM,
        _ => &aead::CHACHA20_POLY1305,
    };
    let mut records = Records::new(algorithm, secret.0.lock().unwrap().clone());
    let mut all = Vec::new();
    (0..ROUNDS).for_each(|_| records.round(&mut all));
    // The other end may close before all is sent.
    let _ = stream.write_all(&all);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read(&mut [0; 1]);
}

#[test]
fn records_without_bytes_leave_the_event_loop_to_others() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let attacker = std::thread::spawn(move || attack(address));
        let (stream, _) = listener.accept().await.unwrap();
        let pipe = Pipe::sealed(stream, TlsConfig::new().unwrap().listen().unwrap());
        pipe.handshake().await.unwrap();
        // A proven peer could send such records, too.
        pipe.proven();
        // The records wait in the kernel, so the rest of the test does not wait for the attacker.
        std::thread::sleep(Duration::from_secs(1));
        let turns = Rc::new(Cell::new(0u32));
        let counting = turns.clone();
        let other = tokio::task::spawn_local(async move {
            loop {
                counting.set(counting.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let read = pipe.read(&mut [IoSliceMut::new(&mut [0; 16])], 0).await;
        assert!(read.is_err(), "records without data gave bytes: {read:?}");
        other.abort();
        let looks = u32::try_from(ROUNDS * ROUND_BYTES / (64 << 10)).unwrap();
        assert!(turns.get() >= looks, "the others had {} turns in {looks} looks", turns.get());
        drop(pipe);
        attacker.join().unwrap();
    });
}
