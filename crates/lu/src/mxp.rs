//! The rules of HPL-MxP (formerly HPL-AI): its system, its solution in mixed precision and its check.
//!
//! Place in the flow: `bench hpl --mxp` generates the system, has it solved here with the time of each part, and checks the
//! solution with a matrix that is generated again.
//!
//! Invariants: the system is that of the reference implementation, to the last bit: element (i, j) of the N × N matrix is draw
//! 1 + i + jN after seed 1 of HPL's linear congruential generator, b is the first N draws after seed 2, and a diagonal element is
//! the sum of the absolute values of the others in its row, added from left to right. Such a matrix needs no exchanges of rows.
//! The count of operations is HPL's.
//!
//! Source: `matgen.c` and `hpl-ai.c` of the reference implementation define the numbers; this is an independent implementation.

use crate::hpl::{HplCheck, Jump};
use crate::load::AbsoluteSums;
use crate::working::WorkingMatrix;
use crate::{
    GmresSolution, LuError, LuFactors, LuKernels, LuOptions, MatrixNorms, MixedSystem, ReadMatrix,
    memory_bytes,
};
use crate::{KRYLOV_MAX, threads, working};
use bramble_kernel::lu::{round_rows, scatter};
use bramble_kernel::{Product, even, part};
use bramble_matrix::{MatrixError, View, ViewMut};
use std::ops::Range;
use std::time::Instant;

/// The number before the first draw of A; that of b follows it.
const SEED: u64 = 1;
/// Rows that a thread generates at a time.
const ROWS: usize = 32;
/// Rows whose sums are formed side by side.
const SIDE_BY_SIDE: usize = 8;
/// Most iterations, as in the reference implementation.
pub const ITERATIONS_MAX: usize = 50;
/// The smallest order: with this seed, the matrices below it are singular. A dominant diagonal that equals the sum of the others
/// allows that where the signs fit.
pub const ORDER_MIN: usize = 4;

/// The element in [−½, ½] that the reference implementation makes of a draw.
fn element(draw: u64) -> f64 {
    draw as f64 * (0.5 / (1u64 << 63) as f64) - 0.5
}

/// Fills `rows`, row `first` of A and the following, each with `order` elements.
fn fill(order: usize, first: usize, rows: &mut [f64]) {
    let along = Jump::of(order as u64);
    for (i, row) in (first..).zip(rows.chunks_exact_mut(order.max(1))) {
        let mut draw = Jump::of(1 + i as u64).apply(SEED);
        let mut sum = 0.0;
        for x in row.iter_mut() {
            *x = element(draw);
            sum += x.abs();
            draw = along.apply(draw);
        }
        row[i] = sum - row[i].abs();
    }
}

/// ‖A‖∞ of this order, computed on `threads` threads.
pub fn norm_inf(order: usize, threads: usize) -> f64 {
    let largest = rows(
        order,
        threads,
        |_| 0.0,
        |most: &mut f64, _, elements| {
            let sums =
                elements.chunks_exact(order.max(1)).map(|row| row.iter().map(|x| x.abs()).sum::<f64>());
            *most = sums.fold(*most, f64::max);
        },
    );
    largest.into_iter().fold(0.0, f64::max)
}

/// Diagonal elements of A.
pub(crate) fn diagonal(order: usize, rows: Range<usize>) -> Vec<f64> {
    let along = Jump::of(order as u64);
    let mut all = Vec::with_capacity(rows.len());
    for first in rows.clone().step_by(SIDE_BY_SIDE) {
        // Each row is summed from left to right, as in `fill`; several rows side by side, since a draw waits for the one before.
        let (mut draws, mut sums) = ([0; SIDE_BY_SIDE], [0.0; SIDE_BY_SIDE]);
        for (draw, i) in draws.iter_mut().zip(first..) {
            *draw = draw_at(order, i, 0);
        }
        for _ in 0..order {
            for (draw, sum) in draws.iter_mut().zip(&mut sums) {
                *sum += element(*draw).abs();
                *draw = along.apply(*draw);
            }
        }
        let band = first..rows.end.min(first + SIDE_BY_SIDE);
        all.extend(band.zip(sums).map(|(i, sum)| sum - element(draw_at(order, i, i)).abs()));
    }
    all
}

