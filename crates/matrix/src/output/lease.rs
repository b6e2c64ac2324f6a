//! The memory of the output, and exclusive access to its rectangles.
//!
//! Place in the flow: threads and links write through a `TileLease`; after sealing, any reader reads through
//! `Frozen`.
//!
//! Invariants: the elements of two `TileLease`s are disjoint (the table ensures it). A `Frozen` exists only when
//! nothing is leased, and from then on nothing can be: so no reader coexists with a writer.
#![allow(unsafe_code)] // Tiles of one map interleave in memory; only the table knows that they are disjoint.

use super::lease_table::LeaseTable;
use crate::{DType, Element, Rect, Shape, Span, ViewMut};
use memmap2::MmapRaw;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The map, and the table of its leases.
pub(super) struct Shared {
    map: MmapRaw,
    /// Offset of the elements; a multiple of every element size.
    data_start: usize,
    shape: Shape,
    dtype: DType,
    table: Mutex<LeaseTable>,
}

impl Shared {
    /// Panics if the map is too short for the matrix: a bug of the caller.
    pub(super) fn new(map: MmapRaw, data_start: usize, shape: Shape, dtype: DType) -> Self {
        let end = shape.bytes(dtype).and_then(|bytes| bytes.checked_add(data_start as u64));
        assert!(end.is_some_and(|end| end <= map.len() as u64), "a map shorter than its matrix");
        assert!(data_start.is_multiple_of(dtype.size_bytes()), "elements must be aligned");
        Self { map, data_start, shape, dtype, table: Mutex::new(LeaseTable::new(shape)) }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }
    pub(super) fn lent(&self) -> usize {
        self.table().count()
    }
    /// Waits until all earlier data is on the disk. Only for the map of a file.
    pub(super) fn flush(&self) -> std::io::Result<()> {
        self.unmap_pages(0, self.map.len());
        self.map.flush()
    }

    /// Removes pages from this process's page table, in one step; their content stays in the page cache, and the
    /// next access maps them again. Before the system writes mapped pages to a disk it has to make each of them
    /// read-only, which interrupts every computing core, page by page. Only for the map of a file: an anonymous map
    /// would lose its pages.
    pub(super) fn unmap_pages(&self, from: usize, bytes: usize) {
        #[cfg(target_os = "linux")]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is shared with a file (`MmapOptions::map_raw` in `part.rs`), so the system keeps the
            // written data, and concurrent readers and writers see the same bytes. A refusal changes nothing.
            let _ = unsafe { self.map.unchecked_advise_range(advice, from, bytes) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (from, bytes);
    }

    /// (Offset in the file, bytes) of whole rows. Panics if they are outside.
    pub(super) fn row_bytes(&self, rows: Span) -> (u64, u64) {
        assert!(rows.end <= self.shape.rows, "rows {rows} are outside the output of {}", self.shape);
        // The whole matrix was checked to be inside the map, so this does not overflow.
        let pitch = self.shape.cols * self.dtype.size_bytes() as u64;
        (self.data_start as u64 + rows.start * pitch, rows.len() * pitch)
    }

    /// A panic of another holder leaves the table intact: it is changed only after all its checks.
    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pointer to an element in the map, or to the first byte for a rectangle without elements.
    fn pointer(&self, rect: Rect, line: u64) -> *mut u8 {
        let size = self.dtype.size_bytes() as u64;
        if rect.rows.is_empty() || rect.cols.is_empty() {
            return self.map.as_mut_ptr().wrapping_add(self.data_start);
        }
        let offset = ((rect.rows.start + line) * self.shape.cols + rect.cols.start) * size;
        // The map's length is a `usize`, so an offset in it fits.
        self.map.as_mut_ptr().wrapping_add(self.data_start + offset as usize)
    }
}

/// Exclusive access to a rectangle of the output, ended by dropping it. It keeps the memory alive, and may move to
/// another thread.
pub struct TileLease {
    shared: Arc<Shared>,
    rect: Rect,
}

impl TileLease {
    pub(super) fn new(shared: &Arc<Shared>, rect: Rect) -> Self {
        let taken = shared.table().take(rect);
        if let Err(other) = taken {
            panic!("{rect} overlaps {other}, which is still lent");
        }
        Self { shared: shared.clone(), rect }
    }

    /// The rectangle, in coordinates of the output.
    pub fn rect(&self) -> Rect {
        self.rect
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.shared.dtype
    }
    /// Number of lines, which are rows.
    pub fn lines(&self) -> usize {
        // Inside the map; or without elements, and then a line has no bytes.
        self.rect.rows.len() as usize
    }
    /// Bytes of one line.
    pub fn line_bytes(&self) -> usize {
        if self.rect.rows.is_empty() { 0 } else { self.rect.cols.len() as usize * self.dtype().size_bytes() }
    }

