//! Detects that a file was written to after it was opened, from its length and times.
//!
//! Place in the flow: a file's state is recorded when the file is mapped. The primary compares it before it blames
//! a machine for wrong results, and before it keeps C.
//!
//! Invariant: the state is that of the open file, never of its name. After a rename over that name the old file still exists,
//! unchanged, and the product still reads the old file.
//!
//! Deliberately absent: a digest of the elements. Three kinds of change therefore go unnoticed: a change within the same tick
//! of the file clock (some milliseconds) as the opening; a change through another program's shared map before the system
//! updates the file's time (tmpfs never does); a change on a network filesystem before this machine fetches the attributes
//! again.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Length and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    bytes: u64,
    /// Time of modification, in seconds and nanoseconds; programs can set it.
    modified: (i64, i64),
    /// Time of the last change of bytes, times, names or rights; programs cannot set it.
    status: (i64, i64),
}

/// A difference between two states of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The length differs.
    Length {
        /// Bytes when it was opened.
        was: u64,
        /// Bytes now.
        is: u64,
    },
    /// The time of modification differs.
    Contents,
    /// Only the time of the last change of status differs: a program changed times, names or rights, or wrote bytes and then set
    /// the time of modification back.
    Status,
}

impl Change {
    /// Whether length or time of modification differ.
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
    /// The state of a file now; `None` where the system cannot read it.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let meta = file.metadata().ok()?;
        Some(Self {
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            status: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// The difference between this state and a later one.
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
            assert_eq!(seen.part(seen.shape().rect()).change(), Some(Change::Contents));
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
