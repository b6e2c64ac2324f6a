//! Half of what connects two processes: made in their parent, handed to them, opened there.
//!
//! Invariant: both halves are made at once, so that nobody else can have one of them. A link between processes is one variant of
//! `Half`.

use super::{LinkName, handed, tcp};
use bramble_link::{Endpoint, LocalKind, local_pair};
use bramble_link::{Link, LinkError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// One of them.
pub(crate) enum Half {
    /// A connected TCP socket.
    Socket(OwnedFd),
    /// A pipe each way, or memory.
    Local(Endpoint),
}

impl Half {
    /// Two that belong together.
    pub(crate) fn pair(link: LinkName) -> io::Result<(Self, Self)> {
        if let Some(kind) = kind(link) {
            let (one, other) = local_pair(kind)?;
            return Ok((Self::Local(one), Self::Local(other)));
        }
        assert!(link == LinkName::Tcp, "{} is no link of processes", link.name());
        let (one, other) = tcp::connected()?;
        Ok((Self::Socket(one.into()), Self::Socket(other.into())))
    }

    /// Puts it into the socket of a child.
    pub(crate) fn give(self, to: &UnixStream) -> io::Result<()> {
        match self {
            Self::Socket(socket) => handed::give_socket(to, &socket),
            Self::Local(endpoint) => endpoint.give(to),
        }
    }

    /// Takes the next one from the parent.
    pub(crate) fn take(link: LinkName, from: &UnixStream) -> io::Result<Self> {
        if let Some(kind) = kind(link) {
            let endpoint = Endpoint::take(from)?;
            let is_right = endpoint.kind() == kind;
            let half = is_right.then_some(Self::Local(endpoint));
            return half.ok_or_else(|| io::Error::other("the parent process gave an end of another link"));
        }
        assert!(link == LinkName::Tcp, "{} is no link of processes", link.name());
        handed::take_socket(from).map(Self::Socket)
    }

    /// The link to the end of that rank. Has to run inside an event loop.
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
