//! The quality of a solution, by its residual B − A X from the matrix as it was read; and of factors, by P A w against L U w.
//!
//! Invariant: computed in f64 also for `f32` matrices, whose products are then exact, so that the residual shows the error of
//! the solution and not its own.

use crate::hpl::THRESHOLD;
use crate::load::MatrixNorms;
use crate::working::rect;
use crate::{LuError, LuKernels, multiplied_back};
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

impl Residual {
    /// From the elements of B − A X, ‖A‖∞, and B and X in rows of `width` elements.
    pub fn of(elements: Vec<f64>, norm_inf: f64, b: &[f64], x: &[f64], width: usize) -> Self {
        let (backward_error, norm) = worst(&elements, norm_inf, b, x, width);
        Self { elements, backward_error, norm }
    }
}

/// The largest backward error that is accepted of a system of that order whose solution has that type: HPL's threshold, in units
/// of the last place times the order.
pub fn accepted_error(order: usize, dtype: DType) -> f64 {
    let unit = if dtype == DType::F32 { <f32 as LuElement>::UNIT } else { <f64 as LuElement>::UNIT };
    THRESHOLD * order.max(1) as f64 * unit
}

/// The backward error from which on a solution that was corrected is as good as one by f64 factors (LAPACK's `dsgesv`).
pub(crate) fn refined_error(order: usize) -> f64 {
    (order as f64).sqrt() * <f64 as LuElement>::UNIT
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
    if let Some(lines) = a.lines(rect(0..rows, 0..cols)) {
        let (x, c) = (View::row_major(x, cols, width), ViewMut::row_major(&mut elements, rows, width));
        kernels.all.multiply(Product::new(-1.0, lines.view(), x, 1.0, c).into());
        return Ok(Residual::of(elements, norms.inf, b, x.data(), width));
    }
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
    Ok(Residual::of(elements, norms.inf, b, x, width))
}

/// ‖A w − Pᵀ L U w‖∞ / (‖A‖∞ ‖w‖∞) for a vector w of random signs and sizes (Freivalds 1977), with L, U and the exchanges of rows
/// as [`multiplied_back`] takes them. Infinite if an element is no number. Accepted is [`accepted_error`].
pub fn factors_error<T: LuElement>(
    a: &Matrix,
    norms: &MatrixNorms,
    (factors, pivots): (View<'_, T>, &[usize]),
    kernels: &LuKernels,
) -> Result<f64, LuError> {
    let w = random_vector(a.shape().cols as usize);
    let product = multiplied_back(factors, pivots, &w);
    let found = residual(a, norms, &product, &w, 1, kernels)?;
    let largest = |of: &[f64]| {
        of.iter().fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) })
    };
    let (difference, scale) = (largest(&found.elements), norms.inf * largest(&w));
    Ok(if difference == 0.0 { 0.0 } else { difference / scale })
}

/// Elements between ½ and 1 with random signs, from the time and the addresses of this run, so that no error can be made to fit.
fn random_vector(len: usize) -> Vec<f64> {
    use std::hash::{BuildHasher, RandomState};
    let mut state = RandomState::new().hash_one(len) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len)
        .map(|_| {
            let draw = next();
            let size = 0.5 + (draw >> 12) as f64 / (1u64 << 53) as f64;
            if draw & 1 == 0 { size } else { -size }
        })
        .collect()
}

/// The largest backward error of a right-hand side, and its residual. NaN counts as infinite.
fn worst(r: &[f64], norm_inf: f64, b: &[f64], x: &[f64], width: usize) -> (f64, f64) {
    let largest = |of: &[f64], column: usize| {
        of.iter()
            .skip(column)
            .step_by(width.max(1))
            .fold(0.0, |most: f64, v| if v.is_nan() { f64::INFINITY } else { most.max(v.abs()) })
    };
    (0..width).fold((0.0, 0.0), |worst: (f64, f64), column| {
        let (r, scale) = (largest(r, column), norm_inf * largest(x, column) + largest(b, column));
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
    fn one_changed_element_of_the_factors_is_seen() {
        let n = 40;
        let draw = |i: usize| (i * 7919 % 101) as f64 - 50.0;
        let elements: Vec<f64> = (0..n * n).map(draw).collect();
        let bytes: Vec<u8> = bytemuck::cast_slice(&elements).to_vec();
        let shape = bramble_matrix::Shape::new(n as u64, n as u64);
        let from = |bytes: Vec<u8>| {
            Matrix::from_shared("a", std::sync::Arc::new(bytes), 0, shape, DType::F64, Layout::RowMajor)
                .unwrap()
        };
        let a = from(bytes);
        let kernels = LuKernels::open(Some(bramble_kernel::KernelName::Simd), DType::F64, 0.0, 1).unwrap();
        let working = crate::WorkingMatrix::zeros::<f64>(n, n).unwrap();
        let norms = crate::load::<f64, f64>(&a, &working, 0, 1).unwrap();
        let options = crate::LuOptions { threads: 1, block: 8 };
        let factors = crate::LuFactors::<f64>::new(&working, n, &kernels, options).unwrap();
        let factors = factors.finished(&working).unwrap();
        let pivots = &factors.elimination().pivots;
        let error = factors_error(&a, &norms, (factors.view(), pivots), &kernels).unwrap();
        assert!(error <= accepted_error(n, DType::F64), "{error}");
        let mut changed: Vec<f64> = (0..n * n).map(|at| factors.view().at(at / n, at % n)).collect();
        for (at, by) in [(n * n - 1, 1e-3), (n * n - n, 1e-3), (5, f64::NAN)] {
            let old = std::mem::replace(&mut changed[at], f64::NAN);
            changed[at] = old + by;
            let view = View::row_major(&changed, n, n);
            let error = factors_error(&a, &norms, (view, pivots), &kernels).unwrap();
            assert!(error > accepted_error(n, DType::F64), "element {at}: {error}");
            changed[at] = old;
        }
        // The same factors from memory solve as those do.
        let memory = from(bytemuck::cast_slice(&changed).to_vec());
        let made = factors.elimination().clone();
        let given = crate::LuFactors::<f64>::given(&memory, made, &kernels, options).unwrap();
        let (mut x, mut y): (Vec<f64>, Vec<f64>) = ((0..n).map(draw).collect(), (0..n).map(draw).collect());
        given.solve(&mut x, 1);
        factors.solve(&mut y, 1);
        assert_eq!(x, y);
    }

    #[test]
    fn the_worst_right_hand_side_counts_and_nan_is_infinite() {
        // Two right-hand sides in rows: errors 0.1/(2 · 1 + 1) and 0.3/(2 · 2 + 2).
        let worst_of = |r: [f64; 4]| worst(&r, 2.0, &[1.0, 2.0, 0.0, 1.0], &[1.0, -2.0, 0.5, 0.0], 2);
        assert_eq!(worst_of([0.1, 0.3, 0.0, -0.2]), (0.3 / 6.0, 0.3));
        assert_eq!(worst_of([0.0; 4]), (0.0, 0.0));
        assert_eq!(worst_of([0.0, f64::NAN, 0.0, 0.0]).0, f64::INFINITY);
    }
}
