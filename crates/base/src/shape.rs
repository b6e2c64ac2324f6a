//! Shapes, half-open spans and rectangles, used by all other crates.
//!
//! Units: rows and columns count elements. Sizes in bytes are computed with overflow checks, since
//! shapes come from files and users.

use crate::DType;
use core::fmt;
use core::ops::Range;

/// Rows × columns of a matrix, in elements. Either may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
}

impl Shape {
    /// Longest side of an operand: small enough for all sums in planning.
    pub const SIDE_MAX: u64 = 1 << 32;

    /// A shape of `rows` × `cols`.
    pub const fn new(rows: u64, cols: u64) -> Self {
        Self { rows, cols }
    }

    /// Number of elements, or `None` where it does not fit 64 bits.
    pub const fn elements(self) -> Option<u64> {
        self.rows.checked_mul(self.cols)
    }

    /// Size in bytes, or `None` where it does not fit 63 bits (file offsets are signed).
    pub fn bytes(self, dtype: DType) -> Option<u64> {
        let bytes = self.elements()?.checked_mul(dtype.size_bytes() as u64)?;
        i64::try_from(bytes).ok().map(|_| bytes)
    }

    /// Refuses a matrix with a side longer than `SIDE_MAX`. A matrix without elements has a short file or text, but
    /// its side could still cause unlimited work.
    pub fn check_sides(self) -> Result<(), SideTooLong> {
        if self.rows.max(self.cols) <= Self::SIDE_MAX { Ok(()) } else { Err(SideTooLong(self)) }
    }

    /// Columns × rows.
    pub const fn transposed(self) -> Self {
        Self { rows: self.cols, cols: self.rows }
    }

    /// The whole matrix as a rectangle.
    pub const fn rect(self) -> Rect {
        Rect { rows: Span::new(0, self.rows), cols: Span::new(0, self.cols) }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.cols)
    }
}

/// A shape with a side longer than `Shape::SIDE_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideTooLong(pub Shape);

impl fmt::Display for SideTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is {}: a side is {} at most; multiply it in parts", self.0, Shape::SIDE_MAX)
    }
}

impl core::error::Error for SideTooLong {}

/// The indices `start <= i < end`. Empty where `start == end`; never reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First index inside.
    pub start: u64,
    /// First index after.
    pub end: u64,
}

impl Span {
    /// The span `start..end`; panics where it is reversed, which is a bug of the caller.
    pub const fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "a span must not be reversed");
        Self { start, end }
    }

    /// Number of indices.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds no index.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether index `i` lies inside.
    pub const fn contains(self, i: u64) -> bool {
        self.start <= i && i < self.end
    }

    /// The indices that both contain (if none: empty, at the later start).
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// The indices as an iterator.
    pub fn iter(self) -> Range<u64> {
        self.start..self.end
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// A rectangle of a matrix: half-open in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rect {
    /// Rows inside.
    pub rows: Span,
    /// Columns inside.
    pub cols: Span,
}

impl Rect {
    /// The rectangle with these rows and columns.
    pub const fn new(rows: Span, cols: Span) -> Self {
        Self { rows, cols }
    }

    /// Its rows × columns.
    pub const fn shape(self) -> Shape {
        Shape { rows: self.rows.len(), cols: self.cols.len() }
    }

    /// The same place in the transposed matrix.
    pub const fn transposed(self) -> Self {
        Self { rows: self.cols, cols: self.rows }
    }

    /// Whether it lies inside a matrix of that shape.
    pub const fn fits(self, shape: Shape) -> bool {
        self.rows.end <= shape.rows && self.cols.end <= shape.cols
    }

    /// Whether no element is in both.
    pub fn disjoint(self, other: Self) -> bool {
        self.rows.intersect(other.rows).is_empty() || self.cols.intersect(other.cols).is_empty()
    }
}

impl fmt::Display for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// The storage order of a matrix. A *line* is contiguous: a row of a row-major matrix, a column of a column-major
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rows are contiguous (C order).
    RowMajor,
    /// Columns are contiguous (Fortran order).
    ColMajor,
}

impl Layout {
    /// The layout of the same bytes seen as the transposed matrix.
    pub const fn transposed(self) -> Self {
        match self {
            Self::RowMajor => Self::ColMajor,
            Self::ColMajor => Self::RowMajor,
        }
    }

    /// (Number of lines, elements of a line) of a matrix of that shape.
    pub const fn lines(self, shape: Shape) -> (u64, u64) {
        match self {
            Self::RowMajor => (shape.rows, shape.cols),
            Self::ColMajor => (shape.cols, shape.rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn absurd_sizes_are_none_not_wrapped() {
        let huge = Shape::new(u64::MAX, 2);
        assert_eq!(huge.elements(), None);
        assert_eq!(Shape::new(1 << 60, 8).bytes(DType::F32), None);
        assert_eq!(Shape::new(0, u64::MAX).bytes(DType::F64), Some(0));
    }

    proptest! {
        #[test]
        fn intersection_holds_exactly_the_common_indices(a in 0u64..20, b in 0u64..20, c in 0u64..20, d in 0u64..20, i in 0u64..20) {
            let (x, y) = (Span::new(a.min(b), a.max(b)), Span::new(c.min(d), c.max(d)));
            prop_assert_eq!(x.intersect(y).contains(i), x.contains(i) && y.contains(i));
        }
    }
}
