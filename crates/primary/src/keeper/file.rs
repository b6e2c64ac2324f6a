//! The file `C.npy.journal`, beside the unfinished `C.npy.part`.
//!
//! Place in the flow: a run looks for it before it begins (`find`); the keeper writes it; when C has its name it is
//! removed, where an old C was read for it only when all has been told.
//!
//! Invariants: whoever writes it holds the lock of the unfinished result. Space for all that will be written is taken before
//! the product begins. An error leaves what is valid in it valid: bytes are only appended, and what a torn write
//! leaves at its end does not count.
//!
//! Deliberately absent: what the bytes mean (`bramble_schedule::journal`).

use super::Steps;
use crate::PrimaryError;
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

/// What there is of a run before.
#[derive(Debug)]
pub enum Found {
    /// No such file.
    Missing,
    /// A file without a byte: its space was taken, and the run ended before the operands had been digested.
    Empty,
    /// A journal of a run that ended before any tile was complete.
    NoTiles,
    /// A file that cannot be read, and why.
    Unreadable(String),
    /// What it says.
    Journal(Box<Journal>),
}

impl Found {
    /// Whether another run could go on from it.
    pub fn has_tiles(&self) -> bool {
        matches!(self, Self::Journal(_))
    }
}

/// Looks for a journal with tiles of a result.
pub fn find(path: &Path) -> Result<Found, PrimaryError> {
    Ok(match look(path)? {
        Found::Journal(journal) if journal.tiles.is_empty() => Found::NoTiles,
        found => found,
    })
}

/// Looks for the journal of a result, whatever is in it.
pub fn look(path: &Path) -> Result<Found, PrimaryError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
        Err(e) => return Err(error(path, "cannot read", &e)),
    };
    if bytes.is_empty() {
        return Ok(Found::Empty);
    }
    Ok(match read(&bytes) {
        Ok(journal) => Found::Journal(Box::new(journal)),
        Err(e) => Found::Unreadable(e.0),
    })
}

/// The journal that is being written. Dropped without anything in it that another run could use, it is removed.
#[derive(Debug)]
pub struct JournalFile {
    file: File,
    path: PathBuf,
    len: u64,
    is_of_use: Arc<AtomicBool>,
    pub(super) steps: Steps,
}

impl JournalFile {
    /// Takes the space for `bytes` more than the `valid` ones that stay.
    pub(super) fn open(path: &Path, valid: u64, bytes: u64, steps: Steps) -> Result<Self, PrimaryError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let file = options.open(path).map_err(|e| error(path, "cannot make the file", &e))?;
        let meta = file.metadata().map_err(|e| error(path, "cannot examine", &e))?;
        if !meta.is_file() {
            let what = "is in the way and not a regular file; remove it or choose another name with -o";
            return Err(PrimaryError::Failed(format!("{}: {what}", path.display())));
        }
        let is_of_use = Arc::new(AtomicBool::new(valid > 0));
        let this = Self { file, path: path.to_owned(), len: valid, is_of_use, steps };
        this.file.set_len(valid).map_err(|e| this.error("cannot shorten", &e))?;
        if valid > 0 {
            // A process that was killed may have left records that the disk does not have yet.
            this.file.sync_data().map_err(|e| this.error("cannot write", &e))?;
        }
        this.reserve(bytes)?;
        Ok(this)
    }

    /// An empty one, whatever the file is.
    #[cfg(test)]
    pub(super) fn of(file: File, path: &Path) -> Self {
        let (path, is_of_use) = (path.to_owned(), Arc::new(AtomicBool::new(true)));
        Self { file, path, len: 0, is_of_use, steps: Steps::default() }
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, bytes: u64) -> Result<(), PrimaryError> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, bytes.max(1)) {
            Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => {
                Err(self.error("cannot take its space", &e.into()))
            }
            // What cannot be taken in advance is taken as it is written.
            _ => Ok(()),
        }
    }

    /// Space is taken as it is written.
    #[cfg(not(target_os = "linux"))]
    fn reserve(&self, _bytes: u64) -> Result<(), PrimaryError> {
        Ok(())
    }

    /// Writes after all that is there. The middle of it is a point at which a run may end.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), PrimaryError> {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        for part in [first, rest] {
            self.file.write_all_at(part, self.len).map_err(|e| self.error("cannot write", &e))?;
            self.len += to_u64(part.len());
            self.steps.one();
        }
        Ok(())
    }

    /// Brings it to the disk.
    pub(super) fn sync(&self) -> Result<(), PrimaryError> {
        self.file.sync_data().map_err(|e| self.error("cannot write", &e))?;
        self.steps.one();
        Ok(())
    }

    /// Brings its name to the disk.
    pub(super) fn sync_folder(&self) -> Result<(), PrimaryError> {
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

    /// From now on another run could go on with it.
    pub(super) fn is_of_use_now(&self) {
        self.is_of_use.store(true, Ordering::Relaxed);
    }

    /// Notes that C is complete and right: whoever finds it under its name knows it from the C that was read for it. Before
    /// the disk has that, C must not get its name.
    pub fn complete(&mut self, c: &Matrix, threads: usize) -> Result<(), PrimaryError> {
        let digest = c.digest(threads, &|| false)?;
        if let Some(digest) = digest.filter(|_| self.len > 0) {
            self.append(&complete(digest))?;
            self.sync()?;
        }
        Ok(())
    }

    /// C has its name, and nobody has been told yet.
    pub fn is_of_use_until_told(&self) {
        self.is_of_use.store(self.len > 0, Ordering::Relaxed);
    }

    /// A point at which a run may end, for those who test that it may.
    pub fn step(&self) {
        self.steps.one();
    }

    /// Removes it: C has its name and that was told, or it is wrong.
    pub fn remove(self) {
        self.is_of_use.store(false, Ordering::Relaxed);
    }

    fn error(&self, action: &str, e: &io::Error) -> PrimaryError {
        error(&self.path, action, e)
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        if !self.is_of_use.load(Ordering::Relaxed) {
            // Nothing is left to be told about a failure here; the next run looks at it again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn error(path: &Path, action: &str, e: &io::Error) -> PrimaryError {
    let way_out = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room on that disk",
        _ => "",
    };
    PrimaryError::Failed(format!("{}: {action}: {e}{way_out}", path.display()))
}
