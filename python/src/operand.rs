//! Operands of a call: arrays, files and generators, and placed matrices.

use crate::event_loop::EventLoop;
use crate::failure::unreadable;
use crate::memory::readable;
use bramble_matrix::Matrix;
use bramble_primary::{ArrayId, PlacedOperand, ProductOperand};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A matrix whose elements the machines of a cluster hold. Freed when it is dropped.
#[pyclass(frozen)]
pub(crate) struct Placed {
    pub(crate) array: ArrayId,
    /// Its elements, if this process can read them.
    pub(crate) matrix: Matrix,
    /// The cluster's thread.
    home: Arc<EventLoop>,
    is_freed: AtomicBool,
}

/// A placed matrix or its transpose.
#[derive(FromPyObject)]
pub(crate) struct PlacedView<'py>(Bound<'py, Placed>, bool);

impl Placed {
    pub(crate) fn new(array: ArrayId, matrix: Matrix, home: Arc<EventLoop>) -> Self {
        Self { array, matrix, home, is_freed: AtomicBool::new(false) }
    }

    /// Forgets it: the caller has it freed. False if it was freed before.
    pub(crate) fn forget(&self) -> bool {
        !self.is_freed.swap(true, Relaxed)
    }

    /// Raises if it was freed, or is placed on another cluster.
    pub(crate) fn check(&self, home: &Arc<EventLoop>) -> PyResult<()> {
        if self.is_freed.load(Relaxed) {
            return Err(PyValueError::new_err("the array was freed"));
        }
        if !Arc::ptr_eq(&self.home, home) {
            return Err(PyValueError::new_err(
                "the array is placed on another cluster; fetch it with .numpy() and put it on this one",
            ));
        }
        Ok(())
    }
}

#[pymethods]
impl Placed {
    /// Whether it was freed.
    #[getter]
    fn freed(&self) -> bool {
        self.is_freed.load(Relaxed)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.forget() {
            self.home.free_later(self.array);
        }
    }
}

/// A file or a generator, with the shape and the element type that it has as an operand.
#[pyclass(frozen, name = "Source")]
pub(crate) struct NamedSource(Matrix);

#[pymethods]
impl NamedSource {
    /// Opens the file or generator of that name.
    #[new]
    fn new(py: Python<'_>, name: String) -> PyResult<Self> {
        Ok(Self(py.detach(|| Matrix::open(name)).map_err(unreadable)?))
    }

    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (u64, u64) {
        (self.0.shape().rows, self.0.shape().cols)
    }

    /// Name of the element type: f32, f64, i32, i64.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }
}

/// The operand that a value of Python stands for: a buffer, a file or generator, or a pair of a placed matrix and whether it is
/// transposed.
pub(crate) fn operand(home: &Arc<EventLoop>, value: &Bound<'_, PyAny>) -> PyResult<ProductOperand> {
    if let Ok(PlacedView(placed, transposed)) = value.extract::<PlacedView<'_>>() {
        let placed = placed.get();
        placed.check(home)?;
        let matrix = if transposed { placed.matrix.clone().transposed() } else { placed.matrix.clone() };
        return Ok(ProductOperand {
            matrix,
            placed: Some(PlacedOperand { array: placed.array, transposed }),
        });
    }
    Ok(matrix(value)?.into())
}

/// The matrix in a buffer, a file, or a generator's text.
pub(crate) fn matrix(value: &Bound<'_, PyAny>) -> PyResult<Matrix> {
    if let Ok(source) = value.cast::<NamedSource>() {
        return Ok(source.get().0.clone());
    }
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_str()?.to_owned();
        return value.py().detach(|| Matrix::open(text)).map_err(unreadable);
    }
    readable(value)
}
