//! `local` for systems without memory files and event descriptors: there are no links within a machine.
//!
//! Place in the flow: compiled in place of `local`, with the same names. Every function returns an error that says
//! what to use.
//!
//! Invariant: no value of `Endpoint` exists.
//!
//! Deliberately absent: `pipe` alone. A link for half of the systems would have to be tested on each of them.

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
    /// The kind of the link.
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

    /// The next endpoint that was put into the other end of that socket.
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
