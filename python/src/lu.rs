//! LU factors of a matrix in this process, reused for many right-hand sides.
//!
//! Place in the flow: `bramble.lu` and `bramble.solve` check types and shapes; the factorisation runs on threads of its own, or
//! workers have done it (`factors.rs`).
//!
//! Invariants: a solution is returned with its backward error, computed in f64 from the matrix as it was passed in. An
//! interrupted caller gets its exception at once; the threads end with the factorisation.

use crate::event_loop::wait_for;
use crate::failure::exception;
use crate::memory::{Memory, readable};
use bramble_kernel::lu::LuElement;
use bramble_kernel::{Choice, KernelName, open};
use bramble_lu::{
    LuError, LuFactors, LuKernels, LuOptions, MatrixNorms, WorkingMatrix, block_columns, load, memory_bytes,
    residual, worthwhile_threads,
};
use bramble_matrix::{Buffer, DType, Matrix, Shape};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// A factored matrix.
#[pyclass(frozen)]
pub(crate) struct Lu {
    inner: Arc<Factored>,
}

/// The factors in the type of the matrix, and what a check of solutions needs.
struct Factored {
    factors: TypedFactors,
    matrix: Matrix,
    norms: MatrixNorms,
    threads: usize,
}

/// By their type.
pub(crate) enum TypedFactors {
    F32(LuFactors<f32>),
    F64(LuFactors<f64>),
}

impl Lu {
    /// Factors that workers have computed, of a matrix with these norms; `threads` solve.
    pub(crate) fn of(factors: TypedFactors, matrix: Matrix, norms: MatrixNorms, threads: usize) -> Self {
        Self { inner: Arc::new(Factored { factors, matrix, norms, threads }) }
    }
}

/// Solutions, row by row, and their backward error.
type Solved = (Buffer, f64);

#[pymethods]
impl Lu {
    /// Factors a square matrix of f32 or f64 on `threads` threads.
    #[new]
    fn new(py: Python<'_>, a: &Bound<'_, PyAny>, threads: usize) -> PyResult<Self> {
        let matrix = readable(a)?;
        let factored = apart(py, move || match matrix.dtype() {
            DType::F32 => factored::<f32>(matrix, threads, TypedFactors::F32),
            _ => factored::<f64>(matrix, threads, TypedFactors::F64),
        })?;
        Ok(Self { inner: Arc::new(factored) })
    }

    /// X with A X = B for the right-hand sides in the columns of B, and the largest backward error.
    fn solve(&self, py: Python<'_>, b: &Bound<'_, PyAny>) -> PyResult<(Memory, f64)> {
        let (inner, b) = (self.inner.clone(), readable(b)?);
        let (shape, dtype) = (b.shape(), inner.matrix.dtype());
        let (buffer, error) = apart(py, move || match &inner.factors {
            TypedFactors::F32(factors) => solved(&inner, factors, &b),
            TypedFactors::F64(factors) => solved(&inner, factors, &b),
        })?;
        Ok((Memory::in_buffer(buffer, shape, dtype), error))
    }

    /// An estimate of the condition number in the 1-norm.
    fn condition(&self, py: Python<'_>) -> PyResult<f64> {
        let inner = self.inner.clone();
        apart(py, move || {
            Ok(match &inner.factors {
                TypedFactors::F32(factors) => factors.condition(&inner.norms),
                TypedFactors::F64(factors) => factors.condition(&inner.norms),
            })
        })
    }
}

/// Runs work on a thread of its own, so that a signal ends the wait for it.
fn apart<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, LuFailure> + Send + 'static,
) -> PyResult<R> {
    let (done, mut result) = sync_channel(1);
    std::thread::Builder::new()
        .name("bramble lu".to_owned())
        .spawn(move || {
            // Nobody waits after an interrupt.
            let _ = done.send(work());
        })
        .map_err(|e| exception(py, "BrambleError", &format!("no thread can be started: {e}")))?;
    match wait_for(py, &mut result)? {
        Some(Ok(value)) => Ok(value),
        Some(Err(failure)) => Err(failure.raised(py)),
        None => Err(exception(py, "BrambleError", "the factorisation broke off; this is a bug of bramble")),
    }
}

