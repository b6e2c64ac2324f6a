//! Names of the links within one machine, also on systems without them (`unsupported`).
//!
//! Invariant: the name on the command line is the name in reports.
//!
//! Deliberately absent: the links themselves.

use std::fmt;

/// How bytes move between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// Through the kernel: one pipe in each direction.
    Pipe,
    /// Through memory that both processes map: one ring in each direction.
    Shm,
}

impl LocalKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipe => "pipe",
            Self::Shm => "shm",
        }
    }
}

impl fmt::Display for LocalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
