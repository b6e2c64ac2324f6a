//! Memory for matrix elements: owned aligned buffers, and borrowed lines of shared memory.
//!
//! Place in the flow: an operand's rectangle is passed on as `Lines` (without a copy); a worker keeps received
//! matrices in `Buffer`s.
//!
//! Invariants: a `Buffer` starts on a 64-byte boundary and is zeroed when made; `Lines` lie inside their
//! owner. Allocation failure is an error, never an abort.

use crate::{DType, Element, Layout, MatrixError, Shape, View};
use memmap2::MmapMut;
use std::sync::Arc;

/// The owner of bytes that several holders may read.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One cache line; gives `Buffer` its alignment.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Owned bytes on a 64-byte boundary.
pub struct Buffer {
    memory: Memory,
    len: usize,
}

/// The memory of a buffer.
enum Memory {
    /// On the heap.
    Heap(Vec<CacheLine>),
    /// In pages of its own; the number is that of whole cache lines.
    Pages(MmapMut, usize),
}

/// From this size on an untouched buffer gets pages of its own.
const PAGES_BYTES: usize = 128 << 10;

impl Buffer {
    /// A zeroed buffer of `len` bytes; an error if the machine has too little memory.
    pub fn zeroed(len: usize) -> Result<Self, MatrixError> {
        let memory = bytemuck::allocation::try_zeroed_vec(len.div_ceil(64))
            .map_err(|()| MatrixError::OutOfMemory { bytes: len as u64 })?;
        Ok(Self { memory: Memory::Heap(memory), len })
    }

    /// The same for a long-lived buffer that another thread will write: the system clears each page when a thread
    /// first touches it, while the allocator might clear all of it in this call.
    pub fn untouched(len: usize) -> Result<Self, MatrixError> {
        if len < PAGES_BYTES {
            return Self::zeroed(len);
        }
        let refused = || MatrixError::OutOfMemory { bytes: len as u64 };
        let bytes = len.checked_next_multiple_of(64).ok_or_else(refused)?;
        let pages = MmapMut::map_anon(bytes).map_err(|_| refused())?;
        Ok(Self { memory: Memory::Pages(pages, bytes), len })
    }

    /// The length that fits without a new allocation.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Heap(lines) => lines.len() * 64,
            Memory::Pages(_, bytes) => *bytes,
        }
    }

    /// Sets the length to `len` bytes, at most `capacity()`. The contents are unspecified.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer cannot grow in place");
        self.len = len;
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.memory {
            Memory::Heap(lines) => bytemuck::cast_slice(lines),
            Memory::Pages(pages, _) => &pages[..],
        };
        &all[..self.len]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let all = match &mut self.memory {
            Memory::Heap(lines) => bytemuck::cast_slice_mut(lines),
            Memory::Pages(pages, _) => &mut pages[..],
        };
        &mut all[..self.len]
    }

    /// The bytes as elements. The length must be a multiple of the element size.
    pub fn elements<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The bytes as elements, to be written.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A rectangle of a matrix in its memory: `lines` runs of `line_bytes` bytes, each `pitch_bytes` after the one
/// before, the first at `start`.
#[derive(Clone)]
pub struct Lines {
    /// The owner of the bytes.
    pub owner: SharedBytes,
    /// Offset of the first byte in the owner.
    pub start: usize,
    /// Bytes of one line.
    pub line_bytes: usize,
    /// Bytes from the start of one line to the start of the next.
    pub pitch_bytes: usize,
    /// Number of lines.
    pub lines: usize,
    /// Rows × columns of the rectangle.
    pub shape: Shape,
    /// Whether a line is a row or a column.
    pub layout: Layout,
    /// Element type of the bytes.
    pub dtype: DType,
}

impl Lines {
    /// The bytes of line `i`.
    pub fn line(&self, i: usize) -> &[u8] {
        let from = self.start + i * self.pitch_bytes;
        &(*self.owner).as_ref()[from..from + self.line_bytes]
    }

    /// The rectangle as a view of elements. Panics where `T` is another type than the lines'.
    pub fn view<T: Element>(&self) -> View<'_, T> {
        assert_eq!(T::DTYPE, self.dtype, "lines of another element type");
        let (rows, cols) = (self.shape.rows as usize, self.shape.cols as usize);
        if rows == 0 || cols == 0 {
            return View::new(&[], rows, cols, 0, 0);
        }
        let end = self.start + (self.lines - 1) * self.pitch_bytes + self.line_bytes;
        let data: &[T] = bytemuck::cast_slice(&(*self.owner).as_ref()[self.start..end]);
        // A single line may have any pitch, even one that is no multiple of the element size; it is never used.
        let pitch = self.pitch_bytes / size_of::<T>();
        match self.layout {
            Layout::RowMajor => View::new(data, rows, cols, pitch, 1),
            Layout::ColMajor => View::new(data, rows, cols, 1, pitch),
        }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({} {} {:?} at {})", self.shape, self.dtype, self.layout, self.start)
    }
}
