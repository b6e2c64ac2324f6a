//! Links: ordered, reliable channels of frames between two ends.
//!
//! Place in the flow: between the schedules of primary and worker. The shell of one process gives a `Frame` to a
//! `Sender`; in the peer process a `Receiver` asks a `BodyPlacer` for the memory of the body, reads the body into
//! it, and returns the frame.
//!
//! Invariants: frames arrive whole, in order and once, or the link ends with an error. A body is sent from the
//! memory that holds it and received into the memory that will use it, without intermediate copies (a `thread` link
//! passes a reference, and so does `shm` for a body in a file). Every size is checked against the receiver's limits
//! before anything is read.
//!
//! Deliberately absent: matrices and messages. A link knows kinds and lengths of frames, never their meaning, and
//! this crate depends on no other crate of the workspace.

mod body;
mod checksum;
mod door;
pub mod echo;
#[cfg(target_os = "linux")]
mod file_reference;
mod frame;
mod framed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod key;
#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
mod local;
mod local_kind;
mod meter;
mod mpi;
mod secure;
#[cfg(target_os = "linux")]
mod shm;
mod tcp;
mod thread;

pub use body::{Body, BodyOwner, DiscardedBody, Landing, SharedRegion};
pub use door::{Arrival, Door, DoorLimits, Slot};
pub use frame::{CHUNK_BYTES_MAX, Frame, FrameLimits, HEAD_BYTES_MAX, HEADER_BYTES, Header};
pub use key::{ClusterKey, KeyError};
pub use local::{Endpoint, local_pair};
pub use local_kind::LocalKind;
pub use meter::{Section, SectionMeter, Spent, clock_ns, thread_cpu_ns};
pub use mpi::{Exchange, Late, Launch, MpiError, PlainMessages, Portion, RankOrder, WhenLate, World};
pub use secure::{Introduced, Proven, Reach, Security};
pub use tcp::{tcp_connect, tcp_link};
pub use thread::thread_pair;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

/// A future of a link. Not `Send`: each end of a link stays on one event loop.
pub type LinkFuture<'a, T> = LocalFuture<'a, Result<T, LinkError>>;

/// A future of this thread. A public `async fn` is compiled again in each crate that awaits it; a function that returns this type
/// is compiled once, in its own crate.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A condition that has to hold before a body can be placed.
pub type Until<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Why a link failed or ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the connection between two frames.
    #[error("the connection was closed by the other end")]
    Closed,
    /// No connection was made: nothing listens at the address, or it cannot be reached.
    #[error("could not connect: {0}")]
    Unreached(std::io::Error),
    /// The peer closed the connection, or the network failed, in the middle of a frame.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    /// The bytes are no frame of this protocol, or the frame exceeds the current limits.
    #[error("not a frame of this protocol: {0}")]
    Foreign(String),
    /// The lengths are plausible, but the checksum does not match.
    #[error("a frame arrived damaged (checksum {got:08x}, expected {expected:08x})")]
    Damaged {
        /// The checksum of the bytes that arrived.
        got: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// A frame began, and then no byte moved for too long.
    #[error("nothing came or went for {} s in the middle of a frame", .0.as_secs())]
    Stalled(std::time::Duration),
    /// A frame began, and its bytes move slower than the lowest rate that a link accepts (a slow-rate attack would
    /// do that).
    #[error("slower than {0} bytes a second in the middle of a frame")]
    Creeping(u64),
    /// The peer closed the connection before the handshake: it has no key, or has no room at the moment.
    #[error(
        "it closed the connection before TLS was set up: it has no cluster key, or is older, or is full (see: bramble \
         key)"
    )]
    Shut,
    /// The peer did not prove its key.
    #[error("{0}")]
    Untrusted(String),
    /// The `BodyPlacer` refused the body.
    #[error("{0}")]
    Refused(String),
}

impl LinkError {
    /// Whether the peer or the network between is gone; else the peer has broken a rule, or no link was made.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Closed | Self::Broken(_) | Self::Stalled(_) | Self::Creeping(_))
    }
}

/// The sending end of a link.
pub trait Sender {
    /// Sends one frame; returns when the link has accepted all of it.
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()>;
    /// All following frames carry this session number.
    fn set_session(&mut self, session: u32);
    /// Whether the checksum of a frame covers its body; if so, it is computed before the body is sent.
    fn sums_bodies(&self) -> bool {
        false
    }
    /// Bytes sent, headers included. A link that shares memory counts the bytes of the bodies that it passed by
    /// reference.
    fn bytes_sent(&self) -> u64;
    /// A probe for the progress of slow transfers. The count grows with every byte of a body that the peer's system
    /// has acknowledged, also within a frame. Frames without a body do not count, because a system acknowledges
    /// them even for a process that has stopped. A link that shares memory counts nothing.
    fn send_progress(&self) -> SendProgressProbe {
        Rc::new(SendProgress::default)
    }
    /// Tells the peer that no more frames will come.
    fn close(&mut self) -> LinkFuture<'_, ()>;
}

/// Reads the progress of a link; zero once the link is gone.
pub type SendProgressProbe = Rc<dyn Fn() -> SendProgress>;