/// Why a system was not solved.
pub(crate) enum LuFailure {
    Lu(LuError),
    TooLarge { need: u64, free: u64 },
}

impl From<LuError> for LuFailure {
    fn from(error: LuError) -> Self {
        Self::Lu(error)
    }
}

impl LuFailure {
    pub(crate) fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Lu(error @ (LuError::Singular { .. } | LuError::NotSquare { .. })) => {
                let text = error.to_string();
                let made = py.import("numpy.linalg").and_then(|m| m.getattr("LinAlgError")?.call1((text,)));
                made.map_or_else(|e| e, PyErr::from_value)
            }
            Self::Lu(error) => PyValueError::new_err(error.to_string()),
            Self::TooLarge { need, free } => PyMemoryError::new_err(format!(
                "the factors take {} MiB, and this machine has {} MiB free; use float32, or a machine with more",
                need >> 20,
                free >> 20
            )),
        }
    }
}

fn factored<T: LuElement>(
    matrix: Matrix,
    threads: usize,
    typed: fn(LuFactors<T>) -> TypedFactors,
) -> Result<Factored, LuFailure> {
    let shape = matrix.shape();
    if shape.rows != shape.cols {
        return Err(LuError::NotSquare { name: "the matrix".to_owned(), shape }.into());
    }
    // It is in memory, so its sides are those of indices.
    let order = shape.rows as usize;
    let threads = worthwhile_threads(order, threads.max(1));
    let options = LuOptions { threads, block: block_columns(order) };
    let (need, free) = (memory_bytes::<T>(order, order, 0, options), bramble_worker::available_memory());
    if need > free {
        return Err(LuFailure::TooLarge { need, free });
    }
    let working = WorkingMatrix::zeros::<T>(order, order).map_err(LuError::from)?;
    let norms = load::<T, T>(&matrix, &working, 0, threads)?;
    let factors = LuFactors::<T>::new(&working, order, &kernels(threads), options)?.finished(&working)?;
    factors.check()?;
    Ok(Factored { factors: typed(factors), matrix, norms, threads })
}

fn solved<T: LuElement>(of: &Factored, factors: &LuFactors<T>, b: &Matrix) -> Result<Solved, LuFailure> {
    let Shape { rows, cols } = b.shape();
    let (n, width) = (rows as usize, cols as usize);
    let right = WorkingMatrix::zeros::<f64>(n, width).map_err(LuError::from)?;
    let wide = b.clone().converted(DType::F64).map_err(LuError::from)?;
    load::<f64, f64>(&wide, &right, 0, 1)?;
    let right = right.rows_of::<f64>().map_err(LuError::from)?;
    let mut x: Vec<T> = right.iter().map(|b| T::from_f64(*b)).collect();
    factors.solve(&mut x, width);
    let in_f64: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
    let found = residual(&of.matrix, &of.norms, &right, &in_f64, width, &kernels(of.threads))?;
    let mut buffer = Buffer::zeroed(size_of_val(&x[..])).map_err(LuError::from)?;
    buffer.elements_mut::<T>().copy_from_slice(&x);
    Ok((buffer, found.backward_error))
}

/// `simd` for one thread, and for all of them.
pub(crate) fn kernels(threads: usize) -> LuKernels {
    let simd = || open(KernelName::Simd);
    let blocked = Choice::Blocked { base: KernelName::Simd, edge: None };
    match (simd(), bramble_kernel::open_on(blocked, threads)) {
        (Ok(one), Ok(all)) => LuKernels { one, all },
        _ => unreachable!("simd is part of the program"),
    }
}
