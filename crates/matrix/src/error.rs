//! Errors of matrices, their files and the machine's memory. Each message names the file or option, and the next
//! step.

use crate::{DType, Shape};
use std::path::PathBuf;

/// Most characters of a file's text in a message.
const SHOWN_CHARS: usize = 120;

/// Text from a file for a message: shortened, and without control characters, which would control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown.truncate(shown.trim_end().len());
    shown
}

/// Refuses a matrix with a side longer than `Shape::SIDE_MAX`, by its name.
pub(crate) fn check_sides(shape: Shape, name: &str) -> Result<(), MatrixError> {
    shape.check_sides().map_err(|e| MatrixError::format(name, e.to_string()))
}

/// An error of this crate.
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
        /// The attempted action, as in "cannot open".
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The disk has no room for the result.
    #[error("{path}: the result needs {bytes} bytes, but the disk has {free} free; make room or choose another disk",
        path = path.display(), free = free.map_or_else(|| "too few".to_owned(), |n| n.to_string()))]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes of the result.
        bytes: u64,
        /// Free bytes, if the system reports them.
        free: Option<u64>,
    },
    /// An invalid description of a generated matrix.
    #[error("{name}: {what}")]
    Description {
        /// The text.
        name: String,
        /// The error, with the next step.
        what: String,
    },
    /// A file that does not have the format of its name, or contains elements that cannot be multiplied.
    #[error("{name}: {what}")]
    Format {
        /// The file, with the position in it if that helps.
        name: String,
        /// The error, with the next step.
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
