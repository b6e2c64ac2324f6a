//! Reductions of a matrix: sums of rows and columns, the norm, extremes, and the largest elements of each row.
//!
//! Place in the flow: the caller cuts the matrix into rectangles, reduces each (`RectReduction::of`, on any thread), and
//! merges the results in an order of its choice (`Reducer::merge`).
//!
//! Invariants: sums of floats are sums in f64, rounded once at the end; sums of integers wrap in 64 bits. The result depends on
//! the rectangles and the order of merging, not on who reduced them; for integers, extremes and largest elements it does not
//! depend on the rectangles either. NaN counts as larger than all numbers where elements are sorted, as in NumPy.
//!
//! Deliberately absent: reading matrices, and threads.

mod bytes;

use crate::{Buffer, DType, Element, MatrixError, Rect, Reduction, Shape, View};
use std::cmp::Ordering;

/// An element that can be reduced.
pub trait Reducible: Element {
    /// The type in which it is summed.
    type Sum: Element;
    /// The element as a summand.
    fn summand(self) -> Self::Sum;
}

macro_rules! reducible {
    ($($t:ty => $sum:ty),*) => {$(
        impl Reducible for $t {
            type Sum = $sum;
            #[inline(always)]
            fn summand(self) -> $sum {
                <$sum>::from(self)
            }
        }
    )*};
}

reducible!(f32 => f64, f64 => f64, i32 => i64, i64 => i64);

/// A sum of squares, divided by 4 to the power of `exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SquareSum {
    exponent: i32,
    sum: f64,
}

/// An element of a row, and its column.
type Ranked<T> = (T, u64);

/// The elements of a reduced rectangle.
enum Partial<T: Reducible> {
    /// One for each row, or for each column.
    Sums(Vec<T::Sum>),
    Squares(SquareSum),
    Extreme(Option<T>),
    /// Sorted, for each row.
    Top(Vec<Vec<Ranked<T>>>),
}

/// A rectangle of a matrix, reduced.
pub struct RectReduction<T: Reducible> {
    rect: Rect,
    partial: Partial<T>,
}

/// A reduction of a matrix from those of its rectangles.
pub struct Reducer<T: Reducible> {
    reduction: Reduction,
    shape: Shape,
    /// First row and first column of the reduced rectangle; of a whole matrix, 0.
    origin: (u64, u64),
    whole: Partial<T>,
}

/// The largest count of largest elements for which they are kept sorted while a row is read.
const SORTED_MAX: usize = 64;

impl<T: Reducible> RectReduction<T> {
    /// Reduces the rectangle `rect` of a matrix, whose elements `view` has.
    pub fn of(reduction: Reduction, rect: Rect, view: &View<'_, T>) -> Self {
        let mut row = Vec::with_capacity(view.cols());
        let mut fill = |i: usize, row: &mut Vec<T>| {
            row.clear();
            row.extend((0..view.cols()).map(|j| view.at(i, j)));
        };
        let rows = 0..view.rows();
        let partial = match reduction {
            Reduction::RowSum => {
                Partial::Sums(rows.map(|i| with_row(view, i, &mut row, &mut fill, row_sum)).collect())
            }
            Reduction::ColSum => {
                let mut sums = vec![T::Sum::ZERO; view.cols()];
                for i in rows {
                    with_row(view, i, &mut row, &mut fill, |row| {
                        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum = sum.plus(x.summand()));
                    });
                }
                Partial::Sums(sums)
            }
            Reduction::Norm => {
                let mut squares = SquareSum::ZERO;
                for i in rows {
                    squares = squares.plus(with_row(view, i, &mut row, &mut fill, SquareSum::of));
                }
                Partial::Squares(squares)
            }
            Reduction::Max | Reduction::Min => {
                let mut extreme = None;
                for i in rows {
                    with_row(view, i, &mut row, &mut fill, |row| {
                        extreme = row.iter().fold(extreme, |best, x| Some(further(reduction, best, *x)));
                    });
                }
                Partial::Extreme(extreme)
            }
            Reduction::TopK(k) => {
                let k = usize::try_from(k).unwrap_or(usize::MAX);
                let top = |row: &[T]| largest(row, rect.cols.start, k);
                Partial::Top(rows.map(|i| with_row(view, i, &mut row, &mut fill, top)).collect())
            }
        };
        Self { rect, partial }
    }
}

