//! A file that an option names and this program writes from beginning to end: traces, plots, reports. (C itself is
//! `bramble_matrix`'s to write, by the same rules: `bramble_matrix::Destination`.)
//!
//! Invariants: under the name of a regular file there is a whole file or what was there before. What is unfinished is
//! called `FILE.part`, has one writer, and is gone when that ends in any way but a kill. A device or a pipe is written
//! to and never replaced.

use crate::exit::Failure;
use bramble_matrix::{Destination, MatrixError, Replacement};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What is being written.
pub(crate) struct OutFile {
    option: &'static str,
    name: PathBuf,
    to: To,
}

enum To {
    /// A file that will take its name.
    Whole(Box<Replacement>),
    /// A device or a pipe.
    Stream(File),
}

impl OutFile {
    /// Makes, locks and empties `FILE.part`, or opens the device or pipe. `option` is what users call the file, for errors.
    pub(crate) fn open(option: &'static str, name: &Path) -> Result<Self, Failure> {
        let failed = |e: MatrixError| Failure::failed(format!("{option} {e}"));
        let to = match destination(option, name)? {
            Destination::File(place) => {
                let replacement = place.begin().map_err(failed)?;
                replacement.empty().map_err(failed)?;
                To::Whole(Box::new(replacement))
            }
            Destination::Stream => To::Stream(stream(option, name)?),
        };
        Ok(Self { option, name: name.to_owned(), to })
    }

    /// Where to write, from beginning to end.
    pub(crate) fn file(&self) -> &File {
        match &self.to {
            To::Whole(replacement) => replacement.file(),
            To::Stream(file) => file,
        }
    }

    /// The file that is there until this is whole.
    pub(crate) fn part(&self) -> Option<&Path> {
        match &self.to {
            To::Whole(replacement) => Some(replacement.part()),
            To::Stream(_) => None,
        }
    }

    /// Gives it its name.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        match self.to {
            To::Whole(replacement) => {
                replacement.commit().map_err(|e| Failure::failed(format!("{} {e}", self.option)))
            }
            To::Stream(_) => Ok(()),
        }
    }

    /// What is said of it where it cannot be written.
    pub(crate) fn failed(&self, e: &std::io::Error) -> Failure {
        Failure::failed(format!("{} {}: {e}", self.option, self.name.display()))
    }
}

/// Refuses a name that could not be written, before hours are spent on what would be.
pub(crate) fn check(option: &str, name: &Path) -> Result<(), Failure> {
    destination(option, name).map(drop)
}

/// Writes all of a file.
pub(crate) fn write(option: &'static str, name: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let file = OutFile::open(option, name)?;
    let mut to = file.file();
    to.write_all(bytes).map_err(|e| file.failed(&e))?;
    file.keep()
}

fn destination(option: &str, name: &Path) -> Result<Destination, Failure> {
    if name.as_os_str() == "-" {
        let what = "is no file; write /dev/stdout for standard output, or ./- for a file of that name";
        return Err(Failure::usage(format!("{option} -: {what}")));
    }
    Destination::of(name).map_err(|e| Failure::failed(format!("{option} {e}")))
}

/// Opens a device or a pipe; nobody is waited for.
fn stream(option: &str, name: &Path) -> Result<File, Failure> {
    let failed = |what: String| Failure::failed(format!("{option} {}: {what}", name.display()));
    let at_once = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(at_once.bits().cast_signed()).open(name).map_err(|e| {
        let nobody = e.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error());
        failed(if nobody {
            "nobody reads from this pipe; start the reader first, or choose a file".to_owned()
        } else {
            e.to_string()
        })
    })?;
    // From now on whoever reads slowly is waited for.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| failed(e.to_string()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|e| failed(e.to_string()))?;
    Ok(file)
}
