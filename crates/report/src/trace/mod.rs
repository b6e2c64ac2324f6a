//! `--trace FILE`: a timeline of a product, for a trace viewer.
//!
//! Place in the flow: the file is created before the product starts, so that an unwritable path fails early; it is
//! rendered from the event log after C has its final name.
//!
//! Invariants: the file is replaced atomically, so its name always holds the old or the complete new trace. The
//! unfinished file is `FILE.part`, and is removed unless the process is killed.

mod render;

use crate::exit::Failure;
use crate::out_file::OutFile;
use bramble_primary::Report;
use bramble_record::log::EventLog;
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// The unfinished trace file; removed on drop.
pub struct TraceFile(OutFile);

impl TraceFile {
    /// Creates and locks `FILE.part`; returns also an empty event log, which spills to an unlinked file in the same
    /// folder.
    pub fn create(target: &Path, began: Instant) -> Result<(Self, EventLog), Failure> {
        let this = Self(OutFile::open("--trace", target)?);
        let failed = |e: std::io::Error| Failure::failed(format!("--trace {}: {e}", target.display()));
        // A device has no usable folder.
        let mut spool =
            this.part().map_or_else(|| std::env::temp_dir().join("bramble-trace"), Path::to_owned);
        spool.as_mut_os_string().push(format!(".{}.log", std::process::id()));
        let mut options = OpenOptions::new();
        let spooled = options.read(true).write(true).create_new(true).open(&spool).map_err(failed)?;
        fs::remove_file(&spool).map_err(failed)?;
        Ok((this, EventLog::new(began, spooled)))
    }

    /// Renders the trace and renames it to its final name.
    pub fn keep(self, log: &EventLog, report: &Report, primary: &str) -> Result<(), Failure> {
        let mut writer = BufWriter::with_capacity(1 << 18, self.0.file());
        let written = render::render(log, report, primary, &mut writer).and_then(|()| writer.flush());
        drop(writer);
        let kept = written.map_err(|e| self.0.failed(&e)).and_then(|()| self.0.keep());
        kept.map_err(|failure| Failure { text: format!("{}; C itself is complete", failure.text), ..failure })
    }

    /// The path of the unfinished file.
    pub fn part(&self) -> Option<&Path> {
        self.0.part()
    }
}

#[cfg(test)]
mod tests;
