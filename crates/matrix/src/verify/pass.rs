//! One pass over a matrix: its products with a few vectors, and the size of each row.
//!
//! Place: B, A, C and C0 each go through `pass` once (again only where they hold NaN or infinities). It
//! is bound by memory: each tile is fetched once and used for all vectors.
//!
//! Invariants: a row's results depend on the matrix, its layout and the vectors alone, not on the
//! number of threads. A NaN or infinity in a row makes that row's size non-finite and touches no other
//! row.

use super::scalar::{Real, Scalar};
use super::tile::{Cut, Loader, Tile, parallel, zeros};
use crate::{Element, Layout, Matrix, MatrixError, Rect};

/// Independent sums of a row; 8 keep s and c of two-sum in sixteen 128-bit registers.
const LANES: usize = 8;
/// Elements of a row that are used for every vector while they are in the first-level cache.
const PIECE: usize = 1024;
/// Scales for squares that leave f64's range, and where the unscaled sum is to be trusted.
const UP: f64 = f64::from_bits((1023 + 540) << 52);
const DOWN: f64 = f64::from_bits((1023 - 540) << 52);
const TRUSTED: std::ops::Range<f64> = f64::from_bits((1023 - 900) << 52)..f64::MAX;

/// What is to be known of each row's size.
#[derive(Clone, Copy)]
pub(super) enum Size<'a> {
    /// Nothing (integers).
    None,
    /// Its 2-norm.
    Norm,
    /// Σ_l |m_il| z_l.
    Weighted(&'a [f64]),
}

/// One pass to be made.
pub(super) struct Pass<'a, X> {
    /// Over which matrix.
    pub(super) matrix: &'a Matrix,
    /// The vectors, each as long as a row.
    pub(super) vectors: &'a [Vec<X>],
    /// What else to compute.
    pub(super) size: Size<'a>,
    /// Columns to be read as zero.
    pub(super) mask: Option<&'a [bool]>,
    /// How many threads may be used.
    pub(super) threads: usize,
}

