//! The file `NAME.part` of a result: reserved, mapped, and renamed or removed (`replace` has the part that all
//! written files share).
//!
//! Place in the flow: `Unfinished::lock` opens it, `Sealed::commit` renames it.
//!
//! Invariants: its length is changed only while the lock is held, so a run never shortens the file under another
//! run's map. It is removed on drop unless it was renamed, or is kept for a resumed run. Data that another run left
//! in it stays until the caller chooses to restart or resume. The old file of the name is not changed before the
//! rename.
//!
//! Deliberately absent: which parts of an unfinished file are valid. The journal records that.

use crate::MatrixError;
use crate::replace::{OutputTarget, Replacement};
use memmap2::{MmapOptions, MmapRaw};
#[cfg(target_os = "linux")]
use rustix::fs::FallocateFlags;
#[cfg(target_os = "linux")]
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Endings of formats that are not written: a `.npy` file of such a name would mislead.
const OTHER_FORMATS: [&str; 18] = [
    "mtx",
    "safetensors",
    "csv",
    "tsv",
    "txt",
    "json",
    "npz",
    "mat",
    "h5",
    "hdf5",
    "parquet",
    "gz",
    "bz2",
    "xz",
    "zst",
    "zip",
    "pt",
    "xlsx",
];

/// The file that becomes the result. Removed on drop.
#[derive(Debug)]
pub(super) struct PartFile(Replacement);

impl PartFile {
    /// Creates and locks `PATH.part`, or opens the existing one, after checking that the result can be called
    /// `path`.
    pub(super) fn open(path: &Path) -> Result<Self, MatrixError> {
        let refuse = |what: &str| Err(MatrixError::format(path.display().to_string(), what));
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        if OTHER_FORMATS.contains(&ending.as_str()) {
            return refuse("results are written as .npy; choose a name that ends in .npy");
        }
        match OutputTarget::of(path)? {
            OutputTarget::File(place) => Ok(Self(place.begin()?)),
            OutputTarget::Stream => refuse(
                "is not a regular file, and C is written in any order; choose a file, or write it to standard output with -o -",
            ),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.0.part()
    }
    /// The final name.
    pub(super) fn target(&self) -> &Path {
        self.0.target()
    }
    /// Length in bytes.
    pub(super) fn len(&self) -> Result<u64, MatrixError> {
        Ok(self.file().metadata().map_err(|e| self.error("cannot examine", e))?.len())
    }

    fn file(&self) -> &File {
        self.0.file()
    }

    /// Discards the contents.
    pub(super) fn empty(&self) -> Result<(), MatrixError> {
        self.0.empty()
    }

    /// Whether the file is kept when this is dropped.
    pub(super) fn keep(&self, kept: bool) {
        self.0.keep(kept);
    }

    /// Whether the file begins with these bytes.
    pub(super) fn begins_with(&self, bytes: &[u8]) -> Result<bool, MatrixError> {
        let mut found = vec![0; bytes.len()];
        match self.file().read_exact_at(&mut found, 0) {
            Ok(()) => Ok(found == bytes),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(self.error("cannot read", e)),
        }
    }

    /// Reserves `bytes` of disk space, all or none.
    #[cfg(target_os = "linux")]
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), MatrixError> {
        // A failing reservation takes all free space until it is undone: every other program on the machine would
        // meanwhile find the disk full.
        self.refuse_more_than_free(bytes)?;
        loop {
            match rustix::fs::fallocate(self.file(), FallocateFlags::empty(), 0, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    // Free the allocated blocks first: the error reports the free space.
                    let _ = self.file().set_len(0);
                    return Err(self.no_space(bytes));
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return self.reserve_roughly(bytes),
                Err(e) => return Err(self.error("cannot reserve space", e.into())),
            }
        }
    }

