//! The identity of the peer: a connection becomes a link once both ends have proven a key to each other.
//!
//! Place in the flow: between a connected socket and its first frame, at both ends, in either role.
//!
//! Invariants: the dialler proves first. An end that receives a wrong proof, or none, closes without an answer, and
//! reports the reason to its own user. The key is never sent, and a proof is valid for one connection only. Over
//! TLS the proof covers a number that TLS exports; on loopback (`proven`) both ends derive the number from random
//! bytes that they have just exchanged.
//!
//! Deliberately absent: deadlines (the door and the callers have them), and the storage of keys.

pub(crate) mod introduction;
pub(crate) mod tls;

use crate::LocalFuture;
use crate::framed::Stream;
use crate::key::id_text;
use crate::tcp::pipe::Pipe;
use crate::tcp::{framed, tcp_connect, tune};
use crate::{ClusterKey, Link, LinkError};
use introduction::{BYTES, HandshakeRole, Program, UnprovenIntroduction};
use ring::rand::SecureRandom;
use std::cell::RefCell;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tls::TlsConfig;
use tokio::net::TcpStream;

/// Pause between two attempts when the peer closes the connection at once.
const SHUT_PAUSE: Duration = Duration::from_millis(25);
/// The label of the TLS exporter.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-bramble-proof";
/// The label of the number without TLS.
const LOOPBACK_LABEL: &[u8] = b"bramble loopback 1";

/// The proof that the peer has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// No proof was required.
    Nothing,
    /// The peer holds the cluster key, or the one-time key in its place.
    Member,
    /// The peer holds a key that a primary has introduced (the key's id): it may relay panels, and nothing else.
    Introduced([u8; 4]),
}

/// The rules by which connections become links.
#[derive(Clone)]
pub struct Security {
    mode: Mode,
    program: Program,
}

#[derive(Clone)]
enum Mode {
    Open(Reach),
    Proven(Keys),
    Sealed(Rc<TlsConfig>, Keys),
}

/// Which peers an unencrypted connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Processes on this machine.
    Loopback,
    /// Any machine: the owner of the network has declared it trusted.
    Anywhere,
}

/// The cluster key, and the keys that primaries have introduced, for as long as they need them.
#[derive(Clone)]
struct Keys {
    own: Rc<ClusterKey>,
    introduced: Rc<RefCell<Vec<ClusterKey>>>,
}

impl Security {
    /// No encryption and no proof.
    pub fn open(reach: Reach, protocol: u16, version: &'static str) -> Self {
        Self { mode: Mode::Open(reach), program: Program { protocol, version } }
    }

    /// Both ends prove the key, without encryption. For loopback, which no other machine can read.
    pub fn proven(key: ClusterKey, protocol: u16, version: &'static str) -> Self {
        Self { mode: Mode::Proven(Keys::new(key)), program: Program { protocol, version } }
    }

    /// TLS, over which both ends prove the key.
    pub fn sealed(key: ClusterKey, protocol: u16, version: &'static str) -> Result<Self, LinkError> {
        Ok(Self::over(TlsConfig::new()?, key, protocol, version))
    }

    /// The same as on a machine without AES instructions, to measure the cost of its links.
    pub fn sealed_without_aes(
        key: ClusterKey,
        protocol: u16,
        version: &'static str,
    ) -> Result<Self, LinkError> {
        Ok(Self::over(TlsConfig::with_aes(false)?, key, protocol, version))
    }

    fn over(tls: TlsConfig, key: ClusterKey, protocol: u16, version: &'static str) -> Self {
        Self { mode: Mode::Sealed(Rc::new(tls), Keys::new(key)), program: Program { protocol, version } }
    }