/// The draw of element (i, j).
fn draw_at(order: usize, i: usize, j: usize) -> u64 {
    Jump::of((order as u64).wrapping_mul(j as u64).wrapping_add(1 + i as u64)).apply(SEED)
}

/// Fills a piece of A, of these rows and columns, in rows. `diagonal` has the diagonal elements of the columns.
pub(crate) fn fill_columns(
    order: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    diagonal: &[f64],
    elements: &mut [f64],
) {
    let mut draws: Vec<u64> = columns.clone().map(|j| draw_at(order, rows.start, j)).collect();
    for (i, row) in rows.zip(elements.chunks_exact_mut(columns.len().max(1))) {
        for (x, draw) in row.iter_mut().zip(&mut draws) {
            *x = element(*draw);
            *draw = Jump::ONE.apply(*draw);
        }
        if columns.contains(&i) {
            row[i - columns.start] = diagonal[i - columns.start];
        }
    }
}

/// The right-hand side of this order.
pub fn right_hand_side(order: usize) -> Vec<f64> {
    let mut draw = SEED + 1;
    let mut next = || {
        draw = Jump::ONE.apply(draw);
        element(draw)
    };
    (0..order).map(|_| next()).collect()
}

/// Calls `each` with a state, the first of some rows and their elements, for all rows of A, on all threads. Each thread has a
/// state of its own; they are returned in the order of the rows.
fn rows<S: Send>(
    order: usize,
    threads: usize,
    state: impl Fn(Range<usize>) -> S + Sync,
    each: impl Fn(&mut S, usize, &[f64]) + Sync,
) -> Vec<S> {
    threads::each(threads, even(order, threads).collect(), |band: Range<usize>| {
        let (mut state, mut elements) = (state(band.clone()), Vec::new());
        for first in band.clone().step_by(ROWS) {
            elements.resize(order * ROWS.min(band.end - first), 0.0);
            fill(order, first, &mut elements);
            each(&mut state, first, &elements);
        }
        state
    })
}

/// The matrix A of the order of `working`, in f64.
pub fn generate(working: &WorkingMatrix, threads: usize) {
    let order = working.rows();
    rows(
        order,
        threads,
        |_| (),
        |(), first, elements| {
            let band = first..first + elements.len() / order;
            scatter(elements, (order, 1), &mut working.lease(band, 0..order).view_mut::<f64>());
        },
    );
}

/// What a run of the benchmark takes of the memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MxpMemory {
    /// A in f64.
    pub matrix: u64,
    /// Its factors in f32, and the panels of the factorisation.
    pub factors: u64,
    /// The vectors of GMRES, and the sums of the check.
    pub vectors: u64,
}

