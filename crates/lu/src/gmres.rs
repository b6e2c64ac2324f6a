//! GMRES in f64 with f32 factors as preconditioner (Saad, "A flexible inner-outer preconditioned GMRES algorithm", 1993; Carson
//! and Higham, "Accelerating the solution of linear systems by iterative refinement in three precisions", 2018).
//!
//! Place in the flow: HPL-MxP (`mxp.rs`) and `solve --refine` (`refine.rs`) correct a solution by f32 factors with it.
//!
//! Invariants: the factors are f32 numbers, but the substitution with them computes in f64: f32 arithmetic would
//! take more iterations for ill-conditioned matrices. The preconditioner stands right of A, so the norms that the iteration
//! minimises are those of the residual itself. A solution counts as converged only by a residual that was computed from A.
//!
//! Deliberately absent: several right-hand sides at once.

use crate::quality::{Residual, refined_error};
use crate::{LuError, MixedSystem};

/// Most iterations before the iteration begins again from the corrected solution; each keeps two vectors.
pub const KRYLOV_MAX: usize = 50;

/// The backward error counts the largest element of the residual, and the iteration knows its length ‖r‖₂ alone. Elements of even
/// size are ‖r‖₂/√n each; the largest is assumed to be this many times as long. Where it is longer, the iteration begins again.
const EVEN_SHARE: f64 = 8.0;

/// A solution of one system, corrected by GMRES.
#[derive(Clone, Debug)]
pub struct GmresSolution {
    /// The solution with the smallest residual.
    pub x: Vec<f64>,
    /// Its residual.
    pub residual: Residual,
    /// Iterations, each a product with A and a solution with the factors.
    pub iterations: usize,
    /// Whether the backward error is as small as by f64 factors.
    pub has_converged: bool,
}

impl MixedSystem<'_> {
    /// Corrects `x` to a solution of A x = b, for one right-hand side, in at most `iterations_max` iterations.
    pub fn gmres(&self, b: &[f64], x: Vec<f64>, iterations_max: usize) -> Result<GmresSolution, LuError> {
        let goal = refined_error(b.len());
        let largest = |v: &[f64]| v.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let zeros = vec![0.0; b.len()];
        let precondition = |v: &[f64]| {
            let mut z = v.to_vec();
            self.factors.solve_in_f64(&mut z).map(|()| z)
        };
        let multiply = |z: &[f64]| -> Result<Vec<f64>, LuError> {
            let mut product = self.a.residual(&zeros, z, 1)?.elements;
            product.iter_mut().for_each(|x| *x = -*x);
            Ok(product)
        };
        let found = self.a.residual(b, &x, 1)?;
        let mut best = GmresSolution { x, residual: found, iterations: 0, has_converged: false };
        loop {
            let error = best.residual.backward_error;
            best.has_converged = error <= goal;
            if best.has_converged || error.is_infinite() || best.iterations >= iterations_max {
                return Ok(best);
            }
            let scale = self.a.norm_inf() * largest(&best.x) + largest(b);
            let enough = goal * scale * ((b.len() as f64).sqrt() / EVEN_SHARE).max(1.0);
            let left = (iterations_max - best.iterations).min(KRYLOV_MAX);
            let step = correction(&best.residual.elements, enough, left, precondition, multiply)?;
            best.iterations += step.iterations;
            let x: Vec<f64> = best.x.iter().zip(&step.d).map(|(x, d)| x + d).collect();
            let found = self.a.residual(b, &x, 1)?;
            // Iterations that do not halve the error are followed by others like them.
            let is_stuck = found.backward_error > error / 2.0;
            if found.backward_error < error {
                best = GmresSolution { x, residual: found, ..best };
            }
            if is_stuck {
                best.has_converged = best.residual.backward_error <= goal;
                return Ok(best);
            }
        }
    }
}

/// The result of one run of the iteration.
struct Correction {
    /// An approximate solution of A d = r.
    d: Vec<f64>,
    iterations: usize,
}