    /// Whether any peer is accepted without proof.
    pub fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open(_))
    }

    /// The key's id, if a key is required.
    pub fn key_id(&self) -> Option<String> {
        self.keys().map(|keys| keys.own.id())
    }

    /// Whether connections with that address are allowed. Others are refused in any case; this allows an early
    /// error.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let anywhere = matches!(self.mode, Mode::Open(Reach::Anywhere) | Mode::Sealed(..));
        anywhere || address.to_canonical().is_loopback()
    }

    /// Also accepts this key from diallers until the returned guard is dropped. `None` if no keys are required.
    pub fn introduce(&self, key: ClusterKey) -> Option<Introduced> {
        let keys = self.keys()?;
        let id = key.id_bytes();
        keys.introduced.borrow_mut().push(key);
        Some(Introduced { keys: keys.introduced.clone(), id })
    }

    /// Connects and makes a link, within `deadline` in total. A peer that closes the connection before the
    /// handshake may be under attack by strangers: the attempt is repeated while there is time.
    pub async fn reach(&self, address: SocketAddr, deadline: Duration) -> Result<Link, LinkError> {
        let own = self.keys().map(|keys| keys.own.clone());
        self.reach_with(address, deadline, own.as_deref()).await
    }

    /// The same with a key that a primary has introduced.
    pub async fn reach_introduced(
        &self,
        address: SocketAddr,
        deadline: Duration,
        key: &ClusterKey,
    ) -> Result<Link, LinkError> {
        let link = self.reach_with(address, deadline, Some(key)).await?;
        Ok(Link { proven: self.introduced(key), ..link })
    }

    /// The `Proven` value of a link that was proven with such a key.
    fn introduced(&self, key: &ClusterKey) -> Proven {
        if self.is_open() { Proven::Nothing } else { Proven::Introduced(key.id_bytes()) }
    }

    async fn reach_with(
        &self,
        address: SocketAddr,
        deadline: Duration,
        key: Option<&ClusterKey>,
    ) -> Result<Link, LinkError> {
        let mut was_shut = false;
        let trying = async {
            loop {
                match self.dial_with(tcp_connect(address, deadline).await?, key).await {
                    Err(LinkError::Shut) => was_shut = true,
                    other => return other,
                }
                tokio::time::sleep(SHUT_PAUSE).await;
            }
        };
        match tokio::time::timeout(deadline, trying).await {
            Ok(result) => result,
            Err(_) if was_shut => Err(LinkError::Shut),
            Err(_) => {
                let what = format!("it did not prove its key within {} s", deadline.as_secs());
                Err(LinkError::Untrusted(what))
            }
        }
    }

    /// A link over a connection that this end has made, with the cluster key.
    pub fn dial<'f>(&'f self, stream: TcpStream) -> LocalFuture<'f, Result<Link, LinkError>> {
        Box::pin(async move {
            let own = self.keys().map(|keys| keys.own.clone());
            self.dial_with(stream, own.as_deref()).await
        })
    }

    /// The same with a key that a primary has introduced.
    pub fn dial_introduced<'f>(
        &'f self,
        stream: TcpStream,
        key: &'f ClusterKey,
    ) -> LocalFuture<'f, Result<Link, LinkError>> {
        Box::pin(async move {
            let link = self.dial_with(stream, Some(key)).await?;
            Ok(Link { proven: self.introduced(key), ..link })
        })
    }

    async fn dial_with(&self, stream: TcpStream, key: Option<&ClusterKey>) -> Result<Link, LinkError> {
        let (pipe, binding) = self.prepare(stream, HandshakeRole::Dialler).await?;
        let (Some(key), Some(binding)) = (key, binding) else { return framed(pipe) };
        put(&pipe, &self.program.introduce(HandshakeRole::Dialler, key, &binding)).await?;
        let id = key.id();
        let closed = |_| {
            let what = format!(
                "it closed the connection when it was shown the proof of our cluster key ({id}): it has another \
                 one (compare: bramble key show --id), or it is full"
            );
            LinkError::Untrusted(what)
        };
        let bytes = take(&pipe).await.map_err(closed)?;
        let answer = UnprovenIntroduction::read(&bytes, HandshakeRole::Listener)?;
        if !answer.proves(key, &binding) {
            let what = format!("it does not hold this cluster's key ({id}): another program answers there");
            return Err(LinkError::Untrusted(what));
        }
        self.program.check_version(&answer)?;
        pipe.proven();
        Ok(Link { proven: Proven::Member, ..framed(pipe)? })
    }

    /// A link over a connection that this end has accepted.
    pub fn accept<'f>(&'f self, stream: TcpStream) -> LocalFuture<'f, Result<Link, LinkError>> {
        Box::pin(async move {
            let (pipe, binding) = self.prepare(stream, HandshakeRole::Listener).await?;
            let (Some(keys), Some(binding)) = (self.keys(), binding) else { return framed(pipe) };
            let bytes = take(&pipe).await.map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => LinkError::Untrusted("it left without proving a key".to_owned()),
                _ => LinkError::Broken(e),
            })?;
            let claim = UnprovenIntroduction::read(&bytes, HandshakeRole::Dialler)?;
            let Some((key, proven)) =
                keys.claimed(claim.key_id).filter(|(key, _)| claim.proves(key, &binding))
            else {
                // A bramble of another version with this key would have proven it; so report the version first.
                self.program.check_version(&claim)?;
                let (other, own) = (id_text(claim.key_id), keys.own.id());
                let what =
                    format!("it does not prove this cluster's key ({own}); it says that it has {other}");
                return Err(LinkError::Untrusted(what));
            };
            put(&pipe, &self.program.introduce(HandshakeRole::Listener, &key, &binding)).await?;
            self.program.check_version(&claim)?;
            pipe.proven();
            Ok(Link { proven, ..framed(pipe)? })
        })
    }

    fn keys(&self) -> Option<&Keys> {
        match &self.mode {
            Mode::Open(_) => None,
            Mode::Proven(keys) | Mode::Sealed(_, keys) => Some(keys),
        }
    }

    /// Sets up TLS if required, and derives the number that proofs cover.
    async fn prepare(
        &self,
        stream: TcpStream,
        role: HandshakeRole,
    ) -> Result<(Rc<Pipe>, Option<[u8; 32]>), LinkError> {
        tune(&stream)?;
        let other = stream.peer_addr()?.ip();
        if !self.reaches(other) {
            let what =
                format!("{other} is another machine, and there is no cluster key here (see: bramble key)");
            return Err(LinkError::Untrusted(what));
        }
        match &self.mode {
            Mode::Open(_) => Ok((Rc::new(Pipe::plain(stream)), None)),
            Mode::Proven(_) => {
                let pipe = Rc::new(Pipe::plain(stream));
                let binding = loopback_binding(&pipe, role).await?;
                Ok((pipe, Some(binding)))
            }
            Mode::Sealed(tls, _) => {
                let connection = match role {
                    HandshakeRole::Dialler => tls.dial(),
                    HandshakeRole::Listener => tls.listen(),
                };
                let pipe = Rc::new(Pipe::sealed(stream, connection.map_err(tls_failed)?));
                pipe.handshake().await.map_err(explain_tls)?;
                let binding = pipe.exported(EXPORTER_LABEL).transpose().map_err(tls_failed)?;
                Ok((pipe, binding))
            }
        }
    }
}

