//! Column weights: the sizes of the columns of C, estimated from A, B and C0, so that every column counts equally in the
//! check.
//!
//! Place: before the passes of the check. Each element of the random vector is divided by the size of its column. Without
//! these weights, one large column of B would raise the tolerance of every row so far that faults in all other columns
//! would pass.
//!
//! Invariants: weights are powers of two, so scaling rounds nothing. They are computed from the operands and never from C,
//! which may be wrong. They do not depend on the number of threads. NaN and infinities count as zeros here.
//!
//! A wrong estimate makes the check less sensitive; it never makes a correct product fail. docs/verification.md lists the
//! operands that need more than one weight per column.

use super::mixing::{Mixing, Side};
use super::random::sample;
use super::recompute::VerifyProblem;
use super::scalar::{Real, with_widest_vectors};
use super::tile::{Cut, Loader, Tile, parallel, zeros};
use super::{Effort, MatrixError, SAMPLE_STREAM};
use bramble_matrix::{Layout, Matrix, Rect, Span};

/// Independent running maxima in one line, for vectorisation.
const LANES: usize = 8;
/// Columns processed together, so that their maxima stay in the first-level cache for all lines of a tile.
const PIECE: usize = 1024;
/// Parts of a matrix for each thread, each with its own maxima.
const PARTS: usize = 2;
/// With fewer bands of rows than this, threads divide the matrix by columns instead.
const BANDS_MIN: usize = 16;
/// Fast effort reads one band of A in `SAMPLED`, chosen at random.
const SAMPLED: u64 = 8;
/// Fast effort samples A only if the sample has at least this many bands; otherwise it reads all of A.
const SAMPLED_MIN: u64 = 8;

/// The weight of each column of C: about one over the largest |c_ij| that the operands can produce in it, relative to the
/// size of row i. Weighted columns are all of similar size.
pub(super) fn weights<T: Real>(
    problem: &VerifyProblem,
    effort: Effort,
    seed: u64,
) -> Result<Vec<f64>, MatrixError> {
    let cols = problem.c.shape().cols as usize;
    let generated = |m: &Matrix| m.generator().is_some();
    let is_alike = generated(&problem.a) && generated(&problem.b);
    let mut sizes: Vec<f64> = zeros(cols)?;
    // Equal weights do for a single column, and for generated operands, whose columns are all of similar size.
    if cols > 1 && !(is_alike && problem.c0.is_none()) {
        // With C0, the size of every row of A is needed, so A is not sampled.
        let is_sampled = effort == Effort::Fast && problem.c0.is_none();
        let bands = if is_sampled { sampled_bands(&problem.a, seed) } else { None };
        measure::<T>(problem, bands.as_deref(), &mut sizes)?;
    }
    Ok(as_weights(problem, sizes))
}

/// A random sample of bands of rows, chosen by the check's seed; `None` if the matrix is too small for sampling to pay.
fn sampled_bands(matrix: &Matrix, seed: u64) -> Option<Vec<Span>> {
    let rows = matrix.shape().rows;
    // High enough that each read covers a long contiguous range of memory.
    let height = if matrix.layout() == Layout::RowMajor { 32 } else { 64 };
    let count = rows.div_ceil(height);
    if count < SAMPLED * SAMPLED_MIN {
        return None;
    }
    let chosen = sample(seed, SAMPLE_STREAM + 1, count, count / SAMPLED);
    Some(chosen.into_iter().map(|i| Span::new(i * height, ((i + 1) * height).min(rows))).collect())
}

