//! When what arrives wakes the event loop: at the first bytes, or once the rest of a body is there.
//!
//! Place in the flow: below the pipe, while a body arrives. A network gives its bytes in trains of at most 64 KiB; to be
//! woken for each of them takes more CPU time than to copy it. A virtual machine feels every waking: its host has to hear of it.
//!
//! Invariants: no more is waited for than is sure to come, and for more than one byte no longer than `GATHER`: whoever
//! watches the pace of a frame sees its bytes hardly later. The mark is set anew before every wait. Where it cannot be set,
//! waiting is as without it.
//!
//! Deliberately absent: reading.

#[cfg(target_os = "linux")]
use super::socket::set_mark;
use crate::CHUNK_BYTES_MAX;
use std::cell::Cell;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that are worth one waking: a whole body.
const TOGETHER_BYTES: usize = CHUNK_BYTES_MAX;
/// What the system is to have room for, so that more can come while a body waits and is read. By itself it makes room for
/// little more than the mark at first, and the other end would stand still at each body's end.
const ROOM_BYTES: usize = 2 * TOGETHER_BYTES;
/// Fewer are not worth a call that says so.
const LEAST_BYTES: usize = 16 << 10;
/// The longest wait for more than one byte: a body over a link with 170 Mbit/s. Over slower ones parts of it are read.
const GATHER: Duration = Duration::from_millis(50);

/// The mark of one socket.
pub(crate) struct Wake {
    bytes: Cell<usize>,
    /// Whether room has been asked for.
    has_room: Cell<bool>,
}

impl Wake {
    /// A socket as the system makes it.
    pub(super) fn new() -> Self {
        Self { bytes: Cell::new(1), has_room: Cell::new(false) }
    }

    /// Waits for bytes, of which `sure` or more are on their way.
    pub(super) async fn readable(&self, stream: &TcpStream, sure: usize) -> io::Result<()> {
        let wanted = if sure < LEAST_BYTES { 1 } else { sure.min(TOGETHER_BYTES) };
        if self.set(stream, wanted) > 1 {
            if let Ok(result) = tokio::time::timeout(GATHER, stream.readable()).await {
                return result;
            }
            // If some are there already, this wakes at once.
            self.set(stream, 1);
        }
        stream.readable().await
    }

    /// Sets the mark; gives the one that holds.
    fn set(&self, stream: &TcpStream, bytes: usize) -> usize {
        if bytes > 1 && !self.has_room.replace(true) {
            // A mark makes room for itself, which stays when the mark sinks. A smaller window is no error.
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

/// Other systems wake as they do.
#[cfg(not(target_os = "linux"))]
fn set_mark(_stream: &TcpStream, _bytes: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use crate::{Body, Frame, Limits, NoBodies, Place, Region, tcp_connect, tcp_link};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;

    struct Anywhere;

    impl Place for Anywhere {
        fn place(&mut self, _: u8, _: &[u8], bytes: usize) -> Result<Box<dyn crate::Landing>, String> {
            Ok(Box::new(vec![0; bytes]))
        }
    }

    /// Longer than the read-ahead, much shorter than what is waited for together.
    const PIECE: usize = 10_000;

    #[tokio::test]
    async fn a_few_bytes_of_a_long_body_are_seen_though_more_is_sure_to_come() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, taken) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
        let (mut raw, mut link) = (out.unwrap(), tcp_link(taken.unwrap().0).unwrap());
        link.receiver.set_limits(Limits::SESSION);
        let body = vec![7u8; 1 << 20];
        let frame = Frame::new(3, vec![1; 8], Body::Shared(Region::whole(Arc::new(body.clone()))));
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
            .expect("bytes that had come were never seen");
    }
}
