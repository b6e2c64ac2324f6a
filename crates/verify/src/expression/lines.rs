//! Sums of the lines of an expression, doubtful lines, and their elements.
//!
//! Place in the flow: `expression.rs` computes; the primary compares with the sums and the lines that machines send.
//!
//! Invariants: those of `expression.rs`.
//!
//! Deliberately absent: getting lines from machines.

use super::{KnownSums, SourceExpression};
use crate::Effort;
use crate::reduced::RowElements;
use bramble_matrix::{DType, MatrixError, Span};

/// Lines that are computed again.
const LINES_FAST: usize = 4;
const LINES_FULL: usize = 32;
/// A line is doubtful beyond this many times the rounding error that a line mostly has.
const SAFETY: f64 = 8.0;

/// The sums of the rows of an expression, computed without its elements.
pub struct LineSums {
    values: Values,
    dtype: DType,
    /// As `SourceExpression::may_overflow`.
    may_overflow: bool,
}

enum Values {
    /// Sums, sizes of their terms as roots of sums of squares, and the usual rounding error in units of size and element type.
    Real { sums: Vec<f64>, norms: Vec<f64>, usual: f64 },
    /// Sums mod 2^64.
    Integer(Vec<i64>),
}

/// Some rows of an expression, element by element.
pub struct ComputedLines {
    /// Their numbers.
    rows: Vec<u64>,
    elements: RowElements,
    /// How far each element may be from a right one; infinite if that cannot be said.
    bounds: RowElements,
    /// As `SourceExpression::may_overflow`.
    may_overflow: bool,
}

/// The spacing of the floats after 1.
fn unit(dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
}

fn largest(dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(f32::MAX) } else { f64::MAX }
}

/// Whether elements of that size are within the range of the type, also if they are computed in another order.
pub(super) fn is_in_range(size: f64, dtype: DType) -> bool {
    size < largest(dtype) / 4.0
}

impl LineSums {
    /// Reads each leaf once, or not at all if it is the last one and its sums are known.
    pub fn of(expression: &SourceExpression, threads: usize) -> Result<Self, MatrixError> {
        let dtype = expression.dtype();
        let values = if dtype.is_float() {
            let (sums, norms) = expression.times(None, threads)?;
            Values::Real { sums, norms, usual: expression.errors(true)[0] * unit(dtype) }
        } else {
            Values::Integer(expression.times_integers(None, threads)?)
        };
        Ok(Self { values, dtype, may_overflow: expression.may_overflow() })
    }

    /// The rows whose sums, which machines sent of the parts of rows that they keep, differ from these by more than usual; of
    /// many, the rows that differ most. With full effort rows that differ less come, too. Integers differ only if they are
    /// wrong.
    pub fn doubtful(&self, sums: &[(Span, Vec<u8>)], effort: Effort) -> Vec<u64> {
        let wanted = if effort == Effort::Full { LINES_FULL } else { LINES_FAST };
        let mut rows = match &self.values {
            Values::Real { sums: known, norms, usual } => {
                let least = if effort == Effort::Full { 0.0 } else { SAFETY * usual };
                let found = added_up(known.len(), sums, f64::from_le_bytes, |x, y| x + y);
                let ratio = |row: usize| {
                    let ratio = (found[row] - known[row]).abs() / norms[row].max(f64::MIN_POSITIVE);
                    if ratio.is_nan() { f64::INFINITY } else { ratio }
                };
                let in_range = (0..found.len()).filter(|row| {
                    is_in_range(norms[*row], self.dtype) && (found[*row].is_finite() || !self.may_overflow)
                });
                let rows = in_range.map(|row| (ratio(row), row));
                rows.filter(|(ratio, _)| *ratio > least).collect::<Vec<_>>()
            }
            Values::Integer(known) => {
                let found = added_up(known.len(), sums, i64::from_le_bytes, i64::wrapping_add);
                let is_same = |row: usize| match self.dtype {
                    DType::I32 => found[row] as i32 == known[row] as i32,
                    _ => found[row] == known[row],
                };
                (0..found.len()).filter(|row| !is_same(*row)).map(|row| (1.0, row)).collect()
            }
        };
        rows.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        rows.truncate(wanted);
        rows.into_iter().map(|(_, row)| row as u64).collect()
    }

    /// The sums of rows and of `cols` columns that the machines sent, for later checks of products with this matrix. All
    /// columns get the same size.
    pub fn known(
        &self,
        rows: &[(Span, Vec<u8>)],
        columns: &[(Span, Vec<u8>)],
        cols: usize,
    ) -> [KnownSums; 2] {
        match &self.values {
            Values::Real { sums, norms, .. } => {
                let of = |lines: usize, parts| added_up(lines, parts, f64::from_le_bytes, |x, y| x + y);
                let whole = norms.iter().fold(0.0, |whole: f64, norm| whole.hypot(*norm));
                let sizes = vec![whole / (cols.max(1) as f64).sqrt(); cols];
                [
                    KnownSums::Real(of(sums.len(), rows), norms.clone()),
                    KnownSums::Real(of(cols, columns), sizes),
                ]
            }
            Values::Integer(sums) => {
                let of = |lines: usize, parts| added_up(lines, parts, i64::from_le_bytes, i64::wrapping_add);
                [KnownSums::Integer(of(sums.len(), rows)), KnownSums::Integer(of(cols, columns))]
            }
        }
    }
}

/// The sums of rows from those of their parts, as little-endian bytes.
fn added_up<T: Copy + Default>(
    rows: usize,
    parts: &[(Span, Vec<u8>)],
    number: impl Fn([u8; 8]) -> T,
    plus: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut all = vec![T::default(); rows];
    for (span, bytes) in parts {
        let of_part = bytes.as_chunks::<8>().0.iter().map(|bytes| number(*bytes));
        let place = all.get_mut(span.start as usize..span.end as usize).unwrap_or_default();
        place.iter_mut().zip(of_part).for_each(|(sum, part)| *sum = plus(*sum, part));
    }
    all
}

impl ComputedLines {
    /// Computes rows of a matrix of floats.
    pub fn of(expression: &SourceExpression, rows: Vec<u64>) -> Result<Self, MatrixError> {
        let dtype = expression.dtype();
        let bound = 2.0 * expression.errors(false)[1] * unit(dtype);
        let computed = expression.rows(&rows)?;
        let elements = computed.iter().map(|row| row.iter().map(|(x, _)| *x).collect()).collect();
        let bound = |size: f64| {
            if is_in_range(size, dtype) { size * bound + f64::from(f32::MIN_POSITIVE) } else { f64::INFINITY }
        };
        let bounds = computed.iter().map(|row| row.iter().map(|(_, size)| bound(*size)).collect()).collect();
        Ok(Self { rows, elements, bounds, may_overflow: expression.may_overflow() })
    }

    /// The first element of row `at` of these that is wrong: its row and column; `kept` has the elements of the row.
    pub fn wrong_element(&self, at: usize, kept: &[f64]) -> Option<(u64, u64)> {
        let (elements, bounds) = (&self.elements[at], &self.bounds[at]);
        let is_right = |col: usize| {
            let error = (kept[col] - elements[col]).abs();
            let has_overflowed = self.may_overflow && !kept[col].is_finite();
            has_overflowed
                || bounds[col].is_infinite()
                || error <= bounds[col] + f64::EPSILON * elements[col].abs()
        };
        (0..elements.len()).find(|col| !is_right(*col)).map(|col| (self.rows[at], col as u64))
    }
}
