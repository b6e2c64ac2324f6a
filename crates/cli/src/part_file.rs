//! A file that has its name only when it is whole.
//!
//! Place in the flow: below what is written beside C: traces and reports. (C itself is `bramble_matrix`'s to write.)
//!
//! Invariants: under the final name there is a whole file or what was there before. What is unfinished is called
//! `FILE.part`, has one writer, and is gone when that ends in any way but a kill.

use crate::exit::Failure;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The unfinished file. Removed on drop.
pub(crate) struct PartFile {
    file: File,
    part: PathBuf,
    target: PathBuf,
    is_kept: bool,
}

impl PartFile {
    /// Makes, locks and empties `FILE.part`. `option` is what users call the file, for errors.
    pub(crate) fn create(option: &str, target: &Path) -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::failed(format!("{option} {}: {e}", target.display()));
        if target.is_dir() {
            return Err(Failure::failed(format!("{option} {}: is a folder", target.display())));
        }
        let part = beside(target, ".part");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&part).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let what = "another run is writing it; wait for that run or choose another name";
                return Err(Failure::failed(format!("{option} {}: {what}", target.display())));
            }
            // A few network filesystems have no locks.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(e) => return Err(failed(e.into())),
        }
        let this = Self { file, part, target: target.to_owned(), is_kept: false };
        this.file.set_len(0).map_err(failed)?;
        Ok(this)
    }

    /// Where to write.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The name that it will have.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Gives it its name.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        fs::rename(&self.part, &self.target)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // It may be gone with its folder.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// A name with something behind it.
pub(crate) fn beside(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
