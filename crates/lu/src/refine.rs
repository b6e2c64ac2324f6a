//! Mixed precision: factors in `f32`, corrected in `f64` until the solution is as good as one by `f64` factors (Wilkinson;
//! Langou et al., "Exploiting the performance of 32 bit floating point arithmetic", SC 2006; LAPACK's `dsgesv`).
//!
//! Place in the flow: `solve --refine`, with factors in this process or at workers. The caller factors in `f64` if this does not
//! converge.
//!
//! Invariant: a solution counts as refined only if its backward error, measured in f64, is below √n times the unit roundoff of
//! f64.

use crate::load::MatrixNorms;
use crate::quality::{Residual, refined_error, residual};
use crate::{LuError, LuFactors, LuKernels};
use bramble_matrix::Matrix;

/// Most corrections, as in LAPACK.
const ROUNDS_MAX: usize = 30;

/// The factors of a matrix rounded to f32, wherever they are. Right-hand sides have elements of about 1 at most, since the range
/// of f32 is short.
pub trait RoundedFactors {
    /// Roughly `X = A⁻¹ X` for n × `width` right-hand sides in rows.
    fn solve_rows(&self, x: &mut [f64], width: usize) -> Result<(), LuError>;

    /// The same for one right-hand side, with all arithmetic in f64.
    fn solve_in_f64(&self, x: &mut [f64]) -> Result<(), LuError>;
}

impl RoundedFactors for LuFactors<f32> {
    fn solve_rows(&self, x: &mut [f64], width: usize) -> Result<(), LuError> {
        let mut rounded: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        self.solve(&mut rounded, width);
        x.iter_mut().zip(&rounded).for_each(|(x, d)| *x = f64::from(*d));
        Ok(())
    }

    fn solve_in_f64(&self, x: &mut [f64]) -> Result<(), LuError> {
        Self::solve_in_f64(self, x);
        Ok(())
    }
}

/// The factors by which right-hand sides in rows are divided before they are solved with f32 factors: the largest absolute value
/// of each, or 1.
pub fn right_scales(b: &[f64], width: usize) -> Vec<f64> {
    let mut scales = vec![0.0f64; width];
    for row in b.chunks_exact(width.max(1)) {
        scales.iter_mut().zip(row).for_each(|(scale, b)| *scale = scale.max(b.abs()));
    }
    scales.iter_mut().filter(|scale| **scale == 0.0).for_each(|scale| *scale = 1.0);
    scales
}

/// A square matrix in its own precision, wherever its elements are.
pub trait ExactMatrix {
    /// ‖A‖∞.
    fn norm_inf(&self) -> f64;

    /// B − A X for `width` right-hand sides in rows, computed in f64.
    fn residual(&self, b: &[f64], x: &[f64], width: usize) -> Result<Residual, LuError>;
}

/// A matrix that this process can read.
#[derive(Clone, Copy)]
pub struct ReadMatrix<'a> {
    /// The matrix.
    pub a: &'a Matrix,
    /// Its norms.
    pub norms: &'a MatrixNorms,
    /// Kernels for f64.
    pub kernels: &'a LuKernels,
}

impl ExactMatrix for ReadMatrix<'_> {
    fn norm_inf(&self) -> f64 {
        self.norms.inf
    }

    fn residual(&self, b: &[f64], x: &[f64], width: usize) -> Result<Residual, LuError> {
        residual(self.a, self.norms, b, x, width, self.kernels)
    }
}

/// A square matrix with its factors in f32.
#[derive(Clone, Copy)]
pub struct MixedSystem<'a> {
    /// The matrix.
    pub a: &'a dyn ExactMatrix,
    /// The factors of the matrix rounded to f32.
    pub factors: &'a dyn RoundedFactors,
}

/// A refined solution.
#[derive(Clone, Debug)]
pub struct Refined {
    /// n × `width` in rows.
    pub x: Vec<f64>,
    /// Its residual.
    pub residual: Residual,
    /// Corrections after the first solution.
    pub rounds: usize,
    /// Iterations of GMRES after them, for all right-hand sides together.
    pub iterations: usize,
    /// Whether the backward error is as small as by f64 factors.
    pub has_converged: bool,
}

impl MixedSystem<'_> {
    /// Solves A X = B for `width` right-hand sides in rows. Where plain corrections do not converge, as for a condition of 10⁸,
    /// GMRES goes on, with at most `iterations_max` iterations for all right-hand sides together.
    pub fn refine(&self, b: &[f64], width: usize, iterations_max: usize) -> Result<Refined, LuError> {
        let mut x = vec![0.0; b.len()];
        self.correct(&mut x, b, width)?;
        self.refine_from(x, b, width, iterations_max)
    }

    /// The same from a first solution by the factors.
    pub fn refine_from(
        &self,
        first: Vec<f64>,
        b: &[f64],
        width: usize,
        iterations_max: usize,
    ) -> Result<Refined, LuError> {
        let (mut x, mut before) = (first, vec![0.0; b.len()]);
        let goal = refined_error(b.len() / width.max(1));
        let (mut error, mut rounds) = (f64::INFINITY, 0);
        loop {
            let now = self.a.residual(b, &x, width)?;
            let has_converged = now.backward_error <= goal;
            // A round that does not halve the error is followed by others like it.
            let is_stuck = now.backward_error.is_nan() || now.backward_error > error / 2.0;
            let is_better = now.backward_error < error;
            let found = Refined { x, residual: now, rounds, iterations: 0, has_converged };
            if has_converged || rounds == ROUNDS_MAX || is_stuck && iterations_max == 0 {
                return Ok(found);
            }
            if is_stuck {
                let x = if is_better { found.x } else { before };
                return self.by_gmres(b, width, iterations_max, Refined { x, ..found });
            }
            (error, rounds) = (found.residual.backward_error, rounds + 1);
            x = found.x.clone();
            before = found.x;
            self.correct(&mut x, &found.residual.elements, width)?;
        }
    }

    /// `x += A⁻¹ r`, each right-hand side scaled to 1 for the f32 factors, whose range is short.
    fn correct(&self, x: &mut [f64], r: &[f64], width: usize) -> Result<(), LuError> {
        let scales = right_scales(r, width);
        let mut d: Vec<f64> = r.iter().enumerate().map(|(at, r)| r / scales[at % width]).collect();
        self.factors.solve_rows(&mut d, width)?;
        x.iter_mut().zip(&d).enumerate().for_each(|(at, (x, d))| *x += d * scales[at % width]);
        Ok(())
    }

    /// Corrects `found` by GMRES, one right-hand side after another, and stops at one that does not converge.
    fn by_gmres(
        &self,
        b: &[f64],
        width: usize,
        iterations_max: usize,
        mut found: Refined,
    ) -> Result<Refined, LuError> {
        let column = |of: &[f64], at: usize| of.iter().skip(at).step_by(width).copied().collect::<Vec<f64>>();
        for at in 0..width {
            let left = iterations_max - found.iterations;
            let one = self.gmres(&column(b, at), column(&found.x, at), left)?;
            found.x.iter_mut().skip(at).step_by(width).zip(&one.x).for_each(|(x, new)| *x = *new);
            found.iterations += one.iterations;
            if !one.has_converged {
                break;
            }
        }
        found.residual = self.a.residual(b, &found.x, width)?;
        found.has_converged = found.residual.backward_error <= refined_error(b.len() / width);
        Ok(found)
    }
}
