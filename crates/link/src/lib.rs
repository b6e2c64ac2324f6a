//! Links: ordered, reliable channels of frames between two ends.
//!
//! Place in the flow: between the schedules of primary and worker. A shell gives a `Frame` to a `Sender`;
//! at the other end a `Receiver` asks where the body shall land, reads it there, and hands the frame over.
//!
//! Invariants: frames arrive whole, in order, once, or the link ends with an error. A body leaves from
//! where it lies and lands where it will be used; no link copies it on the way (a `thread` link does not
//! even move it, nor does `shm` what lies in a file). Sizes are checked against the receiver's limits before anything is read.
//!
//! Deliberately absent: matrices and messages. A link knows kinds and lengths, never what they mean, and
//! this room depends on no other.

mod body;
mod checksum;
mod door;
pub mod echo;
mod frame;
mod framed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod key;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod local;
mod local_kind;
mod meter;
mod mpi;
#[cfg(target_os = "linux")]
mod reference;
mod secure;
#[cfg(target_os = "linux")]
mod shm;
mod tcp;
mod thread;

pub use body::{Body, Landing, Region, SharedBytes, Vacant};
pub use door::{Arrival, Door, DoorLimits, Slot};
pub use frame::{CHUNK_BYTES_MAX, Frame, HEAD_BYTES_MAX, HEADER_BYTES, Header, Limits};
pub use key::{ClusterKey, KeyError};
pub use local::{Endpoint, local_pair};
pub use local_kind::LocalKind;
pub use meter::{Meter, Section, Spent, clock_ns, thread_cpu_ns};
pub use mpi::{Exchange, Late, Launch, MpiError, Order, Plain, Portion, WhenLate, World};
pub use secure::{Introduced, Proven, Reach, Security};
pub use tcp::{tcp_connect, tcp_link};
pub use thread::thread_pair;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

/// A future of a link. Not `Send`: each end of a link lives on one event loop.
pub type LinkFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LinkError>> + 'a>>;

/// What a place waits for.
pub type Until<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What can end a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end closed, between frames.
    #[error("the connection was closed by the other end")]
    Closed,
    /// There is no connection: nobody listens there, or nothing gets there.
    #[error("could not connect: {0}")]
    Unreached(std::io::Error),
    /// The other end closed, or the network failed, inside a frame.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    /// Bytes that cannot be a frame of ours, or one that is too large for the moment.
    #[error("not a frame of this protocol: {0}")]
    Foreign(String),
    /// Lengths were plausible, but the bytes changed on the way.
    #[error("a frame arrived damaged (checksum {got:08x}, expected {expected:08x})")]
    Damaged {
        /// Computed from what arrived.
        got: u32,
        /// In the header.
        expected: u32,
    },
    /// A frame began and stood still.
    #[error("nothing came or went for {} s in the middle of a frame", .0.as_secs())]
    Stalled(std::time::Duration),
    /// A frame began and got on so slowly that somebody may be doing it on purpose.
    #[error("slower than {0} bytes a second in the middle of a frame")]
    Creeping(u64),
    /// The other end closed before anything was proven: it is no bramble with a key, or has no room now.
    #[error(
        "it closed the connection before TLS was set up: it has no cluster key, or is older, or is full (see: bramble \
         key)"
    )]
    Shut,
    /// The other end did not prove that it belongs here.
    #[error("{0}")]
    Untrusted(String),
    /// Whoever was asked where a body shall land did not want it.
    #[error("{0}")]
    Refused(String),
}

/// The sending end.
pub trait Sender {
    /// Sends one frame, and returns when the link has taken all of it.
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()>;
    /// Frames carry this number from now on.
    fn set_session(&mut self, session: u32);
    /// Whether a frame's checksum covers its body, which then is computed before it is sent.
    fn sums_bodies(&self) -> bool {
        false
    }
    /// Bytes that went out, headers included. A link that shares memory counts what it referred to.
    fn bytes_sent(&self) -> u64;
    /// Grows with every byte of a body that the other end's system has taken, also of a frame that has not left whole; to see
    /// whether a slow link is still one. Frames without a body do not count: a system takes these for a process that has
    /// stopped. A link that shares memory does not count.
    fn leaving(&self) -> Leaving {
        Rc::new(Left::default)
    }
    /// Tells the other end that nothing more will come.
    fn close(&mut self) -> LinkFuture<'_, ()>;
}

