//! Links between two processes of one machine: `pipe` and `shm`.
//!
//! Place in the flow: whoever starts a process makes both endpoints, keeps one, and starts the process with the other; that
//! one takes it up and both open theirs.
//!
//! Invariants: whoever holds an endpoint is the other end; descriptors have no names, so nobody else can come by one, and
//! no key is asked for. They are closed on exec all the time and travel in a message over the new process's standard input
//! (`hand`), so a process that somebody else starts meanwhile inherits none. Nothing of a link is left when both processes
//! are gone, in whatever way they went.
//!
//! Deliberately absent: addresses. Nobody can dial such an end, so it has no neighbours.

pub(crate) mod hand;
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

/// One end of a link that is not open yet: descriptors, which this process keeps or another one is started with.
#[derive(Debug)]
pub struct Endpoint {
    parts: Parts,
}

/// What an endpoint is made of.
#[derive(Debug)]
enum Parts {
    Pipe { read: OwnedFd, write: OwnedFd },
    Shm(shm::Ends),
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
    /// What it is an end of.
    pub fn kind(&self) -> LocalKind {
        match self.parts {
            Parts::Pipe { .. } => LocalKind::Pipe,
            Parts::Shm(_) => LocalKind::Shm,
        }
    }

    /// Starts a process with this endpoint: its standard input is a socket from which `inherited` takes it.
    pub fn spawn(self, command: Command) -> io::Result<Child> {
        let mut command = command;
        command.stdin(hand::give(self)?);
        command.spawn()
    }

    /// Puts this endpoint into a Unix stream socket, for a process that is started with several.
    pub fn give(self, socket: &impl AsFd) -> io::Result<()> {
        hand::send(&self, socket)
    }

    /// The next endpoint that was put into that socket at its other side; it has to be there.
    pub fn take(socket: &impl AsFd) -> io::Result<Self> {
        hand::take(socket)
    }

    /// The endpoint that this process was started with. Can be taken once.
    pub fn inherited() -> io::Result<Self> {
        hand::take(&io::stdin())
    }

    /// A link to the other end, which is called `peer` in messages. It starts with the limits for strangers. Has to run on
    /// the event loop of one thread, on which the link stays.
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
        // Only who was given the descriptors can be there.
        proven: Proven::Member,
    }
}
