//! Recomputes chosen rows of A B element by element, more exactly than any kernel.
//!
//! Place: used by arbitration, by full effort, and for rows with NaN or infinities. Columns are recomputed as the
//! rows of the transposed problem.
//!
//! Invariants: elements do not depend on the number of threads. Memory: the chosen rows of A, and per
//! thread one tile of B and the sums of `WIDTH` columns.
//!
//! It compares nothing with C: that is the callers' part.

use super::TileLevels;
use super::scalar::{HasFma, Scalar, with_widest_vectors};
use super::tile::{Loader, parallel, zeros};
use bramble_matrix::{Element, Matrix, MatrixError, Rect, Span};

/// Columns computed together: the sums of 32 rows then fit the second-level cache.
const WIDTH: u64 = 128;
/// Rows of B per tile.
const DEPTH: u64 = 256;
/// The most rows computed in one pass over B.
const BATCH: u64 = 32;
/// The most elements of A held at once.
const HELD: u64 = 1 << 23;

/// A product to be checked: C should be `alpha` A B + `beta` C0.
#[derive(Clone)]
pub(super) struct VerifyProblem {
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) c: Matrix,
    /// Absent if beta is 0: C0 must not be read then.
    pub(super) c0: Option<Matrix>,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// Terms of each inner product; 0 if alpha is 0, since A and B must not be read then.
    pub(super) depth: u64,
    /// Levels of Strassen–Winograd in the plan. If above 0, every side is long enough to be halved that often.
    pub(super) levels: u32,
    /// Levels of kernels inside tiles, at least one in each entry. Empty if `levels` is above 0.
    pub(super) tiles: Vec<TileLevels>,
    pub(super) threads: usize,
    /// The most terms that are recomputed where everything is suspect.
    pub(super) terms_max: u64,
    /// Full effort recomputes everything up to this many terms, even without an alarm.
    pub(super) recomputed_max: u64,
}

impl VerifyProblem {
    /// The most levels that any element may have been computed with.
    pub(super) fn levels_most(&self) -> u32 {
        let inside = self.tiles.iter().map(|t| t.most(self.c.shape(), self.depth));
        inside.fold(self.levels, u32::max)
    }

    /// The same product as Cᵀ = Bᵀ Aᵀ; copies no element. For classical products only: the transposed recipe of
    /// Strassen–Winograd is a different recipe.
    pub(super) fn transposed(&self) -> Self {
        assert_eq!(self.levels_most(), 0, "only classical products can be checked by columns");
        Self {
            tiles: Vec::new(),
            a: self.b.clone().transposed(),
            b: self.a.clone().transposed(),
            c: self.c.clone().transposed(),
            c0: self.c0.clone().map(Matrix::transposed),
            ..*self
        }
    }

    /// The same product restricted to some columns of B. For classical products only: levels of Strassen–Winograd mix
    /// columns that are far apart.
    pub(super) fn columns(&self, cols: Span) -> Self {
        assert_eq!(self.levels_most(), 0, "only classical products can be cut by columns");
        let side = |rows: u64| Rect::new(Span::new(0, rows), cols);
        Self {
            a: self.a.clone(),
            b: self.b.part(side(self.b.shape().rows)),
            c: self.c.part(side(self.c.shape().rows)),
            c0: self.c0.as_ref().map(|c0| c0.part(side(c0.shape().rows))),
            tiles: Vec::new(),
            ..*self
        }
    }

    /// Cuts a list of rows into batches, each recomputed in one pass over B.
    pub(super) fn batches<'a>(&self, rows: &'a [u64]) -> std::slice::Chunks<'a, u64> {
        rows.chunks((HELD / self.depth.max(1)).clamp(1, BATCH) as usize)
    }
}

/// The recomputed elements of the chosen rows in some columns.
pub(super) struct Chunk<'a, X> {
    /// The chosen rows.
    pub(super) rows: &'a [u64],
    /// These rows of A, contiguous.
    pub(super) a: &'a [X],
    /// The columns.
    pub(super) cols: Span,
    /// Σ a b as `hi + lo`, row after row.
    pub(super) hi: Vec<X>,
    /// See `hi`.
    pub(super) lo: Vec<X>,
    /// Σ |a| |b| (floats only).
    pub(super) mag: Vec<X>,
}

