//! What the links within one machine are called, also where there are none (`elsewhere`).
//!
//! Invariant: a name is what the command line takes and reports say.
//!
//! Deliberately absent: the links.

use std::fmt;

/// How the bytes go from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// Through the system: one pipe each way.
    Pipe,
    /// Through memory that both have mapped: one ring each way.
    Shm,
}

impl LocalKind {
    /// As on the command line and in reports.
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