/// Passes a row to `f`: where it lies if its elements are adjacent, else a copy.
fn with_row<T: Reducible, R>(
    view: &View<'_, T>,
    i: usize,
    row: &mut Vec<T>,
    fill: &mut impl FnMut(usize, &mut Vec<T>),
    f: impl FnOnce(&[T]) -> R,
) -> R {
    if view.col_stride() == 1 && view.cols() > 0 {
        let from = i * view.row_stride();
        return f(&view.data()[from..from + view.cols()]);
    }
    fill(i, row);
    f(row)
}

/// Eight sums side by side, which vector units add at once, and then their sum: always in this order.
fn row_sum<T: Reducible>(row: &[T]) -> T::Sum {
    let mut lanes = [T::Sum::ZERO; 8];
    let (groups, rest) = row.as_chunks::<8>();
    for group in groups {
        lanes.iter_mut().zip(group).for_each(|(sum, x)| *sum = sum.plus(x.summand()));
    }
    lanes.iter_mut().zip(rest).for_each(|(sum, x)| *sum = sum.plus(x.summand()));
    lanes.into_iter().fold(T::Sum::ZERO, T::Sum::plus)
}

fn is_nan<T: PartialOrd>(x: T) -> bool {
    x.partial_cmp(&x).is_none()
}

/// The larger or the smaller of two elements; NaN if either is.
fn further<T: Reducible>(reduction: Reduction, best: Option<T>, x: T) -> T {
    match best {
        None => x,
        Some(best) if is_nan(best) => best,
        Some(_) if is_nan(x) => x,
        Some(best) if reduction == Reduction::Max => {
            if x > best {
                x
            } else {
                best
            }
        }
        Some(best) => {
            if x < best {
                x
            } else {
                best
            }
        }
    }
}

/// The order of the largest elements: NaN, then descending, equal ones by their columns.
fn rank<T: Reducible>(a: &Ranked<T>, b: &Ranked<T>) -> Ordering {
    let by_value = b.0.partial_cmp(&a.0).unwrap_or_else(|| is_nan(b.0).cmp(&is_nan(a.0)));
    by_value.then(a.1.cmp(&b.1))
}

/// Elements that are compared at once with the least of the largest so far.
const COMPARED: usize = 32;

/// The `k` largest elements of a row, or all of them, in order.
fn largest<T: Reducible>(row: &[T], first: u64, k: usize) -> Vec<Ranked<T>> {
    if k <= SORTED_MAX {
        let mut best: Vec<Ranked<T>> = Vec::with_capacity(k + 1);
        for (chunk, at) in row.chunks(COMPARED).zip((first..).step_by(COMPARED)) {
            // Nearly all chunks end here: vector units compare all of it, without a branch for each element. An equal element
            // has a larger column, and NaN is beyond every number but not beyond NaN.
            if best.len() == k
                && let Some((least, _)) = best.last()
                && !chunk.iter().fold(false, |any, x| any | !is_at_most(*x, *least))
            {
                continue;
            }
            for next in chunk.iter().copied().zip(at..) {
                if best.len() == k && best.last().is_some_and(|last| rank(last, &next).is_lt()) {
                    continue;
                }
                let at = best.partition_point(|known| rank(known, &next).is_lt());
                best.insert(at, next);
                best.truncate(k);
            }
        }
        return best;
    }
    let mut best: Vec<Ranked<T>> = row.iter().copied().zip(first..).collect();
    if best.len() > k {
        best.select_nth_unstable_by(k, rank);
        best.truncate(k);
    }
    best.sort_unstable_by(rank);
    best
}

/// Whether `x` cannot be among the largest elements, of which `least` is the last.
#[inline(always)]
fn is_at_most<T: PartialOrd>(x: T, least: T) -> bool {
    x <= least
}

impl SquareSum {
    const ZERO: Self = Self { exponent: EXPONENT_MIN, sum: 0.0 };

