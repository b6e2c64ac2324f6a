//! The mark of a socket from which on the system says that there is something to read (`SO_RCVLOWAT`).
#![allow(unsafe_code)] // The option has no safe face in the libraries that are here.

use std::io;
use std::os::fd::AsRawFd;
use tokio::net::TcpStream;

/// Sets it. If so many bytes are there already, the socket becomes readable by that.
pub(super) fn set_mark(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let size = libc::socklen_t::try_from(size_of_val(&value)).map_err(|_| io::ErrorKind::InvalidInput)?;
    let at = std::ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the system reads `size` bytes at `at`, which
    // are those of `value`, and keeps none of them.
    let result =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
