//! A file that an option names and this program writes sequentially: a trace, a plot or a report.
//! (`bramble_matrix::OutputTarget` writes C, by the same rules.)
//!
//! Invariants: a regular file is replaced atomically, so its name always holds the old or the complete new file. The
//! unfinished file is `FILE.part`; it has one writer, and is removed unless the process is killed. A device or a pipe
//! is written to and never replaced.

use crate::exit::Failure;
use bramble_matrix::{MatrixError, OutputTarget, Replacement};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An open output file.
pub struct OutFile {
    option: &'static str,
    name: PathBuf,
    to: To,
}

enum To {
    /// A regular file, which is renamed when it is complete.
    Whole(Box<Replacement>),
    /// A device or a pipe.
    Stream(File),
}

impl OutFile {
    /// Makes, locks and empties `FILE.part`, or opens the device or pipe. `option` is what users call the file, for errors.
    pub fn open(option: &'static str, name: &Path) -> Result<Self, Failure> {
        let failed = |e: MatrixError| Failure::failed(format!("{option} {e}"));
        let to = match destination(option, name)? {
            OutputTarget::File(place) => {
                let replacement = place.begin().map_err(failed)?;
                replacement.empty().map_err(failed)?;
                To::Whole(Box::new(replacement))
            }
            OutputTarget::Stream => To::Stream(stream(option, name)?),
        };
        Ok(Self { option, name: name.to_owned(), to })
    }

    /// The open file; it is written sequentially.
    pub fn file(&self) -> &File {
        match &self.to {
            To::Whole(replacement) => replacement.file(),
            To::Stream(file) => file,
        }
    }

    /// The path of the unfinished file.
    pub fn part(&self) -> Option<&Path> {
        match &self.to {
            To::Whole(replacement) => Some(replacement.part()),
            To::Stream(_) => None,
        }
    }

    /// Renames the complete file to its final name.
    pub fn keep(self) -> Result<(), Failure> {
        match self.to {
            To::Whole(replacement) => {
                replacement.commit().map_err(|e| Failure::failed(format!("{} {e}", self.option)))
            }
            To::Stream(_) => Ok(()),
        }
    }

    /// The failure for a write error.
    pub fn failed(&self, e: &std::io::Error) -> Failure {
        Failure::failed(format!("{} {}: {e}", self.option, self.name.display()))
    }
}

/// Refuses a path that cannot be written, before hours of work are spent on its contents.
pub fn check(option: &str, name: &Path) -> Result<(), Failure> {
    destination(option, name).map(drop)
}

/// Writes a whole file.
pub fn write(option: &'static str, name: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let file = OutFile::open(option, name)?;
    let mut to = file.file();
    to.write_all(bytes).map_err(|e| file.failed(&e))?;
    file.keep()
}

fn destination(option: &str, name: &Path) -> Result<OutputTarget, Failure> {
    if name.as_os_str() == "-" {
        let what = "is not a file; write /dev/stdout for standard output, or ./- for a file of that name";
        return Err(Failure::usage(format!("{option} -: {what}")));
    }
    OutputTarget::of(name).map_err(|e| Failure::failed(format!("{option} {e}")))
}

/// Opens a device or a pipe without waiting for a reader.
fn stream(option: &str, name: &Path) -> Result<File, Failure> {
    let failed = |what: String| Failure::failed(format!("{option} {}: {what}", name.display()));
    let at_once = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(at_once.bits().cast_signed()).open(name).map_err(|e| {
        let nobody = e.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error());
        failed(if nobody {
            "no process reads from this pipe; start the reader first, or choose a file".to_owned()
        } else {
            e.to_string()
        })
    })?;
    // From now on, writes wait for a slow reader.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| failed(e.to_string()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|e| failed(e.to_string()))?;
    Ok(file)
}
