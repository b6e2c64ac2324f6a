//! A client that can send anything: TLS, introductions and frames, byte by byte after docs/wire-format.md.
//!
//! Invariants: every wait has a limit. It uses the program's encoding of messages and its frame checksum; handshake
//! and proof are independent implementations.

use crate::support::hello;
use crate::worker::{KEY, Trust};
use bramble_link::{Body, ClusterKey, Frame, HEADER_BYTES, SharedRegion};
use bramble_wire::limits::{ACCEPTS_PER_ADDRESS_PER_S_MAX, PROTOCOL};
use bramble_wire::message::{Hello, Kind, Welcome, decode_error};
use ring::hmac;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An honest end answers within this time, except in tests of silence.
const PATIENCE: Duration = Duration::from_secs(15);

/// TLS with a server without a certificate.
pub(crate) type Sealed = StreamOwned<ClientConnection, TcpStream>;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that sends and receives frames.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    socket: TcpStream,
    /// The stream below the frames.
    pub(crate) session: u32,
    /// The bytes that the worker granted.
    pub(crate) grant_bytes: u64,
}

/// A received frame.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) kind: u8,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    /// Connects, up to the point where frames may be sent.
    pub(crate) fn connect(trust: Trust, address: SocketAddr) -> Self {
        Self::try_connect(trust, address).unwrap()
    }

    /// The same; an error if the door drops the connection.
    pub(crate) fn try_connect(trust: Trust, address: SocketAddr) -> io::Result<Self> {
        let socket = connect(address);
        let other = socket.try_clone()?;
        let stream: Box<dyn Stream> = match trust {
            Trust::Keyless => Box::new(other),
            Trust::Keyed => {
                let mut sealed = seal(other, &client_config(true))?;
                let own = introduction(&sealed, &KEY, PROTOCOL, 0);
                sealed.write_all(&own)?;
                let mut answer = [0; 64];
                sealed.read_exact(&mut answer)?;
                assert_eq!(answer, introduction(&sealed, &KEY, PROTOCOL, 1));
                Box::new(sealed)
            }
        };
        Ok(Self { stream, socket, session: 0, grant_bytes: 0 })
    }

    /// A session: a connection whose hello was welcomed.
    pub(crate) fn session(trust: Trust, address: SocketAddr) -> Self {
        Self::try_session(trust, address).unwrap_or_else(|why| panic!("no session: {why}"))
    }

    /// The same, or the worker's error message.
    pub(crate) fn try_session(trust: Trust, address: SocketAddr) -> Result<Self, String> {
        Self::welcomed(trust, address, &hello())
    }

    /// The same with a given hello.
    pub(crate) fn welcomed(trust: Trust, address: SocketAddr, hello: &Hello) -> Result<Self, String> {
        let mut client = Self::connect(trust, address);
        client.send(Kind::Hello.code(), &hello.encode(), &[]);
        let came = client.receive().unwrap();
        if came.kind != Kind::Welcome.code() {
            return Err(decode_error(&came.head).unwrap());
        }
        client.grant_bytes = Welcome::decode(&came.head).unwrap().memory_bytes;
        client.session = hello.session;
        Ok(client)
    }

    /// The accepting end of a connection, without TLS.
    pub(crate) fn over(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = Box::new(socket.try_clone().unwrap());
        Self { stream, socket, session: 0, grant_bytes: 0 }
    }

    /// Sends a frame. A closed connection is noticed only at the next receive.
    pub(crate) fn send(&mut self, kind: u8, head: &[u8], body: &[u8]) {
        let bytes = frame(kind, self.session, head, body);
        self.send_raw(&bytes);
    }

    /// Sends bytes.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.try_send_raw(bytes);
    }

    pub(crate) fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Ends the connection at once.
    pub(crate) fn hang_up(&self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Sets the limit of all waits from now on.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        self.socket.set_write_timeout(Some(patience)).unwrap();
    }

    /// The next frame.
    pub(crate) fn receive(&mut self) -> io::Result<Came> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let body_bytes = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let mut head = vec![0; usize::from(u16::from_le_bytes([header[4], header[5]]))];
        self.stream.read_exact(&mut head)?;
        let mut body = vec![0; body_bytes as usize];
        self.stream.read_exact(&mut body)?;
        let got = Came { kind: header[6], head, body };
        let session = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let want = frame(got.kind, session, &got.head, &got.body);
        assert_eq!(want[..HEADER_BYTES], header, "a frame header that differs from the specification");
        Ok(got)
    }

    /// The next frame of a kind; frames before it are dropped.
    pub(crate) fn receive_kind(&mut self, kind: Kind) -> Came {
        loop {
            let came = self.receive().unwrap_or_else(|e| panic!("no {kind:?} but {e}"));
            if came.kind == kind.code() {
                return came;
            }
            if came.kind == Kind::Error.code() {
                panic!("no {kind:?} but {:?}", decode_error(&came.head));
            }
        }
    }

    /// Receives until the other end closes; returns its error message, or an empty string.
    pub(crate) fn last_words(&mut self) -> String {
        let mut words = String::new();
        loop {
            match self.receive() {
                Ok(came) if came.kind == Kind::Error.code() => words = decode_error(&came.head).unwrap(),
                Ok(_) => {}
                Err(e) if is_timeout(&e) => panic!("the other end did not close"),
                Err(_) => return words,
            }
        }
    }
}

