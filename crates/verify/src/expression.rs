//! Checks a matrix that machines have made from others and keep, without bringing it home.
//!
//! Place in the flow: the matrix is a product or a sum of others, which may have been made in the same way; at the leaves are
//! matrices that this process can read. `LineSums::of` multiplies the whole expression by a vector of ones, from the right to the
//! left, reading each leaf once. The machines send the sums of the rows that they keep. Rows whose sums differ by more than
//! the usual rounding error are computed again, element by element (`ComputedLines::of`), and compared with the kept rows. A
//! caller checks columns by passing the transpose.
//!
//! Invariants: no right matrix is refused: elements are compared within twice the error bound of classical products of the
//! element type (docs/kernel-contract.md), added up along the expression, and not at all if a term could leave the range of the
//! type. Integers wrap, and are compared exactly.
//!
//! Deliberately absent: machines that choose their errors. They know the vector.

use super::Effort;
use super::pass::{Pass, Size};
use super::reduced::{LazyLines, RowElements, one_row, pass, times};
use bramble_matrix::{DType, Matrix, MatrixError, Shape, Span};
use std::sync::Arc;

/// Lines that are computed again.
const LINES_FAST: usize = 4;
const LINES_FULL: usize = 32;
/// A line is doubtful beyond this many times the rounding error that a line mostly has.
const SAFETY: f64 = 8.0;
/// Rounding errors of an element of a sum: of two factors and the addition, with room.
const SUM_STEPS: f64 = 4.0;

/// How a matrix was made.
#[derive(Clone)]
pub enum SourceExpression {
    /// A matrix that this process can read; with the sums of its rows and of its columns, if other checks will need them, too.
    Leaf(Matrix, Option<[LazyLines; 2]>),
    /// αAB.
    Product {
        /// α.
        alpha: f64,
        /// A.
        a: Arc<Self>,
        /// B.
        b: Arc<Self>,
    },
    /// αX, or αX + βY.
    Sum {
        /// α and X.
        x: (f64, Arc<Self>),
        /// β and Y.
        y: Option<(f64, Arc<Self>)>,
    },
    /// A matrix that machines keep, and that has passed its check.
    Checked {
        /// How it was made.
        of: Arc<Self>,
        /// The sums of its rows and of its columns, as the machines have sent them.
        lines: [Arc<KnownSums>; 2],
    },
}

/// Sums of lines of a matrix that machines keep.
pub enum KnownSums {
    /// The sums, and the sizes of their terms.
    Real(Vec<f64>, Vec<f64>),
    /// The sums mod 2^64.
    Integer(Vec<i64>),
}

/// The sums of the rows of an expression, computed without its elements.
pub struct LineSums {
    values: Values,
    dtype: DType,
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
}