/// Estimates the sizes of the columns of C. If `bands` is given, only those bands of A are read.
fn measure<T: Real>(
    problem: &VerifyProblem,
    bands: Option<&[Span]>,
    sizes: &mut [f64],
) -> Result<(), MatrixError> {
    let threads = problem.threads;
    let mut rows: Vec<f64> = zeros(problem.c.shape().rows as usize)?;
    let (alpha, beta) = (problem.alpha.abs(), problem.beta.abs());
    if problem.depth > 0 {
        let mut depth: Vec<f64> = zeros(problem.depth as usize)?;
        let a = Scan { matrix: &problem.a, rows: None, threads };
        if let Some(bands) = bands {
            a.by_bands::<T>(bands, &mut rows, &mut depth)?;
        }
        if bands.is_some() && rows.iter().any(|size| *size > 0.0) {
            // A column of A that is zero in all sampled rows may hold the largest element of a row outside the sample.
            depth.iter_mut().filter(|size| **size == 0.0).for_each(|size| *size = 1.0);
        } else {
            a.run::<T>(&mut rows, &mut depth)?;
        }
        Mixing::of(problem, Side::Depth).spread(&mut depth, 1.0);
        Scan { matrix: &problem.b, rows: Some(&depth), threads }.run::<T>(&mut [], sizes)?;
        // Results below the smallest normal number have absolute errors from underflow, not relative ones.
        let floor = T::SMALLEST / (rows.iter().copied().fold(0.0, larger) * alpha);
        sizes.iter_mut().filter(|size| **size > 0.0).for_each(|size| *size = larger(floor, *size));
    }
    let Some(c0) = &problem.c0 else { return Ok(()) };
    let mut base: Vec<f64> = zeros(sizes.len())?;
    let mut base_rows: Vec<f64> = zeros(rows.len())?;
    Scan { matrix: c0, rows: None, threads }.run::<T>(&mut base_rows, &mut base)?;
    // In each row, divide the sizes of alpha A B and of beta C0 by the larger of the two; keep the largest quotient of each.
    let most = alpha * sizes.iter().copied().fold(0.0, f64::max);
    let (mut product_part, mut base_part) = (0.0f64, 0.0f64);
    for (row, base) in rows.iter().zip(&base_rows) {
        let (product, base) = (row * most, base * beta);
        let largest = product.max(base);
        if largest > 0.0 && largest.is_finite() {
            product_part = product_part.max(product / largest);
            base_part = base_part.max(base / largest);
        }
    }
    for (size, base) in sizes.iter_mut().zip(base) {
        let product = if most > 0.0 { *size * alpha / most } else { 0.0 };
        *size = (product * product_part).max(base * base_part);
    }
    Ok(())
}

/// Turns sizes into weights. Columns of zeros get the largest weight.
fn as_weights(problem: &VerifyProblem, mut sizes: Vec<f64>) -> Vec<f64> {
    Mixing::of(problem, Side::Cols).spread(&mut sizes, 1.0);
    weights_of(sizes)
}

/// One over each size, as a power of two.
pub(super) fn weights_of(sizes: Vec<f64>) -> Vec<f64> {
    let largest = sizes.iter().copied().filter(|x| x.is_finite()).fold(0.0, f64::max);
    let smallest = sizes.iter().copied().filter(|x| *x > 0.0).fold(largest, f64::min);
    let units = |size: f64| {
        let size = if size > 0.0 && size.is_finite() { size } else { smallest };
        if size > 0.0 { power_below_reciprocal(size / largest) } else { 1.0 }
    };
    sizes.into_iter().map(units).collect()
}

/// A power of two near 1 / x; the exponent is limited so that the check's sums stay in range.
fn power_below_reciprocal(x: f64) -> f64 {
    const BIAS: i64 = 1023;
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i64 - BIAS;
    f64::from_bits(((BIAS - exponent.clamp(-400, 400)) as u64) << 52)
}

/// A pass that finds the largest elements of a matrix's rows and columns.
pub(super) struct Scan<'a> {
    pub(super) matrix: &'a Matrix,
    /// The factor for each row; `None`: one over the row's largest element, which the pass then finds itself.
    pub(super) rows: Option<&'a [f64]>,
    pub(super) threads: usize,
}

