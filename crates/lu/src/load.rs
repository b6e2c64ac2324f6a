//! Reads a matrix into working memory, on all threads, and takes its norms on the way.

use crate::LuError;
use crate::threads;
use crate::working::{WorkingMatrix, rect};
use bramble_kernel::even;
use bramble_kernel::lu::{LuElement, scatter};
use bramble_matrix::{Layout, Matrix, Rect};
use std::ops::Range;

/// Bytes that a thread reads at a time: the copy stays in a second-level cache.
const PIECE_BYTES: usize = 256 << 10;

/// Norms of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatrixNorms {
    /// Largest sum of the absolute values of a column.
    pub one: f64,
    /// Largest sum of the absolute values of a row.
    pub inf: f64,
    /// Largest absolute value.
    pub max: f64,
}

/// AbsoluteSums of absolute values of a part of a matrix.
#[derive(Default)]
pub(crate) struct AbsoluteSums {
    pub(crate) rows: Vec<f64>,
    pub(crate) cols: Vec<f64>,
    max: f64,
}

impl AbsoluteSums {
    pub(crate) fn new(rows: usize, cols: usize) -> Self {
        Self { rows: vec![0.0; rows], cols: vec![0.0; cols], max: 0.0 }
    }

    /// Adds a row, or with `is_row` false a column, that begins at (row, col). Returns false if it may have an element that is no
    /// number.
    pub(crate) fn add_line<T: LuElement>(
        &mut self,
        line: &[T],
        (row, col): (usize, usize),
        is_row: bool,
    ) -> bool {
        let (own, across) = match is_row {
            true => (&mut self.rows[row], &mut self.cols[col..][..line.len()]),
            false => (&mut self.cols[col], &mut self.rows[row..][..line.len()]),
        };
        let (total, max) = absolute_sums(line, across);
        *own += total;
        self.max = self.max.max(max);
        total.is_finite()
    }

    /// Adds the sums of another part of the matrix.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.rows.iter_mut().zip(&other.rows).for_each(|(sum, x)| *sum += x);
        self.cols.iter_mut().zip(&other.cols).for_each(|(sum, x)| *sum += x);
        self.max = self.max.max(other.max);
    }

    pub(crate) fn norms(&self) -> MatrixNorms {
        let largest = |sums: &[f64]| sums.iter().fold(0.0, |most: f64, sum| most.max(*sum));
        MatrixNorms { one: largest(&self.cols), inf: largest(&self.rows), max: self.max }
    }
}

/// Copies `matrix`, which has the element type `S`, to the columns of `working` from `first` on, rounded to `T`. Returns its
/// norms; an error if an element is infinite or NaN.
pub fn load<S: LuElement, T: LuElement>(
    matrix: &Matrix,
    working: &WorkingMatrix,
    first: usize,
    threads: usize,
) -> Result<MatrixNorms, LuError> {
    scan::<S, T>(matrix, Some((working, first)), threads)
}

/// The norms of a matrix of the element type `S`; an error if an element is infinite or NaN.
pub fn norms<S: LuElement>(matrix: &Matrix, threads: usize) -> Result<MatrixNorms, LuError> {
    scan::<S, S>(matrix, None, threads)
}

/// Reads all elements once. `to`: where they are copied to, and the first column there.
fn scan<S: LuElement, T: LuElement>(
    matrix: &Matrix,
    to: Option<(&WorkingMatrix, usize)>,
    threads: usize,
) -> Result<MatrixNorms, LuError> {
    let shape = matrix.shape();
    let (rows, cols) = (shape.rows as usize, shape.cols as usize);
    let lines = if matrix.layout() == Layout::RowMajor { rows } else { cols };
    let bands = threads::each(threads, even(lines, 4 * threads).collect(), |band: Range<usize>| {
        let mut sums = AbsoluteSums::new(rows, cols);
        let within = if matrix.layout() == Layout::RowMajor { cols } else { rows };
        let step = (PIECE_BYTES / size_of::<S>() / within.max(1)).max(1);
        let mut piece = Vec::new();
        for start in band.clone().step_by(step) {
            let some = start..band.end.min(start + step);
            let part =
                if matrix.layout() == Layout::RowMajor { rect(some, 0..cols) } else { rect(0..rows, some) };
            copy::<S, T>(matrix, part, to, &mut piece, &mut sums)?;
        }
        Ok(sums)
    });
    let mut all = AbsoluteSums::new(rows, cols);
    for sums in bands {
        let sums: Result<AbsoluteSums, LuError> = sums;
        all.merge(&sums?);
    }
    Ok(all.norms())
}

