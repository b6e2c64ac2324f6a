//! The output C: a `.npy` file that appears complete or not at all, or plain memory.
//!
//! Place in the flow: the primary makes an `Output` before any computation, leases rectangles of it to the threads
//! and links that fill them, seals it when all leases have ended, has it verified, and commits it.
//!
//! Invariants: the elements are row-major after the header that `numpy.save` would write. The disk space is
//! reserved before the first lease, so a full disk is an error at the start and never a signal in the middle. An
//! element is leased to one holder at a time. The file of that name is not changed until `commit` renames
//! `NAME.part` over it; without `commit`, `NAME.part` is removed, unless it is kept for a resumed run.
//!
//! Deliberately absent: other formats and storage orders, and reading while rectangles are leased.

mod lease;
mod lease_table;
mod part;

pub use lease::{ResultMemory, TileLease};

use crate::file::npy;
use crate::{DType, Layout, Matrix, MatrixError, Rect, Shape, Span};
use lease::{Frozen, Reading, Shared};
use memmap2::{MmapMut, MmapRaw};
use part::PartFile;
use std::path::Path;
use std::sync::Arc;

/// Fewer bytes written since the last request are not worth a request to write back.
const WRITEBACK_LEAST: u64 = 1 << 20;

/// Smaller outputs in memory do not ask for huge pages, which would be mostly empty.
#[cfg(target_os = "linux")]
const HUGE_LEAST: usize = 16 << 20;

/// A multiple of every page size in use.
const WHOLE_PAGES: u64 = 64 << 10;

/// A locked `NAME.part`, before the choice between restarting and resuming what another run has left in it.
#[derive(Debug)]
pub struct Unfinished {
    name: String,
    part: PartFile,
}

impl Unfinished {
    /// Locks the part file of `path`; it is empty if there was none.
    pub fn lock(path: &Path) -> Result<Self, MatrixError> {
        Ok(Self { name: path.display().to_string(), part: PartFile::open(path)? })
    }

    /// Whether another run has left data in it.
    pub fn has_begun(&self) -> Result<bool, MatrixError> {
        Ok(self.part.len()? > 0)
    }

    /// The name of the result, with symbolic links followed.
    pub fn target(&self) -> &Path {
        self.part.target()
    }

    /// Begins a new result of that shape; discards the previous contents.
    pub fn restart(self, shape: Shape, dtype: DType) -> Result<Output, MatrixError> {
        let (header, bytes, len) = self.sizes(shape, dtype)?;
        // From here on an early return drops `part`, which removes the file.
        self.part.empty()?;
        self.part.reserve(bytes)?;
        self.part.write_start(&header)?;
        self.output(len, header.len(), shape, dtype)
    }

    /// Resumes the result that another run has begun, with its contents. An error, without any change, if it has
    /// another shape or type.
    pub fn resume(self, shape: Shape, dtype: DType) -> Result<Output, MatrixError> {
        let (header, bytes, len) = self.sizes(shape, dtype)?;
        if self.part.len()? != bytes || !self.part.begins_with(&header)? {
            let what = format!("is not the beginning of a {shape} matrix of {dtype}; --restart begins anew");
            return Err(MatrixError::format(self.part.path().display().to_string(), what));
        }
        self.part.reserve_again(bytes)?;
        self.output(len, header.len(), shape, dtype)
    }

    /// The header, the length of the file, and the same length as `usize`.
    fn sizes(&self, shape: Shape, dtype: DType) -> Result<(Vec<u8>, u64, usize), MatrixError> {
        let header = npy::write_header(shape, dtype);
        let too_large = || MatrixError::TooLarge { name: self.name.clone(), shape, dtype };
        let bytes = shape.bytes(dtype).and_then(|bytes| bytes.checked_add(header.len() as u64));
        let bytes = bytes.filter(|&b| i64::try_from(b).is_ok()).ok_or_else(too_large)?;
        let len = usize::try_from(bytes).map_err(|_| too_large())?;
        Ok((header, bytes, len))
    }

    fn output(self, len: usize, start: usize, shape: Shape, dtype: DType) -> Result<Output, MatrixError> {
        let shared = Arc::new(Shared::new(self.part.map(len)?, start, shape, dtype));
        Ok(Output { name: self.name, shared, part: Some(self.part) })
    }
}

/// A matrix that is being written.
pub struct Output {
    name: String,
    shared: Arc<Shared>,
    part: Option<PartFile>,
}

impl Output {
    /// A `.npy` file of that shape that will be at `path`; its space is reserved at once. Until `commit` it is
    /// `PATH.part`, locked against other runs.
    pub fn create(path: &Path, shape: Shape, dtype: DType) -> Result<Self, MatrixError> {
        Unfinished::lock(path)?.restart(shape, dtype)
    }

    /// The same in memory, for a run without an output file. `commit` then does nothing.
    pub fn anonymous(shape: Shape, dtype: DType) -> Result<Self, MatrixError> {
        let name = "the result".to_owned();
        let Some(bytes) = shape.bytes(dtype) else {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        };
        let refused = || MatrixError::OutOfMemory { bytes };
        let len = usize::try_from(bytes).map_err(|_| refused())?;
        // A map must not be empty.
        let map = MmapMut::map_anon(len.max(1)).map_err(|_| refused())?;
        in_huge_pages(&map);
        let shared = Arc::new(Shared::new(MmapRaw::from(map), 0, shape, dtype));
        Ok(Self { name, shared, part: None })
    }