impl SourceExpression {
    /// Rows and columns.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Leaf(matrix, _) => matrix.shape(),
            Self::Product { a, b, .. } => Shape::new(a.shape().rows, b.shape().cols),
            Self::Sum { x, .. } => x.1.shape(),
            Self::Checked { of, .. } => of.shape(),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Leaf(matrix, _) => matrix.dtype(),
            Self::Product { a, .. } => a.dtype(),
            Self::Sum { x, .. } => x.1.dtype(),
            Self::Checked { of, .. } => of.dtype(),
        }
    }

    /// The transpose; nothing is read.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let turned = |one: &Arc<Self>| Arc::new(one.transposed());
        match self {
            Self::Leaf(matrix, lines) => {
                let turned = lines.as_ref().map(|[rows, cols]| [cols.clone(), rows.clone()]);
                Self::Leaf(matrix.clone().transposed(), turned)
            }
            Self::Product { alpha, a, b } => Self::Product { alpha: *alpha, a: turned(b), b: turned(a) },
            Self::Sum { x, y } => {
                let of = |(factor, one): &(f64, Arc<Self>)| (*factor, turned(one));
                Self::Sum { x: of(x), y: y.as_ref().map(of) }
            }
            Self::Checked { of, lines: [rows, cols] } => {
                Self::Checked { of: turned(of), lines: [cols.clone(), rows.clone()] }
            }
        }
    }

    /// The leaves that have to be read for the sums of rows, in bytes: all but the last one if its sums are known. If others will
    /// need its sums, too, it counts half.
    pub fn bytes_to_read(&self) -> u64 {
        self.bytes_of(true)
    }

    fn bytes_of(&self, by_ones: bool) -> u64 {
        match self {
            Self::Leaf(matrix, lines) => {
                let bytes = matrix.shape().bytes(matrix.dtype()).unwrap_or(u64::MAX);
                match lines {
                    Some([rows, _]) if by_ones => {
                        if rows.get().is_some() {
                            0
                        } else {
                            bytes / 2
                        }
                    }
                    _ => bytes,
                }
            }
            Self::Product { a, b, .. } => a.bytes_of(false).saturating_add(b.bytes_of(by_ones)),
            Self::Sum { x, y } => {
                let of = |one: &(f64, Arc<Self>)| one.1.bytes_of(by_ones);
                of(x).saturating_add(y.as_ref().map_or(0, of))
            }
            Self::Checked { of, .. } => {
                if by_ones {
                    0
                } else {
                    of.bytes_of(false)
                }
            }
        }
    }

    /// The usual rounding error of an element, in units of its size and of the element type; and the largest. `by_ones`: of
    /// sums of rows.
    fn errors(&self, by_ones: bool) -> [f64; 2] {
        match self {
            Self::Leaf(..) => [0.0, 0.0],
            Self::Checked { of, .. } => {
                if by_ones {
                    [0.0, 0.0]
                } else {
                    of.errors(false)
                }
            }
            Self::Product { a, b, .. } => {
                let (a_errors, b_errors, depth) = (a.errors(false), b.errors(by_ones), a.shape().cols as f64);
                [a_errors[0] + b_errors[0] + (depth + 16.0).sqrt(), a_errors[1] + b_errors[1] + depth + 4.0]
            }
            Self::Sum { x, y } => {
                let (x, y) = (x.1.errors(by_ones), y.as_ref().map_or([0.0; 2], |y| y.1.errors(by_ones)));
                [x[0].max(y[0]) + SUM_STEPS, x[1].max(y[1]) + SUM_STEPS]
            }
        }
    }

    /// The expression times a vector, with the sizes of the results; `None` is the vector of ones.
    fn times(&self, by: Option<&Sized>, threads: usize) -> Result<Sized, MatrixError> {
        match self {
            Self::Leaf(matrix, lines) => match (by, lines) {
                (Some((vector, sizes)), _) => pass(matrix, vector.clone(), Size::Norm(sizes), threads),
                (None, Some([rows, _])) if rows.get().is_some() => {
                    Ok(rows.get().cloned().unwrap_or_default())
                }
                (None, lines) => {
                    let ones = vec![1.0; matrix.shape().cols as usize];
                    let made = pass(matrix, ones.clone(), Size::Norm(&ones), threads)?;
                    if let Some([rows, _]) = lines {
                        rows.get_or_init(|| made.clone());
                    }
                    Ok(made)
                }
            },
            Self::Product { alpha, a, b } => {
                let of_b = b.times(by, threads)?;
                Ok(scaled(*alpha, a.times(Some(&of_b), threads)?))
            }
            Self::Sum { x, y } => {
                let of = |(factor, one): &(f64, Arc<Self>)| Ok(scaled(*factor, one.times(by, threads)?));
                let (mut sums, mut norms) = of(x)?;
                if let Some(y) = y {
                    let (more, sizes) = of(y)?;
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                    norms.iter_mut().zip(sizes).for_each(|(norm, size)| *norm = norm.hypot(size));
                }
                Ok((sums, norms))
            }
            Self::Checked { of, lines: [rows, _] } => match (by, &**rows) {
                (None, KnownSums::Real(sums, sizes)) => Ok((sums.clone(), sizes.clone())),
                _ => of.times(by, threads),
            },
        }
    }

    /// The same for integers, mod 2^64.
    fn times_integers(&self, by: Option<&[i64]>, threads: usize) -> Result<Vec<i64>, MatrixError> {
        match self {
            Self::Leaf(matrix, _) => {
                let by = by.map_or_else(|| vec![1; matrix.shape().cols as usize], <[i64]>::to_vec);
                let pass = Pass { matrix, vectors: &[by], size: Size::None, mask: None, threads };
                let rows = if matrix.dtype() == DType::I32 {
                    pass.integer::<i32>()?
                } else {
                    pass.integer::<i64>()?
                };
                Ok(rows.products.into_iter().flatten().map(|[sum, _]| sum).collect())
            }
            Self::Product { alpha, a, b } => {
                let of_b = b.times_integers(by, threads)?;
                Ok(wrapped(*alpha, a.times_integers(Some(&of_b), threads)?))
            }
            Self::Sum { x, y } => {
                let mut sums = wrapped(x.0, x.1.times_integers(by, threads)?);
                if let Some((beta, y)) = y {
                    let more = wrapped(*beta, y.times_integers(by, threads)?);
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
                }
                Ok(sums)
            }
            Self::Checked { of, lines: [rows, _] } => match (by, &**rows) {
                (None, KnownSums::Integer(sums)) => Ok(sums.clone()),
                _ => of.times_integers(by, threads),
            },
        }
    }

    /// Some rows, each element with its size.
    fn rows(&self, rows: &[u64]) -> Result<Vec<Vec<(f64, f64)>>, MatrixError> {
        match self {
            Self::Leaf(matrix, _) => rows.iter().map(|row| one_row(matrix, *row)).collect(),
            Self::Product { alpha, a, b } => Ok(times_factor(*alpha, b.after(&a.rows(rows)?)?)),
            Self::Sum { x, y } => {
                let x = times_factor(x.0, x.1.rows(rows)?);
                let y = y.as_ref().map(|(beta, y)| Ok(times_factor(*beta, y.rows(rows)?))).transpose()?;
                Ok(added(x, y))
            }
            Self::Checked { of, .. } => of.rows(rows),
        }
    }

    /// Some rows times the expression.
    fn after(&self, rows: &[Vec<(f64, f64)>]) -> Result<Vec<Vec<(f64, f64)>>, MatrixError> {
        match self {
            Self::Leaf(matrix, _) => {
                let (elements, sizes) = times(1.0, rows, matrix)?;
                let one = |(elements, sizes): (Vec<f64>, Vec<f64>)| elements.into_iter().zip(sizes).collect();
                Ok(elements.into_iter().zip(sizes).map(one).collect())
            }
            Self::Product { alpha, a, b } => Ok(times_factor(*alpha, b.after(&a.after(rows)?)?)),
            Self::Sum { x, y } => {
                let x = times_factor(x.0, x.1.after(rows)?);
                let y = y.as_ref().map(|(beta, y)| Ok(times_factor(*beta, y.after(rows)?))).transpose()?;
                Ok(added(x, y))
            }
            Self::Checked { of, .. } => of.after(rows),
        }
    }
}