/// What a pass found.
pub(super) struct Rows<X> {
    /// For each vector and row, the product as a pair `hi + lo`.
    pub(super) products: Vec<Vec<[X; 2]>>,
    /// For each row its size; empty where none was asked for.
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
    /// Makes the pass for floats; norms that leave f64's range are computed again, scaled.
    pub(super) fn real<T: Real>(&self) -> Result<Rows<f64>, MatrixError> {
        self.run::<T>(|loader, cut, block, sizes| {
            if let Size::Norm = self.size {
                if T::SQUARES_OVERFLOW && sizes.iter().any(|size| !TRUSTED.contains(size)) {
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

    /// The pass over all blocks; `finish` sees each block's sizes.
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
        let mut rows = Rows { products: vec![Vec::new(); self.vectors.len()], sizes: Vec::new() };
        for (products, sizes) in blocks {
            for (to, from) in rows.products.iter_mut().zip(products) {
                to.extend(from);
            }
            rows.sizes.extend(sizes);
        }
        Ok(rows)
    }

    /// The sums of one block.
    fn block<T: Scalar<X = X>>(
        &self,
        loader: &mut Loader,
        cut: &Cut,
        block: usize,
        scale: f64,
    ) -> Result<Sums<X>, MatrixError> {
        let layout = self.matrix.layout();
        let mut sums = Sums::new(cut.rows(block).len() as usize, self.vectors.len(), layout, self.size)?;
        for rect in cut.tiles(block) {
            let tile = loader.load::<T>(self.matrix, rect, self.mask)?;
            match layout {
                Layout::RowMajor => self.add_rows::<T>(&mut sums, &tile, rect, scale),
                Layout::ColMajor => self.add_columns::<T>(&mut sums, &tile, rect, scale),
            }
        }
        Ok(sums)
    }

    /// Adds a tile of contiguous rows.
    fn add_rows<T: Scalar<X = X>>(&self, sums: &mut Sums<X>, tile: &Tile<'_>, rect: Rect, scale: f64) {
        let rows = sums.rows;
        for row in 0..rows {
            let mut col = rect.cols.start as usize;
            for piece in tile.line::<T>(row).chunks(PIECE) {
                let span = col..col + piece.len();
                for (v, x) in self.vectors.iter().enumerate() {
                    let at = (v * rows + row) * LANES;
                    dot(piece, &x[span.clone()], &mut sums.hi[at..], &mut sums.lo[at..]);
                }
                let size = sums.size.get_mut(row * LANES..).unwrap_or_default();
                match self.size {
                    Size::None => {}
                    Size::Norm => lanes(piece, piece, size, |m, _| {
                        let m = m.to_f64() * scale;
                        m * m
                    }),
                    Size::Weighted(z) => lanes(piece, &z[span], size, |m, z| m.to_f64().abs() * z),
                }
                col += piece.len();
            }
        }
    }

    /// Adds a tile of contiguous columns.
    fn add_columns<T: Scalar<X = X>>(&self, sums: &mut Sums<X>, tile: &Tile<'_>, rect: Rect, scale: f64) {
        let rows = sums.rows;
        for (i, col) in (rect.cols.start as usize..rect.cols.end as usize).enumerate() {
            let line = tile.line::<T>(i);
            for (v, x) in self.vectors.iter().enumerate() {
                let (hi, lo) = (&mut sums.hi[v * rows..][..rows], &mut sums.lo[v * rows..][..rows]);
                for ((m, hi), lo) in line.iter().zip(hi).zip(lo) {
                    T::step(hi, lo, m.widen(), x[col]);
                }
            }
            match self.size {
                Size::None => {}
                Size::Norm => {
                    for (m, size) in line.iter().zip(&mut sums.size) {
                        let m = m.to_f64() * scale;
                        *size += m * m;
                    }
                }
                Size::Weighted(z) => {
                    for (m, size) in line.iter().zip(&mut sums.size) {
                        *size += m.to_f64().abs() * z[col];
                    }
                }
            }
        }
    }

    /// Turns sums of squares into norms where some left the trusted range.
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
    fn new(rows: usize, vectors: usize, layout: Layout, size: Size<'_>) -> Result<Self, MatrixError> {
        let lanes = if layout == Layout::RowMajor { LANES } else { 1 };
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

/// Which rows and which columns hold a NaN or an infinity, ascending.
pub(super) fn wild<T: Real>(matrix: &Matrix, threads: usize) -> Result<(Vec<u64>, Vec<u64>), MatrixError> {
    let cut = Cut::of(matrix);
    let found = parallel(cut.blocks(), threads, |loader, block| {
        let mut found = Vec::new();
        for rect in cut.tiles(block) {
            let (lines, _) = matrix.layout().lines(rect.shape());
            let tile = loader.load::<T>(matrix, rect, None)?;
            for i in 0..lines {
                for (j, m) in (0u64..).zip(tile.line::<T>(i as usize)) {
                    if !m.to_f64().is_finite() {
                        let (row, col) = if matrix.layout() == Layout::RowMajor { (i, j) } else { (j, i) };
                        found.push((rect.rows.start + row, rect.cols.start + col));
                    }
                }
            }
            // Whole matrices of NaN must not fill memory: what is known of this block fits its edges.
            compact(&mut found);
        }
        Ok(found)
    })?;
    let mut rows: Vec<u64> = found.iter().flatten().map(|at| at.0).collect();
    let mut cols: Vec<u64> = found.iter().flatten().map(|at| at.1).collect();
    for list in [&mut rows, &mut cols] {
        list.sort_unstable();
        list.dedup();
    }
    Ok((rows, cols))
}

/// Keeps enough positions to name every row and every column among them.
fn compact(found: &mut Vec<(u64, u64)>) {
    let (mut rows, mut cols) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    found.retain(|&(row, col)| {
        let (new_row, new_col) = (rows.insert(row), cols.insert(col));
        new_row || new_col
    });
}