impl Scan<'_> {
    /// Finds the largest element of each column, each row scaled by its factor; and the largest element of each row if
    /// no row factors are given.
    pub(super) fn run<T: Real>(&self, rows: &mut [f64], cols: &mut [f64]) -> Result<(), MatrixError> {
        let cut = Cut::of(self.matrix);
        if cut.bands() >= BANDS_MIN {
            let bands: Vec<Span> = (0..cut.bands()).map(|band| cut.rows(band * cut.segments())).collect();
            self.by_bands::<T>(&bands, rows, cols)
        } else {
            self.by_blocks::<T>(&cut, rows, cols)
        }
    }

    /// Works band by band: a band that was read for its row maxima is still in cache for its column maxima.
    fn by_bands<T: Real>(
        &self,
        bands: &[Span],
        rows: &mut [f64],
        cols: &mut [f64],
    ) -> Result<(), MatrixError> {
        let parts = bands.len().min(PARTS * self.threads);
        let found = parallel(parts, self.threads, |loader, part| {
            let mut most: Vec<f64> = zeros(cols.len())?;
            let mut sizes = Vec::new();
            for band in &bands[part * bands.len() / parts..(part + 1) * bands.len() / parts] {
                let tiles: Vec<Rect> = Cut::across(self.matrix, *band).collect();
                let units = match self.rows {
                    Some(rows) => rows[band.start as usize..band.end as usize].to_vec(),
                    None => {
                        let found = self.largest_of_rows::<T>(loader, &tiles, *band)?;
                        let units = found.iter().copied().map(reciprocal).collect();
                        sizes.push((band.start as usize, found));
                        units
                    }
                };
                self.largest_of_columns::<T>(loader, &tiles, &units, &mut most)?;
            }
            Ok((sizes, most))
        })?;
        for (sizes, most) in found {
            for (start, sizes) in sizes {
                rows.iter_mut().skip(start).zip(sizes).for_each(|(to, from)| *to = from);
            }
            cols.iter_mut().zip(most).for_each(|(to, from)| *to = larger(from, *to));
        }
        Ok(())
    }

    /// For matrices with few rows: each block has its own columns. Rows are long, so their largest elements are estimated
    /// from the first columns of each tile.
    fn by_blocks<T: Real>(&self, cut: &Cut, rows: &mut [f64], cols: &mut [f64]) -> Result<(), MatrixError> {
        let tiles_of = |block: usize| -> Vec<Rect> { cut.tiles(block).collect() };
        let mut units = self.rows.unwrap_or_default().to_vec();
        if self.rows.is_none() {
            let found = parallel(cut.blocks(), self.threads, |loader, block| {
                let some: Vec<Rect> = cut.tiles(block).map(first_columns).collect();
                self.largest_of_rows::<T>(loader, &some, cut.rows(block))
            })?;
            for (block, sizes) in found.into_iter().enumerate() {
                let rows = rows.iter_mut().skip(cut.rows(block).start as usize);
                rows.zip(sizes).for_each(|(to, from)| *to = larger(from, *to));
            }
            let most = rows.iter().copied().fold(0.0, larger);
            rows.iter_mut().filter(|size| **size == 0.0).for_each(|size| *size = most);
            units = rows.iter().copied().map(reciprocal).collect();
        }
        let found = parallel(cut.blocks(), self.threads, |loader, block| {
            let (tiles, span) = (tiles_of(block), cut.rows(block));
            let (Some(first), Some(last)) = (tiles.first(), tiles.last()) else { return Ok((0, Vec::new())) };
            let start = first.cols.start;
            let mut most: Vec<f64> = zeros((last.cols.end - start) as usize)?;
            let units = &units[span.start as usize..span.end as usize];
            for rect in &tiles {
                let own = Span::new(rect.cols.start - start, rect.cols.end - start);
                let most = &mut most[own.start as usize..own.end as usize];
                self.raise::<T>(loader, *rect, units, most)?;
            }
            Ok((start as usize, most))
        })?;
        for (start, most) in found {
            cols.iter_mut().skip(start).zip(most).for_each(|(to, from)| *to = larger(from, *to));
        }
        Ok(())
    }

    /// The largest element of each row in these tiles.
    fn largest_of_rows<T: Real>(
        &self,
        loader: &mut Loader,
        tiles: &[Rect],
        span: Span,
    ) -> Result<Vec<f64>, MatrixError> {
        let by_rows = self.matrix.layout() == Layout::RowMajor;
        let mut sizes: Vec<f64> = zeros(span.len() as usize)?;
        for rect in tiles {
            let tile = loader.load::<T>(self.matrix, *rect, None)?;
            let sizes = &mut sizes;
            with_widest_vectors(
                #[inline(always)]
                |_| largest_of_rows::<T>(&tile, by_rows, *rect, sizes),
            );
        }
        Ok(sizes)
    }

    /// Raises `most`, with one maximum for each column of the matrix, by the elements of these tiles.
    fn largest_of_columns<T: Real>(
        &self,
        loader: &mut Loader,
        tiles: &[Rect],
        units: &[f64],
        most: &mut [f64],
    ) -> Result<(), MatrixError> {
        for rect in tiles {
            let most = &mut most[rect.cols.start as usize..rect.cols.end as usize];
            self.raise::<T>(loader, *rect, units, most)?;
        }
        Ok(())
    }

    /// Raises `most`, with one maximum for each column of the tile, by the tile's elements.
    fn raise<T: Real>(
        &self,
        loader: &mut Loader,
        rect: Rect,
        units: &[f64],
        most: &mut [f64],
    ) -> Result<(), MatrixError> {
        let by_rows = self.matrix.layout() == Layout::RowMajor;
        let tile = loader.load::<T>(self.matrix, rect, None)?;
        with_widest_vectors(
            #[inline(always)]
            |_| largest_of_columns::<T>(&tile, by_rows, units, most),
        );
        Ok(())
    }
}