    /// The rectangle as a view of elements. Panics if `T` is not the output's element type.
    pub fn view_mut<T: Element>(&mut self) -> ViewMut<'_, T> {
        assert_eq!(T::DTYPE, self.dtype(), "an output of another element type");
        // Inside the map, so these fit; a side of a rectangle without elements is never iterated.
        let (rows, cols) = (self.rect.rows.len() as usize, self.rect.cols.len() as usize);
        let pitch = (self.shared.shape.cols as usize).max(1);
        // SAFETY: the rectangle is inside the map (the table checked it against the shape, `Shared::new` checked
        // the shape against the map), and aligned, since the map starts on a page and `data_start` is a multiple of
        // the element size. The table has leased these elements to no other holder, and `&mut self` prevents this
        // holder from using them twice.
        unsafe { ViewMut::from_raw(self.shared.pointer(self.rect, 0).cast::<T>(), rows, cols, pitch, 1) }
    }

    /// The bytes of line `i`. Panics if there is no such line.
    pub fn line(&self, i: usize) -> &[u8] {
        assert!(i < self.lines(), "a line outside the rectangle");
        // SAFETY: as in `line_mut`; `&self` allows readers only.
        unsafe { std::slice::from_raw_parts(self.shared.pointer(self.rect, i as u64), self.line_bytes()) }
    }

    /// The bytes of line `i`, writable. Panics if there is no such line.
    pub fn line_mut(&mut self, i: usize) -> &mut [u8] {
        assert!(i < self.lines(), "a line outside the rectangle");
        let (start, len) = (self.shared.pointer(self.rect, i as u64), self.line_bytes());
        // SAFETY: the line is inside the map and inside this rectangle, which the table has leased to no other
        // holder; `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// The bytes of the lines in `lines`, writable, one after another. Panics if a line does not exist.
    pub fn lines_mut(&mut self, lines: std::ops::Range<usize>) -> impl Iterator<Item = &mut [u8]> {
        assert!(lines.end <= self.lines(), "lines outside the rectangle");
        let len = self.line_bytes();
        let this = &*self;
        lines.map(move |i| {
            // SAFETY: as in `line_mut`; each line is returned once while `self` is borrowed exclusively, and lines
            // do not overlap.
            unsafe { std::slice::from_raw_parts_mut(this.shared.pointer(this.rect, i as u64), len) }
        })
    }
}

impl Drop for TileLease {
    fn drop(&mut self) {
        self.shared.table().give_back(self.rect);
    }
}

impl std::fmt::Debug for TileLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TileLease({} {})", self.rect, self.dtype())
    }
}

/// A lease of the whole map for reading.
pub(super) struct Reading(TileLease);

impl Reading {
    /// `None` if a rectangle is leased: its holder may be writing.
    pub(super) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let rect = Rect::new(Span::new(0, shared.shape.rows), Span::new(0, shared.shape.cols));
        let taken = shared.table().take(rect).is_ok();
        taken.then(|| Self(TileLease { shared: shared.clone(), rect }))
    }

    pub(super) fn data_start(&self) -> usize {
        self.0.shared.data_start
    }
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        let map = &self.0.shared.map;
        // SAFETY: the map lives as long as `self` and has that length. All elements are leased to this holder,
        // which has no way to write them; the header before them was written before the map was made.
        unsafe { std::slice::from_raw_parts(map.as_ptr(), map.len()) }
    }
}

/// The map when nothing is leased any more.
pub(super) struct Frozen(Arc<Shared>);

impl Frozen {
    /// `None` if a rectangle is leased. The caller gives up its handle, so nothing can be leased afterwards.
    pub(super) fn new(shared: Arc<Shared>) -> Option<Self> {
        (shared.lent() == 0).then_some(Self(shared))
    }

    pub(super) fn shape(&self) -> Shape {
        self.0.shape
    }
    pub(super) fn dtype(&self) -> DType {
        self.0.dtype
    }
    pub(super) fn data_start(&self) -> usize {
        self.0.data_start
    }

    /// The bytes of the elements.
    pub(super) fn data(&self) -> &[u8] {
        let (_, bytes) = self.0.row_bytes(Span::new(0, self.0.shape.rows));
        &self.as_ref()[self.0.data_start..][..bytes as usize]
    }

    /// Waits until all data is on the disk.
    pub(super) fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Frozen {
    /// The memory, if nothing else refers to it.
    pub(super) fn into_memory(self) -> Result<ResultMemory, Self> {
        Arc::try_unwrap(self.0).map(ResultMemory).map_err(Self)
    }
}

/// The elements of a finished result in memory, row by row, which their owner may change.
pub struct ResultMemory(Shared);

impl ResultMemory {
    /// Rows × columns.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The bytes of the elements.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = self.0.row_bytes(Span::new(0, self.0.shape.rows));
        // SAFETY: the range is inside the map (`row_bytes`), which lives as long as `self`. Nothing else refers to the map
        // (`Frozen::into_memory`), and `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.0.map.as_mut_ptr().add(start as usize), bytes as usize) }
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the map lives as long as `self` and has that length. Nothing is leased, and nothing can be: the
        // `Output`, which alone creates leases, was given up for this.
        unsafe { std::slice::from_raw_parts(self.0.map.as_ptr(), self.0.map.len()) }
    }
}
