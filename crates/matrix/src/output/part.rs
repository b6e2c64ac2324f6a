//! The file `NAME.part`: made, locked, reserved, renamed or removed.
//!
//! Place in the flow: `Unfinished::lock` opens it, `Sealed::commit` renames it.
//!
//! Invariants: it is cut to length only while the lock is held, so a run never shortens the file under
//! another's map; it is removed on drop unless it was renamed, or is kept for a run that goes on with it; what another run
//! left in it stays until it is said what becomes of that; the old file of the name is not touched before.
//!
//! Deliberately absent: knowing what of an unfinished file is right. That is for who asks for it.

use crate::MatrixError;
use memmap2::{MmapOptions, MmapRaw};
#[cfg(target_os = "linux")]
use rustix::fs::FallocateFlags;
use rustix::fs::{Access, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a file that vanished between opening and locking is opened again.
const TRIES: usize = 10;

/// The file that becomes the result. Removed on drop.
#[derive(Debug)]
pub(super) struct PartFile {
    file: File,
    part: PathBuf,
    /// What it will be called.
    target: PathBuf,
    renamed: bool,
    /// Stays when this is dropped: another run may go on with it.
    kept: AtomicBool,
}

impl PartFile {
    /// Makes and locks `PATH.part`, or opens the one that is there, after checking that the result can be called `path`.
    pub(super) fn open(path: &Path) -> Result<Self, MatrixError> {
        let target = checked_target(path)?;
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = target.with_file_name(name);
        for _ in 0..TRIES {
            let file = open(&part)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let what = "another run is writing it; wait for that run or choose another name with -o";
                    return Err(MatrixError::format(part.display().to_string(), what));
                }
                // A few network filesystems have no locks; the name alone must do there.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
                Err(e) => return Err(MatrixError::io(part, "cannot lock", e.into())),
            }
            // The run that held it may have renamed or removed it before we got the lock.
            if same_file(&file, &part) {
                let mut this = Self { file, part, target, renamed: false, kept: AtomicBool::new(true) };
                this.kept = AtomicBool::new(this.len()? > 0);
                this.take_mode();
                return Ok(this);
            }
        }
        let what = "appears and vanishes again and again; is another run writing it?";
        Err(MatrixError::format(part.display().to_string(), what))
    }

    /// Who might read what was there before may read what comes in its place, and nobody else.
    fn take_mode(&self) {
        if let Ok(old) = fs::metadata(&self.target) {
            // Some filesystems have no modes.
            let _ = self.file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o777));
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.part
    }
    /// What it will be called.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }
    /// Bytes.
    pub(super) fn len(&self) -> Result<u64, MatrixError> {
        Ok(self.file.metadata().map_err(|e| self.error("cannot examine", e))?.len())
    }

    /// Throws away what is in it.
    pub(super) fn empty(&self) -> Result<(), MatrixError> {
        self.keep(false);
        self.file.set_len(0).map_err(|e| self.error("cannot shorten", e))
    }

    /// Whether it stays when this is dropped.
    pub(super) fn keep(&self, kept: bool) {
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Whether it begins with these bytes.
    pub(super) fn begins_with(&self, bytes: &[u8]) -> Result<bool, MatrixError> {
        let mut found = vec![0; bytes.len()];
        match self.file.read_exact_at(&mut found, 0) {
            Ok(()) => Ok(found == bytes),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(self.error("cannot read", e)),
        }
    }

    /// Takes `bytes` of disk space, all or none.
    #[cfg(target_os = "linux")]
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), MatrixError> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(self.no_space(bytes)),
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

    /// The same for a file that was reserved before, and may have been copied since. What is in it stays in any case.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn reserve_again(&self, _bytes: u64) -> Result<(), MatrixError> {
        Ok(())
    }

    /// The same for a file that was reserved before, and may have been copied since. What is in it stays in any case.
    #[cfg(target_os = "linux")]
    pub(super) fn reserve_again(&self, bytes: u64) -> Result<(), MatrixError> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::NOSPC | Errno::DQUOT) => {
                Err(MatrixError::NoSpace { path: self.target.clone(), bytes, free: self.free_bytes() })
            }
            _ => Ok(()),
        }
    }

    /// For filesystems that cannot reserve: compares with the free space, which another program may still
    /// take in the meantime.
    fn reserve_roughly(&self, bytes: u64) -> Result<(), MatrixError> {
        if self.free_bytes().is_some_and(|free| free < bytes) {
            return Err(self.no_space(bytes));
        }
        self.file.set_len(bytes).map_err(|e| self.error("cannot lengthen", e))
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.file).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }

    fn no_space(&self, bytes: u64) -> MatrixError {
        // What was taken before the disk was full is given back, or the number would be too small.
        let _ = self.file.set_len(0);
        MatrixError::NoSpace { path: self.target.clone(), bytes, free: self.free_bytes() }
    }

    /// Writes the first bytes of the file.
    pub(super) fn write_start(&self, header: &[u8]) -> Result<(), MatrixError> {
        self.file.write_all_at(header, 0).map_err(|e| self.error("cannot write", e))
    }

    /// Maps the first `len` bytes, readable and writable, shared with the file.
    pub(super) fn map(&self, len: usize) -> Result<MmapRaw, MatrixError> {
        MmapOptions::new().len(len).map_raw(&self.file).map_err(|e| self.error("cannot map", e))
    }

    /// Asks the system to begin writing a range of the file.
    pub(super) fn start_writeback(&self, from: u64, bytes: u64) {
        // Linux begins to write the dirty pages of a range that is "not needed", without waiting; pages that
        // are mapped stay in memory, so nothing is read again.
        #[cfg(target_os = "linux")]
        if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
            let _ = rustix::fs::fadvise(&self.file, from, Some(bytes), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (from, bytes);
    }

    /// Brings the file to the disk and gives it its name.
    pub(super) fn commit(mut self) -> Result<(), MatrixError> {
        self.file.sync_all().map_err(|e| self.error("cannot write", e))?;
        fs::rename(&self.part, &self.target).map_err(|e| self.error("cannot rename to its final name", e))?;
        self.renamed = true;
        // The name itself lives in the folder.
        let folder = folder_of(&self.target);
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        match synced {
            // Some filesystems cannot sync folders; the rename is as safe there as it can be.
            Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) => {
                Err(MatrixError::io(folder, "cannot sync the folder", e))
            }
            _ => Ok(()),
        }
    }

    fn error(&self, action: &'static str, source: io::Error) -> MatrixError {
        MatrixError::io(&self.part, action, source)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.renamed && !self.kept.load(Ordering::Relaxed) {
            // Nothing is left to be told about a failure here; the next run overwrites the file.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The name of the result with links followed, or why there can be no result of that name.
fn checked_target(path: &Path) -> Result<PathBuf, MatrixError> {
    let refuse = |what: &str| Err(MatrixError::format(path.display().to_string(), what));
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    if matches!(ending.as_str(), "mtx" | "safetensors") {
        return refuse("results are written as .npy; choose a name that ends in .npy");
    }
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.file_name().is_none() {
        return refuse("is the name of a folder; add a file name, as in result.npy");
    }
    let folder = folder_of(path);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return refuse("cannot be written: what comes before the last / is not a folder"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return refuse(&format!(
                "cannot be written: there is no folder {}; make it first",
                folder.display()
            ));
        }
        Err(e) => return Err(MatrixError::io(folder, "cannot examine the folder", e)),
    }
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(e) => return Err(MatrixError::io(path, "cannot examine", e)),
        Ok(_) => {}
    }
    // Renaming would replace a link by a file; the file that it leads to is meant.
    let target =
        fs::canonicalize(path).map_err(|e| MatrixError::io(path, "is a link that leads nowhere", e))?;
    let meta = fs::metadata(&target).map_err(|e| MatrixError::io(path, "cannot examine", e))?;
    if meta.is_dir() {
        return refuse("is a folder; add a file name, as in result.npy");
    }
    if !meta.is_file() {
        return refuse("is not a regular file; choose another name");
    }
    rustix::fs::access(&target, Access::WRITE_OK)
        .map_err(|e| MatrixError::io(path, "is there and must not be overwritten", e.into()))?;
    Ok(target)
}

/// Opens the part file without following a link, and without changing what is in it.
fn open(part: &Path) -> Result<File, MatrixError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.open(part).map_err(|e| MatrixError::io(part, "cannot make the file", e))?;
    let meta = file.metadata().map_err(|e| MatrixError::io(part, "cannot examine", e))?;
    if !meta.is_file() {
        let what = "is in the way and not a regular file; remove it or choose another name with -o";
        return Err(MatrixError::format(part.display().to_string(), what));
    }
    Ok(file)
}

/// Whether the open file is still the one of that name.
fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
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
        assert_eq!(part.file.metadata().unwrap().len(), 1000);
        let message = part.reserve_roughly(1 << 60).unwrap_err().to_string();
        assert!(message.contains(&format!("needs {} bytes", 1u64 << 60)), "{message}");
    }
}