/// Reads one rectangle, and copies it.
fn copy<S: LuElement, T: LuElement>(
    matrix: &Matrix,
    part: Rect,
    to: Option<(&WorkingMatrix, usize)>,
    piece: &mut Vec<S>,
    sums: &mut AbsoluteSums,
) -> Result<(), LuError> {
    let (rows, cols) = (part.rows.len() as usize, part.cols.len() as usize);
    let (top, left) = (part.rows.start as usize, part.cols.start as usize);
    piece.resize(rows * cols, S::ZERO);
    matrix.read_block(part, bytemuck::cast_slice_mut(piece))?;
    let is_row = matrix.layout() == Layout::RowMajor;
    let strides = if is_row { (cols, 1) } else { (1, rows) };
    let within = if is_row { cols } else { rows };
    let mut is_fine = true;
    for (at, line) in piece.chunks_exact(within.max(1)).enumerate() {
        let place = if is_row { (top + at, left) } else { (top, left + at) };
        is_fine &= sums.add_line(line, place, is_row);
    }
    if !is_fine {
        check_finite(matrix.name(), piece, strides, (top, left), (rows, cols))?;
    }
    let Some((working, first)) = to else { return Ok(()) };
    let mut lease = working.lease(top..top + rows, first + left..first + left + cols);
    if S::DTYPE == T::DTYPE {
        scatter::<T>(bytemuck::cast_slice(piece), strides, &mut lease.view_mut());
    } else {
        let rounded: Vec<T> = piece.iter().map(|x| T::from_f64(x.to_f64())).collect();
        scatter(&rounded, strides, &mut lease.view_mut());
    }
    Ok(())
}

/// Refuses a piece of which an element is no number, and names the first.
fn check_finite<T: LuElement>(
    name: &str,
    piece: &[T],
    strides: (usize, usize),
    (top, left): (usize, usize),
    (rows, cols): (usize, usize),
) -> Result<(), LuError> {
    let places = (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j)));
    let mut bad = places.filter(|(i, j)| !piece[i * strides.0 + j * strides.1].is_number());
    match bad.next() {
        None => Ok(()),
        Some((i, j)) => Err(LuError::NotFinite {
            name: name.to_owned(),
            row: (top + i) as u64,
            col: (left + j) as u64,
            value: piece[i * strides.0 + j * strides.1].to_f64(),
        }),
    }
}

/// Adds the absolute values of a line to `across`, and returns their sum and the largest.
fn absolute_sums<T: LuElement>(line: &[T], across: &mut [f64]) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut totals, mut most) = ([0.0f64; LANES], [0.0f64; LANES]);
    let mut add = |lane: usize, x: &T, sum: &mut f64| {
        let x = x.to_f64().abs();
        *sum += x;
        totals[lane] += x;
        most[lane] = if x > most[lane] { x } else { most[lane] };
    };
    let ((lines, rest), (sums, sums_rest)) = (line.as_chunks::<LANES>(), across.as_chunks_mut::<LANES>());
    for (xs, sums) in lines.iter().zip(sums) {
        for lane in 0..LANES {
            add(lane, &xs[lane], &mut sums[lane]);
        }
    }
    rest.iter().zip(sums_rest).for_each(|(x, sum)| add(0, x, sum));
    (totals.iter().sum(), most.iter().fold(0.0, |a, b| a.max(*b)))
}