impl<X: Element> Chunk<'_, X> {
    /// The chunk's part of `matrix` (C or C0), row after row.
    pub(super) fn same_place<T: Scalar<X = X>>(
        &self,
        loader: &mut Loader,
        matrix: &Matrix,
    ) -> Result<Vec<X>, MatrixError> {
        let width = self.cols.len() as usize;
        let mut values = zeros(self.rows.len() * width)?;
        for (row, out) in self.rows.iter().zip(values.chunks_exact_mut(width)) {
            let rect = Rect::new(Span::new(*row, row + 1), self.cols);
            loader.gather::<T, X>(matrix, rect, T::widen, out)?;
        }
        Ok(values)
    }

    /// Σ a b as `hi`, `lo`, and Σ |a b|, over finite factors only and with every a multiplied by `scale`: for sums that
    /// leave f64's range.
    pub(super) fn smaller<T: Scalar<X = X>>(
        &self,
        problem: &VerifyProblem,
        loader: &mut Loader,
        scale: X,
    ) -> Result<[Vec<X>; 3], MatrixError> {
        let width = self.cols.len() as usize;
        let len = self.rows.len() * width;
        let mut sums: [Vec<X>; 3] = [zeros(len)?, zeros(len)?, zeros(len)?];
        let mut finite: Vec<X> = zeros(width)?;
        let or_zero = |x: X| if x.to_f64().is_finite() { x } else { X::ZERO };
        self.for_each_term::<T>(problem, loader, |row, a, b| {
            finite.iter_mut().zip(b).for_each(|(to, from)| *to = or_zero(*from));
            let at = row * width..(row + 1) * width;
            let [hi, lo, mag] = &mut sums;
            let a = or_zero(a).times(scale);
            T::axpy(a, &finite, &mut hi[at.clone()], &mut lo[at.clone()], &mut mag[at], HasFma::NO);
        })?;
        Ok(sums)
    }

    /// Calls `term` with (row of the chunk, a_il, part of row l of B) for every l, in order.
    pub(super) fn for_each_term<T: Scalar<X = X>>(
        &self,
        problem: &VerifyProblem,
        loader: &mut Loader,
        mut term: impl FnMut(usize, X, &[X]),
    ) -> Result<(), MatrixError> {
        let width = self.cols.len();
        let depth = problem.depth as usize;
        let mut scratch = zeros((width * DEPTH.min(problem.depth)) as usize)?;
        for start in (0..problem.depth).step_by(DEPTH as usize) {
            let terms = Span::new(start, (start + DEPTH).min(problem.depth));
            loader.gather::<T, X>(&problem.b, Rect::new(terms, self.cols), T::widen, &mut scratch)?;
            for (l, line) in (start as usize..).zip(scratch.chunks_exact(width as usize)) {
                if l >= terms.end as usize {
                    break;
                }
                for row in 0..self.rows.len() {
                    term(row, self.a[row * depth + l], line);
                }
            }
        }
        Ok(())
    }
}

/// Recomputes `rows` (one batch) and passes every chunk of columns to `judge`; returns its results from left to
/// right.
pub(super) fn recompute<T: Scalar, R: Send>(
    problem: &VerifyProblem,
    rows: &[u64],
    judge: impl Fn(&mut Loader, &Chunk<'_, T::X>) -> Result<R, MatrixError> + Sync,
) -> Result<Vec<R>, MatrixError> {
    let columns = problem.c.shape().cols;
    let depth = problem.depth;
    let held = parallel(rows.len(), problem.threads, |loader, i| {
        let mut out = zeros(depth as usize)?;
        let rect = Rect::new(Span::new(rows[i], rows[i] + 1), Span::new(0, depth));
        loader.gather::<T, T::X>(&problem.a, rect, T::widen, &mut out)?;
        Ok(out)
    })?;
    let mut a = zeros(rows.len() * depth as usize)?;
    for (to, from) in a.chunks_exact_mut(depth.max(1) as usize).zip(held) {
        to.copy_from_slice(&from);
    }
    parallel(columns.div_ceil(WIDTH) as usize, problem.threads, |loader, block| {
        let start = block as u64 * WIDTH;
        let cols = Span::new(start, (start + WIDTH).min(columns));
        let width = cols.len() as usize;
        let len = rows.len() * width;
        let mut chunk = Chunk { rows, a: &a, cols, hi: vec![], lo: vec![], mag: vec![] };
        let (mut hi, mut lo, mut mag) = (zeros(len)?, zeros(len)?, zeros(len)?);
        chunk.for_each_term::<T>(problem, loader, |row, a, b| {
            let at = row * width..(row + 1) * width;
            let (hi, lo, mag) = (&mut hi[at.clone()], &mut lo[at.clone()], &mut mag[at]);
            with_widest_vectors(
                #[inline(always)]
                |fused| T::axpy(a, b, hi, lo, mag, fused),
            );
        })?;
        (chunk.hi, chunk.lo, chunk.mag) = (hi, lo, mag);
        judge(loader, &chunk)
    })
}
