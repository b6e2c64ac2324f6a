//! Safe replacement of files: checks what exists at a path, and writes a new file that takes its place when it is
//! complete.
//!
//! Place in the flow: below everything that is written for users: C (`output`), traces, plots, reports and keys
//! (`cli`).
//!
//! Invariants: symbolic links are followed, so the file behind a link is replaced and the link stays. Only a
//! regular file is ever replaced, and the new file gets its mode and owner. Until the new file is complete it is
//! called `NAME.part` and has one writer, and the old file is unchanged. A write-protected file is refused, even
//! for root.
//!
//! Deliberately absent: other names of the same file (hard links), access lists and extended attributes, which the
//! new file does not get.

use crate::MatrixError;
use rustix::fs::{Access, FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Attempts to open a file that vanished between opening and locking.
const TRIES: usize = 10;

/// The permission bits for writing.
const WRITE_BITS: u32 = 0o222;

/// What exists at a path that is to be written.
#[derive(Debug)]
pub enum OutputTarget {
    /// A regular file, or a free name.
    File(FilePlace),
    /// A device or a pipe, which takes bytes in order and must never be replaced.
    Stream,
}

/// A regular file that will be replaced, or a free name.
#[derive(Debug)]
pub struct FilePlace {
    target: PathBuf,
    old: Option<Metadata>,
}

impl OutputTarget {
    /// Checks `path`, with symbolic links followed; an error if nothing may be written there.
    pub fn of(path: &Path) -> Result<Self, MatrixError> {
        let refuse = |what: &str| Err(MatrixError::format(path.display().to_string(), what));
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.file_name().is_none() {
            return refuse("is the name of a folder; add a file name");
        }
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return free(path),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return refuse("cannot be written: the part before the last / is not a folder");
            }
            Err(e) => return Err(MatrixError::io(path, "cannot examine", e)),
        };
        let kind = meta.file_type();
        if kind.is_dir() {
            return refuse("is a folder; add a file name");
        }
        if kind.is_block_device() {
            return refuse("is a disk (a block device); choose another name");
        }
        if kind.is_socket() {
            return refuse("is a socket; choose another name");
        }
        if kind.is_file() && meta.mode() & WRITE_BITS == 0 {
            return refuse(
                "is protected from writing (mode 0444 or less); chmod u+w it, or choose another name",
            );
        }
        rustix::fs::access(path, Access::WRITE_OK)
            .map_err(|e| MatrixError::io(path, "is there and must not be overwritten", e.into()))?;
        if !kind.is_file() {
            return Ok(Self::Stream);
        }
        if is_standard_stream(&meta) {
            return refuse("is where standard output or standard error goes; choose another name");
        }
        let target = fs::canonicalize(path).map_err(|e| MatrixError::io(path, "cannot examine", e))?;
        Ok(Self::File(FilePlace { target, old: Some(meta) }))
    }
}

/// A free name in an existing folder.
fn free(path: &Path) -> Result<OutputTarget, MatrixError> {
    let refuse = |what: &str| Err(MatrixError::format(path.display().to_string(), what));
    if fs::symlink_metadata(path).is_ok() {
        return refuse("is a link that leads nowhere; remove it or choose another name");
    }
    let folder = folder_of(path);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(OutputTarget::File(FilePlace { target: path.to_owned(), old: None })),
        Ok(_) => refuse("cannot be written: the part before the last / is not a folder"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            refuse(&format!("cannot be written: there is no folder {}; make it first", folder.display()))
        }
        Err(e) => Err(MatrixError::io(folder, "cannot examine the folder", e)),
    }
}

/// Whether a file is this process's standard output or error: replacing it would lose that output.
fn is_standard_stream(meta: &Metadata) -> bool {
    let is_it = |stat: rustix::io::Result<rustix::fs::Stat>| {
        // The types of these numbers differ between systems.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        stat.is_ok_and(|stat| (stat.st_dev as u64, stat.st_ino as u64) == (meta.dev(), meta.ino()))
    };
    is_it(rustix::fs::fstat(io::stdout())) || is_it(rustix::fs::fstat(io::stderr()))
}

