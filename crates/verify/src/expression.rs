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
//! type, in it or in a kept matrix from which it was made. Integers wrap, and are compared exactly.
//!
//! Deliberately absent: machines that choose their errors. They know the vector.

use super::pass::{Pass, Size};
use super::reduced::{LazyLines, one_row, pass, times};
use bramble_matrix::{DType, Matrix, MatrixError, Shape};
use std::sync::Arc;

mod lines;

pub use lines::{ComputedLines, LineSums};

/// Rounding errors of an element of a sum: of two factors and the addition, with room.
const SUM_STEPS: f64 = 4.0;

/// Kept matrices in a chain, and bytes to read for each byte of a matrix, beyond which its elements serve checks better.
const DEPTH_MAX: u32 = 64;
const READ_MAX: u64 = 1024;

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
    /// A matrix that machines keep.
    Kept(KeptExpression),
}

/// A matrix that machines keep, as an operand of later expressions. Copying and transposing it takes the same time however long
/// the chain is at whose end it stands.
#[derive(Clone)]
pub struct KeptExpression {
    /// How it was made, or how its transpose was made.
    of: Arc<SourceExpression>,
    is_turned: bool,
    /// The sums of its rows and of its columns, as the machines sent them, if it has passed its check.
    lines: Option<[Arc<KnownSums>; 2]>,
    shape: Shape,
    dtype: DType,
    cost: SourceCost,
    /// Whether it, or a kept matrix from which it was made, may have elements beyond the range of the type.
    may_overflow: bool,
}

/// The effort and the rounding errors of computing a kept matrix from its sources.
#[derive(Clone, Copy)]
struct SourceCost {
    /// Bytes to read.
    bytes: u64,
    /// Kept matrices in a chain.
    depth: u32,
    /// As `SourceExpression::errors`.
    errors: [f64; 2],
}

impl KeptExpression {
    /// The expression of the matrix, one level down.
    fn inner(&self) -> Arc<SourceExpression> {
        if self.is_turned { Arc::new(self.of.transposed()) } else { self.of.clone() }
    }

    fn transposed(&self) -> Self {
        let lines = self.lines.clone().map(|[rows, cols]| [cols, rows]);
        Self { is_turned: !self.is_turned, lines, shape: self.shape.transposed(), ..self.clone() }
    }
}

/// Sums of lines of a matrix that machines keep.
pub enum KnownSums {
    /// The sums, and the sizes of their terms.
    Real(Vec<f64>, Vec<f64>),
    /// The sums mod 2^64.
    Integer(Vec<i64>),
}

impl KnownSums {
    /// Whether the sizes allow elements beyond the range of the type.
    fn may_overflow(&self, dtype: DType) -> bool {
        match self {
            Self::Real(_, sizes) => sizes.iter().any(|size| !lines::is_in_range(*size, dtype)),
            Self::Integer(_) => false,
        }
    }
}

