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

impl Drop for Placed {
    fn drop(&mut self) {
        if self.forget() {
            self.home.free_later(self.array);
        }
    }
}

/// The operand that a value of Python stands for: a buffer, a path or generator, or a pair of a placed matrix and whether it is
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
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_str()?.to_owned();
        return value.py().detach(|| Matrix::open(text)).map_err(unreadable);
    }
    readable(value)
}
