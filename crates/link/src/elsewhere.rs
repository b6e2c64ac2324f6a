//! `local` where the system has neither memory files nor events that a descriptor tells: there are no such links.
//!
//! Place in the flow: in place of `local`, with its names. Whoever asks for an end gets an error that says what to use instead.
//!
//! Invariant: nobody has an `Endpoint`.
//!
//! Deliberately absent: `pipe` alone. A link that half of the systems have would be one more to test on each.

use crate::{Link, LinkError, LocalKind};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::process::{Child, Command};

/// One end of a link that is not open yet.
#[derive(Debug)]
pub enum Endpoint {}

/// Both ends of a new link.
pub fn local_pair(kind: LocalKind) -> io::Result<(Endpoint, Endpoint)> {
    Err(missing(kind.name()))
}

fn missing(what: &str) -> io::Error {
    let text = format!("{what}: links within one machine other than tcp need Linux; use --link tcp");
    io::Error::new(ErrorKind::Unsupported, text)
}

impl Endpoint {
    /// What it is an end of.
    pub fn kind(&self) -> LocalKind {
        match *self {}
    }

    /// Starts a process with this endpoint.
    pub fn spawn(self, _: Command) -> io::Result<Child> {
        match self {}
    }

    /// Puts this endpoint into a Unix stream socket.
    pub fn give(self, _: &impl AsFd) -> io::Result<()> {
        match self {}
    }

    /// The next endpoint that was put into that socket at its other side.
    pub fn take(_: &impl AsFd) -> io::Result<Self> {
        Err(missing("pipe and shm"))
    }

    /// The endpoint that this process was started with.
    pub fn inherited() -> io::Result<Self> {
        Err(missing("pipe and shm"))
    }

    /// A link to the other end.
    pub fn open(self, _: &str) -> Result<Link, LinkError> {
        match self {}
    }
}
