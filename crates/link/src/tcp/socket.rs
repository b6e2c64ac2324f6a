//! Two socket calls for which the libraries in use have no safe function: the receive low-water mark
//! (`SO_RCVLOWAT`) and the number of written bytes that are not acknowledged (`SIOCOUTQ`).
//!
//! Deliberately absent: systems other than Linux.
#![allow(unsafe_code)] // Two calls of the system.

use std::io;
use std::os::fd::AsRawFd;
use tokio::net::TcpStream;

/// Sets the low-water mark. If that many bytes have already arrived, the socket becomes readable.
pub(super) fn set_mark(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let size = libc::socklen_t::try_from(size_of_val(&value)).map_err(|_| io::ErrorKind::InvalidInput)?;
    let at = std::ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the system reads the `size` bytes of
    // `value` at `at` and keeps no pointer to them.
    let result =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Written bytes that the peer's system has not acknowledged; 0 if this system does not tell.
pub(super) fn unacknowledged(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the system writes one int at the address of `bytes`.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}
