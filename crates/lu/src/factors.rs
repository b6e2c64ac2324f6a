//! A factored matrix: solves with it, and estimates the condition of the matrix.
//!
//! Place in the flow: made by a factorisation, here or at workers; the verbs `lu` and `solve` keep, print or write it.
//!
//! Invariant: the factors are LAPACK's: L below the diagonal, U on and above it, all rows in the order of `pivots`.

use crate::factor::{LuOptions, factor, finish};
use crate::load::MatrixNorms;
use crate::substitute::{substitute, substitute_in_f64, substitute_transposed};
use crate::working::WorkingMatrix;
use crate::{Elimination, LuError};
use bramble_kernel::lu::{LuElement, Triangle};
use bramble_kernel::{Choice, Kernel, KernelError, KernelName, Workload, open_on, pick_by_wall};
use bramble_matrix::{DType, Layout, Lines, Matrix, MatrixError, Rect, Shape, Span, View};
use std::sync::Arc;

/// The kernels of a factorisation.
#[derive(Clone)]
pub struct LuKernels {
    /// For one thread of many.
    pub one: Arc<dyn Kernel>,
    /// For all threads together.
    pub all: Arc<dyn Kernel>,
}

impl LuKernels {
    /// The named kernel, or the fastest for a factorisation of `flops` operations.
    pub fn open(
        name: Option<KernelName>,
        dtype: DType,
        flops: f64,
        threads: usize,
    ) -> Result<Self, KernelError> {
        let choice = name.map_or(Choice::Auto, Choice::Named);
        let one = pick_by_wall(Workload::Factorisation, choice, dtype, flops)?.kernel;
        let base = KernelName::ALL.into_iter().find(|name| name.as_str() == one.name());
        let base = base.unwrap_or(KernelName::Simd);
        Ok(Self { one, all: open_on(Choice::Blocked { base, edge: None }, threads)? })
    }
}

/// A matrix after its factorisation, with the right-hand sides that rode along.
pub struct LuFactors<T> {
    lines: Lines,
    made: Elimination,
    kernels: LuKernels,
    options: LuOptions,
    element: std::marker::PhantomData<T>,
}

impl<T: LuElement> LuFactors<T> {
    /// Factors the first `eliminated` columns (no more than there are rows); the others ride along: with L and the exchanges
    /// applied, they become more of U, or right-hand sides for [`LuFactors::back_substitute`].
    pub fn new(
        working: &WorkingMatrix,
        eliminated: usize,
        kernels: &LuKernels,
        options: LuOptions,
    ) -> Result<Self, LuError> {
        let made = factor::<T>(working, eliminated, &*kernels.one, options);
        let lines = working.lines()?;
        Ok(Self { lines, made, kernels: kernels.clone(), options, element: std::marker::PhantomData })
    }

    /// Factors that were made elsewhere: L below the diagonal of a square matrix in memory, U on and above it, all rows in the
    /// order of the pivots, one for each column. An error if the matrix has its elements in no memory, or not in rows. Panics if
    /// it has another element type, or another number of pivots: a bug of the caller.
    pub fn given(
        matrix: &Matrix,
        made: Elimination,
        kernels: &LuKernels,
        options: LuOptions,
    ) -> Result<Self, LuError> {
        let Shape { rows, cols } = matrix.shape();
        assert!(
            matrix.dtype() == T::DTYPE && made.pivots.len() as u64 == cols && rows == cols,
            "given factors"
        );
        let all = Rect::new(Span::new(0, rows), Span::new(0, cols));
        let lines = matrix.lines(all).filter(|_| matrix.layout() == Layout::RowMajor);
        let lines = lines.ok_or_else(|| MatrixError::format(matrix.name(), "is not in memory, in rows"))?;
        Ok(Self { lines, made, kernels: kernels.clone(), options, element: std::marker::PhantomData })
    }

