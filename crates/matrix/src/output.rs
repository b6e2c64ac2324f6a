//! Where C is written: a `.npy` file that is there whole or not at all, or plain memory.
//!
//! Place in the flow: the primary makes an `Output` before anything is computed, lends rectangles of it to
//! the threads and links that fill them, seals it when all are back, has it verified, and commits it.
//!
//! Invariants: the elements lie row-major after the bytes that `numpy.save` would write; the disk space is
//! reserved before the first rectangle is lent, so a full disk is an error at the start and never a
//! signal in the middle; an element is lent to one holder at a time; the file of that name is not touched
//! until `commit` renames `NAME.part` over it; without `commit`, `NAME.part` is removed, unless it is kept for another run
//! to go on with.
//!
//! Deliberately absent: other formats and orders of the result, and reading while rectangles are written.

mod ledger;
mod lent;
mod part;

pub use lent::Lent;

use crate::file::npy;
use crate::{DType, Layout, Matrix, MatrixError, Rect, Shape, Span};
use lent::{Frozen, Reading, Shared};
use memmap2::{MmapMut, MmapRaw};
use part::PartFile;
use std::path::Path;
use std::sync::Arc;

/// Bytes written between two requests to begin writing back: fewer are not worth a call.
const WRITEBACK_LEAST: u64 = 1 << 20;

/// A multiple of every page size in use.
const WHOLE_PAGES: u64 = 64 << 10;

/// `NAME.part` before it is said what becomes of what another run may have left in it. Locked against other runs.
#[derive(Debug)]
pub struct Unfinished {
    name: String,
    part: PartFile,
}

impl Unfinished {
    /// The file beside `path`; empty where there was none.
    pub fn lock(path: &Path) -> Result<Self, MatrixError> {
        Ok(Self { name: path.display().to_string(), part: PartFile::open(path)? })
    }

    /// Whether another run has left something.
    pub fn has_begun(&self) -> Result<bool, MatrixError> {
        Ok(self.part.len()? > 0)
    }

    /// The name of the result, with links followed.
    pub fn target(&self) -> &Path {
        self.part.target()
    }

    /// A new result of that shape; what was there is thrown away.
    pub fn restart(self, shape: Shape, dtype: DType) -> Result<Output, MatrixError> {
        let (header, bytes, len) = self.sizes(shape, dtype)?;
        // From here on an early return drops `part`, which removes the file.
        self.part.empty()?;
        self.part.reserve(bytes)?;
        self.part.write_start(&header)?;
        self.output(len, header.len(), shape, dtype)
    }

    /// The result that another run has begun, with all that is in it. An error, and nothing is changed, where it is of another
    /// shape or type.
    pub fn resume(self, shape: Shape, dtype: DType) -> Result<Output, MatrixError> {
        let (header, bytes, len) = self.sizes(shape, dtype)?;
        if self.part.len()? != bytes || !self.part.begins_with(&header)? {
            let what = format!("is not the beginning of a {shape} matrix of {dtype}; --restart begins anew");
            return Err(MatrixError::format(self.part.path().display().to_string(), what));
        }
        self.part.reserve_again(bytes)?;
        self.output(len, header.len(), shape, dtype)
    }

    /// The header, the bytes of the file, and the same as a size of memory.
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

    /// The same in memory, for a run that keeps no file. `commit` then does nothing.
    pub fn anonymous(shape: Shape, dtype: DType) -> Result<Self, MatrixError> {
        let name = "the result".to_owned();
        let Some(bytes) = shape.bytes(dtype) else {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        };
        let refused = || MatrixError::OutOfMemory { bytes };
        let len = usize::try_from(bytes).map_err(|_| refused())?;
        // A map must not be empty.
        let map = MmapMut::map_anon(len.max(1)).map_err(|_| refused())?;
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
    /// The file it will be, or a description of the memory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Exclusive access to a rectangle until the `Lent` is dropped. All elements are zero at first.
    /// Panics where the rectangle is outside or overlaps one that is still lent: a bug of the caller.
    pub fn lend(&self, rect: Rect) -> Lent {
        Lent::new(&self.shared, rect)
    }

    /// Number of rectangles that are lent now.
    pub fn lent(&self) -> usize {
        self.shared.lent()
    }

    /// What has been written, to be read where it lies: all of it counts as lent until the matrix is dropped. An error where
    /// rectangles are lent.
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

    /// Tells the system that these rows are finished, so that it may begin to write them to the disk. A hint:
    /// it costs little, waits for nothing and cannot fail.
    pub fn start_writeback(&self, rows: Span) {
        let (from, bytes) = self.shared.row_bytes(rows);
        // Only whole pages: one that the next rows share would have to wait for the disk when they are written.
        let (start, end) = (from.next_multiple_of(WHOLE_PAGES), (from + bytes) / WHOLE_PAGES * WHOLE_PAGES);
        let bytes = end.saturating_sub(start);
        if let Some(part) = self.part.as_ref().filter(|_| bytes >= WRITEBACK_LEAST) {
            // Both lie inside the map, which is `usize` long.
            self.shared.unmap_pages(start as usize, bytes as usize);
            part.start_writeback(start, bytes);
        }
    }

    /// Whether the unfinished file stays when this, or what is sealed of it, ends without `commit`: another run may go on.
    pub fn keep(&self, kept: bool) {
        if let Some(part) = &self.part {
            part.keep(kept);
        }
    }

    /// Brings all that was written before to the disk, which may take long. What others write meanwhile may be with it or not.
    pub fn sync(&self) -> Result<(), MatrixError> {
        let Some(part) = &self.part else { return Ok(()) };
        self.shared.flush().map_err(|e| MatrixError::io(part.path(), "cannot write", e))
    }

    /// Ends the writing. An error where rectangles are still lent; the output is gone then.
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

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Output({} {} {})", self.name, self.shape(), self.dtype())
    }
}

/// A finished matrix that may be read, and becomes a file by `commit`. Dropped without it, it is gone.
pub struct Sealed {
    name: String,
    frozen: Arc<Frozen>,
    part: Option<PartFile>,
}

impl Sealed {
    /// The finished matrix where it lies. It stays readable after `commit`, and after `Sealed` is dropped.
    pub fn matrix(&self) -> Result<Matrix, MatrixError> {
        let (start, shape, dtype) = (self.frozen.data_start(), self.frozen.shape(), self.frozen.dtype());
        Matrix::from_shared(&*self.name, self.frozen.clone(), start, shape, dtype, Layout::RowMajor)
    }

    /// The bytes of the elements, without the header.
    pub fn bytes(&self) -> &[u8] {
        self.frozen.data()
    }

    /// Removes the file: what is in it is wrong.
    pub fn discard(self) {
        if let Some(part) = &self.part {
            part.keep(false);
        }
    }

    /// Brings everything to the disk and gives the file its name, replacing one that is there.
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
