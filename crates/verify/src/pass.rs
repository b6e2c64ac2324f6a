//! One pass over a matrix: its products with a few vectors, and the size of each row.
//!
//! Place: B, A, C and C0 are each passed over once (B and C0 again if they hold NaN or infinities). A pass
//! is bound by memory bandwidth: each tile is fetched once and used for all vectors.
//!
//! Invariants: a row's results depend on the matrix, its layout and the vectors alone, not on the
//! number of threads. A NaN or infinity in a row makes that row's size non-finite and touches no other
//! row.

use super::mixing::Mixing;
use super::scalar::{Real, Scalar, with_widest_vectors};
use super::tile::{Cut, Loader, Tile, parallel, zeros};
use bramble_matrix::{DType, Element, Layout, Matrix, MatrixError, Rect};

/// Independent partial sums of a row: one or two vector registers each for s and c of two-sum.
const LANES: usize = 8;
/// Elements of a row that are multiplied with every vector while they are in the first-level cache.
const PIECE: usize = 1024;
/// Tiles whose lines are shorter than this are transposed first.
const SHORT: u64 = 32;
/// Scales for norms whose squares leave f64's range, and the range in which an unscaled sum of squares is accurate.
const UP: f64 = f64::from_bits((1023 + 540) << 52);
const DOWN: f64 = f64::from_bits((1023 - 540) << 52);
const TRUSTED: std::ops::Range<f64> = f64::from_bits((1023 - 900) << 52)..f64::MAX;

/// The measure of each row's size.
#[derive(Clone, Copy)]
pub(super) enum Size<'a> {
    /// Nothing (integers).
    None,
    /// The 2-norm of m_ij w_j.
    Norm(&'a [f64]),
    /// Σ_j |m_ij| w_j.
    Weighted(&'a [f64]),
}

/// One pass to be made.
pub(super) struct Pass<'a, X> {
    /// Over which matrix.
    pub(super) matrix: &'a Matrix,
    /// The vectors, each as long as a row.
    pub(super) vectors: &'a [Vec<X>],
    /// The size to compute for each row.
    pub(super) size: Size<'a>,
    /// Columns to be read as zero.
    pub(super) mask: Option<&'a [bool]>,
    /// The most threads to use.
    pub(super) threads: usize,
}

/// The results of a pass.
pub(super) struct Rows<X> {
    /// For each vector and row, the product as a pair `hi + lo`.
    pub(super) products: Vec<Vec<[X; 2]>>,
    /// The size of each row; empty for `Size::None`.
    pub(super) sizes: Vec<f64>,
}

impl<X> Rows<X> {
    /// Whether some row's size is NaN or infinite.
    pub(super) fn any_wild(&self) -> bool {
        self.sizes.iter().any(|size| !size.is_finite())
    }
}

/// The sums of one block of rows. `lanes` per row: `LANES` where rows are contiguous, else 1.
struct Sums<X> {
    rows: usize,
    lanes: usize,
    hi: Vec<X>,
    lo: Vec<X>,
    size: Vec<f64>,
}

impl Pass<'_, f64> {
    /// Makes the pass for floats. Norms whose squares leave f64's range are computed again from scaled elements.
    pub(super) fn real<T: Real>(&self) -> Result<Rows<f64>, MatrixError> {
        self.run::<T>(|loader, cut, block, sizes| {
            if let Size::Norm(_) = self.size {
                if sizes
                    .iter()
                    .any(|size| !TRUSTED.contains(size) && (*size != 0.0 || T::DTYPE == DType::F64))
                {
                    return self.scaled_norms::<T>(loader, cut, block, sizes);
                }
                sizes.iter_mut().for_each(|size| *size = size.sqrt());
            }
            Ok(())
        })
    }
}

