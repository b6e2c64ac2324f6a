//! Products in this process, for arrays of two dimensions of one type.
//!
//! Place in the flow: `bramble.matmul` has checked shapes and types; the simd kernel computes, and nothing is planned or sent.
//!
//! Invariants: the interpreter is released during the product; Ctrl-C ends a long one when each thread has finished its piece,
//! 2 Gflop at most.

use crate::memory::Exported;
use bramble_kernel::{KernelElement, KernelName, Product, multiply_unless_stopped, open};
use bramble_matrix::DType;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Products with fewer operations gain less from more threads than their start costs: 128³ took 50 µs on two threads of a machine
/// with 130 Gflop/s on each, and 22 µs in NumPy.
const WORTH_THREADS: f64 = 1e7;
/// Products with fewer operations end before a person could interrupt them.
const WORTH_WATCHING: f64 = 1e10;
/// How often a long product looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Compute threads of this machine, as far as this process may use them.
#[pyfunction]
pub(crate) fn default_threads() -> usize {
    bramble_worker::default_threads()
}

/// C = A B.
#[pyfunction]
pub(crate) fn multiply(
    py: Python<'_>,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    c: &Bound<'_, PyAny>,
    threads: usize,
) -> PyResult<()> {
    let (a, b, c) = (Exported::of(a)?, Exported::of(b)?, Exported::of(c)?);
    let ([m, k], [depth, n]) = (a.shape(), b.shape());
    if k != depth || c.shape() != [m, n] || a.dtype() != b.dtype() || a.dtype() != c.dtype() {
        return Err(PyValueError::new_err("the arrays do not form a product"));
    }
    match a.dtype() {
        DType::F32 => typed::<f32>(py, &a, &b, c, threads),
        DType::F64 => typed::<f64>(py, &a, &b, c, threads),
        DType::I32 => typed::<i32>(py, &a, &b, c, threads),
        DType::I64 => typed::<i64>(py, &a, &b, c, threads),
    }
}

fn typed<T: KernelElement>(
    py: Python<'_>,
    a: &Exported,
    b: &Exported,
    mut c: Exported,
    threads: usize,
) -> PyResult<()> {
    let kernel = open(KernelName::Simd).map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    let product = Product::new(T::ONE, a.view::<T>(), b.view::<T>(), T::ZERO, c.view_mut::<T>()?);
    let flops = product.flops();
    let threads = if flops < WORTH_THREADS { 1 } else { threads.max(1) };
    if flops < WORTH_WATCHING {
        py.detach(|| multiply_unless_stopped(&*kernel, threads, &|| false, T::any(product)));
        return Ok(());
    }
    let is_stopped = &AtomicBool::new(false);
    let (done, wait) = sync_channel::<()>(1);
    py.detach(move || {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                multiply_unless_stopped(&*kernel, threads, &|| is_stopped.load(Relaxed), T::any(product));
                drop(done);
            });
            loop {
                match wait.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    // The product has ended; the scope passes a panic on.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
                if let Err(interrupt) = Python::attach(|py| py.check_signals()) {
                    is_stopped.store(true, Relaxed);
                    return Err(interrupt);
                }
            }
        })
    })
}
