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
use super::scalar::{HasFma, Scalar, with_widest_vectors};
use super::tile::{Cut, Loader, Tile, parallel, zeros};
use bramble_matrix::{Element, Layout, Matrix, MatrixError, Rect, Span};

/// Longest side of a C that is not a vector and is recomputed.
const EDGE: usize = 8;
/// Below this depth other checks cost as little.
const DEPTH_MIN: u64 = 64;
/// Terms of each element that a thread adds at a time, where C is no vector: its part of A and B fits a cache.
const STEP: u64 = 1024;
/// Independent sums of an inner product.
const LANES: usize = 16;

/// RecomputedSums of all elements of C, row after row.
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
                |fused| {
                    if by_rows {
                        for row in 0..rows {
                            let line = whole.unwrap_or_else(|| tile.line::<T>(row));
                            inner::<T>(line, factors, sums, row, fused);
                        }
                    } else {
                        for (col, x) in factors.iter().enumerate() {
                            column::<T>(tile.line::<T>(col), *x, sums, fused);
                        }
                    }
                },
            );
        }
        Ok(sums)
    })?;
    let mut all = RecomputedSums::new(a.shape().rows as usize)?;
    // The blocks of a band are added from left to right, whichever threads computed them.
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
fn inner<T: Scalar>(line: &[T], x: &[T::X], sums: &mut RecomputedSums<T::X>, row: usize, fused: HasFma) {
    lanes::<T, T>(line, x, T::widen, (sums, row), fused);
}

/// The same of elements that are sums' type already.
#[inline(always)]
fn inner_of_sums<T: Scalar>(
    a: &[T::X],
    b: &[T::X],
    sums: &mut RecomputedSums<T::X>,
    at: usize,
    fused: HasFma,
) {
    lanes::<T, T::X>(a, b, |a| a, (sums, at), fused);
}

/// Adds an inner product to the sums at `at`, in lanes that do not wait for each other.
#[inline(always)]
fn lanes<T: Scalar, Y: Copy>(
    a: &[Y],
    b: &[T::X],
    widen: impl Fn(Y) -> T::X,
    (sums, at): (&mut RecomputedSums<T::X>, usize),
    fused: HasFma,
) {
    let (mut hi, mut lo, mut mag) = ([T::X::ZERO; LANES], [T::X::ZERO; LANES], [T::X::ZERO; LANES]);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            T::term(widen(a[i]), b[i], &mut hi[i], &mut lo[i], &mut mag[i], fused);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        T::term(widen(*a), *b, &mut hi[i], &mut lo[i], &mut mag[i], fused);
    }
    for i in 0..LANES {
        T::step(&mut sums.hi[at], &mut sums.lo[at], hi[i], T::X::ONE);
        sums.lo[at] = sums.lo[at].plus(lo[i]);
        sums.mag[at] = sums.mag[at].plus(mag[i]);
    }
}

/// Adds one term of each row.
#[inline(always)]
fn column<T: Scalar>(line: &[T], x: T::X, sums: &mut RecomputedSums<T::X>, fused: HasFma) {
    let (hi, lo, mag) = (&mut sums.hi[..line.len()], &mut sums.lo[..line.len()], &mut sums.mag[..line.len()]);
    for (((a, hi), lo), mag) in line.iter().zip(hi).zip(lo).zip(mag) {
        T::term(a.widen(), x, hi, lo, mag, fused);
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
        let tile = loader.load::<T>(&problem.b, Rect::new(terms, Span::new(0, cols as u64)), None)?;
        let mut b: Vec<T::X> = zeros(cols * len)?;
        along_depth::<T>(&tile, problem.b.layout() == Layout::RowMajor, len, &mut b);
        let tile = loader.load::<T>(&problem.a, Rect::new(Span::new(0, rows as u64), terms), None)?;
        let mut a: Vec<T::X> = zeros(rows * len)?;
        along_depth::<T>(&tile, problem.a.layout() == Layout::ColMajor, len, &mut a);
        let mut sums = RecomputedSums::new(rows * cols)?;
        let (a, b, sums_of) = (&a, &b, &mut sums);
        with_widest_vectors(
            #[inline(always)]
            |fused| {
                for (row, a) in a.chunks_exact(len).enumerate() {
                    for (col, b) in b.chunks_exact(len).enumerate() {
                        inner_of_sums::<T>(a, b, sums_of, row * cols + col, fused);
                    }
                }
            },
        );
        Ok(sums)
    })?;
    let mut all = RecomputedSums::new(rows * cols)?;
    blocks.iter().for_each(|sums| all.add::<T>(0, sums));
    Ok(all)
}

/// The elements of a tile, those of each row of C or column of C one after another: `out` has `len` of each. `is_across`: a line
/// of the tile is a step of the depth.
fn along_depth<T: Scalar>(tile: &Tile<'_>, is_across: bool, len: usize, out: &mut [T::X]) {
    let count = out.len() / len;
    if !is_across {
        for (i, out) in out.chunks_exact_mut(len).enumerate() {
            out.iter_mut().zip(tile.line::<T>(i)).for_each(|(to, from)| *to = from.widen());
        }
        return;
    }
    let whole = tile.whole::<T>(len * count);
    for step in 0..len {
        let line =
            whole.map_or_else(|| tile.line::<T>(step), |whole| &whole[step * count..(step + 1) * count]);
        line.iter().enumerate().for_each(|(i, from)| out[i * len + step] = from.widen());
    }
}
