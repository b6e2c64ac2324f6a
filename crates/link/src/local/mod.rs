//! Links between two processes of one machine: `pipe` and `shm`.
//!
//! Place in the flow: the process that starts another makes both endpoints, keeps one and passes the other to the
//! new process; then each process opens its own.
//!
//! Invariants: the holder of an endpoint is the peer: descriptors have no names, so no other process can obtain
//! one, and no key is required. The descriptors are always close-on-exec and travel in a message over the new
//! process's standard input (`descriptors`), so a process that another thread starts meanwhile inherits none. Once
//! both processes have ended, in whatever way, nothing of the link remains.
//!
//! Deliberately absent: addresses. Such an end cannot be dialled, so workers with it do not relay panels.

pub(crate) mod descriptors;
mod pipe;
pub(crate) mod watch;

use crate::framed::{FrameReceiver, FrameSender, Stream};
use crate::shm::{self, Rings};
use crate::{Link, LinkError, LocalKind, Proven};
use pipe::Pipes;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::rc::Rc;

/// One end of a link that is not open yet: descriptors for this process or for one that it starts.
#[derive(Debug)]
pub struct Endpoint {
    parts: Parts,
}

/// The parts of an endpoint.
#[derive(Debug)]
enum Parts {
    Pipe { read: OwnedFd, write: OwnedFd },
    Shm(shm::ShmEndpoint),
}

/// Both ends of a new link.
pub fn local_pair(kind: LocalKind) -> io::Result<(Endpoint, Endpoint)> {
    let (left, right) = match kind {
        LocalKind::Pipe => {
            let ((right_read, left_write), (left_read, right_write)) = (pipe::pipe()?, pipe::pipe()?);
            let left = Parts::Pipe { read: left_read, write: left_write };
            (left, Parts::Pipe { read: right_read, write: right_write })
        }
        LocalKind::Shm => {
            let (left, right) = shm::pair()?;
            (Parts::Shm(left), Parts::Shm(right))
        }
    };
    Ok((Endpoint { parts: left }, Endpoint { parts: right }))
}

impl Endpoint {
    /// The kind of the link.
    pub fn kind(&self) -> LocalKind {
        match self.parts {
            Parts::Pipe { .. } => LocalKind::Pipe,
            Parts::Shm(_) => LocalKind::Shm,
        }
    }

    /// Starts a process with this endpoint: its standard input is a socket, from which `inherited` takes the
    /// endpoint.
    pub fn spawn(self, command: Command) -> io::Result<Child> {
        let mut command = command;
        command.stdin(descriptors::give(self)?);
        command.spawn()
    }

    /// Puts this endpoint into a Unix stream socket, for a process that is started with several.
    pub fn give(self, socket: &impl AsFd) -> io::Result<()> {
        descriptors::send(&self, socket)
    }

    /// The next endpoint that was put into the other end of that socket; an error if there is none.
    pub fn take(socket: &impl AsFd) -> io::Result<Self> {
        descriptors::take(socket)
    }

    /// The endpoint that this process was started with. It can be taken once.
    pub fn inherited() -> io::Result<Self> {
        descriptors::take(&io::stdin())
    }

    /// Opens the link to the peer, which is called `peer` in messages. It starts with the limits for strangers.
    /// Must run on the event loop of the thread that will use the link.
    pub fn open(self, peer: &str) -> Result<Link, LinkError> {
        let name = self.kind().name();
        match self.parts {
            Parts::Pipe { read, write } => Ok(framed(Pipes::open(read, write)?, name, peer)),
            Parts::Shm(ends) => Ok(framed(Rings::open(ends)?, name, peer)),
        }
    }
}

fn framed<S: Stream>(stream: S, name: &'static str, peer: &str) -> Link {
    let stream = Rc::new(stream);
    Link {
        sender: Box::new(FrameSender::new(stream.clone())),
        receiver: Box::new(FrameReceiver::new(stream)),
        peer: peer.to_owned(),
        addresses: None,
        name,
        shares_memory: false,
        refers_to_files: S::REFERS,
        cipher: None,
        // Only the process that was given the descriptors can be the peer.
        proven: Proven::Member,
    }
}
