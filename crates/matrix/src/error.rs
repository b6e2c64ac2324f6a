//! What can go wrong with matrices, their files and the machine's memory. Each message names the file
//! or the option and the way out.

use crate::{DType, Shape};
use std::path::PathBuf;

/// An error of this room.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// The machine refused memory.
    #[error("out of memory: {bytes} bytes were refused; use a smaller product or a machine with more memory")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// rows × cols × element size does not fit.
    #[error("{name}: {shape} elements of {dtype} are more than a file can hold (2^63 bytes)")]
    TooLarge {
        /// The file or generator.
        name: String,
        /// Its shape.
        shape: Shape,
        /// Its element type.
        dtype: DType,
    },
    /// A file could not be opened, mapped, read or written.
    #[error("{path}: {action}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, as in "cannot open".
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says, or holds something that cannot be multiplied.
    #[error("{name}: {what}")]
    Format {
        /// The file, with the place in it where that helps.
        name: String,
        /// What is wrong and the way out.
        what: String,
    },
}

impl MatrixError {
    /// A `Format` error.
    pub fn format(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Format { name: name.into(), what: what.into() }
    }

    /// An `Io` error.
    pub fn io(path: impl Into<PathBuf>, action: &'static str, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), action, source }
    }
}