/// Whether an error is a timeout.
pub(crate) fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The bytes of a frame.
pub(crate) fn frame(kind: u8, session: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let shared = match body.is_empty() {
        true => Body::Empty,
        false => Body::Shared(SharedRegion::whole(Arc::new(body.to_vec()))),
    };
    let header = Frame::new(kind, head.to_vec(), shared).header(session);
    [&header.encode()[..], head, body].concat()
}

/// Connects no faster than the worker's rate limit for one address.
fn pace(address: SocketAddr) {
    static NEXT: Mutex<BTreeMap<SocketAddr, Instant>> = Mutex::new(BTreeMap::new());
    let gap = Duration::from_secs(1) / (ACCEPTS_PER_ADDRESS_PER_S_MAX - 20);
    let now = Instant::now();
    let at = {
        let mut next = NEXT.lock().unwrap();
        let at = next.get(&address).copied().unwrap_or(now).max(now);
        next.insert(address, at + gap);
        at
    };
    std::thread::sleep(at - now);
}

/// A connected socket with timeouts.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    pace(address);
    let socket = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// The TLS configuration of a dialler; without raw public keys, that of a foreign program.
pub(crate) fn client_config(raw_keys: bool) -> ClientConfig {
    let provider = Arc::new(provider::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(raw_keys)))
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    config
}

/// The client side of TLS, before its first message.
pub(crate) fn connection(config: &ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config.clone()), ServerName::try_from("bramble").unwrap()).unwrap()
}

/// A complete TLS handshake.
pub(crate) fn seal(mut socket: TcpStream, config: &ClientConfig) -> io::Result<Sealed> {
    let mut connection = connection(config);
    while connection.is_handshaking() || connection.wants_write() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

/// The 64 bytes that prove a key on this connection.
pub(crate) fn introduction(sealed: &Sealed, key: &[u8; 20], protocol: u16, role: u8) -> [u8; 64] {
    let binding = sealed.conn.export_keying_material([0; 32], b"EXPORTER-bramble-proof", None).unwrap();
    let mut out = [0; 64];
    out[..4].copy_from_slice(b"BRMB");
    out[4..6].copy_from_slice(&protocol.to_le_bytes());
    out[6] = role;
    out[8..12].copy_from_slice(&key_id(key));
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    out[12..12 + version.len()].copy_from_slice(version);
    let covered = [&b"bramble proof 1"[..], &binding, &out[..32]].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &covered);
    out[32..].copy_from_slice(tag.as_ref());
    out
}

/// The id of a key, from its text.
fn key_id(key: &[u8; 20]) -> [u8; 4] {
    let text = ClusterKey::from_bytes(*key).id().replace('-', "");
    u32::from_str_radix(&text, 16).unwrap().to_be_bytes()
}

/// Accepts any server key, and for TLS 1.3 checks that the server has the private key.
#[derive(Debug)]
struct Anybody(bool);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        let algorithms = provider::default_provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256]
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0
    }
}
