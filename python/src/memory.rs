//! Memory that crosses the border: arrays of Python as matrices, and results as buffers of Python.
//!
//! Invariants: an exported array is released when its last reader is done, on whatever thread; a result's memory is written by
//! Python alone, since nothing else refers to it.
//!
//! Deliberately absent: protection against a program that changes an array while Bramble reads it. As with a mapped file, the
//! result is then one of numbers that were never all there together.
#![allow(unsafe_code)] // The buffer protocol hands out pointers.

use bramble_matrix::{
    Buffer, DType, Element, Layout, Matrix, ReducedMatrix, ResultMemory, Sealed, Shape, View, ViewMut,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// An array of Python with two dimensions, of a type that kernels multiply.
pub(crate) struct Exported {
    buffer: PyUntypedBuffer,
    dtype: DType,
    shape: [usize; 2],
    /// In elements.
    strides: [usize; 2],
}

/// The bytes of an exported array, from its first element to its last.
struct ExportedBytes {
    _buffer: PyUntypedBuffer,
    start: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and the exporting object keeps them until the buffer is released, which attaches the thread
// to the interpreter.
unsafe impl Send for ExportedBytes {}
// SAFETY: as above; shared reads need no exclusion.
unsafe impl Sync for ExportedBytes {}

impl AsRef<[u8]> for ExportedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Exported::bytes` computed the length from shape and strides of the buffer, which is held.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Exported {
    /// The array, which must have two dimensions, whole strides that are not negative, and aligned elements.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(array)?;
        let size = buffer.item_size();
        let dtype = match (buffer.format().to_bytes(), size) {
            (b"f", 4) => DType::F32,
            (b"d", 8) => DType::F64,
            (b"i" | b"l", 4) => DType::I32,
            (b"l" | b"q", 8) => DType::I64,
            (other, _) => {
                let text =
                    format!("elements of format {} are none of f32, f64, i32, i64", other.escape_ascii());
                return Err(PyBufferError::new_err(text));
            }
        };
        let (&[rows, cols], &[down, along]) = (buffer.shape(), buffer.strides()) else {
            return Err(PyBufferError::new_err("an array of two dimensions is needed"));
        };
        let stride = |bytes: isize, len: usize| match usize::try_from(bytes) {
            _ if len <= 1 => Some(0),
            Ok(bytes) if bytes.is_multiple_of(size) => Some(bytes / size),
            _ => None,
        };
        let (Some(down), Some(along)) = (stride(down, rows), stride(along, cols)) else {
            return Err(PyBufferError::new_err("strides must be whole elements, and not negative"));
        };
        if !(buffer.buf_ptr().addr()).is_multiple_of(size) {
            return Err(PyBufferError::new_err("elements must be aligned"));
        }
        Ok(Self { buffer, dtype, shape: [rows, cols], strides: [down, along] })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Elements from the first to the last.
    fn reach(&self) -> usize {
        let ([rows, cols], [down, along]) = (self.shape, self.strides);
        if rows == 0 || cols == 0 { 0 } else { (rows - 1) * down + (cols - 1) * along + 1 }
    }

    /// The elements. The caller holds the buffer as long as the view.
    pub(crate) fn view<T: Element>(&self) -> View<'_, T> {
        assert_eq!(T::DTYPE, self.dtype, "an array of another element type");
        let data = match self.reach() {
            0 => &[][..],
            // SAFETY: the exporter promises elements at all indices below the shape, and so at every place up to the last;
            // they are aligned (`of`), any bits are a number, and the buffer is held as long as `self`.
            reach => unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<T>(), reach) },
        };
        let ([rows, cols], [down, along]) = (self.shape, self.strides);
        View::new(data, rows, cols, down, along)
    }

    /// The elements, to be written. The caller sees to it that nothing else reads or writes them: it has checked that the array
    /// is no operand (`matmul.py`), and other threads of Python are bound by the same rule as with NumPy's `out`.
    pub(crate) fn view_mut<T: Element>(&mut self) -> PyResult<ViewMut<'_, T>> {
        assert_eq!(T::DTYPE, self.dtype, "an array of another element type");
        if self.buffer.readonly() {
            return Err(PyValueError::new_err("output array is read-only"));
        }
        let data = match self.reach() {
            0 => &mut [][..],
            // SAFETY: as in `view`; the array may be written, and `&mut self` makes the slice the only one of this object.
            reach => unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast::<T>(), reach) },
        };
        let ([rows, cols], [down, along]) = (self.shape, self.strides);
        Ok(ViewMut::new(data, rows, cols, down, along))
    }

    /// The array as a matrix that is read in place; the array stays alive with it. Rows or columns must be contiguous.
    pub(crate) fn into_matrix(self, name: &str) -> PyResult<Matrix> {
        let size = self.dtype.size_bytes();
        let (shape, [down, along], [rows, cols]) =
            (Shape::new(self.shape[0] as u64, self.shape[1] as u64), self.strides, self.shape);
        let (layout, pitch) = match () {
            () if along == 1 || cols <= 1 => (Layout::RowMajor, down),
            () if down == 1 || rows <= 1 => (Layout::ColMajor, along),
            () => return Err(PyBufferError::new_err("rows or columns must be contiguous")),
        };
        let start = if self.reach() == 0 {
            std::ptr::NonNull::<u64>::dangling().as_ptr().cast()
        } else {
            self.buffer.buf_ptr().cast::<u8>()
        };
        let bytes = ExportedBytes { start, len: self.reach() * size, _buffer: self.buffer };
        Matrix::from_lines(name, (Arc::new(bytes), 0, pitch * size), shape, self.dtype, layout)
            .map_err(|e| PyValueError::new_err(e.to_string()))
    }
}

/// An array as a matrix that is read in place. Its rows or columns are contiguous.
pub(crate) fn readable(array: &Bound<'_, PyAny>) -> PyResult<Matrix> {
    let array = Exported::of(array).map_err(|e| PyTypeError::new_err(format!("no operand: {e}")))?;
    let [rows, cols] = array.shape();
    array.into_matrix(&format!("the {rows}x{cols} array"))
}

/// The elements of a result, row by row: a buffer of bytes that NumPy may wrap and change.
#[pyclass(frozen)]
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
    shape: Shape,
    dtype: DType,
    _owner: Owner,
}

/// What keeps a result's bytes.
enum Owner {
    Result { _memory: ResultMemory },
    Buffer { _buffer: Buffer },
}

// SAFETY: the bytes belong to the owner alone, which has no way to reach them any more; Python orders its own accesses.
unsafe impl Send for Memory {}
// SAFETY: as above; this object itself never reads or writes them.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of a finished result; copied only if something still reads it.
    pub(crate) fn of(sealed: Sealed) -> Result<Self, bramble_matrix::MatrixError> {
        let (shape, dtype) = (sealed.shape(), sealed.dtype());
        match sealed.into_memory() {
            Ok(mut memory) => {
                let bytes = memory.bytes_mut();
                let (start, len) = (bytes.as_mut_ptr(), bytes.len());
                Ok(Self { start, len, shape, dtype, _owner: Owner::Result { _memory: memory } })
            }
            Err(sealed) => Ok(Self::in_buffer(sealed.matrix()?.block(shape.rect())?, shape, dtype)),
        }
    }

    /// The memory of a reduction.
    pub(crate) fn of_reduced(reduced: ReducedMatrix) -> Self {
        Self::in_buffer(reduced.elements, reduced.shape, reduced.dtype)
    }

    pub(crate) fn in_buffer(mut buffer: Buffer, shape: Shape, dtype: DType) -> Self {
        let bytes = buffer.bytes_mut();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        Self { start, len, shape, dtype, _owner: Owner::Buffer { _buffer: buffer } }
    }
}

#[pymethods]
impl Memory {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (u64, u64) {
        (self.shape.rows, self.shape.cols)
    }

    /// Name of the element type: f32, f64, i32, i64.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// # Safety
    ///
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let len = isize::try_from(this.len).map_err(|_| PyBufferError::new_err("too large"))?;
        // SAFETY: the interpreter passes a valid view; the bytes live as long as `slf`, to which the view refers.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.start.cast(), len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