    /// Brings L into the order of all exchanges: needed before anything but [`LuFactors::back_substitute`].
    pub fn finished(self, working: &WorkingMatrix) -> Result<Self, LuError> {
        let Self { lines, made, kernels, options, element } = self;
        drop(lines);
        finish::<T>(working, &made.pivots, options);
        Ok(Self { lines: working.lines()?, made, kernels, options, element })
    }

    /// What the factorisation did.
    pub fn elimination(&self) -> &Elimination {
        &self.made
    }

    /// All elements: the factors, and the columns that rode along.
    pub fn view(&self) -> View<'_, T> {
        self.lines.view()
    }

    /// Ok if every pivot is a finite number other than 0; else the error names the first column that has none.
    pub fn check(&self) -> Result<(), LuError> {
        let first = |one: Option<usize>| one.unwrap_or(usize::MAX);
        let hint = if T::DTYPE == DType::F32 { ", or use --dtype f64" } else { "" };
        match (self.made.zero, self.made.overflow) {
            (None, None) => Ok(()),
            (zero, Some(column)) if column < first(zero) => {
                Err(LuError::Overflow { column, dtype: T::DTYPE.name(), hint })
            }
            (zero, _) => Err(LuError::Singular { column: first(zero) }),
        }
    }

    /// The column that depends most on those before it, from 0: its pivot is the smallest relative to its largest element in U.
    /// `None` without columns.
    pub fn weakest_column(&self) -> Option<usize> {
        let (square, n) = (self.square(), self.order());
        let mut largest = vec![0.0f64; n];
        for i in 0..n {
            let row = &square.data()[i * square.row_stride()..][..n];
            let pairs = largest[i..].iter_mut().zip(&row[i..]);
            pairs.for_each(|(most, u)| *most = most.max(u.to_f64().abs()));
        }
        let ratio = |j: &usize| square.at(*j, *j).to_f64().abs() / largest[*j].max(f64::MIN_POSITIVE);
        (0..n).min_by(|i, j| ratio(i).total_cmp(&ratio(j)))
    }

    fn order(&self) -> usize {
        self.made.pivots.len()
    }

    /// The square part that was eliminated.
    fn square(&self) -> View<'_, T> {
        bramble_kernel::part(self.view(), 0..self.order(), 0..self.order())
    }

    fn substitute(&self, which: Triangle, x: &mut [T], width: usize) {
        substitute(&*self.kernels.all, which, self.square(), x, width, self.options.block.max(1));
    }

    /// Solves for the right-hand sides that rode along in the last `width` columns. Returns n × `width` numbers in rows.
    pub fn back_substitute(&self, width: usize) -> Vec<T> {
        let view = self.view();
        let first = view.cols() - width;
        let mut x = Vec::with_capacity(self.order() * width);
        for i in 0..self.order() {
            x.extend_from_slice(&view.data()[i * view.row_stride() + first..][..width]);
        }
        self.substitute(Triangle::Upper, &mut x, width);
        x
    }

    /// `X = A⁻¹ X` for n × `width` right-hand sides in rows.
    pub fn solve(&self, x: &mut [T], width: usize) {
        for (i, &p) in self.made.pivots.iter().enumerate().filter(|(i, p)| i != *p) {
            (0..width).for_each(|j| x.swap(i * width + j, p * width + j));
        }
        self.substitute(Triangle::UnitLower, x, width);
        self.substitute(Triangle::Upper, x, width);
    }

    /// `x = A⁻¹ x` for one right-hand side in f64: the factors have their type, the arithmetic is that of f64.
    pub fn solve_in_f64(&self, x: &mut [f64]) {
        for (i, &p) in self.made.pivots.iter().enumerate() {
            x.swap(i, p);
        }
        for which in [Triangle::UnitLower, Triangle::Upper] {
            substitute_in_f64(which, self.square(), x, SUBSTITUTED_ROWS, self.options.threads);
        }
    }

    /// `L U x` with the rows of L in their original order, for one vector in f64: what the factors say that `A x` is.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        multiplied_back(self.view(), &self.made.pivots, x)
    }

    /// `x = A⁻ᵀ x` for one right-hand side.
    pub fn solve_transposed(&self, x: &mut [T]) {
        substitute_transposed(Triangle::Upper, self.square(), x);
        substitute_transposed(Triangle::UnitLower, self.square(), x);
        for (i, &p) in self.made.pivots.iter().enumerate().rev() {
            x.swap(i, p);
        }
    }

    /// An estimate of the condition number ‖A‖₁ ‖A⁻¹‖₁, almost always within a factor of 3 and never above it but for rounding
    /// (Higham, "FORTRAN codes for estimating the one-norm of a real or complex matrix", ACM TOMS 14, 1988, as in LAPACK).
    /// Infinite if a pivot is 0.
    pub fn condition(&self, norms: &MatrixNorms) -> f64 {
        if self.made.zero.is_some() || self.made.overflow.is_some() {
            return f64::INFINITY;
        }
        norms.one * self.inverse_norm()
    }

    /// A lower bound of ‖A⁻¹‖₁.
    fn inverse_norm(&self) -> f64 {
        let n = self.order();
        if n == 0 {
            return 0.0;
        }
        let one_norm = |x: &[T]| x.iter().map(|x| x.to_f64().abs()).sum::<f64>();
        let mut x = vec![T::from_f64(1.0 / n as f64); n];
        self.solve(&mut x, 1);
        let (mut best, mut last) = (one_norm(&x), None);
        for _ in 0..ROUNDS_MAX {
            let mut signs: Vec<T> =
                x.iter().map(|x| if x.to_f64() < 0.0 { T::ZERO.minus(T::ONE) } else { T::ONE }).collect();
            self.solve_transposed(&mut signs);
            let largest =
                (0..n).max_by(|i, j| signs[*i].absolute().to_f64().total_cmp(&signs[*j].absolute().to_f64()));
            let Some(largest) = largest.filter(|at| Some(*at) != last) else { break };
            last = Some(largest);
            x.fill(T::ZERO);
            x[largest] = T::ONE;
            self.solve(&mut x, 1);
            let norm = one_norm(&x);
            if norm <= best {
                break;
            }
            best = norm;
        }
        best.max(self.alternating_norm())
    }

    /// The bound by a vector of growing elements of alternating sign, which finds cases that the iteration misses.
    fn alternating_norm(&self) -> f64 {
        let n = self.order();
        let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
        let element = |i: usize| T::from_f64(sign(i) * (1.0 + i as f64 / (n.max(2) - 1) as f64));
        let mut x: Vec<T> = (0..n).map(element).collect();
        self.solve(&mut x, 1);
        2.0 * x.iter().map(|x| x.to_f64().abs()).sum::<f64>() / (3.0 * n as f64)
    }
}