    /// Of a row. Elements are divided by the power of 2 below the largest, so that no square leaves the range; squares of all
    /// types but f64 cannot.
    fn of<T: Reducible>(row: &[T]) -> Self {
        let exponent = match T::DTYPE {
            DType::F64 => exponent_of(row.iter().fold(0.0, |most: f64, x| most.max(x.to_f64().abs()))),
            DType::F32 | DType::I32 | DType::I64 => 0,
        };
        let factor = power_of_2(-exponent);
        let square = |x: &T| {
            let x = x.to_f64() * factor;
            x * x
        };
        let mut lanes = [0.0; 8];
        let (groups, rest) = row.as_chunks::<8>();
        for group in groups {
            lanes.iter_mut().zip(group).for_each(|(sum, x)| *sum += square(x));
        }
        lanes.iter_mut().zip(rest).for_each(|(sum, x)| *sum += square(x));
        Self { exponent, sum: lanes.into_iter().sum() }
    }

    fn plus(self, other: Self) -> Self {
        let (high, low) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let factor = power_of_2(low.exponent - high.exponent);
        Self { exponent: high.exponent, sum: high.sum + low.sum * factor * factor }
    }

    fn root(self) -> f64 {
        self.sum.sqrt() * power_of_2(self.exponent)
    }
}

/// The least and the greatest exponent of a normal f64.
const EXPONENT_MIN: i32 = -1022;
const EXPONENT_MAX: i32 = 1023;

/// The exponent of the power of 2 below a number, within those of normal numbers.
fn exponent_of(x: f64) -> i32 {
    let biased = i32::try_from(x.to_bits() >> 52 & 0x7ff).unwrap_or(0);
    (biased - EXPONENT_MAX).clamp(EXPONENT_MIN, EXPONENT_MAX)
}