/// Asks a link how much has left it; nothing when it is no more.
pub type Leaving = Rc<dyn Fn() -> Left>;

/// What has left a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes of bodies that the other end's system has, with what was sent before them.
    pub there: u64,
    /// Bytes that this system has taken and the other end's has not.
    pub held: u64,
}

/// The receiving end.
pub trait Receiver {
    /// The next frame. `place` is asked where a body shall land, unless the link shares memory.
    fn receive<'a>(&'a mut self, place: &'a mut dyn Place) -> LinkFuture<'a, Arrived>;
    /// Takes and forgets whatever still comes, until the other end closes. Who closes a connection with bytes unread
    /// makes the system take back what was sent last, such as the reason.
    fn drain(&mut self) -> LinkFuture<'_, ()>;
    /// Frames must carry this number from now on.
    fn set_session(&mut self, session: u32);
    /// Frames must not be larger than this from now on.
    fn set_limits(&mut self, limits: Limits);
    /// Counts bytes as they come, also those of a frame that is not whole yet; to see whether the other end
    /// is alive. A link that shares memory does not count.
    fn arriving(&self) -> Rc<Cell<u64>> {
        Rc::default()
    }
    /// Bytes that came in, headers included. A link that shares memory counts what was referred to.
    fn bytes_received(&self) -> u64;
}

/// Says where bodies land.
pub trait Place {
    /// What has to come before `place` can be asked about this frame, if anything; its body stays in the link meanwhile, so
    /// whoever waits here has to have a limit of its own.
    fn until(&self, _kind: u8, _head: &[u8]) -> Option<Until<'_>> {
        None
    }

    /// Memory of exactly `body_bytes` for the frame of that kind and head, or why it is not wanted; the
    /// link then ends.
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String>;
}

/// A place for ends that expect no bodies.
pub struct NoBodies;

impl Place for NoBodies {
    fn place(&mut self, kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Err(format!("a frame of kind {kind} came with {body_bytes} bytes that nobody expects"))
    }
}

/// A frame that has arrived.
#[derive(Debug)]
pub struct Arrived {
    /// Its kind.
    pub kind: u8,
    /// Its head.
    pub head: bytes::Bytes,
    /// Its body.
    pub body: ArrivedBody,
}

/// How a body arrived.
#[derive(Debug)]
pub enum ArrivedBody {
    /// There was none.
    Empty,
    /// In the memory that `Place` gave.
    Landed(Box<dyn Landing>),
    /// By reference, on a link that shares memory or refers to files.
    Shared(Region),
    /// As exclusive memory of the other end, on a link that shares memory.
    Lent(Box<dyn Landing>),
}

/// Where the two ends of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// This end.
    pub here: SocketAddr,
    /// The other.
    pub there: SocketAddr,
}

/// Both ends of what one side sees of a link.
pub struct Link {
    /// To the other end.
    pub sender: Box<dyn Sender>,
    /// From the other end.
    pub receiver: Box<dyn Receiver>,
    /// What to call the other end in messages.
    pub peer: String,
    /// The addresses of this end and the other, where there are any.
    pub addresses: Option<Addresses>,
    /// `thread`, `tcp`, `pipe`, `shm` or `mpi`.
    pub name: &'static str,
    /// Whether bodies may be `Body::Lent`, and arrive by reference.
    pub shares_memory: bool,
    /// Whether bodies that lie in a file (`Region::of_file`) are not sent: the other end maps the file and has them by reference.
    /// They may be longer than a frame.
    pub refers_to_files: bool,
    /// The cipher of a link that is encrypted.
    pub cipher: Option<&'static str>,
    /// What the other end has proven.
    pub proven: Proven,
}

/// A length as a counter has it.
fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod contract;
