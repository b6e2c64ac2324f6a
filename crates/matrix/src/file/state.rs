//! Whether a file is still what it was when it was opened, as far as the system says.
//!
//! Place in the flow: noted when a file is mapped; asked before a machine is accused of wrong results, and before C is kept.
//!
//! Invariant: the open file is asked, never its name. A file that was replaced under its name is still there as it was, and still
//! what is read.
//!
//! Deliberately absent: reading the elements again. So a change goes unnoticed where the system notes none: within the same tick of
//! its clock (some milliseconds) as the opening; through a map that another program has, until the system notes that it was
//! written to (tmpfs never does); on a network filesystem, until attributes are fetched again.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// What the system says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    bytes: u64,
    /// When its bytes were last changed, in seconds and nanoseconds; programs may set it.
    modified: (i64, i64),
    /// When anything of it was last changed: bytes, times, names, rights. Programs cannot set it.
    status: (i64, i64),
}

/// How a file differs from what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has another length.
    Length {
        /// Bytes when it was opened.
        was: u64,
        /// Bytes now.
        is: u64,
    },
    /// Its bytes were written, or somebody says so.
    Contents,
    /// Its times, names or rights were changed; perhaps its bytes too, and their time set back.
    Status,
}

impl Change {
    /// Whether its bytes are said to have changed.
    pub fn is_of_contents(self) -> bool {
        self != Self::Status
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length { was, is } => write!(f, "it had {was} bytes and has {is} now"),
            Self::Contents => f.write_str("its time of modification is another now"),
            Self::Status => f.write_str("its times, names or rights were changed"),
        }
    }
}

impl FileState {
    /// Of a file as it is now; `None` where the system does not say.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let meta = file.metadata().ok()?;
        Some(Self {
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            status: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// What has changed since.
    pub(crate) fn change(self, now: Self) -> Option<Change> {
        if self.bytes != now.bytes {
            return Some(Change::Length { was: self.bytes, is: now.bytes });
        }
        if self.modified != now.modified {
            return Some(Change::Contents);
        }
        (self.status != now.status).then_some(Change::Status)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Change, DType, Matrix};
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn made(folder: &Path) -> (String, Matrix) {
        let path = folder.join("a.npy").to_str().unwrap().to_owned();
        let shape = crate::Shape::new(4, 4);
        crate::Output::create(Path::new(&path), shape, DType::F32).unwrap().seal().unwrap().commit().unwrap();
        // As if it had been written long ago: the clock of files is coarse.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        let matrix = Matrix::open(&path).unwrap();
        (path, matrix)
    }

    #[test]
    fn a_file_that_is_written_is_changed_and_one_that_is_read_or_replaced_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, matrix) = made(folder.path());
        assert_eq!((matrix.change(), Matrix::open("random:2x2:f32").unwrap().change()), (None, None));
        fs::read(&path).unwrap();
        assert_eq!(matrix.change(), None);
        fs::copy(&path, format!("{path}.new")).unwrap();
        fs::rename(format!("{path}.new"), &path).unwrap();
        assert!(!matrix.change().is_some_and(Change::is_of_contents), "{:?}", matrix.change());
        let (path, matrix) = made(folder.path());
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[1], 140).unwrap();
        for seen in
            [matrix.clone(), matrix.clone().transposed(), matrix.clone().converted(DType::F64).unwrap()]
        {
            assert_eq!(seen.change(), Some(Change::Contents));
        }
        let length = File::open(&path).unwrap().metadata().unwrap().len();
        OpenOptions::new().append(true).open(&path).unwrap().set_len(length + 1).unwrap();
        assert_eq!(matrix.change(), Some(Change::Length { was: length, is: length + 1 }));
    }

    #[test]
    fn a_time_of_modification_that_was_set_back_leaves_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        let (path, matrix) = made(folder.path());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        file.write_all_at(&[1], 140).unwrap();
        file.set_modified(before).unwrap();
        assert_eq!(matrix.change(), Some(Change::Status));
    }
}