/// `L U x` for one vector in f64, with L below the diagonal of the first columns, one for each of `pivots`, and U on and above
/// it; with the exchanges of rows undone: what the factors say that `A x` is.
pub fn multiplied_back<T: LuElement>(factors: View<'_, T>, pivots: &[usize], x: &[f64]) -> Vec<f64> {
    let square = pivots.len();
    let row = |i: usize| &factors.data()[i * factors.row_stride()..][..factors.cols()];
    let products = |us: &[T], x: &[f64]| us.iter().zip(x).map(|(u, x)| u.to_f64() * x).sum::<f64>();
    let u: Vec<f64> = (0..square).map(|i| products(&row(i)[i..], &x[i..])).collect();
    let one = |i: usize| products(&row(i)[..i.min(square)], &u) + u.get(i).copied().unwrap_or(0.0);
    let mut y: Vec<f64> = (0..factors.rows()).map(one).collect();
    for (i, &p) in pivots.iter().enumerate().rev() {
        y.swap(i, p);
    }
    y
}

/// Rows that [`LuFactors::solve_in_f64`] takes at a time: one thread solves their triangle, all threads do the rest.
const SUBSTITUTED_ROWS: usize = 256;

/// Most rounds of the estimate; two are usual.
const ROUNDS_MAX: usize = 5;