impl MxpMemory {
    /// For a system of this order.
    pub fn of(order: usize, options: LuOptions) -> Self {
        let vectors = 2 * KRYLOV_MAX + 16 + (10 + ROWS) * options.threads;
        Self {
            matrix: working::bytes::<f64>(order, order),
            factors: memory_bytes::<f32>(order, order, 0, options),
            vectors: (order as u64).saturating_mul(8 * vectors as u64),
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.matrix.saturating_add(self.factors).saturating_add(self.vectors)
    }
}

/// Seconds of the parts of a solution.
#[derive(Clone, Copy, Debug)]
pub struct MxpTimes {
    /// Rounding A to f32, and its norms.
    pub convert: f64,
    /// LU in f32.
    pub factor: f64,
    /// The first solution, and GMRES.
    pub iterate: f64,
}

impl MxpTimes {
    /// All parts: the time that counts.
    pub fn total(&self) -> f64 {
        self.convert + self.factor + self.iterate
    }
}

/// A solution.
#[derive(Clone, Debug)]
pub struct MxpSolution {
    /// What GMRES found.
    pub found: GmresSolution,
    /// Exchanges of rows that the search for pivots made: 0 for the benchmark's matrix.
    pub exchanges: usize,
    /// Where the time went.
    pub seconds: MxpTimes,
}

/// Solves A x = b by LU of A rounded to f32, with `low` kernels, and GMRES in f64, with `high` kernels.
pub fn solve(
    a: &WorkingMatrix,
    b: &[f64],
    (low, high): (&LuKernels, &LuKernels),
    options: LuOptions,
) -> Result<MxpSolution, LuError> {
    let order = a.rows();
    let narrow = WorkingMatrix::zeros::<f32>(order, order)?;
    // The memory is there before the clock runs, as in HPL's program.
    narrow.touch::<f32>(options.threads);
    let mut at = Instant::now();
    let mut lap = || std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
    let norms = rounded_copy(a, &narrow, options.threads)?;
    let convert = lap();
    let factors = LuFactors::<f32>::new(&narrow, order, low, options)?;
    factors.check()?;
    let factors = factors.finished(&narrow)?;
    let factor = lap();
    let mut x = b.to_vec();
    factors.solve_in_f64(&mut x);
    let matrix = a.matrix()?;
    let full = ReadMatrix { a: &matrix, norms: &norms, kernels: high };
    let system = MixedSystem { a: &full, factors: &factors };
    let found = system.gmres(b, x, ITERATIONS_MAX)?;
    let seconds = MxpTimes { convert, factor, iterate: lap() };
    let pivots = &factors.elimination().pivots;
    let exchanges = pivots.iter().enumerate().filter(|(row, pivot)| row != *pivot).count();
    Ok(MxpSolution { found, exchanges, seconds })
}

/// Copies A to `narrow`, rounded to f32. Returns ‖A‖∞, the only norm that the iteration needs; the others are 0.
fn rounded_copy(
    a: &WorkingMatrix,
    narrow: &WorkingMatrix,
    threads: usize,
) -> Result<MatrixNorms, MatrixError> {
    let (order, lines) = (a.rows(), a.lines()?);
    let bands = even(order, threads).collect();
    let largest = threads::each(threads, bands, |band: Range<usize>| {
        let from = part(lines.view::<f64>(), band.clone(), 0..order);
        round_rows(from, &mut narrow.lease(band, 0..order).view_mut::<f32>())
    });
    Ok(MatrixNorms { inf: largest.into_iter().fold(0.0, f64::max), ..MatrixNorms::default() })
}

/// Checks a solution against a system that is generated again.
pub fn check(x: &[f64], threads: usize, kernels: &LuKernels) -> HplCheck {
    let order = x.len();
    let b = right_hand_side(order);
    let new = |band: Range<usize>| (band.start, AbsoluteSums::new(order, order), b[band].to_vec());
    let parts = rows(order, threads, new, |(start, sums, r), first, elements| {
        let lines = elements.chunks_exact(order.max(1));
        for (i, row) in (first..).zip(lines.clone()) {
            sums.add_line(row, (i, 0), true);
        }
        let target = &mut r[first - *start..][..lines.len()];
        let (a, x) = (View::row_major(elements, lines.len(), order), View::row_major(x, order, 1));
        let product = Product::new(-1.0, a, x, 1.0, ViewMut::row_major(target, lines.len(), 1));
        kernels.one.multiply(product.into());
    });
    let (mut sums, mut r) = (AbsoluteSums::new(order, order), Vec::with_capacity(order));
    for (_, some, residual) in parts {
        sums.merge(&some);
        r.extend(residual);
    }
    let b_inf = b.iter().fold(0.0, |most: f64, b| most.max(b.abs()));
    HplCheck::of(sums.norms(), b_inf, x, &r)
}

#[cfg(test)]
mod tests;
