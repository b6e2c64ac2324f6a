//! One endpoint of a connection between two child processes: created in their parent, passed to a child, opened
//! there.
//!
//! Invariant: both halves are created together, so no other process can have one. Links of `LocalKind` share one
//! variant of `Half`; any other link between processes has its own.

use super::{LinkName, handed, tcp};
use bramble_link::{Endpoint, LocalKind, local_pair};
use bramble_link::{Link, LinkError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// One endpoint.
pub(crate) enum Half {
    /// A connected TCP socket.
    Socket(OwnedFd),
    /// Two pipes, or shared memory.
    Local(Endpoint),
}

impl Half {
    /// Two connected endpoints.
    pub(crate) fn pair(link: LinkName) -> io::Result<(Self, Self)> {
        if let Some(kind) = kind(link) {
            let (one, other) = local_pair(kind)?;
            return Ok((Self::Local(one), Self::Local(other)));
        }
        assert!(link == LinkName::Tcp, "{} is no link of processes", link.name());
        let (one, other) = tcp::connected()?;
        Ok((Self::Socket(one.into()), Self::Socket(other.into())))
    }

    /// Sends it to a child, over the child's socket.
    pub(crate) fn give(self, to: &UnixStream) -> io::Result<()> {
        match self {
            Self::Socket(socket) => handed::give_socket(to, &socket),
            Self::Local(endpoint) => endpoint.give(to),
        }
    }

    /// Receives the next one from the parent.
    pub(crate) fn take(link: LinkName, from: &UnixStream) -> io::Result<Self> {
        if let Some(kind) = kind(link) {
            let endpoint = Endpoint::take(from)?;
            let is_right = endpoint.kind() == kind;
            let half = is_right.then_some(Self::Local(endpoint));
            return half
                .ok_or_else(|| io::Error::other("the parent process sent an endpoint of another link"));
        }
        assert!(link == LinkName::Tcp, "{} is no link of processes", link.name());
        handed::take_socket(from).map(Self::Socket)
    }

    /// Opens the link to end `other`. Has to run inside an event loop.
    pub(crate) fn open(self, other: usize) -> Result<Link, LinkError> {
        match self {
            Self::Socket(socket) => tcp::open(socket),
            Self::Local(endpoint) => endpoint.open(&format!("end {other}")),
        }
    }
}

fn kind(link: LinkName) -> Option<LocalKind> {
    match link {
        LinkName::Pipe => Some(LocalKind::Pipe),
        LinkName::Shm => Some(LocalKind::Shm),
        LinkName::Thread | LinkName::Tcp | LinkName::Mpi => None,
    }
}
