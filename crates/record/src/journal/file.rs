//! The journal's file `C.npy.journal`, beside the unfinished `C.npy.part`.
//!
//! Place in the flow: a run looks for it before it begins (`find_journal`); the journal writer appends to it; it is removed
//! when C has its final name, or, if an old C was read, when the result has been reported.
//!
//! Invariants: the process that writes it holds the lock of the unfinished result. Disk space for all records is reserved before
//! the product begins. An error leaves all valid records valid: bytes are only appended, and a torn write at the end of the file
//! is ignored.
//!
//! Deliberately absent: the format (`bramble_schedule::journal`).

use super::DiskStepHook;
use crate::RecordError;
use bramble_matrix::Matrix;
use bramble_matrix::number::to_u64;
use bramble_schedule::journal::{Journal, complete, read};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State of the journal's file when a run begins.
#[derive(Debug)]
pub enum FoundJournal {
    /// No such file.
    Missing,
    /// An empty file: an earlier run reserved its space and ended before the operands had been digested.
    Empty,
    /// A journal of a run that ended before any tile was recorded.
    NoTiles,
    /// A file that is not a valid journal, and why.
    Unreadable(String),
    /// A journal with tiles.
    Journal(Box<Journal>),
}

impl FoundJournal {
    /// Whether a run can resume from it.
    pub fn has_tiles(&self) -> bool {
        matches!(self, Self::Journal(_))
    }
}

/// Reads the journal; one without tiles is `NoTiles`.
pub fn find_journal(path: &Path) -> Result<FoundJournal, RecordError> {
    Ok(match read_journal(path)? {
        FoundJournal::Journal(journal) if journal.tiles.is_empty() => FoundJournal::NoTiles,
        found => found,
    })
}

/// Reads the journal, whether or not it has tiles.
pub fn read_journal(path: &Path) -> Result<FoundJournal, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(FoundJournal::Missing),
        Err(e) => return Err(error(path, "cannot read", &e)),
    };
    if bytes.is_empty() {
        return Ok(FoundJournal::Empty);
    }
    Ok(match read(&bytes) {
        Ok(journal) => FoundJournal::Journal(Box::new(journal)),
        Err(e) => FoundJournal::Unreadable(e.0),
    })
}

/// The journal that is being written. It removes its file when dropped, unless a run could resume from it.
#[derive(Debug)]
pub struct JournalFile {
    file: File,
    path: PathBuf,
    len: u64,
    is_usable: Arc<AtomicBool>,
    pub(super) on_step: DiskStepHook,
}

impl JournalFile {
    /// Opens the file, cuts it to its `valid` bytes and reserves space for `bytes` more.
    pub(super) fn open(
        path: &Path,
        valid: u64,
        bytes: u64,
        on_step: DiskStepHook,
    ) -> Result<Self, RecordError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let file = options.open(path).map_err(|e| error(path, "cannot make the file", &e))?;
        let meta = file.metadata().map_err(|e| error(path, "cannot examine", &e))?;
        if !meta.is_file() {
            let what = "is in the way and not a regular file; remove it or choose another name with -o";
            return Err(RecordError::Journal(format!("{}: {what}", path.display())));
        }
        let is_usable = Arc::new(AtomicBool::new(valid > 0));
        let this = Self { file, path: path.to_owned(), len: valid, is_usable, on_step };
        this.file.set_len(valid).map_err(|e| this.error("cannot shorten", &e))?;
        if valid > 0 {
            // The earlier process may have been killed before its last records were synced.
            this.file.sync_data().map_err(|e| this.error("cannot write", &e))?;
        }
        this.reserve(bytes)?;
        Ok(this)
    }

    /// An empty journal over any file.
    #[cfg(test)]
    pub(super) fn of(file: File, path: &Path) -> Self {
        let (path, is_usable) = (path.to_owned(), Arc::new(AtomicBool::new(true)));
        Self { file, path, len: 0, is_usable, on_step: DiskStepHook::default() }
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, bytes: u64) -> Result<(), RecordError> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, bytes.max(1)) {
            Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => {
                Err(self.error("cannot take its space", &e.into()))
            }
            // Filesystems without reservation allocate space as it is written.
            _ => Ok(()),
        }
    }

    /// Space is allocated as it is written.
    #[cfg(not(target_os = "linux"))]
    fn reserve(&self, _bytes: u64) -> Result<(), RecordError> {
        Ok(())
    }

    /// Appends bytes. The middle of the write is a crash point.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        for part in [first, rest] {
            self.file.write_all_at(part, self.len).map_err(|e| self.error("cannot write", &e))?;
            self.len += to_u64(part.len());
            self.on_step.call();
        }
        Ok(())
    }

    /// Syncs the file's data to the disk.
    pub(super) fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_data().map_err(|e| self.error("cannot write", &e))?;
        self.on_step.call();
        Ok(())
    }

    /// Syncs the folder, so that the file's name is on the disk.
    pub(super) fn sync_folder(&self) -> Result<(), RecordError> {
        let folder =
            self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Some filesystems cannot sync folders.
            Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) => {
                Err(error(folder, "cannot sync the folder", &e))
            }
            _ => Ok(()),
        }
    }

    /// From now on a run could resume from it.
    pub(super) fn mark_usable(&self) {
        self.is_usable.store(true, Ordering::Relaxed);
    }

    /// Records that C is complete and right, with its digest: a later run needs it to tell the new C from the old C that was read
    /// for it. This record must be on the disk before C gets its final name.
    pub fn complete(&mut self, c: &Matrix, threads: usize) -> Result<(), RecordError> {
        let digest = c.digest(threads, &|| false)?;
        if let Some(digest) = digest.filter(|_| self.len > 0) {
            self.append(&complete(digest))?;
            self.sync()?;
        }
        Ok(())
    }

    /// C has its final name; keeps the file until the result has been reported.
    pub fn keep_until_reported(&self) {
        self.is_usable.store(self.len > 0, Ordering::Relaxed);
    }

    /// A step on the way of C to its final name is done.
    pub fn step(&self) {
        self.on_step.call();
    }

    /// Removes the file: C has its final name and was reported, or C is wrong.
    pub fn remove(self) {
        self.is_usable.store(false, Ordering::Relaxed);
    }

    fn error(&self, action: &str, e: &io::Error) -> RecordError {
        error(&self.path, action, e)
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        if !self.is_usable.load(Ordering::Relaxed) {
            // No caller is left to get the error; the next run reads the file again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn error(path: &Path, action: &str, e: &io::Error) -> RecordError {
    let way_out = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room on that disk",
        _ => "",
    };
    RecordError::Journal(format!("{}: {action}: {e}{way_out}", path.display()))
}