/// How far the bytes of a link have got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Bytes up to the end of the last acknowledged part of a body.
    pub acknowledged: u64,
    /// Bytes that are in this system's send buffer and not acknowledged by the peer's system.
    pub buffered: u64,
}

/// The receiving end of a link.
pub trait Receiver {
    /// The next frame. `place` is asked for the memory of its body, unless the link shares memory.
    fn receive<'a>(&'a mut self, place: &'a mut dyn BodyPlacer) -> LinkFuture<'a, Arrived>;
    /// Reads and discards everything until the peer closes. To close a connection with unread bytes would make the
    /// system discard the last bytes that were sent, such as the reason for the end of a session.
    fn drain(&mut self) -> LinkFuture<'_, ()>;
    /// All following frames must carry this session number.
    fn set_session(&mut self, session: u32);
    /// No following frame may exceed these limits.
    fn set_limits(&mut self, limits: FrameLimits);
    /// A counter of received bytes that also grows within a frame: it shows that the peer is alive. A link that
    /// shares memory counts nothing.
    fn arriving(&self) -> Rc<Cell<u64>> {
        Rc::default()
    }
    /// Bytes received, headers included. A link that shares memory counts the bytes of the bodies that it passed by
    /// reference.
    fn bytes_received(&self) -> u64;
}

/// Chooses the memory for the bodies of received frames.
pub trait BodyPlacer {
    /// A condition that must hold before `place` is called for this frame, if any. The body stays in the link
    /// meanwhile. The link sets no deadline for this wait; the placer does.
    fn until(&self, _kind: u8, _head: &[u8]) -> Option<Until<'_>> {
        None
    }

    /// Memory of exactly `body_bytes` for the frame of that kind and head, or the reason why the frame is refused;
    /// a refusal ends the link.
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String>;
}

/// Refuses every body, for ends that expect none.
pub struct NoBodies;

impl BodyPlacer for NoBodies {
    fn place(&mut self, kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Err(format!("a frame of kind {kind} has a body of {body_bytes} bytes, and none is expected"))
    }
}

/// A received frame.
#[derive(Debug)]
pub struct Arrived {
    /// Its kind.
    pub kind: u8,
    /// Its head.
    pub head: bytes::Bytes,
    /// Its body.
    pub body: ArrivedBody,
}

/// How the body of a received frame is held.
#[derive(Debug)]
pub enum ArrivedBody {
    /// The frame has no body.
    Empty,
    /// In the memory that the `BodyPlacer` chose.
    Landed(Box<dyn Landing>),
    /// By reference, on a link that shares memory or passes bodies in files by reference.
    Shared(SharedRegion),
    /// Memory that the sender leased to this end for writing, on a link that shares memory.
    Leased(Box<dyn Landing>),
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The address of this end.
    pub here: SocketAddr,
    /// The address of the peer.
    pub there: SocketAddr,
}

/// One end of a link: its sender and its receiver.
pub struct Link {
    /// Sends to the peer.
    pub sender: Box<dyn Sender>,
    /// Receives from the peer.
    pub receiver: Box<dyn Receiver>,
    /// The name of the peer in messages.
    pub peer: String,
    /// The addresses of both ends, if the link has addresses.
    pub addresses: Option<Addresses>,
    /// `thread`, `tcp`, `pipe`, `shm` or `mpi`.
    pub name: &'static str,
    /// Whether bodies arrive by reference and `Body::Leased` is allowed.
    pub shares_memory: bool,
    /// Whether a body that lies in a file (`SharedRegion::of_file`) is passed by reference: the peer maps the file.
    /// Such a body may be longer than a frame.
    pub refers_to_files: bool,
    /// The cipher, if the link is encrypted.
    pub cipher: Option<&'static str>,
    /// Which key the peer has proven.
    pub proven: Proven,
}

/// A link without its sender and receiver, while these are with the tasks that use them.
#[derive(Clone, Debug)]
pub struct LinkFacts {
    peer: String,
    addresses: Option<Addresses>,
    name: &'static str,
    shares_memory: bool,
    refers_to_files: bool,
    cipher: Option<&'static str>,
    proven: Proven,
}

impl Link {
    /// The sender and the receiver, and the rest.
    pub fn split(self) -> (LinkFacts, Box<dyn Sender>, Box<dyn Receiver>) {
        let Self { sender, receiver, peer, addresses, name, shares_memory, refers_to_files, cipher, proven } =
            self;
        let facts = LinkFacts { peer, addresses, name, shares_memory, refers_to_files, cipher, proven };
        (facts, sender, receiver)
    }
}

impl LinkFacts {
    /// The link again, with the sender and receiver that `split` returned.
    pub fn rejoin(self, sender: Box<dyn Sender>, receiver: Box<dyn Receiver>) -> Link {
        let Self { peer, addresses, name, shares_memory, refers_to_files, cipher, proven } = self;
        Link { sender, receiver, peer, addresses, name, shares_memory, refers_to_files, cipher, proven }
    }
}

/// A length as `u64`.
fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