impl Keys {
    fn new(own: ClusterKey) -> Self {
        Self { own: Rc::new(own), introduced: Rc::default() }
    }

    /// The key that the peer claims to hold.
    fn claimed(&self, id: [u8; 4]) -> Option<(ClusterKey, Proven)> {
        if self.own.id_bytes() == id {
            return Some(((*self.own).clone(), Proven::Member));
        }
        let introduced = self.introduced.borrow();
        let key = introduced.iter().find(|key| key.id_bytes() == id)?;
        Some((key.clone(), Proven::Introduced(id)))
    }
}

/// Diallers may use the key while this guard exists.
pub struct Introduced {
    keys: Rc<RefCell<Vec<ClusterKey>>>,
    id: [u8; 4],
}

impl Introduced {
    /// The id in `Proven::Introduced` of links that were proven with the key.
    pub fn id(&self) -> [u8; 4] {
        self.id
    }
}

impl Drop for Introduced {
    fn drop(&mut self) {
        let mut keys = self.keys.borrow_mut();
        if let Some(at) = keys.iter().position(|key| key.id_bytes() == self.id) {
            keys.swap_remove(at);
        }
    }
}

/// Each end sends 32 random bytes; the number is derived from both.
async fn loopback_binding(pipe: &Pipe, role: HandshakeRole) -> Result<[u8; 32], LinkError> {
    let mut own = [0; 32];
    let random = ring::rand::SystemRandom::new().fill(&mut own);
    random.map_err(|_| LinkError::Untrusted("the system has no random numbers".to_owned()))?;
    put(pipe, &own).await?;
    let other: [u8; 32] = take(pipe).await.map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => {
            LinkError::Untrusted("it closed the connection without an answer".to_owned())
        }
        _ => LinkError::Broken(e),
    })?;
    let (dialler, listener) = match role {
        HandshakeRole::Dialler => (own, other),
        HandshakeRole::Listener => (other, own),
    };
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for part in [LOOPBACK_LABEL, &dialler[..], &listener[..]] {
        digest.update(part);
    }
    let mut binding = [0; 32];
    binding.copy_from_slice(digest.finish().as_ref());
    Ok(binding)
}

/// Sends all bytes.
async fn put(pipe: &Pipe, bytes: &[u8]) -> Result<(), LinkError> {
    let mut done = 0;
    while done < bytes.len() {
        done += pipe.write(&[IoSlice::new(&bytes[done..])]).await?;
    }
    Ok(())
}

/// Reads exactly `N` bytes.
async fn take<const N: usize>(pipe: &Pipe) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    while done < N {
        match pipe.read(&mut [IoSliceMut::new(&mut bytes[done..])], 0).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            got => done += got,
        }
    }
    Ok(bytes)
}

const _: () = assert!(BYTES == 64);

fn tls_failed(e: rustls::Error) -> LinkError {
    LinkError::Untrusted(format!("TLS cannot be set up: {e}"))
}

/// Explains a failed handshake to the user.
fn explain_tls(e: std::io::Error) -> LinkError {
    if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) {
        return LinkError::Shut;
    }
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    LinkError::Untrusted(match inner {
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS: it has no cluster key, or is older, or is no bramble (see: bramble key)"
                .to_owned()
        }
        Some(other) => format!("TLS cannot be set up with it: {other}"),
        None => format!("the connection broke while TLS was set up: {e}"),
    })
}

#[cfg(test)]
mod tests;