    /// Other systems reserve beyond the end of a file, not from its beginning.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), MatrixError> {
        self.reserve_roughly(bytes)
    }

    /// The same for a file that was reserved before, and may have been copied since. Its contents always stay.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn reserve_again(&self, bytes: u64) -> Result<(), MatrixError> {
        self.refuse_more_than_free(bytes)
    }

    /// The same for a file that was reserved before, and may have been copied since. Its contents always stay.
    #[cfg(target_os = "linux")]
    pub(super) fn reserve_again(&self, bytes: u64) -> Result<(), MatrixError> {
        self.refuse_more_than_free(bytes)?;
        match rustix::fs::fallocate(self.file(), FallocateFlags::empty(), 0, bytes) {
            Err(Errno::NOSPC | Errno::DQUOT) => Err(self.no_space(bytes)),
            _ => Ok(()),
        }
    }

    /// For filesystems that cannot reserve space: compares with the free space, which another program may still use
    /// up.
    fn reserve_roughly(&self, bytes: u64) -> Result<(), MatrixError> {
        self.refuse_more_than_free(bytes)?;
        self.file().set_len(bytes).map_err(|e| self.error("cannot lengthen", e))
    }

    /// Refuses a file of `bytes` where the space that it has and the free space are less.
    fn refuse_more_than_free(&self, bytes: u64) -> Result<(), MatrixError> {
        /// Bytes of a block in `st_blocks`, on every system and filesystem.
        const BLOCK: u64 = 512;
        let held = self.file().metadata().map_err(|e| self.error("cannot examine", e))?.blocks() * BLOCK;
        match self.free_bytes() {
            Some(free) if free < bytes.saturating_sub(held) => Err(self.no_space(bytes)),
            _ => Ok(()),
        }
    }

    /// The free bytes of the filesystem, where it has a limit: `tmpfs` of `size=0` and `ramfs` say 0 of 0 blocks.
    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(self.file()).ok()?;
        (stat.f_blocks > 0).then(|| stat.f_bavail.checked_mul(stat.f_frsize)).flatten()
    }

    fn no_space(&self, bytes: u64) -> MatrixError {
        MatrixError::NoSpace { path: self.target().to_owned(), bytes, free: self.free_bytes() }
    }

    /// Writes the first bytes of the file.
    pub(super) fn write_start(&self, header: &[u8]) -> Result<(), MatrixError> {
        self.file().write_all_at(header, 0).map_err(|e| self.error("cannot write", e))
    }

    /// Maps the first `len` bytes, readable and writable, shared with the file.
    pub(super) fn map(&self, len: usize) -> Result<MmapRaw, MatrixError> {
        MmapOptions::new().len(len).map_raw(self.file()).map_err(|e| self.error("cannot map", e))
    }

    /// Asks the system to begin writing a range of the file to the disk.
    pub(super) fn start_writeback(&self, from: u64, bytes: u64) {
        // Linux begins to write the dirty pages of a range that is "not needed", without waiting; pages that
        // are mapped stay in memory, so nothing is read again.
        #[cfg(target_os = "linux")]
        if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
            let _ = rustix::fs::fadvise(self.file(), from, Some(bytes), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (from, bytes);
    }

    /// Writes the file to the disk and gives it its name.
    pub(super) fn commit(self) -> Result<(), MatrixError> {
        self.0.commit()
    }

    fn error(&self, action: &'static str, source: io::Error) -> MatrixError {
        self.0.error(action, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filesystems_that_cannot_reserve_compare_with_the_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let part = PartFile::open(&folder.path().join("c.npy")).unwrap();
        part.reserve_roughly(1000).unwrap();
        assert_eq!(part.file().metadata().unwrap().len(), 1000);
        let message = part.reserve_roughly(1 << 60).unwrap_err().to_string();
        assert!(message.contains(&format!("needs {} bytes", 1u64 << 60)), "{message}");
    }

    #[test]
    fn the_space_that_a_file_has_counts() {
        let folder = tempfile::tempdir().unwrap();
        let part = PartFile::open(&folder.path().join("c.npy")).unwrap();
        let mib = 1 << 20;
        part.file().write_all_at(&vec![1; 64 * mib], 0).unwrap();
        part.file().sync_all().unwrap();
        let free = part.free_bytes().unwrap();
        part.refuse_more_than_free(free + 32 * mib as u64).unwrap();
        part.refuse_more_than_free(2 * free + 128 * mib as u64).unwrap_err();
    }
}