    /// Rows × columns.
    pub fn shape(&self) -> Shape {
        self.shared.shape()
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.shared.dtype()
    }
    /// The path of the result, or a description of the memory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Exclusive access to a rectangle until the lease is dropped. All elements are zero at first. Panics if the
    /// rectangle is outside or overlaps another lease: a bug of the caller.
    pub fn lease(&self, rect: Rect) -> TileLease {
        TileLease::new(&self.shared, rect)
    }

    /// Number of leases.
    pub fn lent(&self) -> usize {
        self.shared.lent()
    }

    /// The contents as a matrix, without a copy: everything counts as leased until that matrix is dropped. An error
    /// if rectangles are leased.
    pub fn matrix(&self) -> Result<Matrix, MatrixError> {
        let Some(reading) = Reading::new(&self.shared) else {
            let what = "cannot be read while it is written; this is a bug of bramble, please report it";
            return Err(MatrixError::format(self.name.clone(), what));
        };
        let start = reading.data_start();
        Matrix::from_shared(
            &*self.name,
            Arc::new(reading),
            start,
            self.shape(),
            self.dtype(),
            Layout::RowMajor,
        )
    }

    /// Tells the system that these rows are finished, so that it may begin to write them to the disk. A hint: it
    /// costs little, does not wait and cannot fail.
    pub fn start_writeback(&self, rows: Span) {
        let (start, bytes) = self.whole_pages(rows);
        if let Some(part) = self.part.as_ref().filter(|_| bytes >= WRITEBACK_LEAST) {
            // Both are inside the map, whose length is a `usize`.
            self.shared.unmap_pages(start as usize, bytes as usize);
            part.start_writeback(start, bytes);
        }
    }

    /// Whether `start_writeback` of these rows would do anything.
    pub fn wants_writeback(&self, rows: Span) -> bool {
        self.part.is_some() && self.whole_pages(rows).1 >= WRITEBACK_LEAST
    }

    /// The first byte and the number of bytes of the whole pages of rows: a page that the next rows share would have to wait for
    /// the disk when they are written.
    fn whole_pages(&self, rows: Span) -> (u64, u64) {
        let (from, bytes) = self.shared.row_bytes(rows);
        let (start, end) = (from.next_multiple_of(WHOLE_PAGES), (from + bytes) / WHOLE_PAGES * WHOLE_PAGES);
        (start, end.saturating_sub(start))
    }

    /// Whether the unfinished file is kept for a resumed run if this output, also after sealing, is dropped without
    /// `commit`.
    pub fn keep(&self, kept: bool) {
        if let Some(part) = &self.part {
            part.keep(kept);
        }
    }

    /// Writes all earlier data to the disk, which may take long. Data written concurrently may be included or not.
    pub fn sync(&self) -> Result<(), MatrixError> {
        let Some(part) = &self.part else { return Ok(()) };
        self.shared.flush().map_err(|e| MatrixError::io(part.path(), "cannot write", e))
    }

    /// Ends the writing. An error if rectangles are still leased; the output is then lost.
    pub fn seal(self) -> Result<Sealed, MatrixError> {
        let lent = self.shared.lent();
        let Some(frozen) = Frozen::new(self.shared) else {
            let what = format!(
                "{lent} rectangles are still being written; this is a bug of bramble, please report it"
            );
            return Err(MatrixError::format(self.name, what));
        };
        Ok(Sealed { name: self.name, frozen: Arc::new(frozen), part: self.part })
    }
}

/// Asks for huge pages: a kernel that adds to a tile touches a page for each row. A hint that cannot fail.
fn in_huge_pages(map: &MmapMut) {
    #[cfg(target_os = "linux")]
    if map.len() >= HUGE_LEAST {
        // A system without huge pages refuses, which changes nothing.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = map;
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Output({} {} {})", self.name, self.shape(), self.dtype())
    }
}

/// A finished matrix that can be read, and that `commit` turns into a file. Without `commit` it is removed.
pub struct Sealed {
    name: String,
    frozen: Arc<Frozen>,
    part: Option<PartFile>,
}

impl Sealed {
    /// The finished matrix, without a copy. It stays readable after `commit`, and after `Sealed` is dropped.
    pub fn matrix(&self) -> Result<Matrix, MatrixError> {
        let (start, shape, dtype) = (self.frozen.data_start(), self.frozen.shape(), self.frozen.dtype());
        Matrix::from_shared(&*self.name, self.frozen.clone(), start, shape, dtype, Layout::RowMajor)
    }

    /// Rows × columns.
    pub fn shape(&self) -> Shape {
        self.frozen.shape()
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.frozen.dtype()
    }

    /// The bytes of the elements, without the header.
    pub fn bytes(&self) -> &[u8] {
        self.frozen.data()
    }

    /// The memory of the result, which the caller may then change. The result is given back as it is if it has a file, or if a
    /// matrix of it is still in use.
    pub fn into_memory(self) -> Result<ResultMemory, Box<Self>> {
        if self.part.is_some() {
            return Err(Box::new(self));
        }
        let Self { name, frozen, part } = self;
        let taken = Arc::try_unwrap(frozen).and_then(|frozen| frozen.into_memory().map_err(Arc::new));
        taken.map_err(|frozen| Box::new(Self { name, frozen, part }))
    }

    /// Removes the file, because its contents are wrong.
    pub fn discard(self) {
        if let Some(part) = &self.part {
            part.keep(false);
        }
    }

    /// Writes all data to the disk and gives the file its name, replacing an existing file.
    pub fn commit(self) -> Result<(), MatrixError> {
        let Some(part) = self.part else { return Ok(()) };
        self.frozen.flush().map_err(|e| MatrixError::io(part.path(), "cannot write", e))?;
        part.commit()
    }
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed({} {} {})", self.name, self.frozen.shape(), self.frozen.dtype())
    }
}

#[cfg(test)]
mod tests;
