//! The read-only map of a file.
//!
//! Invariant: the file was a regular, non-empty file when it was mapped.
//!
//! Deliberately absent: protection against a file that shrinks while it is mapped. The system then ends the
//! process with SIGBUS; nothing short of copying the file could prevent that.
#![allow(unsafe_code)] // Mapping a file is unsafe by nature: see `map_file`.

use crate::MatrixError;
use memmap2::{Mmap, MmapOptions};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Maps a file for reading; returns the map and the file.
pub(crate) fn map_file(path: &Path) -> Result<(Arc<Mmap>, File), MatrixError> {
    let name = || path.display().to_string();
    // Opening a pipe would block until another process writes to it.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(at_once)
        .open(path)
        .map_err(|e| MatrixError::io(path, "cannot open", e))?;
    let meta = file.metadata().map_err(|e| MatrixError::io(path, "cannot examine", e))?;
    if meta.is_dir() {
        return Err(MatrixError::format(name(), "is a folder; name a matrix file in it"));
    }
    if !meta.is_file() {
        let what = "is not a regular file (a pipe or device cannot be mapped); copy it to a file first";
        return Err(MatrixError::format(name(), what));
    }
    if meta.len() == 0 {
        return Err(MatrixError::format(name(), "is empty; write it again"));
    }
    // SAFETY: the map is read-only and private to this process. Elements are plain numbers, for which every
    // bit pattern is valid, so another program that writes the file meanwhile can at worst make the product
    // one of numbers that were never all in the file together; texts are checked as they are parsed.
    let map = unsafe { MmapOptions::new().map(&file) };
    let map = map.map_err(|e| MatrixError::io(path, "cannot map", e))?;
    Ok((Arc::new(map), file))
}