/// Minimises ‖r − A d‖₂ over the span of the preconditioned Krylov vectors, until it is at most `enough` or after
/// `iterations_max` vectors. The iteration ends early at vectors that are not finite, and where A maps the next vector into the
/// span of those before it.
fn correction<E>(
    r: &[f64],
    enough: f64,
    iterations_max: usize,
    precondition: impl Fn(&[f64]) -> Result<Vec<f64>, E>,
    multiply: impl Fn(&[f64]) -> Result<Vec<f64>, E>,
) -> Result<Correction, E> {
    let begin = norm(r);
    let mut least = LeastSquares::new(begin);
    let (mut basis, mut directions): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    let mut next: Option<Vec<f64>> =
        (begin > 0.0 && begin.is_finite()).then(|| r.iter().map(|x| x / begin).collect());
    let mut iterations = 0;
    while let Some(v) = next.take().filter(|_| iterations < iterations_max) {
        let z = precondition(&v)?;
        let mut w = multiply(&z)?;
        iterations += 1;
        basis.push(v);
        let mut column = orthogonalise(&mut w, &basis);
        let length = norm(&w);
        column.push(length);
        if column.iter().any(|h| !h.is_finite()) || !least.add(column) {
            break;
        }
        directions.push(z);
        if least.left() > enough && length > 0.0 {
            w.iter_mut().for_each(|x| *x /= length);
            next = Some(w);
        }
    }
    let mut d = vec![0.0; r.len()];
    for (y, z) in least.solution().iter().zip(&directions) {
        d.iter_mut().zip(z).for_each(|(d, z)| *d += y * z);
    }
    Ok(Correction { d, iterations })
}

/// Subtracts from `w` its parts in the directions of `basis`, twice, since the first time leaves rounding errors of them (Giraud
/// et al. 2005). Returns the parts.
fn orthogonalise(w: &mut [f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut parts = vec![0.0; basis.len()];
    for _ in 0..2 {
        for (part, v) in parts.iter_mut().zip(basis) {
            let along: f64 = w.iter().zip(v).map(|(w, v)| w * v).sum();
            w.iter_mut().zip(v).for_each(|(w, v)| *w -= along * v);
            *part += along;
        }
    }
    parts
}

/// ‖v‖₂, also where the squares leave the range of f64.
fn norm(v: &[f64]) -> f64 {
    if v.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let most = v.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    if most == 0.0 || most.is_infinite() {
        return most;
    }
    most * v.iter().map(|x| (x / most) * (x / most)).sum::<f64>().sqrt()
}

/// The least-squares problem ‖β e₁ − H y‖ of GMRES with a Hessenberg matrix that grows by columns, kept triangular by Givens
/// rotations.
struct LeastSquares {
    /// Columns of the triangle: column j has j + 1 elements.
    triangle: Vec<Vec<f64>>,
    /// Cosine and sine of each rotation.
    rotations: Vec<(f64, f64)>,
    /// The rotated right-hand side: one element more than columns.
    right: Vec<f64>,
}

impl LeastSquares {
    fn new(begin: f64) -> Self {
        Self { triangle: Vec::new(), rotations: Vec::new(), right: vec![begin] }
    }

    /// Adds a column, one element longer than the triangle will be wide. Returns false, and adds nothing, if it depends on those
    /// before it, as where A is singular.
    fn add(&mut self, mut column: Vec<f64>) -> bool {
        for (k, (c, s)) in self.rotations.iter().enumerate() {
            let (upper, lower) = (column[k], column[k + 1]);
            (column[k], column[k + 1]) = (c * upper + s * lower, c * lower - s * upper);
        }
        let j = self.rotations.len();
        let length = column[j].hypot(column[j + 1]);
        if length == 0.0 {
            return false;
        }
        let (c, s) = (column[j] / length, column[j + 1] / length);
        column[j] = length;
        column.truncate(j + 1);
        let last = self.right[j];
        self.right[j] = c * last;
        self.right.push(-s * last);
        self.rotations.push((c, s));
        self.triangle.push(column);
        true
    }

    /// The norm that is left of the residual.
    fn left(&self) -> f64 {
        self.right.last().map_or(0.0, |x| x.abs())
    }

    /// y, by back-substitution.
    fn solution(&self) -> Vec<f64> {
        let mut y = self.right[..self.triangle.len()].to_vec();
        for j in (0..y.len()).rev() {
            y[j] /= self.triangle[j][j];
            let (head, tail) = y.split_at_mut(j);
            head.iter_mut().zip(&self.triangle[j]).for_each(|(y, h)| *y -= tail[0] * h);
        }
        y
    }
}

#[cfg(test)]
mod tests;
