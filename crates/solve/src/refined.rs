//! What this process knows of a solution by workers: whether it is good, and with `--refine` its corrections.
//!
//! Place in the flow: `workers.rs` passes it to the primary, which calls it on a thread of its own, and takes the result from it.
//!
//! Invariants: residuals are computed from the matrix as this process reads it. Right-hand sides go to f32 factors scaled to 1.

use crate::failure;
use crate::report::Refinement;
use crate::system::iterations_max;
use bramble_lu::{
    LuError, LuKernels, MatrixNorms, MixedSystem, ReadMatrix, Refined, Residual, RoundedFactors,
    accepted_error, residual, right_scales, rounded,
};
use bramble_matrix::{DType, Layout, Matrix, Shape};
use bramble_primary::{FirstSolution, SolutionRefinement, SystemAtWorkers, SystemSource};
use bramble_report::exit::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// X as it is written, and how good it is.
type Judged = (Vec<f64>, Result<Residual, LuError>);

/// What a solution is judged with.
pub(crate) struct Judging {
    pub(crate) a: Matrix,
    pub(crate) norms: MatrixNorms,
    /// In f64, in rows.
    pub(crate) b: Vec<f64>,
    /// For f64.
    pub(crate) kernels: LuKernels,
}

/// Judges a solution, and keeps the residual.
pub(crate) struct SolutionJudge {
    with: Judging,
    /// Right-hand sides.
    width: usize,
    /// Element type of the solution.
    dtype: DType,
    /// What right-hand sides are divided by before they go to f32 factors.
    scales: Vec<f64>,
    judged: Mutex<Option<Judged>>,
    refined: Mutex<Option<Refined>>,
}

/// Factors in f32 at workers, which compute with them in f64.
pub(crate) struct DistantFactors(pub(crate) SystemAtWorkers);

impl RoundedFactors for DistantFactors {
    fn solve_rows(&self, x: &mut [f64], width: usize) -> Result<(), LuError> {
        let solved = self.0.solve(x.to_vec(), width).ok_or(LuError::FactorsGone)?;
        x.copy_from_slice(&solved);
        Ok(())
    }

    fn solve_in_f64(&self, x: &mut [f64]) -> Result<(), LuError> {
        self.solve_rows(x, 1)
    }
}

impl SolutionJudge {
    /// Nothing has been judged.
    pub(crate) fn new(with: Judging, width: usize, dtype: DType) -> Self {
        let scales = right_scales(&with.b, width);
        Self { with, width, dtype, scales, judged: Mutex::default(), refined: Mutex::default() }
    }

    fn order(&self) -> usize {
        self.with.b.len() / self.width.max(1)
    }

    /// Whether X is accepted.
    pub(crate) fn check(&self, x: &[f64]) -> bool {
        let Judging { a, norms, b, kernels } = &self.with;
        let x = rounded(x, self.dtype);
        let quality = residual(a, norms, b, &x, self.width, kernels);
        let tolerance = accepted_error(self.order(), self.dtype);
        let is_accepted = quality.as_ref().is_ok_and(|quality| quality.backward_error <= tolerance);
        *lock(&self.judged) = Some((x, quality));
        is_accepted
    }

    /// The system whose right-hand sides are scaled for f32.
    pub(crate) fn rounded(&self) -> Result<SystemSource, Failure> {
        let Judging { a, b, .. } = &self.with;
        let scaled: Vec<f64> = b.iter().zip(self.scales.iter().cycle()).map(|(b, scale)| b / scale).collect();
        let shape = Shape::new(self.order() as u64, self.width as u64);
        let bytes = Arc::new(bytemuck::cast_slice::<f64, u8>(&scaled).to_vec());
        let b =
            Matrix::from_shared("scaled right-hand sides", bytes, 0, shape, DType::F64, Layout::RowMajor)?;
        Ok(SystemSource::Given { a: a.clone(), b })
    }

    /// Corrects a solution of that system. `None` if an element of A is beyond the range of f32.
    pub(crate) fn refinement(self: Arc<Self>) -> Option<SolutionRefinement> {
        let is_in_range = self.with.norms.max <= f64::from(f32::MAX);
        is_in_range.then(|| -> SolutionRefinement { Arc::new(move |first| self.refine(first)) })
    }

    /// Whether the solution has become as good as by factors in f64.
    fn refine(&self, first: FirstSolution) -> bool {
        let FirstSolution { mut x, factors, workers, fits_in_f64 } = first;
        let Judging { a, norms, b, kernels } = &self.with;
        x.iter_mut().zip(self.scales.iter().cycle()).for_each(|(x, scale)| *x *= scale);
        let factors = DistantFactors(factors);
        let full = ReadMatrix { a, norms, kernels };
        let system = MixedSystem { a: &full, factors: &factors };
        let most = iterations_max((self.order(), self.width), workers, fits_in_f64);
        // An error in reading A comes again where the solution in f64 is judged; without factors the run has ended.
        let found = system.refine_from(x, b, self.width, most).ok();
        let has_converged = found.as_ref().is_some_and(|found| found.has_converged);
        // A run that has lost a worker has found nothing, and the next one may have begun.
        if found.is_some() {
            *lock(&self.refined) = found;
        }
        has_converged
    }

    /// X, its quality, and how the refinement ended.
    pub(crate) fn found(
        &self,
        is_refined: bool,
    ) -> Result<(Vec<f64>, Residual, Option<Refinement>), Failure> {
        let refined = lock(&self.refined).take();
        let (rounds, iterations) = refined.as_ref().map_or((0, 0), |found| (found.rounds, found.iterations));
        let refinement = Some(Refinement { rounds, iterations, has_converged: is_refined });
        if let Some(Refined { x, residual, .. }) = refined.filter(|_| is_refined) {
            return Ok((x, residual, refinement));
        }
        let judged = lock(&self.judged).take();
        let (x, quality) = judged.ok_or_else(|| Failure::failed("the solution was not checked"))?;
        Ok((x, quality.map_err(failure)?, refinement))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
