//! All elements of a small or narrow C, recomputed in one pass over the operands.
//!
//! Place: in place of random vectors where recomputing costs no more than they do: C is a vector, or both its sides are
//! at most `EDGE`. Each element of A and B is then used for a few elements of C only, and the pass is bound by memory.
//!
//! Invariants: sums are as exact as those of `recompute`. They depend on the matrices and their layouts alone, not on the
//! number of threads. Nothing as long as the depth is held: the factor that each tile meets is read beside the tile.
//!
//! It judges nothing, and knows no levels of Strassen–Winograd.

use super::recompute::VerifyProblem;
use super::scalar::{Scalar, with_widest_vectors};
use super::tile::{Cut, Loader, Tile, parallel, zeros};
use crate::{Element, Layout, Matrix, MatrixError, Rect, Span};

/// Longest side of a C that is no vector; as many columns fill one or two vector registers.
const EDGE: usize = 8;
/// Below this depth other checks cost as little.
const DEPTH_MIN: u64 = 64;
/// Terms of each element between two looks at memory, where C is no vector.
const STEP: u64 = 2048;
/// Rows of a small C whose sums a thread has in registers. A divisor of `EDGE`.
const ROWS_AT_ONCE: usize = 4;
/// Independent sums of an inner product.
const LANES: usize = 16;

/// Sums of all elements of C, row after row.
pub(super) struct RecomputedSums<X> {
    /// Σ a b as `hi + lo`.
    pub(super) hi: Vec<X>,
    /// See `hi`.
    pub(super) lo: Vec<X>,
    /// Σ |a| |b| (floats only).
    pub(super) mag: Vec<X>,
}

/// Whether recomputing everything costs no more than random vectors.
pub(super) fn is_cheap(problem: &VerifyProblem) -> bool {
    let shape = problem.c.shape();
    let is_vector = shape.rows == 1 || shape.cols == 1;
    let is_small = shape.rows.max(shape.cols) <= EDGE as u64;
    problem.levels_most() == 0 && problem.depth >= DEPTH_MIN && (is_vector || is_small)
}

/// All sums. Only where `is_cheap`.
pub(super) fn sums<T: Scalar>(problem: &VerifyProblem) -> Result<RecomputedSums<T::X>, MatrixError> {
    let shape = problem.c.shape();
    if shape.cols == 1 {
        times_vector::<T>(&problem.a, &problem.b, problem.threads)
    } else if shape.rows == 1 {
        let [a, b] = [&problem.a, &problem.b].map(|matrix| matrix.clone().transposed());
        times_vector::<T>(&b, &a, problem.threads)
    } else {
        small::<T>(problem)
    }
}

impl<X: Element> RecomputedSums<X> {
    fn new(len: usize) -> Result<Self, MatrixError> {
        Ok(Self { hi: zeros(len)?, lo: zeros(len)?, mag: zeros(len)? })
    }

    /// Adds sums of other terms of the elements from `start` on.
    fn add<T: Scalar<X = X>>(&mut self, start: usize, other: &Self) {
        for (i, ((x, rest), size)) in (start..).zip(other.hi.iter().zip(&other.lo).zip(&other.mag)) {
            T::step(&mut self.hi[i], &mut self.lo[i], *x, X::ONE);
            self.lo[i] = self.lo[i].plus(*rest);
            self.mag[i] = self.mag[i].plus(*size);
        }
    }
}

/// A matrix times a matrix of one column.
fn times_vector<T: Scalar>(
    a: &Matrix,
    x: &Matrix,
    threads: usize,
) -> Result<RecomputedSums<T::X>, MatrixError> {
    let cut = Cut::of(a);
    let blocks = parallel(cut.blocks(), threads, |loader, block| {
        let rows = cut.rows(block).len() as usize;
        let mut sums = RecomputedSums::new(rows)?;
        let (mut beside, mut factors) = (Loader::default(), Vec::new());
        for rect in cut.tiles(block) {
            line::<T>(&mut beside, x, Rect::new(rect.cols, Span::new(0, 1)), &mut factors)?;
            let tile = loader.load::<T>(a, rect, None)?;
            let whole = if rows == 1 { tile.whole::<T>(rect.cols.len() as usize) } else { None };
            let by_rows = whole.is_some() || a.layout() == Layout::RowMajor;
            let (sums, factors) = (&mut sums, &factors);
            with_widest_vectors(
                #[inline(always)]
                || {
                    if by_rows {
                        for row in 0..rows {
                            let line = whole.unwrap_or_else(|| tile.line::<T>(row));
                            inner::<T>(line, factors, sums, row);
                        }
                    } else {
                        for (col, x) in factors.iter().enumerate() {
                            column::<T>(tile.line::<T>(col), *x, sums);
                        }
                    }
                },
            );
        }
        Ok(sums)
    })?;
    let mut all = RecomputedSums::new(a.shape().rows as usize)?;
    // The blocks of a band are added from left to right, whoever made them.
    for (block, sums) in blocks.iter().enumerate() {
        all.add::<T>(cut.rows(block).start as usize, sums);
    }
    Ok(all)
}

/// The elements of a part of a matrix of one column.
fn line<T: Scalar>(
    loader: &mut Loader,
    x: &Matrix,
    rect: Rect,
    out: &mut Vec<T::X>,
) -> Result<(), MatrixError> {
    let len = rect.rows.len() as usize;
    let tile = loader.load::<T>(x, rect, None)?;
    out.clear();
    match tile.whole::<T>(len) {
        Some(whole) => out.extend(whole.iter().map(|x| x.widen())),
        None => out.extend((0..len).map(|i| tile.line::<T>(i)[0].widen())),
    }
    Ok(())
}

