//! When what arrives wakes the event loop: at the first bytes, or once a good part of a frame is there.
//!
//! Place in the flow: below the pipe, while a body arrives. A network gives its bytes in trains of at most 64 KiB; to be
//! woken for each of them takes more CPU time than to copy it.
//!
//! Invariants: no more is waited for than is sure to come, and for more than one byte no longer than `GATHER`: whoever
//! watches the pace of a frame sees its bytes hardly later. The mark is set anew before every wait. Where it cannot be set,
//! waiting is as without it.
//!
//! Deliberately absent: reading.
#![cfg_attr(
    target_os = "linux",
    allow(unsafe_code, reason = "the option has no safe face in the libraries that are here")
)]

use std::cell::Cell;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that are worth one waking; half a receive window is left for what comes meanwhile.
const TOGETHER_BYTES: usize = 256 << 10;
/// Fewer are not worth a call that says so.
const LEAST_BYTES: usize = 16 << 10;
/// The longest wait for more than one byte: 256 KiB of a link with 40 Mbit/s.
const GATHER: Duration = Duration::from_millis(50);

/// The mark of one socket.
pub(crate) struct Wake {
    bytes: Cell<usize>,
}

impl Wake {
    /// A socket as the system makes it.
    pub(super) fn new() -> Self {
        Self { bytes: Cell::new(1) }
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
        if self.bytes.get() != bytes && set_mark(stream, bytes).is_ok() {
            self.bytes.set(bytes);
        }
        self.bytes.get()
    }
}

/// Sets `SO_RCVLOWAT`.
#[cfg(target_os = "linux")]
fn set_mark(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let Ok(value) = libc::c_int::try_from(bytes) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let Ok(size) = libc::socklen_t::try_from(size_of_val(&value)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let at = std::ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the system reads `size` bytes at `at`, which are
    // those of `value`, and keeps none of them.
    let result = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn set_mark(_stream: &TcpStream, _bytes: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
