//! `--trace FILE`: what happened in a product, for a trace viewer.
//!
//! Place in the flow: the file is made before the product begins, so that a name that cannot be written ends the run
//! before anything was computed; it is drawn from the event log when C has its name.
//!
//! Invariants: under the final name there is a whole trace or what was there before. What is unfinished is called
//! `FILE.part`, and is gone when the product ends in any way but a kill.

mod render;

use crate::exit::Failure;
use crate::out_file::OutFile;
use bramble_primary::Report;
use bramble_primary::log::Log;
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// The file that becomes the trace. Removed on drop.
pub(crate) struct TraceFile(OutFile);

impl TraceFile {
    /// Makes and locks `FILE.part`; gives an empty event log, too, which outgrows memory in a file beside it without a
    /// name.
    pub(crate) fn create(target: &Path, began: Instant) -> Result<(Self, Log), Failure> {
        let this = Self(OutFile::open("--trace", target)?);
        let failed = |e: std::io::Error| Failure::failed(format!("--trace {}: {e}", target.display()));
        // Not beside a device.
        let mut spool =
            this.part().map_or_else(|| std::env::temp_dir().join("bramble-trace"), Path::to_owned);
        spool.as_mut_os_string().push(format!(".{}.log", std::process::id()));
        let mut options = OpenOptions::new();
        let spooled = options.read(true).write(true).create_new(true).open(&spool).map_err(failed)?;
        fs::remove_file(&spool).map_err(failed)?;
        Ok((this, Log::new(began, spooled)))
    }

    /// Draws the trace and gives it its name.
    pub(crate) fn keep(self, log: &Log, report: &Report, primary: &str) -> Result<(), Failure> {
        let mut writer = BufWriter::with_capacity(1 << 18, self.0.file());
        let written = render::render(log, report, primary, &mut writer).and_then(|()| writer.flush());
        drop(writer);
        let kept = written.map_err(|e| self.0.failed(&e)).and_then(|()| self.0.keep());
        kept.map_err(|failure| Failure {
            text: format!("{}; C is complete all the same", failure.text),
            ..failure
        })
    }

    /// The file that is there until the trace is whole.
    pub(crate) fn part(&self) -> Option<&Path> {
        self.0.part()
    }
}

#[cfg(test)]
mod tests;