impl<X: Element> Pass<'_, X> {
    /// Makes the pass for integers.
    pub(super) fn integer<T: Scalar<X = X>>(&self) -> Result<Rows<X>, MatrixError> {
        self.run::<T>(|_, _, _, _| Ok(()))
    }

    /// The pass over all blocks; `finish` completes each block's sizes.
    fn run<T: Scalar<X = X>>(
        &self,
        finish: impl Fn(&mut Loader, &Cut, usize, &mut [f64]) -> Result<(), MatrixError> + Sync,
    ) -> Result<Rows<X>, MatrixError> {
        let cut = Cut::of(self.matrix);
        let blocks = parallel(cut.blocks(), self.threads, |loader, block| {
            let sums = self.block::<T>(loader, &cut, block, 1.0)?;
            let products: Vec<Vec<[X; 2]>> = (0..self.vectors.len()).map(|v| sums.products::<T>(v)).collect();
            let mut sizes = sums.sizes();
            finish(loader, &cut, block, &mut sizes)?;
            Ok((products, sizes))
        })?;
        let rows = self.matrix.shape().rows as usize;
        let has_size = !matches!(self.size, Size::None);
        let mut all = Rows { products: Vec::new(), sizes: zeros(if has_size { rows } else { 0 })? };
        for _ in self.vectors {
            all.products.push(zeros(rows)?);
        }
        // The blocks of a band are added from left to right, whichever threads computed them.
        for (block, (products, sizes)) in blocks.into_iter().enumerate() {
            let start = cut.rows(block).start as usize;
            for (to, from) in all.products.iter_mut().zip(products) {
                for ([hi, lo], [s, c]) in to[start..].iter_mut().zip(from) {
                    T::step(hi, lo, s, X::ONE);
                    *lo = lo.plus(c);
                }
            }
            for (to, from) in all.sizes.iter_mut().skip(start).zip(sizes) {
                *to = if let Size::Norm(_) = self.size { to.hypot(from) } else { *to + from };
            }
        }
        Ok(all)
    }

    /// The sums of one block.
    fn block<T: Scalar<X = X>>(
        &self,
        loader: &mut Loader,
        cut: &Cut,
        block: usize,
        scale: f64,
    ) -> Result<Sums<X>, MatrixError> {
        let (layout, rows) = (self.matrix.layout(), cut.rows(block).len());
        let line = if layout == Layout::RowMajor { self.matrix.shape().cols } else { rows };
        let by_rows = (layout == Layout::RowMajor) == (line >= SHORT);
        let mut sums = Sums::new(rows as usize, self.vectors.len(), by_rows, self.size)?;
        for rect in cut.tiles(block) {
            let tile = if line < SHORT {
                loader.load_turned::<T>(self.matrix, rect, self.mask)?
            } else {
                loader.load::<T>(self.matrix, rect, self.mask)?
            };
            let sums = &mut sums;
            // From here on, code is compiled for the widest vectors of this processor, except for inner products of 64-bit
            // integers: AVX-512's multiplication took 3.7 times as long there as the baseline's (EPYC, n = 4096).
            if by_rows && T::DTYPE == DType::I64 {
                self.add_rows::<T>(sums, &tile, rect, scale);
            } else if by_rows {
                with_widest_vectors(
                    #[inline(always)]
                    |_| self.add_rows::<T>(sums, &tile, rect, scale),
                );
            } else {
                with_widest_vectors(
                    #[inline(always)]
                    |_| self.add_columns::<T>(sums, &tile, rect, scale),
                );
            }
        }
        Ok(sums)
    }

    /// Adds a tile of contiguous rows.
    #[inline(always)]
    fn add_rows<T: Scalar<X = X>>(&self, sums: &mut Sums<X>, tile: &Tile<'_>, rect: Rect, scale: f64) {
        let rows = sums.rows;
        for row in 0..rows {
            let mut col = rect.cols.start as usize;
            for piece in tile.line::<T>(row).chunks(PIECE) {
                let span = col..col + piece.len();
                let size = sums.size.get_mut(row * LANES..).unwrap_or_default();
                // One loop for the first product and the size, where both are needed: each element is read and converted once.
                let is_joint = scale == 1.0 && !self.vectors.is_empty() && !matches!(self.size, Size::None);
                for (v, x) in self.vectors.iter().enumerate().skip(usize::from(is_joint)) {
                    let at = (v * rows + row) * LANES;
                    dot(piece, &x[span.clone()], &mut sums.hi[at..], &mut sums.lo[at..]);
                }
                let at = row * LANES;
                match self.size {
                    Size::None => {}
                    Size::Norm(w) if is_joint => dot_and_size(
                        (piece, &self.vectors[0][span.clone()], &w[span]),
                        (&mut sums.hi[at..], &mut sums.lo[at..], size),
                        #[inline(always)]
                        |m, w| {
                            let m = m.to_f64() * w;
                            m * m
                        },
                    ),
                    Size::Weighted(w) if is_joint => dot_and_size(
                        (piece, &self.vectors[0][span.clone()], &w[span]),
                        (&mut sums.hi[at..], &mut sums.lo[at..], size),
                        #[inline(always)]
                        |m, w| m.to_f64().abs() * w,
                    ),
                    Size::Norm(w) => lanes(
                        piece,
                        &w[span],
                        size,
                        #[inline(always)]
                        |m, w| {
                            let m = m.to_f64() * w * scale;
                            m * m
                        },
                    ),
                    Size::Weighted(w) => lanes(
                        piece,
                        &w[span],
                        size,
                        #[inline(always)]
                        |m, w| m.to_f64().abs() * w,
                    ),
                }
                col += piece.len();
            }
        }
    }

    /// Adds a tile of contiguous columns.
    #[inline(always)]
    fn add_columns<T: Scalar<X = X>>(&self, sums: &mut Sums<X>, tile: &Tile<'_>, rect: Rect, scale: f64) {
        let rows = sums.rows;
        for (i, col) in (rect.cols.start as usize..rect.cols.end as usize).enumerate() {
            let line = tile.line::<T>(i);
            for (v, x) in self.vectors.iter().enumerate() {
                let x = x[col];
                let (hi, lo) = (&mut sums.hi[v * rows..][..rows], &mut sums.lo[v * rows..][..rows]);
                for ((m, hi), lo) in line.iter().zip(hi).zip(lo) {
                    T::step(hi, lo, m.widen(), x);
                }
            }
            match self.size {
                Size::None => {}
                Size::Norm(w) => {
                    for (m, size) in line.iter().zip(&mut sums.size) {
                        let m = m.to_f64() * w[col] * scale;
                        *size += m * m;
                    }
                }
                Size::Weighted(w) => {
                    let w = w[col];
                    for (m, size) in line.iter().zip(&mut sums.size) {
                        *size += m.to_f64().abs() * w;
                    }
                }
            }
        }
    }

    /// Turns sums of squares into norms; sums outside the trusted range are computed again, scaled.
    fn scaled_norms<T: Scalar<X = X>>(
        &self,
        loader: &mut Loader,
        cut: &Cut,
        block: usize,
        sizes: &mut [f64],
    ) -> Result<(), MatrixError> {
        let only_size = Self { vectors: &[], ..*self };
        let up = only_size.block::<T>(loader, cut, block, UP)?.sizes();
        let down = only_size.block::<T>(loader, cut, block, DOWN)?.sizes();
        for ((size, up), down) in sizes.iter_mut().zip(up).zip(down) {
            *size = match *size {
                s if TRUSTED.contains(&s) => s.sqrt(),
                s if s < TRUSTED.start => up.sqrt() / UP,
                _ => down.sqrt() / DOWN,
            };
        }
        Ok(())
    }
}