/// The first eighth of a tile's columns.
fn first_columns(rect: Rect) -> Rect {
    let some = rect.cols.len().div_ceil(8);
    Rect::new(rect.rows, Span::new(rect.cols.start, rect.cols.start + some))
}

/// 1 / x, limited to the largest f64; 0 for 0.
fn reciprocal(x: f64) -> f64 {
    if x > 0.0 { (1.0 / x).min(f64::MAX) } else { 0.0 }
}

/// `a` if it is larger, else `b`: one instruction. If `a` is NaN, the result is `b`.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The absolute value of an element; 0 for NaN and infinities.
#[inline(always)]
fn size<T: Real>(x: T) -> f64 {
    let x = x.to_f64().abs();
    if x < f64::INFINITY { x } else { 0.0 }
}

#[inline(always)]
fn largest_of_rows<T: Real>(tile: &Tile<'_>, by_rows: bool, rect: Rect, sizes: &mut [f64]) {
    if !by_rows {
        for col in 0..rect.cols.len() as usize {
            for (x, most) in tile.line::<T>(col).iter().zip(sizes.iter_mut()) {
                *most = larger(size(*x), *most);
            }
        }
        return;
    }
    for (row, most) in sizes.iter_mut().enumerate() {
        let (chunks, rest) = tile.line::<T>(row).as_chunks::<{ 4 * LANES }>();
        let mut lanes = [0.0; 4 * LANES];
        for chunk in chunks {
            for i in 0..4 * LANES {
                lanes[i] = larger(size(chunk[i]), lanes[i]);
            }
        }
        let rest = rest.iter().fold(*most, |most, x| larger(size(*x), most));
        *most = lanes.into_iter().fold(rest, larger);
    }
}

#[inline(always)]
fn largest_of_columns<T: Real>(tile: &Tile<'_>, by_rows: bool, units: &[f64], most: &mut [f64]) {
    if by_rows {
        let width = most.len();
        for start in (0..width).step_by(PIECE) {
            let span = start..(start + PIECE).min(width);
            let most = &mut most[span.clone()];
            let line = |row: usize| &tile.line::<T>(row)[span.clone()];
            // Four rows at once, so that each maximum is loaded and stored once for four rows.
            let (fours, rest) = units.as_chunks::<4>();
            for (i, units) in fours.iter().enumerate() {
                let (a, b, c, d) = (line(4 * i), line(4 * i + 1), line(4 * i + 2), line(4 * i + 3));
                for ((((most, a), b), c), d) in most.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    let first = larger(size(*a) * units[0], size(*b) * units[1]);
                    let last = larger(size(*c) * units[2], size(*d) * units[3]);
                    *most = larger(larger(first, last), *most);
                }
            }
            for (row, unit) in (4 * fours.len()..).zip(rest) {
                for (x, most) in line(row).iter().zip(most.iter_mut()) {
                    *most = larger(size(*x) * unit, *most);
                }
            }
        }
        return;
    }
    for (col, most) in most.iter_mut().enumerate() {
        let ((x, x_rest), (units, units_rest)) =
            (tile.line::<T>(col).as_chunks::<LANES>(), units.as_chunks::<LANES>());
        let mut lanes = [0.0; LANES];
        for (x, units) in x.iter().zip(units) {
            for i in 0..LANES {
                lanes[i] = larger(size(x[i]) * units[i], lanes[i]);
            }
        }
        let rest = x_rest.iter().zip(units_rest).fold(*most, |most, (x, unit)| larger(size(*x) * unit, most));
        *most = lanes.into_iter().fold(rest, larger);
    }
}