impl FilePlace {
    /// The name with symbolic links followed.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Gives a new file the owner, the group and, if `mode`, the mode of the file that it will replace.
    pub fn keep_owner(&self, file: &File, mode: bool) -> Result<(), MatrixError> {
        let Some(old) = &self.old else { return Ok(()) };
        let new = file.metadata().map_err(|e| MatrixError::io(&self.target, "cannot examine", e))?;
        let uid = (new.uid() != old.uid()).then(|| Uid::from_raw(old.uid()));
        let gid = (new.gid() != old.gid()).then(|| Gid::from_raw(old.gid()));
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(file, uid, gid).map_err(|_| {
                let (user, group) = (old.uid(), old.gid());
                let what = format!(
                    "belongs to user {user} and group {group}, and only root could give what replaces it to them; \
                     remove it or choose another name"
                );
                MatrixError::format(self.target.display().to_string(), what)
            })?;
        }
        if mode {
            // Some filesystems have no modes.
            let _ = file.set_permissions(Permissions::from_mode(old.mode() & 0o777));
        }
        Ok(())
    }

    /// Creates and locks `NAME.part`, or opens the existing one, whose bytes stay.
    pub fn begin(self) -> Result<Replacement, MatrixError> {
        let mut name = self.target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = self.target.with_file_name(name);
        for _ in 0..TRIES {
            let file = open(&part)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let what = "another run is writing it; wait for that run or choose another name";
                    return Err(MatrixError::format(part.display().to_string(), what));
                }
                // A few network filesystems have no locks; there the name alone has to suffice.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
                Err(e) => return Err(MatrixError::io(part, "cannot lock", e.into())),
            }
            // The run that held the lock may have renamed or removed the file before this run got it.
            if same_file(&file, &part) {
                let has_bytes = file.metadata().is_ok_and(|meta| meta.len() > 0);
                let kept = AtomicBool::new(has_bytes);
                let this = Replacement { file, part, place: self, renamed: false, kept };
                // The new file is readable for the users who could read the old one, and for no others.
                this.place.keep_owner(&this.file, true)?;
                return Ok(this);
            }
        }
        let what = "appears and vanishes again and again; is another run writing it?";
        Err(MatrixError::format(part.display().to_string(), what))
    }
}

/// The unfinished file. Removed on drop, unless it was kept or had bytes before.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    part: PathBuf,
    place: FilePlace,
    renamed: bool,
    /// It is kept on drop, for a resumed run.
    kept: AtomicBool,
}

impl Replacement {
    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
    /// The path of the unfinished file.
    pub fn part(&self) -> &Path {
        &self.part
    }
    /// The final path.
    pub fn target(&self) -> &Path {
        self.place.target()
    }

    /// Discards the contents.
    pub fn empty(&self) -> Result<(), MatrixError> {
        self.keep(false);
        self.file.set_len(0).map_err(|e| self.error("cannot shorten", e))
    }

    /// Whether the file is kept when this is dropped.
    pub fn keep(&self, kept: bool) {
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Writes the file to the disk and gives it its name.
    pub fn commit(mut self) -> Result<(), MatrixError> {
        self.file.sync_all().map_err(|e| self.error("cannot write", e))?;
        let target = self.place.target();
        fs::rename(&self.part, target).map_err(|e| self.error("cannot rename to its final name", e))?;
        self.renamed = true;
        // The new name is part of the folder's data.
        let folder = folder_of(self.place.target());
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        match synced {
            // Some filesystems cannot sync folders; the rename is then as safe as it can be.
            Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) => {
                Err(MatrixError::io(folder, "cannot sync the folder", e))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn error(&self, action: &'static str, source: io::Error) -> MatrixError {
        MatrixError::io(&self.part, action, source)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.renamed && !self.kept.load(Ordering::Relaxed) {
            // An error cannot be reported here; the next run overwrites the file.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Opens the part file without following a link, and without changing its contents.
fn open(part: &Path) -> Result<File, MatrixError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.open(part).map_err(|e| MatrixError::io(part, "cannot make the file", e))?;
    let meta = file.metadata().map_err(|e| MatrixError::io(part, "cannot examine", e))?;
    if !meta.is_file() {
        let what = "is in the way and not a regular file; remove it or choose another name";
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
    use std::io::Write;

    fn place(path: &Path) -> Result<FilePlace, String> {
        match OutputTarget::of(path) {
            Ok(OutputTarget::File(place)) => Ok(place),
            Ok(OutputTarget::Stream) => Err("a stream".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn mode_and_links_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let replacement = place(&link).unwrap().begin().unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"old");
        replacement.file().write_all(b"new").unwrap();
        replacement.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn what_is_no_regular_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(place(Path::new("/dev/null")).unwrap_err(), "a stream");
        assert!(place(folder.path()).unwrap_err().contains("is a folder"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(place(&at("socket")).unwrap_err().contains("is a socket"));
        fs::write(at("protected"), "").unwrap();
        fs::set_permissions(at("protected"), Permissions::from_mode(0o444)).unwrap();
        assert!(place(&at("protected")).unwrap_err().contains("chmod u+w"));
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        assert!(place(&at("dangling")).unwrap_err().contains("leads nowhere"));
        assert!(place(&at("no/file")).unwrap_err().contains("there is no folder"));
        assert!(place(&at("protected/file")).unwrap_err().contains("not a folder"));
        std::os::unix::fs::symlink("protected", at("free.part")).unwrap();
        assert!(
            place(&at("free")).unwrap().begin().unwrap_err().to_string().contains("cannot make the file")
        );
    }
}
