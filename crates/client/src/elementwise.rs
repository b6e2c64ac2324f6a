//! Sums of matrices, element by element: C = αX + βY.
//!
//! Place in the flow: for operands in files or in this process. Sending an element takes longer than adding it, so workers take
//! no part.
//!
//! Invariants: every element is rounded once for each factor and once for the sum; the result does not depend on the number of
//! threads. Memory beside the matrices is two squares of 512 elements a side for each thread.
//!
//! Deliberately absent: verification. Checking a sum is computing it again.

use bramble_kernel::factors;
use bramble_matrix::number::to_u64;
use bramble_matrix::{DType, Element, Matrix, MatrixError, Output, Rect, Span};
use bramble_report::exit::Failure;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Edge of the squares of C that threads take turns to compute.
const EDGE: u64 = 512;

/// A matrix and its factor.
pub type ScaledMatrix = (f64, Matrix);

/// Computes αX, or αX + βY, on the calling thread and `threads` − 1 others. The matrices must have the output's shape and element
/// type.
pub(crate) fn scaled_sum(
    x: &ScaledMatrix,
    y: Option<&ScaledMatrix>,
    output: &Output,
    threads: NonZeroUsize,
) -> Result<(), Failure> {
    for (_, matrix) in std::iter::once(x).chain(y) {
        let (shape, dtype) = (matrix.shape(), matrix.dtype());
        if (shape, dtype) != (output.shape(), output.dtype()) {
            let (name, of, to) = (matrix.name(), output.shape(), output.dtype());
            return Err(Failure::failed(format!(
                "{name} is {shape} {dtype}, but the sum is {of} {to}: all matrices of a sum need the same"
            )));
        }
    }
    match output.dtype() {
        DType::F32 => in_threads::<f32>(x, y, output, threads),
        DType::F64 => in_threads::<f64>(x, y, output, threads),
        DType::I32 => in_threads::<i32>(x, y, output, threads),
        DType::I64 => in_threads::<i64>(x, y, output, threads),
    }
}

fn in_threads<T: Element>(
    x: &ScaledMatrix,
    y: Option<&ScaledMatrix>,
    output: &Output,
    threads: NonZeroUsize,
) -> Result<(), Failure> {
    let shape = output.shape();
    let across = shape.cols.div_ceil(EDGE);
    let squares = shape.rows.div_ceil(EDGE).saturating_mul(across);
    let next = AtomicU64::new(0);
    let work = || -> Result<(), MatrixError> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= squares {
                return Ok(());
            }
            let side = |at: u64, end: u64| Span::new(at * EDGE, end.min((at + 1) * EDGE));
            square::<T>(
                x,
                y,
                output,
                Rect::new(side(at / across, shape.rows), side(at % across, shape.cols)),
            )?;
        }
    };
    let others = to_u64(threads.get()).min(squares).saturating_sub(1);
    let results: Vec<_> = std::thread::scope(|scope| {
        // If the system gives no more threads, the threads that have started do the work.
        let started: Vec<_> =
            (0..others).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        let joined = started.into_iter().map(|thread| thread.join());
        let others =
            joined.map(|done| done.map_err(|_| Failure::failed("a thread of the sum failed".to_owned())));
        std::iter::once(Ok(own)).chain(others).collect()
    });
    results.into_iter().try_for_each(|result| Ok(result??))
}

/// One square of C.
fn square<T: Element>(
    x: &ScaledMatrix,
    y: Option<&ScaledMatrix>,
    output: &Output,
    rect: Rect,
) -> Result<(), MatrixError> {
    let (alpha, x) = x;
    let x_buffer = x.block(rect)?;
    let x_view = x.block_view::<T>(rect, &x_buffer);
    let y = y.map(|(beta, y)| Ok::<_, MatrixError>((*beta, y, y.block(rect)?))).transpose()?;
    let y_view = y.as_ref().map(|(beta, y, buffer)| (*beta, y.block_view::<T>(rect, buffer)));
    let mut lease = output.lease(rect);
    factors::scaled_sum((*alpha, x_view), y_view, lease.view_mut::<T>());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(spec: &str) -> Matrix {
        Matrix::open(spec).unwrap()
    }

    fn elements<T: Element>(matrix: &Matrix) -> Vec<Vec<T>> {
        let rect = Rect::new(Span::new(0, matrix.shape().rows), Span::new(0, matrix.shape().cols));
        let buffer = matrix.block(rect).unwrap();
        let view = matrix.block_view::<T>(rect, &buffer);
        (0..view.rows()).map(|i| (0..view.cols()).map(|j| view.at(i, j)).collect()).collect()
    }

    fn sum(x: &ScaledMatrix, y: Option<&ScaledMatrix>, threads: usize) -> Matrix {
        let output = Output::anonymous(x.1.shape(), x.1.dtype()).unwrap();
        scaled_sum(x, y, &output, NonZeroUsize::new(threads).unwrap()).unwrap();
        output.seal().unwrap().matrix().unwrap()
    }

    #[test]
    fn each_element_is_the_scaled_sum_for_any_layout_and_number_of_threads() {
        for threads in [1, 3] {
            let (x, y) = (matrix("random:700x530:f64:1"), matrix("random:530x700:f64:2").transposed());
            let c = elements::<f64>(&sum(&(2.5, x.clone()), Some(&(-3.0, y.clone())), threads));
            let (x, y) = (elements::<f64>(&x), elements::<f64>(&y));
            for i in 0..700 {
                for j in 0..530 {
                    assert_eq!(c[i][j], 2.5 * x[i][j] + -3.0 * y[i][j], "{i},{j}");
                }
            }
        }
    }

    #[test]
    fn one_matrix_is_scaled_and_integers_wrap() {
        let x = matrix("random:3x5:i32:1");
        let c = elements::<i32>(&sum(&(2_147_483_647.0, x.clone()), None, 2));
        for (c, x) in c.iter().flatten().zip(elements::<i32>(&x).iter().flatten()) {
            assert_eq!(*c, x.wrapping_mul(i32::MAX));
        }
    }

    #[test]
    fn matrices_without_elements_and_of_other_shapes() {
        let empty = sum(&(1.0, matrix("random:0x5:f32:1")), None, 2);
        assert_eq!(empty.shape().rows, 0);
        let output = Output::anonymous(matrix("random:2x3:f32:1").shape(), DType::F32).unwrap();
        let other = (1.0, matrix("random:3x2:f32:1"));
        let e = scaled_sum(&other, None, &output, NonZeroUsize::MIN).err().unwrap().text;
        assert!(e.contains("is 3x2 f32, but the sum is 2x3 f32"), "{e}");
    }
}
