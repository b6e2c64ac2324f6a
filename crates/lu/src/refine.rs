//! Mixed precision: factors in `f32`, corrected in `f64` until the solution is as good as one by `f64` factors (Wilkinson;
//! Langou et al., "Exploiting the performance of 32 bit floating point arithmetic", SC 2006; LAPACK's `dsgesv`).
//!
//! Place in the flow: `solve --refine`. The caller factors in `f64` if this does not converge.
//!
//! Invariant: a solution counts as refined only if its backward error, measured in f64, is below √n times the unit roundoff of
//! f64.

use crate::load::MatrixNorms;
use crate::quality::{Residual, residual};
use crate::{LuError, LuFactors, LuKernels};
use bramble_kernel::lu::LuElement;
use bramble_matrix::Matrix;

/// Most corrections, as in LAPACK.
const ROUNDS_MAX: usize = 30;

/// A refined solution.
#[derive(Clone, Debug)]
pub struct Refined {
    /// n × `width` in rows.
    pub x: Vec<f64>,
    /// Its residual.
    pub residual: Residual,
    /// Corrections after the first solution.
    pub rounds: usize,
    /// Whether the backward error is as small as by f64 factors.
    pub has_converged: bool,
}

/// Solves A X = B with the factors of A rounded to f32. `kernels` are for f64.
pub fn refine(
    a: &Matrix,
    norms: &MatrixNorms,
    b: &[f64],
    width: usize,
    factors: &LuFactors<f32>,
    kernels: &LuKernels,
) -> Result<Refined, LuError> {
    let n = a.shape().rows as usize;
    let goal = (n as f64).sqrt() * <f64 as LuElement>::UNIT;
    let mut x = vec![0.0; b.len()];
    let (mut left, mut error, mut rounds) = (b.to_vec(), f64::INFINITY, 0);
    loop {
        correct(&mut x, &left, width, factors);
        let now = residual(a, norms, b, &x, width, kernels)?;
        let has_converged = now.backward_error <= goal;
        // A round that does not halve the error is followed by others like it.
        let is_stuck = now.backward_error.is_nan() || now.backward_error > error / 2.0;
        if has_converged || is_stuck || rounds == ROUNDS_MAX {
            return Ok(Refined { x, residual: now, rounds, has_converged });
        }
        (left, error, rounds) = (now.elements, now.backward_error, rounds + 1);
    }
}

/// `x += A⁻¹ r`, each right-hand side scaled to 1 for the f32 factors, whose range is short.
fn correct(x: &mut [f64], r: &[f64], width: usize, factors: &LuFactors<f32>) {
    let mut scales = vec![0.0f64; width];
    for row in r.chunks_exact(width.max(1)) {
        scales.iter_mut().zip(row).for_each(|(scale, r)| *scale = scale.max(r.abs()));
    }
    let scale = |column: usize| if scales[column] > 0.0 { scales[column] } else { 1.0 };
    let mut d: Vec<f32> = r.iter().enumerate().map(|(at, r)| (r / scale(at % width)) as f32).collect();
    factors.solve(&mut d, width);
    x.iter_mut().zip(&d).enumerate().for_each(|(at, (x, d))| *x += f64::from(*d) * scale(at % width));
}
