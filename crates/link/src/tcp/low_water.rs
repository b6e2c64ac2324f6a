//! The receive low-water mark: whether the first bytes wake the event loop, or only the rest of a body.
//!
//! Place in the flow: below the pipe, while a body arrives. A network delivers trains of at most 64 KiB; a wake-up
//! for each train costs more CPU time than to copy it. In a virtual machine each wake-up also involves the host.
//!
//! Invariants: the mark never exceeds the bytes that are certain to come, and a wait for more than one byte lasts
//! at most `GATHER`, so the stall guard of a frame sees its bytes with little delay. The mark is set anew before
//! every wait. Where the system cannot set it, the wait is an ordinary one.
//!
//! Deliberately absent: reading.

#[cfg(target_os = "linux")]
use super::socket::set_mark;
use crate::CHUNK_BYTES_MAX;
use std::cell::Cell;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that justify one wake-up: a whole body.
const TOGETHER_BYTES: usize = CHUNK_BYTES_MAX;
/// Receive buffer to ask for, so that more bytes can arrive while a body waits and is read. By default the system
/// makes the buffer little larger than the mark at first, and the sender would stall at the end of each body.
const ROOM_BYTES: usize = 2 * TOGETHER_BYTES;
/// Below this many bytes the mark is not worth a system call.
const LEAST_BYTES: usize = 16 << 10;
/// The longest wait for more than one byte: the duration of a body at 170 Mbit/s. Over a slower link parts of it
/// are read.
const GATHER: Duration = Duration::from_millis(50);

/// The low-water mark of one socket.
pub(crate) struct LowWaterMark {
    bytes: Cell<usize>,
    /// Whether the larger buffer has been requested.
    has_room: Cell<bool>,
}

impl LowWaterMark {
    /// The mark of a new socket.
    pub(super) fn new() -> Self {
        Self { bytes: Cell::new(1), has_room: Cell::new(false) }
    }

    /// Waits for bytes, of which at least `sure` are certain to come.
    pub(super) async fn readable(&self, stream: &TcpStream, sure: usize) -> io::Result<()> {
        let wanted = if sure < LEAST_BYTES { 1 } else { sure.min(TOGETHER_BYTES) };
        if self.set(stream, wanted) > 1 {
            if let Ok(result) = tokio::time::timeout(GATHER, stream.readable()).await {
                return result;
            }
            // If some bytes are already there, this wakes the event loop at once.
            self.set(stream, 1);
        }
        stream.readable().await
    }

    /// Sets the mark; returns the mark in effect.
    fn set(&self, stream: &TcpStream, bytes: usize) -> usize {
        if bytes > 1 && !self.has_room.replace(true) {
            // A mark enlarges the buffer, which stays large when the mark is lowered. A refusal is no error: the
            // window is smaller.
            if set_mark(stream, ROOM_BYTES).is_ok() {
                self.bytes.set(ROOM_BYTES);
            }
        }
        if self.bytes.get() != bytes && set_mark(stream, bytes).is_ok() {
            self.bytes.set(bytes);
        }
        self.bytes.get()
    }
}

/// Other systems keep their default.
#[cfg(not(target_os = "linux"))]
fn set_mark(_stream: &TcpStream, _bytes: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use crate::{Body, BodyPlacer, Frame, FrameLimits, NoBodies, SharedRegion, tcp_connect, tcp_link};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;

    struct Anywhere;

    impl BodyPlacer for Anywhere {
        fn place(&mut self, _: u8, _: &[u8], bytes: usize) -> Result<Box<dyn crate::Landing>, String> {
            Ok(Box::new(vec![0; bytes]))
        }
    }

    /// Longer than the read-ahead, much shorter than `TOGETHER_BYTES`.
    const PIECE: usize = 10_000;

    #[tokio::test]
    async fn a_few_bytes_of_a_long_body_are_seen_though_more_is_sure_to_come() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, taken) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
        let (mut raw, mut link) = (out.unwrap(), tcp_link(taken.unwrap().0).unwrap());
        link.receiver.set_limits(FrameLimits::SESSION);
        let body = vec![7u8; 1 << 20];
        let frame = Frame::new(3, vec![1; 8], Body::Shared(SharedRegion::whole(Arc::new(body.clone()))));
        let bytes = [&frame.header(0).encode()[..], &frame.head, &body].concat();
        let arriving = link.receiver.arriving();
        let sending = async {
            for piece in bytes[..5 * PIECE].chunks(PIECE) {
                let before = usize::try_from(arriving.get()).unwrap();
                raw.write_all(piece).await.unwrap();
                while usize::try_from(arriving.get()).unwrap() < before + PIECE {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            raw.write_all(&bytes[5 * PIECE..]).await.unwrap();
            raw.shutdown().await.unwrap();
        };
        let receiving = async {
            let frame = link.receiver.receive(&mut Anywhere).await.unwrap();
            assert_eq!((frame.kind, &frame.head[..]), (3, &[1; 8][..]));
            assert!(matches!(link.receiver.receive(&mut NoBodies).await, Err(crate::LinkError::Closed)));
        };
        let both = async { tokio::join!(sending, receiving) };
        tokio::time::timeout(Duration::from_secs(60), both)
            .await
            .expect("the event loop did not notice bytes that had arrived");
    }
}
