//! An operand: a matrix that can be read by rectangle, wherever its elements are stored.
//!
//! Place in the flow: files, generators and finished outputs become a `Matrix`; the primary takes the lines of a
//! panel from it (`lines`, without a copy) or has it fill a buffer (`read_block`).
//!
//! Invariants: cloning, transposing and converting copy no element. `read_block` returns the same bytes as `lines`
//! where both are possible. Elements of foreign types are converted only when a block is read.
//!
//! Deliberately absent: file formats (see `file`), and any cache of converted elements.

mod info;
mod lines;

use crate::element::{ByteOrder, FileElement, conversion_loss, convert, decode};
use crate::error::check_sides;
use crate::file::{Change, FileState};
use crate::{
    Buffer, DType, Element, Generator, Layout, Lines, MatrixError, Rect, Shape, SharedBytes, Span, View,
};
use std::fs::File;
use std::sync::Arc;

/// Elements converted at a time: small enough for the first-level cache, large enough to be worth a call.
const CONVERT_ELEMENTS: u64 = 2048;

/// A matrix that can be read. Cheap to clone.
#[derive(Clone)]
pub struct Matrix {
    name: String,
    shape: Shape,
    layout: Layout,
    dtype: DType,
    /// Its file has one dimension.
    is_vector: bool,
    mapped: Mapped,
    store: Store,
}

/// The file that a matrix is in, if its bytes are a map of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapped {
    /// Length of the file.
    pub(crate) bytes: u64,
    pub(crate) file: Option<Arc<File>>,
    /// Its length and times when it was opened.
    pub(crate) state: Option<FileState>,
}

/// The storage of the elements.
#[derive(Clone)]
enum Store {
    /// Native little-endian aligned elements in shared memory, lines `pitch_bytes` apart from `start` on.
    Bytes { owner: SharedBytes, start: usize, pitch_bytes: usize },
    /// Elements of another type, byte order or alignment, decoded when they are read.
    Foreign { owner: SharedBytes, start: usize, pitch_bytes: usize, element: FileElement, order: ByteOrder },
    /// Elements that are computed when they are read.
    Generated(Generator),
    /// Another matrix, whose elements become this one's type when they are read.
    Converted(Arc<Matrix>),
    /// A part of another matrix, which begins at this row and column.
    Part { of: Arc<Matrix>, row: u64, col: u64 },
    /// Elements that only other machines have.
    Remote,
}

/// A matrix in a file: `shape` elements from byte `start` of `owner` on, without gaps.
pub(crate) struct FoundMatrix {
    pub(crate) owner: SharedBytes,
    pub(crate) start: usize,
    pub(crate) shape: Shape,
    /// Its file has one dimension only: it is 1 x n here.
    pub(crate) is_vector: bool,
    pub(crate) layout: Layout,
    pub(crate) element: FileElement,
    pub(crate) order: ByteOrder,
}

/// The message about a file that holds `have` bytes of elements, too few for a matrix of that shape.
fn too_short(shape: Shape, element: FileElement, have: u64) -> String {
    let size = element.size_bytes();
    let need = shape.elements().unwrap_or(u64::MAX).saturating_mul(size as u64);
    format!(
        "holds {have} data bytes, but {shape} elements of {size} bytes need {need}; the file is cut short, copy or write it again"
    )
}

/// Refuses what `Matrix::from_found` would refuse of a file that holds `have` bytes for the elements, without opening it.
pub(crate) fn may_be_multiplied(shape: Shape, element: FileElement, have: u64) -> Result<(), String> {
    let bytes = shape.elements().and_then(|n| n.checked_mul(element.size_bytes() as u64));
    let dtype = element.dtype();
    let (Some(bytes), Some(_)) = (bytes, shape.bytes(dtype)) else {
        return Err(format!(
            "has {shape} elements of {dtype}, which are more than a file can hold (2^63 bytes)"
        ));
    };
    shape.check_sides().map_err(|e| e.to_string())?;
    if bytes > have { Err(too_short(shape, element, have)) } else { Ok(()) }
}