/// A vector, and the sizes of its elements.
type Sized = (Vec<f64>, Vec<f64>);

fn scaled(factor: f64, (mut sums, mut norms): Sized) -> Sized {
    sums.iter_mut().for_each(|sum| *sum *= factor);
    norms.iter_mut().for_each(|norm| *norm *= factor.abs());
    (sums, norms)
}

/// A factor of integers is a whole number.
fn wrapped(factor: f64, mut sums: Vec<i64>) -> Vec<i64> {
    sums.iter_mut().for_each(|sum| *sum = sum.wrapping_mul(factor as i64));
    sums
}

fn times_factor(factor: f64, mut rows: Vec<Vec<(f64, f64)>>) -> Vec<Vec<(f64, f64)>> {
    rows.iter_mut().flatten().for_each(|(x, size)| (*x, *size) = (*x * factor, *size * factor.abs()));
    rows
}

fn added(mut rows: Vec<Vec<(f64, f64)>>, others: Option<Vec<Vec<(f64, f64)>>>) -> Vec<Vec<(f64, f64)>> {
    for (row, other) in rows.iter_mut().zip(others.unwrap_or_default()) {
        row.iter_mut().zip(other).for_each(|(one, other)| *one = (one.0 + other.0, one.1 + other.1));
    }
    rows
}

/// The spacing of the floats after 1.
fn unit(dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
}

fn largest(dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(f32::MAX) } else { f64::MAX }
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
        Ok(Self { values, dtype })
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
                let in_range = (0..found.len()).filter(|row| norms[*row] < largest(self.dtype) / 4.0);
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
            let is_in_range = size.is_finite() && size < largest(dtype) / 4.0;
            if is_in_range { size * bound + f64::from(f32::MIN_POSITIVE) } else { f64::INFINITY }
        };
        let bounds = computed.iter().map(|row| row.iter().map(|(_, size)| bound(*size)).collect()).collect();
        Ok(Self { rows, elements, bounds })
    }

    /// The first element of row `at` of these that is wrong: its row and column; `kept` has the elements of the row.
    pub fn wrong_element(&self, at: usize, kept: &[f64]) -> Option<(u64, u64)> {
        let (elements, bounds) = (&self.elements[at], &self.bounds[at]);
        let is_right = |col: usize| {
            let error = (kept[col] - elements[col]).abs();
            bounds[col].is_infinite() || error <= bounds[col] + f64::EPSILON * elements[col].abs()
        };
        (0..elements.len()).find(|col| !is_right(*col)).map(|col| (self.rows[at], col as u64))
    }
}

#[cfg(test)]
mod tests;
