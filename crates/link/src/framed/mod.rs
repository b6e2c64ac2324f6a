//! Frames over a stream of bytes: the common part of all links that move bytes.
//!
//! Place in the flow: between the two ends of a `Link` and a stream: a TCP socket with or without TLS, two pipes,
//! or two rings in memory that two processes share.
//!
//! Invariants: those of its parts `send`, `receive` and `stall_guard`.
//!
//! Deliberately absent: the transport of the bytes, and the identity of the peer.

mod receive;
mod send;
mod stall_guard;

use crate::frame::REFERENCE_BYTES;
use crate::{LinkError, SharedRegion};
pub(crate) use receive::FrameReceiver;
pub(crate) use send::FrameSender;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

/// Slices of one vectored call: the limit of the kernel (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// A task yields to the event loop after this many bytes.
const TURN_BYTES: usize = 256 << 10;

/// A stream of bytes in each direction. Two tasks of one event loop may use the two directions.
pub(crate) trait Stream: 'static {
    /// Whether the checksum of a frame covers its body. It does where bytes can change in transit; where they stay
    /// in the memory of one machine, it covers lengths, kind and head only.
    const SUMS_BODIES: bool;
    /// A task yields to the event loop after this many frames, or after `TURN_BYTES`.
    const TURN_FRAMES: u32;
    /// Whether a body that lies in a file may be passed as a reference to that file.
    const REFERS: bool = false;

    /// The reference that is sent in place of the body; `None` if the body lies in no file or its bytes are sent.
    fn refer(&self, _region: &SharedRegion) -> io::Result<Option<[u8; REFERENCE_BYTES]>> {
        Ok(None)
    }
    /// The body that a reference names. Called only if `REFERS`.
    fn referred(&self, _reference: &[u8; REFERENCE_BYTES]) -> Result<SharedRegion, LinkError> {
        Err(LinkError::Foreign("a reference on a link that has none".to_owned()))
    }

    /// Writes as many bytes as the stream accepts without waiting; waits while it accepts none.
    async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits until the stream accepts a larger amount at once, if it can tell.
    async fn room(&self) -> io::Result<()> {
        Ok(())
    }
    /// Waits for bytes and reads the available ones into the runs. 0 if the peer has closed. At least `sure` bytes
    /// are certain to come, so the stream may wait for several of them together; 0 and 1 give no such promise.
    async fn read(&self, runs: &mut [IoSliceMut<'_>], sure: usize) -> io::Result<usize>;
    /// Tells the peer that no more bytes will come.
    async fn close(&self) -> io::Result<()>;
    /// Bytes written so far.
    fn written(&self) -> u64;
    /// The part of `written` that is known to have reached the peer.
    fn acknowledged(&self) -> u64;
    /// Called when the sender of frames is dropped, closed or not.
    fn sender_gone(&self) {}
    /// Called when the receiver of frames is dropped.
    fn receiver_gone(&self) {}
}

/// Decides when a task that never has to wait yields to the event loop.
#[derive(Default)]
pub(crate) struct YieldBudget {
    frames: u32,
    bytes: usize,
}

impl YieldBudget {
    /// Call between two frames. A yield costs a system call, so frames of a few bytes do not yield each time.
    pub(crate) async fn between_frames(&mut self, most: u32) {
        self.frames += 1;
        if self.frames >= most || self.bytes >= TURN_BYTES {
            *self = Self::default();
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The link error for an error of the stream.
fn broken(e: io::Error) -> LinkError {
    e.downcast::<LinkError>().unwrap_or_else(LinkError::Broken)
}

pub(crate) fn cut_off() -> LinkError {
    LinkError::Broken(io::Error::new(ErrorKind::UnexpectedEof, "it ended in the middle of a frame"))
}