impl Matrix {
    /// A matrix whose contiguous elements start at `start` in `owner`. An error if the owner is too short or
    /// `start` is not aligned for the element type.
    pub fn from_shared(
        name: impl Into<String>,
        owner: SharedBytes,
        start: usize,
        shape: Shape,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, MatrixError> {
        let element = match dtype {
            DType::F32 => FileElement::F32,
            DType::F64 => FileElement::F64,
            DType::I32 => FileElement::I32,
            DType::I64 => FileElement::I64,
        };
        let found =
            FoundMatrix { owner, start, shape, is_vector: false, layout, element, order: ByteOrder::Little };
        let matrix = Self::from_found(name, found, Mapped::default())?;
        if matches!(matrix.store, Store::Foreign { .. }) {
            let what =
                format!("elements of {dtype} must start on a multiple of {} bytes", dtype.size_bytes());
            return Err(MatrixError::format(matrix.name, what));
        }
        Ok(matrix)
    }

    /// A matrix in a file. Native, aligned elements are not copied; all others are decoded when they are read.
    pub(crate) fn from_found(
        name: impl Into<String>,
        found: FoundMatrix,
        mapped: Mapped,
    ) -> Result<Self, MatrixError> {
        let name = name.into();
        let FoundMatrix { owner, start, shape, is_vector, layout, element, order } = found;
        let (dtype, size) = (element.dtype(), element.size_bytes());
        // Also `Shape::bytes` of the dtype: a block is read in that size, which may be larger.
        let bytes = shape.elements().and_then(|n| n.checked_mul(size as u64));
        let (Some(bytes), Some(_)) = (bytes, shape.bytes(dtype)) else {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        };
        check_sides(shape, &name)?;
        let memory = (*owner).as_ref();
        let have = memory.len().checked_sub(start).map_or(0, |have| have as u64);
        if start > memory.len() || bytes > have {
            return Err(MatrixError::format(name, too_short(shape, element, have)));
        }
        // Saturates only if the matrix is empty and no line is ever read.
        let pitch_bytes = usize::try_from(layout.lines(shape).1).unwrap_or(usize::MAX).saturating_mul(size);
        let aligned = bytes == 0 || (memory.as_ptr().addr().wrapping_add(start)).is_multiple_of(size);
        let store = if aligned && element.is_native(order) {
            Store::Bytes { owner, start, pitch_bytes }
        } else {
            Store::Foreign { owner, start, pitch_bytes, element, order }
        };
        Ok(Self { name, shape, layout, dtype, is_vector, mapped, store })
    }

    /// A matrix whose elements are computed. Row-major, or column-major if the generator is transposed.
    pub fn generated(
        name: impl Into<String>,
        generator: Generator,
        shape: Shape,
        dtype: DType,
    ) -> Result<Self, MatrixError> {
        let name = name.into();
        if shape.bytes(dtype).is_none() {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        }
        check_sides(shape, &name)?;
        let layout = if generator.is_transposed() { Layout::ColMajor } else { Layout::RowMajor };
        let store = Store::Generated(generator);
        Ok(Self { name, shape, layout, dtype, is_vector: false, mapped: Mapped::default(), store })
    }

    /// A matrix whose elements only other machines have: everything is known of it but these, and reading it is an error.
    pub fn remote(name: impl Into<String>, shape: Shape, dtype: DType) -> Self {
        let (mapped, layout) = (Mapped::default(), Layout::RowMajor);
        Self { name: name.into(), shape, layout, dtype, is_vector: false, mapped, store: Store::Remote }
    }

    /// Whether it cannot be read, since only other machines have its elements.
    pub fn is_remote(&self) -> bool {
        match &self.store {
            Store::Remote => true,
            Store::Converted(inner) => inner.is_remote(),
            Store::Part { of, .. } => of.is_remote(),
            Store::Bytes { .. } | Store::Foreign { .. } | Store::Generated(_) => false,
        }
    }

    /// The name in messages: the path or the generator's text.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The type of its elements as its file has them, before they are widened.
    pub const fn stored_name(&self) -> &'static str {
        match self.store {
            Store::Foreign { element, .. } => element.name(),
            _ => self.dtype.name(),
        }
    }
    /// Rows × columns.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Which direction is contiguous.
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// Whether its file has one dimension only. It is then a row, 1 x n, until it is transposed.
    pub fn is_vector(&self) -> bool {
        self.is_vector
    }
    /// Bytes of its mapped file; 0 if the elements are generated or in memory.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.bytes
    }

    /// The file of which the owner of all its `lines` is a complete map; `None` if the elements are elsewhere, or
    /// have to be made. Another process can map the file and finds every line at the same offset.
    pub fn file(&self) -> Option<&Arc<File>> {
        match &self.store {
            Store::Bytes { .. } => self.mapped.file.as_ref(),
            Store::Part { of, .. } => of.file(),
            Store::Foreign { .. } | Store::Generated(_) | Store::Converted(_) | Store::Remote => None,
        }
    }

    /// The difference between the state of its file at the opening and now; `None` without a difference, and for
    /// matrices that read no file.
    pub fn change(&self) -> Option<Change> {
        if let Store::Part { of, .. } = &self.store {
            return of.change();
        }
        let now = self.mapped.file.as_ref().and_then(|file| FileState::of(file));
        self.mapped.state?.change(now?)
    }

    /// Whether its elements are made each time they are read: generated, or converted from another type.
    pub fn is_made(&self) -> bool {
        match &self.store {
            Store::Bytes { .. } => false,
            Store::Part { of, .. } => of.is_made(),
            Store::Foreign { .. } | Store::Generated(_) | Store::Converted(_) | Store::Remote => true,
        }
    }

    /// The rule of its elements, with which another machine can make any block.
    pub fn generator(&self) -> Option<Generator> {
        match self.store {
            Store::Generated(generator) => Some(generator),
            _ => None,
        }
    }

    /// The type in which NumPy multiplies this matrix by another: integers of 8 and 16 bits in a file are exact in `f32`.
    pub fn promoted(&self, other: &Self) -> DType {
        match (self.dtype, other.dtype) {
            (DType::F32, _) if other.is_of_short_integers() => DType::F32,
            (_, DType::F32) if self.is_of_short_integers() => DType::F32,
            (one, two) => one.promoted(two),
        }
    }

    fn is_of_short_integers(&self) -> bool {
        let Store::Foreign { element, .. } = &self.store else { return false };
        self.dtype == DType::I32 && element.size_bytes() <= 2
    }

    /// The transposed matrix; copies nothing.
    pub fn transposed(self) -> Self {
        let store = match self.store {
            Store::Generated(generator) => Store::Generated(generator.transposed()),
            Store::Converted(inner) => Store::Converted(Arc::new(Self::clone(&inner).transposed())),
            Store::Part { of, row, col } => {
                Store::Part { of: Arc::new(Self::clone(&of).transposed()), row: col, col: row }
            }
            store => store,
        };
        Self { shape: self.shape.transposed(), layout: self.layout.transposed(), store, ..self }
    }

    /// The same matrix with elements of another type, converted when they are read. Refused if fractions or the
    /// upper half of integers would be lost.
    pub fn converted(self, to: DType) -> Result<Self, MatrixError> {
        let from = self.dtype;
        if from == to {
            return Ok(self);
        }
        if let Some(loss) = conversion_loss(from, to) {
            let what = format!("converting {from} to {to} {loss}; convert the file itself, or use {from}");
            return Err(MatrixError::format(self.name, what));
        }
        if self.shape.bytes(to).is_none() {
            return Err(MatrixError::TooLarge { name: self.name, shape: self.shape, dtype: to });
        }
        if self.generator().is_some_and(|generator| generator.same_values(from, to)) {
            return Ok(Self { dtype: to, ..self });
        }
        let inner = Arc::new(self.clone());
        Ok(Self { dtype: to, store: Store::Converted(inner), ..self })
    }

    /// A rectangle's elements, in the matrix's own layout.
    pub fn block(&self, rect: Rect) -> Result<Buffer, MatrixError> {
        let bytes = rect.shape().bytes(self.dtype()).unwrap_or(u64::MAX);
        let len = usize::try_from(bytes).map_err(|_| MatrixError::OutOfMemory { bytes })?;
        let mut buffer = Buffer::zeroed(len)?;
        self.read_block(rect, buffer.bytes_mut())?;
        Ok(buffer)
    }

    /// The elements of such a block.
    pub fn block_view<'a, T: Element>(&self, rect: Rect, block: &'a Buffer) -> View<'a, T> {
        // The block is in memory, so its sides are those of indices.
        let side = |side: u64| usize::try_from(side).unwrap_or(usize::MAX);
        let (rows, cols) = (side(rect.rows.len()), side(rect.cols.len()));
        match self.layout() {
            Layout::RowMajor => View::row_major(block.elements(), rows, cols),
            Layout::ColMajor => View::row_major(block.elements(), cols, rows).transposed(),
        }
    }

    /// The matrix as an operand of a product, of that type, and transposed if the user says so. As in NumPy's matmul, a vector on
    /// the left is a row and one on the right a column.
    pub fn as_operand(
        self,
        is_right: bool,
        dtype: Option<DType>,
        transpose: bool,
    ) -> Result<Self, MatrixError> {
        let matrix = if self.is_vector() && is_right { self.transposed() } else { self };
        let matrix = match dtype {
            Some(dtype) if dtype != matrix.dtype() => matrix.converted(dtype)?,
            _ => matrix,
        };
        Ok(if transpose { matrix.transposed() } else { matrix })
    }

    /// A rectangle as a matrix of its own; copies nothing. Panics if it is outside.
    pub fn part(&self, rect: Rect) -> Self {
        assert!(rect.fits(self.shape), "{rect} is outside {}", self.shape);
        let (row, col) = (rect.rows.start, rect.cols.start);
        let store = Store::Part { of: Arc::new(self.clone()), row, col };
        Self { shape: rect.shape(), store, mapped: Mapped::default(), ..self.clone() }
    }

    /// The lines of a rectangle, without a copy, or `None` if the elements have to be made first (generated or
    /// converted). Panics if the rectangle is outside.
    pub fn lines(&self, rect: Rect) -> Option<Lines> {
        assert!(rect.fits(self.shape), "{rect} is outside {}", self.shape);
        if let Store::Part { of, row, col } = &self.store {
            return of.lines(shifted(rect, *row, *col));
        }
        let Store::Bytes { owner, start, pitch_bytes } = &self.store else { return None };
        let place = Place::of(rect, self.layout, *start, *pitch_bytes, self.dtype.size_bytes());
        Some(Lines {
            owner: owner.clone(),
            start: place.start,
            line_bytes: place.line_bytes,
            pitch_bytes: *pitch_bytes,
            lines: place.lines,
            shape: rect.shape(),
            layout: self.layout,
            dtype: self.dtype,
        })
    }

    /// Writes a rectangle's elements to `dst`, contiguous and in this matrix's own layout. `dst` must have exactly
    /// the rectangle's bytes.
    pub fn read_block(&self, rect: Rect, dst: &mut [u8]) -> Result<(), MatrixError> {
        assert!(rect.fits(self.shape), "{rect} is outside {}", self.shape);
        let need = rect.shape().bytes(self.dtype);
        assert_eq!(need, Some(dst.len() as u64), "read_block: a destination of another size");
        if dst.is_empty() {
            return Ok(());
        }
        match &self.store {
            Store::Bytes { owner, start, pitch_bytes } => {
                let place = Place::of(rect, self.layout, *start, *pitch_bytes, self.dtype.size_bytes());
                place.each((**owner).as_ref(), dst, |src, dst| dst.copy_from_slice(src));
            }
            Store::Foreign { owner, start, pitch_bytes, element, order } => {
                let place = Place::of(rect, self.layout, *start, *pitch_bytes, element.size_bytes());
                place.each((**owner).as_ref(), dst, |src, dst| decode(*element, *order, src, dst));
            }
            Store::Generated(generator) => generator.fill(rect, self.dtype, self.layout, dst),
            Store::Converted(inner) => return inner.read_converted(rect, self.dtype, dst),
            Store::Part { of, row, col } => return of.read_block(shifted(rect, *row, *col), dst),
            Store::Remote => {
                let what = "has its elements on other machines only: write it to a file first";
                return Err(MatrixError::format(self.name.clone(), what));
            }
        }
        Ok(())
    }

    /// `read_block` in another element type.
    fn read_converted(&self, rect: Rect, to: DType, dst: &mut [u8]) -> Result<(), MatrixError> {
        if let Some(lines) = self.lines(rect) {
            let parts = dst.chunks_exact_mut(dst.len() / lines.lines);
            parts.enumerate().for_each(|(i, part)| convert(self.dtype, to, lines.line(i), part));
            return Ok(());
        }
        let mut made = Vec::new();
        let mut rest = dst;
        for piece in pieces(rect, self.layout) {
            // A piece is at most CONVERT_ELEMENTS, so its sizes fit usize.
            let elements = (piece.rows.len() * piece.cols.len()) as usize;
            made.resize(elements * self.dtype.size_bytes(), 0);
            self.read_block(piece, &mut made)?;
            let (part, after) = rest.split_at_mut(elements * to.size_bytes());
            convert(self.dtype, to, &made, part);
            rest = after;
        }
        Ok(())
    }
}

