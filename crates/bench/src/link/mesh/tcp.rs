//! TCP on loopback: creates both sockets of a connection, so that no stranger can be one of its ends.

use bramble_link::{Link, LinkError, tcp_link};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// Most foreign connections to the listening port before giving up.
const STRANGERS: usize = 16;

/// Two sockets that are connected to each other.
pub(crate) fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    for _ in 0..STRANGERS {
        let (other, from) = listener.accept()?;
        if from == one.local_addr()? {
            return Ok((one, other));
        }
    }
    Err(io::Error::other("other programs keep connecting to the listening port"))
}

/// The link over a connected socket. Has to run inside an event loop.
pub(crate) fn open(socket: OwnedFd) -> Result<Link, LinkError> {
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    tcp_link(tokio::net::TcpStream::from_std(stream)?)
}
