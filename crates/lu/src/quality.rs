//! The quality of a solution: its residual B − A X, from the matrix as it was read.
//!
//! Invariant: computed in f64 also for `f32` matrices, whose products are then exact, so that the residual shows the error of
//! the solution and not its own.

use crate::hpl::THRESHOLD;
use crate::load::MatrixNorms;
use crate::working::rect;
use crate::{LuError, LuKernels};
use bramble_kernel::Product;
use bramble_kernel::lu::LuElement;
use bramble_matrix::{DType, Layout, Matrix, View, ViewMut};

/// Bytes of A that are read at a time.
const PIECE_BYTES: u64 = 32 << 20;

/// B − A X, and the backward error of X.
#[derive(Clone, Debug)]
pub struct Residual {
    /// B − A X, n × `width` in rows.
    pub elements: Vec<f64>,
    /// The largest over the right-hand sides of ‖b − A x‖∞ / (‖A‖∞ ‖x‖∞ + ‖b‖∞): the smallest relative change of A and b for
    /// which x is the exact solution (Rigal & Gaches 1967).
    pub backward_error: f64,
    /// ‖B − A X‖∞ of the right-hand side with that error.
    pub norm: f64,
}

/// The largest backward error that is accepted of a system of that order whose solution has that type: HPL's threshold, in units
/// of the last place times the order.
pub fn accepted_error(order: usize, dtype: DType) -> f64 {
    let unit = if dtype == DType::F32 { <f32 as LuElement>::UNIT } else { <f64 as LuElement>::UNIT };
    THRESHOLD * order.max(1) as f64 * unit
}

/// Elements as a matrix of that type has them.
pub fn rounded(x: &[f64], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => x.iter().map(|x| f64::from(*x as f32)).collect(),
        _ => x.to_vec(),
    }
}

/// The residual of the `width` solutions in the rows of `x`, for an A of any shape; `kernels` are for f64.
pub fn residual(
    a: &Matrix,
    norms: &MatrixNorms,
    b: &[f64],
    x: &[f64],
    width: usize,
    kernels: &LuKernels,
) -> Result<Residual, LuError> {
    let a = a.clone().converted(DType::F64)?;
    let (rows, cols) = (a.shape().rows as usize, a.shape().cols as usize);
    let is_row = a.layout() == Layout::RowMajor;
    let (lines, within) = if is_row { (rows, cols) } else { (cols, rows) };
    let mut elements = b.to_vec();
    let step = (PIECE_BYTES / 8 / (within as u64).max(1)).max(1) as usize;
    let mut piece = Vec::new();
    for start in (0..lines).step_by(step) {
        let some = start..lines.min(start + step);
        let part = if is_row { rect(some.clone(), 0..cols) } else { rect(0..rows, some.clone()) };
        piece.resize(some.len() * within, 0.0);
        a.read_block(part, bytemuck::cast_slice_mut(&mut piece))?;
        let in_rows = View::row_major(&piece, some.len(), within);
        let of_some = some.start * width..some.end * width;
        let (left, x, c) = if is_row {
            (in_rows, x, &mut elements[of_some])
        } else {
            (in_rows.transposed(), &x[of_some], &mut elements[..])
        };
        let (right, c) = (View::row_major(x, left.cols(), width), ViewMut::row_major(c, left.rows(), width));
        kernels.all.multiply(Product::new(-1.0, left, right, 1.0, c).into());
    }
    let (backward_error, norm) = worst(&elements, norms, b, x, width);
    Ok(Residual { elements, backward_error, norm })
}

/// The largest backward error of a right-hand side, and its residual. NaN counts as infinite.
fn worst(r: &[f64], norms: &MatrixNorms, b: &[f64], x: &[f64], width: usize) -> (f64, f64) {
    let largest = |of: &[f64], column: usize| {
        of.iter()
            .skip(column)
            .step_by(width.max(1))
            .fold(0.0, |most: f64, v| if v.is_nan() { f64::INFINITY } else { most.max(v.abs()) })
    };
    (0..width).fold((0.0, 0.0), |worst: (f64, f64), column| {
        let (r, scale) = (largest(r, column), norms.inf * largest(x, column) + largest(b, column));
        let error = match r {
            0.0 => 0.0,
            r if r.is_finite() && scale.is_finite() => r / scale,
            _ => f64::INFINITY,
        };
        if error > worst.0 { (error, r) } else { worst }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_right_hand_side_counts_and_nan_is_infinite() {
        let norms = MatrixNorms { one: 1.0, inf: 2.0, max: 1.0 };
        // Two right-hand sides in rows: errors 0.1/(2 · 1 + 1) and 0.3/(2 · 2 + 2).
        let worst_of = |r: [f64; 4]| worst(&r, &norms, &[1.0, 2.0, 0.0, 1.0], &[1.0, -2.0, 0.5, 0.0], 2);
        assert_eq!(worst_of([0.1, 0.3, 0.0, -0.2]), (0.3 / 6.0, 0.3));
        assert_eq!(worst_of([0.0; 4]), (0.0, 0.0));
        assert_eq!(worst_of([0.0, f64::NAN, 0.0, 0.0]).0, f64::INFINITY);
    }
}