impl SourceExpression {
    /// Rows and columns.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Leaf(matrix, _) => matrix.shape(),
            Self::Product { a, b, .. } => Shape::new(a.shape().rows, b.shape().cols),
            Self::Sum { x, .. } => x.1.shape(),
            Self::Kept(kept) => kept.shape,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Leaf(matrix, _) => matrix.dtype(),
            Self::Product { a, .. } => a.dtype(),
            Self::Sum { x, .. } => x.1.dtype(),
            Self::Kept(kept) => kept.dtype,
        }
    }

    /// A matrix that machines keep, which they have made as this expression.
    #[must_use]
    pub fn kept(self) -> Self {
        let of = self.without_lines();
        let depth = 1 + of.operands().into_iter().map(Self::depth).max().unwrap_or(0);
        let cost = SourceCost { bytes: of.bytes_of(false), depth, errors: of.errors(false) };
        let (shape, dtype, may_overflow) = (of.shape(), of.dtype(), of.may_overflow());
        let of = Arc::new(of);
        Self::Kept(KeptExpression { of, is_turned: false, lines: None, shape, dtype, cost, may_overflow })
    }

    /// The same after its check: with the sums of its rows and of its columns that the machines sent.
    #[must_use]
    pub fn passed(&self, lines: [Arc<KnownSums>; 2]) -> Self {
        match self {
            Self::Kept(kept) => {
                let may_overflow = kept.may_overflow || lines[0].may_overflow(kept.dtype);
                Self::Kept(KeptExpression { lines: Some(lines), may_overflow, ..kept.clone() })
            }
            other => other.clone(),
        }
    }

    /// The operation that made a kept matrix, with its operands; for any other matrix, its own expression.
    #[must_use]
    pub fn as_made(&self) -> Self {
        match self {
            Self::Kept(kept) => kept.inner().as_ref().clone(),
            other => other.clone(),
        }
    }

    /// Whether its sources are so many bytes, or so long a chain, that a check should read its elements instead.
    pub fn is_far(&self) -> bool {
        let Self::Kept(KeptExpression { cost, shape, dtype, .. }) = self else { return false };
        let own = shape.bytes(*dtype).unwrap_or(u64::MAX).max(1);
        cost.depth > DEPTH_MAX || cost.bytes / own > READ_MAX
    }

    /// The matrices that are its operands.
    fn operands(&self) -> Vec<&Self> {
        match self {
            Self::Leaf(..) | Self::Kept(_) => Vec::new(),
            Self::Product { a, b, .. } => vec![a, b],
            Self::Sum { x, y } => std::iter::once(&*x.1).chain(y.as_ref().map(|y| &*y.1)).collect(),
        }
    }

    /// Whether a kept matrix among its operands may have elements beyond the range of the type. Then elements that are infinite
    /// or NaN may be right, although the expression in f64 is finite.
    fn may_overflow(&self) -> bool {
        match self {
            Self::Kept(kept) => kept.may_overflow,
            other => other.operands().into_iter().any(Self::may_overflow),
        }
    }

    fn depth(&self) -> u32 {
        match self {
            Self::Kept(kept) => kept.cost.depth,
            other => other.operands().into_iter().map(Self::depth).max().unwrap_or(0),
        }
    }

    /// The same without the sums of kept operands: later checks read those of the result.
    fn without_lines(&self) -> Self {
        let of = |one: &Arc<Self>| Arc::new(one.without_lines());
        match self {
            Self::Leaf(..) => self.clone(),
            Self::Kept(kept) => Self::Kept(KeptExpression { lines: None, ..kept.clone() }),
            Self::Product { alpha, a, b } => Self::Product { alpha: *alpha, a: of(a), b: of(b) },
            Self::Sum { x, y } => {
                Self::Sum { x: (x.0, of(&x.1)), y: y.as_ref().map(|(beta, y)| (*beta, of(y))) }
            }
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
            Self::Kept(kept) => Self::Kept(kept.transposed()),
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
            Self::Kept(kept) if by_ones && kept.lines.is_some() => 0,
            Self::Kept(kept) => kept.cost.bytes,
        }
    }

    /// The usual rounding error of an element, in units of its size and of the element type; and the largest. `by_ones`: of
    /// sums of rows.
    fn errors(&self, by_ones: bool) -> [f64; 2] {
        match self {
            Self::Leaf(..) => [0.0, 0.0],
            Self::Kept(kept) if by_ones && kept.lines.is_some() => [0.0, 0.0],
            Self::Kept(kept) => kept.cost.errors,
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
            Self::Kept(kept) => match (by, kept.lines.as_ref().map(|[rows, _]| &**rows)) {
                (None, Some(KnownSums::Real(sums, sizes))) => Ok((sums.clone(), sizes.clone())),
                _ => kept.inner().times(by, threads),
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
            Self::Kept(kept) => match (by, kept.lines.as_ref().map(|[rows, _]| &**rows)) {
                (None, Some(KnownSums::Integer(sums))) => Ok(sums.clone()),
                _ => kept.inner().times_integers(by, threads),
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
            Self::Kept(kept) => kept.inner().rows(rows),
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
            Self::Kept(kept) => kept.inner().after(rows),
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

#[cfg(test)]
mod tests;
