//! `--trace FILE`: what happened in a product, for a trace viewer.
//!
//! Place in the flow: the file is made before the product begins, so that a name that cannot be written ends the run
//! before anything was computed; it is drawn from the event log when C has its name.
//!
//! Invariants: under the final name there is a whole trace or what was there before. What is unfinished is called
//! `FILE.part`, and is gone when the product ends in any way but a kill.

mod render;

use crate::exit::Failure;
use bramble_primary::Report;
use bramble_primary::log::Log;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The file that becomes the trace. Removed on drop.
pub(crate) struct TraceFile {
    file: File,
    part: PathBuf,
    target: PathBuf,
    is_kept: bool,
}

impl TraceFile {
    /// Makes and locks `FILE.part`; gives an empty event log, too, which outgrows memory in a file beside it without a
    /// name.
    pub(crate) fn create(target: &Path, began: Instant) -> Result<(Self, Log), Failure> {
        let failed = |e: std::io::Error| Failure::failed(format!("--trace {}: {e}", target.display()));
        if target.is_dir() {
            return Err(Failure::failed(format!("--trace {}: is a folder", target.display())));
        }
        let beside = |ending: String| {
            let mut name = target.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let part = beside(".part".to_owned());
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&part).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let what = "another run is writing it; wait for that run or choose another name";
                return Err(Failure::failed(format!("--trace {}: {what}", target.display())));
            }
            // A few network filesystems have no locks.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(e) => return Err(failed(e.into())),
        }
        let this = Self { file, part, target: target.to_owned(), is_kept: false };
        let spool = beside(format!(".{}.log", std::process::id()));
        let mut options = OpenOptions::new();
        let spooled = options.read(true).write(true).create_new(true).open(&spool).map_err(failed)?;
        fs::remove_file(&spool).map_err(failed)?;
        this.file.set_len(0).map_err(failed)?;
        Ok((this, Log::new(began, spooled)))
    }

    /// Draws the trace and gives it its name.
    pub(crate) fn keep(mut self, log: &Log, report: &Report, primary: &str) -> Result<(), Failure> {
        let mut writer = BufWriter::with_capacity(1 << 18, &self.file);
        let written = render::render(log, report, primary, &mut writer).and_then(|()| writer.flush());
        drop(writer);
        let renamed = written.and_then(|()| fs::rename(&self.part, &self.target));
        let what = |e| format!("--trace {}: {e}; C is complete all the same", self.target.display());
        renamed.map_err(|e: std::io::Error| Failure::failed(what(e)))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // It may be gone with its folder.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests;