fn power_of_2(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

impl<T: Reducible> Reducer<T> {
    /// The reduction of a matrix of that shape, of which no rectangle has been merged. An error if it has none, or if there is
    /// too little memory for the result.
    pub fn new(reduction: Reduction, name: &str, shape: Shape) -> Result<Self, MatrixError> {
        if let Some(why) = reduction.refusal(shape) {
            return Err(MatrixError::format(name, why));
        }
        Self::empty(reduction, shape, (0, 0))
    }

    /// The reduction of a rectangle of a matrix, which may have fewer columns than topk asks for.
    fn of_part(reduction: Reduction, rect: Rect) -> Result<Self, MatrixError> {
        Self::empty(reduction, rect.shape(), (rect.rows.start, rect.cols.start))
    }

    fn empty(reduction: Reduction, shape: Shape, origin: (u64, u64)) -> Result<Self, MatrixError> {
        let side = |side: u64| {
            usize::try_from(side).map_err(|_| MatrixError::OutOfMemory { bytes: side.saturating_mul(8) })
        };
        let whole = match reduction {
            Reduction::RowSum => Partial::Sums(filled(side(shape.rows)?, T::Sum::ZERO)?),
            Reduction::ColSum => Partial::Sums(filled(side(shape.cols)?, T::Sum::ZERO)?),
            Reduction::Norm => Partial::Squares(SquareSum::ZERO),
            Reduction::Max | Reduction::Min => Partial::Extreme(None),
            Reduction::TopK(_) => Partial::Top(filled(side(shape.rows)?, Vec::new())?),
        };
        Ok(Self { reduction, shape, origin, whole })
    }

    /// Adds a rectangle. Panics if it lies outside the matrix or belongs to another reduction: a bug of the caller.
    pub fn merge(&mut self, part: RectReduction<T>) {
        let (row, col) = self.origin;
        let end = |start: u64, len: u64| start.saturating_add(len);
        let fits = part.rect.rows.start >= row
            && part.rect.cols.start >= col
            && part.rect.rows.end <= end(row, self.shape.rows)
            && part.rect.cols.end <= end(col, self.shape.cols);
        assert!(fits, "a rectangle outside the matrix that is reduced");
        let reduction = self.reduction;
        let first = match reduction {
            Reduction::ColSum => part.rect.cols.start - col,
            _ => part.rect.rows.start - row,
        };
        // Within the matrix, whose result has been allocated.
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        match (&mut self.whole, part.partial) {
            (Partial::Sums(whole), Partial::Sums(part)) => {
                whole[first..].iter_mut().zip(part).for_each(|(sum, x)| *sum = sum.plus(x));
            }
            (Partial::Squares(whole), Partial::Squares(part)) => *whole = whole.plus(part),
            (Partial::Extreme(whole), Partial::Extreme(part)) => {
                *whole = part.map(|x| further(reduction, *whole, x)).or(*whole);
            }
            (Partial::Top(whole), Partial::Top(part)) => {
                let Reduction::TopK(k) = reduction else { unreachable!("lists belong to topk") };
                let k = usize::try_from(k).unwrap_or(usize::MAX);
                for (whole, part) in whole[first..].iter_mut().zip(part) {
                    whole.extend(part);
                    whole.sort_by(rank);
                    whole.truncate(k);
                }
            }
            _ => panic!("a rectangle of another reduction"),
        }
    }

    /// The result, when all rectangles have been merged: one matrix, or the columns and the elements of topk.
    pub fn finish(self) -> Result<Vec<ReducedMatrix>, MatrixError> {
        let Shape { rows, cols } = self.shape;
        let sums_of_floats = if T::DTYPE == DType::F32 { DType::F32 } else { DType::F64 };
        let one = Shape::new(1, 1);
        Ok(match self.whole {
            Partial::Sums(sums) => {
                let shape = if self.reduction == Reduction::ColSum {
                    Shape::new(1, cols)
                } else {
                    Shape::new(rows, 1)
                };
                vec![match T::DTYPE {
                    DType::F32 => {
                        ReducedMatrix::of::<f32>(shape, sums.iter().map(|x| f32::from_f64(x.to_f64())))?
                    }
                    _ => ReducedMatrix::of::<T::Sum>(shape, sums.into_iter())?,
                }]
            }
            Partial::Squares(squares) => {
                let root = std::iter::once(squares.root());
                vec![match sums_of_floats {
                    DType::F32 => ReducedMatrix::of::<f32>(one, root.map(f32::from_f64))?,
                    _ => ReducedMatrix::of::<f64>(one, root)?,
                }]
            }
            Partial::Extreme(extreme) => vec![ReducedMatrix::of::<T>(one, extreme.into_iter())?],
            Partial::Top(rows_top) => {
                let Reduction::TopK(k) = self.reduction else { unreachable!("lists belong to topk") };
                let shape = Shape::new(rows, k);
                let all = || rows_top.iter().flatten();
                let index = |ranked: &Ranked<T>| i64::try_from(ranked.1).unwrap_or(i64::MAX);
                vec![
                    ReducedMatrix::of::<i64>(shape, all().map(index))?,
                    ReducedMatrix::of::<T>(shape, all().map(|ranked| ranked.0))?,
                ]
            }
        })
    }
}

fn filled<X: Clone>(len: usize, x: X) -> Result<Vec<X>, MatrixError> {
    let mut all = Vec::new();
    let bytes = crate::number::to_u64(len).saturating_mul(crate::number::to_u64(size_of::<X>()));
    all.try_reserve_exact(len).map_err(|_| MatrixError::OutOfMemory { bytes })?;
    all.resize(len, x);
    Ok(all)
}

/// A result of a reduction, by rows.
#[derive(Debug)]
pub struct ReducedMatrix {
    /// Its shape.
    pub shape: Shape,
    /// Its element type: NumPy's, except that sums of integers are i64 on every system.
    pub dtype: DType,
    /// Its elements by rows.
    pub elements: Buffer,
}

impl ReducedMatrix {
    fn of<X: Element>(shape: Shape, all: impl Iterator<Item = X>) -> Result<Self, MatrixError> {
        let bytes = shape.bytes(X::DTYPE).unwrap_or(u64::MAX);
        let len = usize::try_from(bytes).map_err(|_| MatrixError::OutOfMemory { bytes })?;
        let mut elements = Buffer::zeroed(len)?;
        elements.elements_mut::<X>().iter_mut().zip(all).for_each(|(to, x)| *to = x);
        Ok(Self { shape, dtype: X::DTYPE, elements })
    }
}

#[cfg(test)]
mod tests;