impl<X: Element> Sums<X> {
    fn new(rows: usize, vectors: usize, by_rows: bool, size: Size<'_>) -> Result<Self, MatrixError> {
        let lanes = if by_rows { LANES } else { 1 };
        let sizes = if matches!(size, Size::None) { 0 } else { rows * lanes };
        let (hi, lo) = (zeros(vectors * rows * lanes)?, zeros(vectors * rows * lanes)?);
        Ok(Self { rows, lanes, hi, lo, size: zeros(sizes)? })
    }

    /// The products with vector `v`.
    fn products<T: Scalar<X = X>>(&self, v: usize) -> Vec<[X; 2]> {
        let span = v * self.rows * self.lanes..(v + 1) * self.rows * self.lanes;
        let (hi, lo) = (self.hi[span.clone()].chunks(self.lanes), self.lo[span].chunks(self.lanes));
        hi.zip(lo).map(|(s, c)| T::fold(s, c)).collect()
    }

    /// The sums of sizes.
    fn sizes(&self) -> Vec<f64> {
        self.size.chunks(self.lanes).map(|lanes| lanes.iter().sum()).collect()
    }
}

/// Adds `Σ m x` to the first `LANES` pairs of `hi + lo`.
#[inline(always)]
fn dot<T: Scalar>(m: &[T], x: &[T::X], hi: &mut [T::X], lo: &mut [T::X]) {
    let (mut s, mut c) = ([T::X::ZERO; LANES], [T::X::ZERO; LANES]);
    s.copy_from_slice(&hi[..LANES]);
    c.copy_from_slice(&lo[..LANES]);
    let ((m, m_rest), (x, x_rest)) = (m.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (m, x) in m.iter().zip(x) {
        for i in 0..LANES {
            T::step(&mut s[i], &mut c[i], m[i].widen(), x[i]);
        }
    }
    for (i, (m, x)) in m_rest.iter().zip(x_rest).enumerate() {
        T::step(&mut s[i], &mut c[i], m.widen(), *x);
    }
    hi[..LANES].copy_from_slice(&s);
    lo[..LANES].copy_from_slice(&c);
}

/// `dot` and `lanes` in one loop: adds `Σ m x` to the first `LANES` pairs of `hi + lo`, and `Σ term(m, z)` to those of `sizes`.
#[inline(always)]
fn dot_and_size<T: Scalar>(
    (m, x, z): (&[T], &[T::X], &[f64]),
    (hi, lo, sizes): (&mut [T::X], &mut [T::X], &mut [f64]),
    term: impl Fn(T, f64) -> f64,
) {
    let (mut s, mut c, mut size) = ([T::X::ZERO; LANES], [T::X::ZERO; LANES], [0.0; LANES]);
    s.copy_from_slice(&hi[..LANES]);
    c.copy_from_slice(&lo[..LANES]);
    size.copy_from_slice(&sizes[..LANES]);
    let ((m, m_rest), (x, x_rest), (z, z_rest)) =
        (m.as_chunks::<LANES>(), x.as_chunks::<LANES>(), z.as_chunks::<LANES>());
    for ((m, x), z) in m.iter().zip(x).zip(z) {
        for i in 0..LANES {
            T::step(&mut s[i], &mut c[i], m[i].widen(), x[i]);
            size[i] += term(m[i], z[i]);
        }
    }
    for (i, ((m, x), z)) in m_rest.iter().zip(x_rest).zip(z_rest).enumerate() {
        T::step(&mut s[i], &mut c[i], m.widen(), *x);
        size[i] += term(*m, *z);
    }
    hi[..LANES].copy_from_slice(&s);
    lo[..LANES].copy_from_slice(&c);
    sizes[..LANES].copy_from_slice(&size);
}

/// Adds `Σ term(m, z)` to the first `LANES` elements of `sums`.
#[inline(always)]
fn lanes<T: Copy, Z: Copy>(m: &[T], z: &[Z], sums: &mut [f64], term: impl Fn(T, Z) -> f64) {
    let mut s = [0.0; LANES];
    s.copy_from_slice(&sums[..LANES]);
    let ((m, m_rest), (z, z_rest)) = (m.as_chunks::<LANES>(), z.as_chunks::<LANES>());
    for (m, z) in m.iter().zip(z) {
        for i in 0..LANES {
            s[i] += term(m[i], z[i]);
        }
    }
    for (s, (m, z)) in s.iter_mut().zip(m_rest.iter().zip(z_rest)) {
        *s += term(*m, *z);
    }
    sums[..LANES].copy_from_slice(&s);
}

/// Rows or columns (lines) of a matrix that hold a NaN or an infinity.
#[derive(Default)]
pub(super) struct Wild {
    /// All such lines, ascending.
    pub(super) lines: Vec<u64>,
    /// The lines that hold a NaN, so that the whole row or column of C must be NaN; ascending.
    pub(super) nans: Vec<u64>,
}

impl Wild {
    /// These lines and all lines that may have been mixed with one of them.
    pub(super) fn spread(self, mixing: &Mixing) -> Self {
        Self { lines: mixing.touched(&self.lines), nans: self.nans }
    }

    /// Adds lines and keeps the list ascending and distinct.
    pub(super) fn add(&mut self, lines: Vec<u64>) {
        self.lines.extend(lines);
        self.lines.sort_unstable();
        self.lines.dedup();
    }
}

/// Which rows and which columns hold a NaN or an infinity.
pub(super) fn wild<T: Real>(matrix: &Matrix, threads: usize) -> Result<(Wild, Wild), MatrixError> {
    let cut = Cut::of(matrix);
    let found = parallel(cut.blocks(), threads, |loader, block| {
        let mut found = Vec::new();
        for rect in cut.tiles(block) {
            let (lines, _) = matrix.layout().lines(rect.shape());
            let tile = loader.load::<T>(matrix, rect, None)?;
            for i in 0..lines {
                for (j, m) in (0u64..).zip(tile.line::<T>(i as usize)) {
                    let m = m.to_f64();
                    if !m.is_finite() {
                        let (row, col) = if matrix.layout() == Layout::RowMajor { (i, j) } else { (j, i) };
                        found.push((rect.rows.start + row, rect.cols.start + col, m.is_nan()));
                    }
                }
            }
            // Bounds memory where a whole matrix is NaN: a few positions for each row and column of the block remain.
            compact(&mut found);
        }
        Ok(found)
    })?;
    let lines = |side: fn(&(u64, u64, bool)) -> u64| {
        let of = |nan: bool| {
            let some = found.iter().flatten().filter(|at| !nan || at.2);
            let mut list: Vec<u64> = some.map(side).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        Wild { lines: of(false), nans: of(true) }
    };
    Ok((lines(|at| at.0), lines(|at| at.1)))
}

/// Drops positions that add no new row or column, counted separately for NaN and for infinities.
fn compact(found: &mut Vec<(u64, u64, bool)>) {
    let (mut rows, mut cols) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    found.retain(|&(row, col, nan)| {
        let (new_row, new_col) = (rows.insert((row, nan)), cols.insert((col, nan)));
        new_row || new_col
    });
}