/// Adds the terms of a piece of one row.
#[inline(always)]
fn inner<T: Scalar>(line: &[T], x: &[T::X], sums: &mut RecomputedSums<T::X>, row: usize) {
    let (mut hi, mut lo, mut mag) = ([T::X::ZERO; LANES], [T::X::ZERO; LANES], [T::X::ZERO; LANES]);
    let ((a, a_rest), (x, x_rest)) = (line.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (a, x) in a.iter().zip(x) {
        for i in 0..LANES {
            T::term(a[i].widen(), x[i], &mut hi[i], &mut lo[i], &mut mag[i]);
        }
    }
    for (i, (a, x)) in a_rest.iter().zip(x_rest).enumerate() {
        T::term(a.widen(), *x, &mut hi[i], &mut lo[i], &mut mag[i]);
    }
    for i in 0..LANES {
        T::step(&mut sums.hi[row], &mut sums.lo[row], hi[i], T::X::ONE);
        sums.lo[row] = sums.lo[row].plus(lo[i]);
        sums.mag[row] = sums.mag[row].plus(mag[i]);
    }
}

/// Adds one term of each row.
#[inline(always)]
fn column<T: Scalar>(line: &[T], x: T::X, sums: &mut RecomputedSums<T::X>) {
    let (hi, lo, mag) = (&mut sums.hi[..line.len()], &mut sums.lo[..line.len()], &mut sums.mag[..line.len()]);
    for (((a, hi), lo), mag) in line.iter().zip(hi).zip(lo).zip(mag) {
        T::term(a.widen(), x, hi, lo, mag);
    }
}

/// A C with short sides: each thread takes steps of the depth.
fn small<T: Scalar>(problem: &VerifyProblem) -> Result<RecomputedSums<T::X>, MatrixError> {
    let shape = problem.c.shape();
    let (rows, cols) = (shape.rows as usize, shape.cols as usize);
    let steps = problem.depth.div_ceil(STEP) as usize;
    let blocks = parallel(steps, problem.threads, |loader, step| {
        let start = step as u64 * STEP;
        let terms = Span::new(start, (start + STEP).min(problem.depth));
        let len = terms.len() as usize;
        // Both are filled up with zeros, so that every step has the same number of elements.
        let mut b: Vec<[T::X; EDGE]> = zeros(len)?;
        let tile = loader.load::<T>(&problem.b, Rect::new(terms, Span::new(0, cols as u64)), None)?;
        spread::<T>(&tile, problem.b.layout() == Layout::RowMajor, cols, &mut b);
        let mut a: Vec<[T::X; EDGE]> = zeros(len)?;
        let tile = loader.load::<T>(&problem.a, Rect::new(Span::new(0, rows as u64), terms), None)?;
        spread::<T>(&tile, problem.a.layout() == Layout::ColMajor, rows, &mut a);
        let mut sums = RecomputedSums::new(rows * cols)?;
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let mut lines = [[[T::X::ZERO; EDGE]; 3]; ROWS_AT_ONCE];
            let (a, b, lines_of) = (&a, &b, &mut lines);
            with_widest_vectors(
                #[inline(always)]
                || outer::<T>(a, b, first, lines_of),
            );
            for (row, [hi, lo, mag]) in (first..rows).zip(&lines) {
                let at = row * cols..(row + 1) * cols;
                sums.hi[at.clone()].copy_from_slice(&hi[..cols]);
                sums.lo[at.clone()].copy_from_slice(&lo[..cols]);
                sums.mag[at].copy_from_slice(&mag[..cols]);
            }
        }
        Ok(sums)
    })?;
    let mut all = RecomputedSums::new(rows * cols)?;
    blocks.iter().for_each(|sums| all.add::<T>(0, sums));
    Ok(all)
}

/// The elements of each step of the depth, `count` of them. `is_across`: a line of the tile is a step.
fn spread<T: Scalar>(tile: &Tile<'_>, is_across: bool, count: usize, out: &mut [[T::X; EDGE]]) {
    if !is_across {
        for i in 0..count {
            out.iter_mut().zip(tile.line::<T>(i)).for_each(|(to, from)| to[i] = from.widen());
        }
        return;
    }
    match tile.whole::<T>(out.len() * count) {
        Some(whole) if count == EDGE => {
            let (steps, _) = whole.as_chunks::<EDGE>();
            out.iter_mut().zip(steps).for_each(|(to, from)| *to = from.map(Scalar::widen));
        }
        Some(whole) => out.iter_mut().zip(whole.chunks_exact(count)).for_each(|(to, from)| fill(to, from)),
        None => out.iter_mut().enumerate().for_each(|(i, to)| fill(to, tile.line::<T>(i))),
    }
}

fn fill<T: Scalar>(to: &mut [T::X; EDGE], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
}

/// Adds the products of some rows, from `first` on, with all columns at each step. The rows are independent, so that no addition waits
/// for the one before.
#[inline(always)]
fn outer<T: Scalar>(
    a: &[[T::X; EDGE]],
    b: &[[T::X; EDGE]],
    first: usize,
    lines: &mut [[[T::X; EDGE]; 3]; ROWS_AT_ONCE],
) {
    let mut sums = *lines;
    for (a, b) in a.iter().zip(b) {
        for (row, [hi, lo, mag]) in sums.iter_mut().enumerate() {
            let a = a[first + row];
            for i in 0..EDGE {
                T::term(a, b[i], &mut hi[i], &mut lo[i], &mut mag[i]);
            }
        }
    }
    *lines = sums;
}