/// The position of a rectangle's lines in contiguous memory.
struct Place {
    start: usize,
    line_bytes: usize,
    pitch_bytes: usize,
    lines: usize,
}

impl Place {
    /// The rectangle must be inside the matrix, whose bytes were checked to be in memory: so nothing here
    /// overflows.
    fn of(rect: Rect, layout: Layout, start: usize, pitch_bytes: usize, size: usize) -> Self {
        let (lines, within) = across(rect, layout);
        let empty = lines.is_empty() || within.is_empty();
        let offset =
            if empty { 0 } else { lines.start as usize * pitch_bytes + within.start as usize * size };
        Self {
            start: start + offset,
            line_bytes: if empty { 0 } else { within.len() as usize * size },
            pitch_bytes,
            lines: lines.len() as usize,
        }
    }

    /// Calls `f` with every line and its target in `dst`.
    fn each(&self, memory: &[u8], dst: &mut [u8], mut f: impl FnMut(&[u8], &mut [u8])) {
        if self.lines == 0 {
            return;
        }
        let line = dst.len() / self.lines;
        for (i, part) in dst.chunks_exact_mut(line).enumerate() {
            f(&memory[self.start + i * self.pitch_bytes..][..self.line_bytes], part);
        }
    }
}

/// The rectangle of the whole matrix for a rectangle of the part that begins at (row, col).
fn shifted(rect: Rect, row: u64, col: u64) -> Rect {
    let by = |span: Span, by: u64| Span::new(span.start + by, span.end + by);
    Rect::new(by(rect.rows, row), by(rect.cols, col))
}

/// (Span of lines, span of elements in each line) of a rectangle.
fn across(rect: Rect, layout: Layout) -> (Span, Span) {
    match layout {
        Layout::RowMajor => (rect.rows, rect.cols),
        Layout::ColMajor => (rect.cols, rect.rows),
    }
}

/// A rectangle cut into pieces of at most CONVERT_ELEMENTS in memory order: several whole lines, or a part of one.
fn pieces(rect: Rect, layout: Layout) -> impl Iterator<Item = Rect> {
    let (lines, within) = across(rect, layout);
    let some_lines = (CONVERT_ELEMENTS / within.len().max(1)).max(1);
    let starts = lines.iter().step_by(some_lines as usize);
    starts.flat_map(move |line| {
        let some = Span::new(line, lines.end.min(line + some_lines));
        within.iter().step_by(CONVERT_ELEMENTS as usize).map(move |from| {
            let part = Span::new(from, within.end.min(from + CONVERT_ELEMENTS));
            match layout {
                Layout::RowMajor => Rect::new(some, part),
                Layout::ColMajor => Rect::new(part, some),
            }
        })
    })
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} {} {} {:?})", self.name, self.shape, self.dtype, self.layout)
    }
}

#[cfg(test)]
mod tests;
