//! The working memory of a factorisation: a matrix in rows that threads use by rectangles.
//!
//! Invariants: rows begin an odd number of cache lines apart, so that the lines of a column do not share one set of a cache;
//! two threads never hold overlapping rectangles (the output's leases see to it).

use bramble_kernel::even;
use bramble_kernel::lu::LuElement;
use bramble_matrix::{Lines, Matrix, MatrixError, Output, Rect, Shape, Span, TileLease};
use std::ops::Range;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// Bytes of the smallest pages of memory.
const PAGE: usize = 4096;

/// A matrix in memory that is factored in place, with the columns that ride along.
pub struct WorkingMatrix {
    memory: Output,
    rows: usize,
    cols: usize,
}

impl WorkingMatrix {
    /// A matrix of zeros; an error if the machine has too little memory.
    pub fn zeros<T: LuElement>(rows: usize, cols: usize) -> Result<Self, MatrixError> {
        let shape = Shape::new(rows as u64, pitch::<T>(cols) as u64);
        Ok(Self { memory: Output::anonymous(shape, T::DTYPE)?, rows, cols })
    }

    /// Writes zeros to all pages of the memory, so that the system provides them now and not during a measurement.
    pub(crate) fn touch<T: LuElement>(&self, threads: usize) {
        let pitch = pitch::<T>(self.cols);
        let rows = (PAGE / size_of::<T>() / pitch.max(1)).max(1);
        crate::threads::each(threads, even(self.rows, threads).collect(), |band: Range<usize>| {
            let (len, mut lease) = (band.len(), self.lease(band, 0..self.cols));
            let mut view = lease.view_mut::<T>();
            for i in (0..len).step_by(rows) {
                (0..self.cols).step_by(PAGE / size_of::<T>()).for_each(|j| *view.at_mut(i, j) = T::ZERO);
            }
        });
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, without the padding.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Exclusive access to a rectangle. Panics if another holder has part of it: a bug of the caller.
    pub(crate) fn lease(&self, rows: Range<usize>, cols: Range<usize>) -> TileLease {
        assert!(rows.end <= self.rows && cols.end <= self.cols, "a rectangle of the matrix");
        self.memory.lease(rect(rows, cols))
    }

    /// All elements, to be read. An error if a rectangle is leased.
    pub(crate) fn lines(&self) -> Result<Lines, MatrixError> {
        let all = rect(0..self.rows, 0..self.cols);
        // A matrix in memory that is not converted has its elements in place.
        self.memory.matrix()?.lines(all).ok_or(MatrixError::OutOfMemory { bytes: 0 })
    }
}

impl WorkingMatrix {
    /// All elements as a matrix, without a copy. An error if a rectangle is leased.
    pub fn matrix(&self) -> Result<Matrix, MatrixError> {
        Ok(self.memory.matrix()?.part(rect(0..self.rows, 0..self.cols)))
    }

    /// A copy of all elements in contiguous rows.
    pub fn rows_of<T: LuElement>(&self) -> Result<Vec<T>, MatrixError> {
        let lines = self.lines()?;
        let view = lines.view::<T>();
        let row =
            |i: usize| if self.cols == 0 { &[] } else { &view.data()[i * view.row_stride()..][..self.cols] };
        Ok((0..self.rows).flat_map(row).copied().collect())
    }
}

/// Elements from one row to the next.
fn pitch<T: LuElement>(cols: usize) -> usize {
    let in_line = CACHE_LINE / size_of::<T>();
    (cols.div_ceil(in_line) | 1) * in_line
}

/// Bytes of working memory for a matrix of this size.
pub(crate) fn bytes<T: LuElement>(rows: usize, cols: usize) -> u64 {
    (rows as u64).saturating_mul(pitch::<T>(cols) as u64).saturating_mul(size_of::<T>() as u64)
}

/// A rectangle in the matrix crate's terms.
pub(crate) fn rect(rows: Range<usize>, cols: Range<usize>) -> Rect {
    let span = |r: Range<usize>| Span::new(r.start as u64, r.end as u64);
    Rect::new(span(rows), span(cols))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_an_odd_number_of_cache_lines_apart() {
        for cols in [1, 8, 9, 4096, 4097, 8000] {
            let lines = pitch::<f64>(cols) / 8;
            assert!(pitch::<f64>(cols) >= cols && lines % 2 == 1, "{cols}");
        }
        assert_eq!(bytes::<f32>(10, 16), 10 * 64);
    }
}
