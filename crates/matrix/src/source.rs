//! An operand: a matrix that can be read by rectangle, wherever its elements are.
//!
//! Place in the flow: `Matrix` is what a file, a generator or a finished C becomes; the primary asks it
//! for the lines of a panel (`lines`, nothing copied) or has it fill a buffer (`read_block`).
//!
//! Invariants: cloning and transposing copy no element. `read_block` gives the same bytes as `lines`
//! wherever both work.

use crate::{DType, Layout, Lines, MatrixError, Rect, Shape, SharedBytes};

/// A matrix that can be read. Cheap to clone.
#[derive(Clone)]
pub struct Matrix {
    name: String,
    shape: Shape,
    layout: Layout,
    dtype: DType,
    store: Store,
}

/// Where the elements are.
#[derive(Clone)]
enum Store {
    /// Native little-endian elements in shared memory, lines `pitch_bytes` apart from `start` on.
    Bytes { owner: SharedBytes, start: usize, pitch_bytes: usize },
}

impl Matrix {
    /// A matrix whose contiguous elements start at `start` in `owner`. Errors where the owner is too short
    /// or `start` is not aligned for the element type.
    pub fn from_shared(
        name: impl Into<String>,
        owner: SharedBytes,
        start: usize,
        shape: Shape,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, MatrixError> {
        let name = name.into();
        let Some(bytes) = shape.bytes(dtype) else {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        };
        let have = (*owner).as_ref().len() as u64;
        if (start as u64).checked_add(bytes).is_none_or(|end| end > have) {
            let what = format!("holds {have} bytes, but {shape} of {dtype} need {bytes} from byte {start} on");
            return Err(MatrixError::format(name, what));
        }
        let (_, line) = layout.lines(shape);
        let pitch_bytes = line as usize * dtype.size_bytes();
        Ok(Self { name, shape, layout, dtype, store: Store::Bytes { owner, start, pitch_bytes } })
    }

    /// What to call it in messages: the path or the generator's text.
    pub fn name(&self) -> &str {
        &self.name
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

    /// The transposed matrix; copies nothing.
    pub fn transposed(self) -> Self {
        Self { shape: self.shape.transposed(), layout: self.layout.transposed(), ..self }
    }

    /// The lines of a rectangle where they lie, or `None` where the elements have to be made first
    /// (generated or converted). Panics where the rectangle is outside.
    pub fn lines(&self, rect: Rect) -> Option<Lines> {
        assert!(rect.fits(self.shape), "{rect} is outside {}", self.shape);
        let Store::Bytes { owner, start, pitch_bytes } = &self.store;
        let size = self.dtype.size_bytes();
        let (line_span, within) = match self.layout {
            Layout::RowMajor => (rect.rows, rect.cols),
            Layout::ColMajor => (rect.cols, rect.rows),
        };
        Some(Lines {
            owner: owner.clone(),
            start: start + line_span.start as usize * pitch_bytes + within.start as usize * size,
            line_bytes: within.len() as usize * size,
            pitch_bytes: *pitch_bytes,
            lines: line_span.len() as usize,
            shape: rect.shape(),
            layout: self.layout,
            dtype: self.dtype,
        })
    }

    /// Writes a rectangle's elements to `dst`, contiguous and in this matrix's own layout. `dst` must
    /// have exactly the rectangle's bytes.
    pub fn read_block(&self, rect: Rect, dst: &mut [u8]) -> Result<(), MatrixError> {
        let need = rect.shape().bytes(self.dtype);
        assert_eq!(need, Some(dst.len() as u64), "read_block: a destination of another size");
        if let Some(lines) = self.lines(rect) {
            for (i, line) in dst.chunks_exact_mut(lines.line_bytes.max(1)).enumerate() {
                line.copy_from_slice(lines.line(i));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} {} {} {:?})", self.name, self.shape, self.dtype, self.layout)
    }
}
