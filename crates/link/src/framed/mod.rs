//! Frames over a stream of bytes: what the links have in common that move bytes.
//!
//! Place in the flow: between the two ends that a `Link` has and a stream: a TCP socket with or without TLS, two pipes, or
//! two rings in memory that two processes share.
//!
//! Invariants: those of `send`, `receive` and `pace`, which are its parts.
//!
//! Deliberately absent: how the bytes get to the other end, and who that is.

mod pace;
mod receive;
mod send;

use crate::frame::REFERENCE_BYTES;
use crate::{LinkError, Region};
pub(crate) use receive::FrameReceiver;
pub(crate) use send::FrameSender;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

/// Slices of one vectored call: the kernel takes no more.
const SLICES_MAX: usize = 1024;

/// Others have a turn after so many bytes.
const TURN_BYTES: usize = 256 << 10;

/// Bytes both ways. Its two directions may be used by two tasks of one event loop.
pub(crate) trait Stream: 'static {
    /// Whether the checksum of a frame covers its body: bytes may change on the way. Where they do not leave the memory of
    /// this machine, it covers lengths, kind and head.
    const SUMS_BODIES: bool;
    /// Others have a turn after so many frames, or some bytes.
    const TURN_FRAMES: u32;
    /// Whether a body that lies in a file may be left there, and be read by the other end.
    const REFERS: bool = false;

    /// What goes in place of such a body; nothing where it lies in no file, or the bytes go themselves.
    fn refer(&self, _region: &Region) -> io::Result<Option<[u8; REFERENCE_BYTES]>> {
        Ok(None)
    }
    /// The body that something stands for. Only where `REFERS`.
    fn referred(&self, _reference: &[u8; REFERENCE_BYTES]) -> Result<Region, LinkError> {
        Err(LinkError::Foreign("a reference on a link that has none".to_owned()))
    }

    /// Takes some of the bytes, as many as go at once; waits while none do.
    async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits until a good many bytes go at once, where that is known.
    async fn room(&self) -> io::Result<()> {
        Ok(())
    }
    /// Waits for bytes; puts what is there into the runs. 0 where the other end has closed. So many bytes as `sure` says
    /// are certain to come, so that some of them may be waited for together; 0 and 1 say nothing.
    async fn read(&self, runs: &mut [IoSliceMut<'_>], sure: usize) -> io::Result<usize>;
    /// Tells the other end that nothing more will come.
    async fn close(&self) -> io::Result<()>;
    /// Bytes that were written so far.
    fn written(&self) -> u64;
    /// Those of them that are known to have got to the other end.
    fn acknowledged(&self) -> u64;
    /// The sender of frames is no more, whether it has closed or not.
    fn sender_gone(&self) {}
    /// The receiver of frames is no more.
    fn receiver_gone(&self) {}
}

/// When a task that could go on for ever lets others have their turn.
#[derive(Default)]
pub(crate) struct Turns {
    frames: u32,
    bytes: usize,
}

impl Turns {
    /// Between two frames. To let others have a turn is a call of the system, which frames of a few bytes would feel.
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

/// What an error of a stream means for a link.
fn broken(e: io::Error) -> LinkError {
    e.downcast::<LinkError>().unwrap_or_else(LinkError::Broken)
}

pub(crate) fn cut_off() -> LinkError {
    LinkError::Broken(io::Error::new(ErrorKind::UnexpectedEof, "it ended in the middle of a frame"))
}
