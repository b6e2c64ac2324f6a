//! Checks a reduction of a product, which is never in one place.
//!
//! Place in the flow: the primary computes `RowSketch` beside the machines' work. Each machine also sends the sums of the rows
//! that it has computed, from the elements that it has reduced; they have to be those of A (B 1), as in Freivalds' check with a
//! vector of ones. Rows that differ more from that than rounding errors mostly do are computed again (`SampledRows`), and the
//! result is compared with them.
//!
//! Invariants: no right result is refused, however doubtful its sums: rows are compared within twice the error bound of a
//! classical product of the element type (docs/kernel-contract.md) and of the additions in f64, and not at all if a partial sum
//! could leave the range of the type.
//!
//! Deliberately absent: finding the machine that was wrong, and machines that choose their errors: they know the vector.

use super::Effort;
use super::pass::{Pass, Size};
use super::scalar::Real;
use bramble_matrix::{DType, Matrix, MatrixError, Rect, ReducedMatrix, Reduction, Span};
use std::sync::{Arc, OnceLock};

/// Rows that are computed again.
const ROWS_FAST: usize = 4;
const ROWS_FULL: usize = 32;
/// A row is doubtful beyond this many times the rounding error that a row mostly has.
const SAFETY: f64 = 8.0;
/// Elements that are read at a time.
const BAND_ELEMENTS: u64 = 1 << 18;

/// For each row of a product αAB, the sum of its elements and their size, computed without the product.
pub struct RowSketch {
    /// α A (B 1).
    sums: Vec<f64>,
    /// The root of the sum of squares of all terms a b of the row, without α. Rounding errors are in proportion to it.
    norms: Vec<f64>,
    limits: ErrorLimits,
}

/// The shape of a product, and how far its elements and their sums may be from exact ones.
#[derive(Clone, Copy)]
struct ErrorLimits {
    alpha: f64,
    depth: f64,
    cols: f64,
    dtype: DType,
}

/// The elements of some rows.
pub(super) type RowElements = Vec<Vec<f64>>;

/// Of each row of a matrix: the sum, and the 2-norm.
type SumsOfLines = (Vec<f64>, Vec<f64>);

/// The sums of the rows of a placed right operand, once a check has needed them.
pub type LazyLines = Arc<OnceLock<SumsOfLines>>;

impl ErrorLimits {
    /// The spacing of the floats after 1.
    fn unit(&self) -> f64 {
        if self.dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
    }

    /// Largest error of an element, in units of the size of its terms.
    fn element(&self) -> f64 {
        2.0 * (self.depth + 4.0) * self.unit()
    }

    /// Largest error of a sum of `count` elements, added in f64, in units of the largest errors of the elements.
    fn sum(&self, count: f64) -> f64 {
        1.0 + 2.0 * (self.depth + count + 4.0) * f64::EPSILON / self.element()
    }

    /// Whether terms of that size, without α, may add up to a number that the type does not have.
    fn may_overflow(&self, size: f64) -> bool {
        let largest = if self.dtype == DType::F32 { f64::from(f32::MAX) } else { f64::MAX };
        let size = size * self.alpha.abs().max(1.0);
        !size.is_finite() || size > largest / 4.0
    }
}

impl RowSketch {
    /// Reads each operand once; B only if `lines` are not known.
    pub fn of(
        alpha: f64,
        [a, b]: [&Matrix; 2],
        lines: &LazyLines,
        threads: usize,
    ) -> Result<Self, MatrixError> {
        let (of_b, norms_of_b) = match lines.get() {
            Some(known) => known,
            None => {
                let ones = vec![1.0; b.shape().cols as usize];
                let made = pass(b, ones.clone(), Size::Norm(&ones), threads)?;
                lines.get_or_init(|| made)
            }
        };
        let (mut sums, norms) = pass(a, of_b.clone(), Size::Norm(norms_of_b), threads)?;
        sums.iter_mut().for_each(|sum| *sum *= alpha);
        let (depth, cols) = (b.shape().rows as f64, b.shape().cols as f64);
        Ok(Self { sums, norms, limits: ErrorLimits { alpha, depth, cols, dtype: a.dtype() } })
    }

    /// The sum of the sizes of all terms of a row, without α, or more (Cauchy–Schwarz).
    fn size(&self, row: usize) -> f64 {
        (self.limits.depth * self.limits.cols).sqrt() * self.norms[row]
    }

    /// The rows whose sums, as the machines have sent them, differ from these by more than the usual rounding error; of many, the
    /// rows that differ most. Each row comes with the sum that was sent. With full effort rows that differ less come, too.
    pub fn doubtful(&self, sums: Vec<(Span, Vec<f64>)>, effort: Effort) -> Vec<(u64, f64)> {
        let usual = self.limits.unit() * (self.limits.depth + 16.0).sqrt();
        let least = if effort == Effort::Full { 0.0 } else { SAFETY * usual };
        let mut found = vec![0.0; self.sums.len()];
        for (rows, of_rows) in sums {
            found[rows.start as usize..rows.end as usize]
                .iter_mut()
                .zip(of_rows)
                .for_each(|(all, x)| *all += x);
        }
        let ratio = |row: usize| {
            let norm = (self.limits.alpha.abs() * self.norms[row]).max(f64::MIN_POSITIVE);
            let ratio = (found[row] - self.sums[row]).abs() / norm;
            // NaN is the most doubtful of all.
            if ratio.is_nan() { f64::INFINITY } else { ratio }
        };
        let wanted = if effort == Effort::Full { ROWS_FULL } else { ROWS_FAST };
        let in_range = (0..found.len()).filter(|row| !self.limits.may_overflow(self.size(*row)));
        let mut rows: Vec<(f64, usize)> =
            in_range.map(|row| (ratio(row), row)).filter(|(ratio, _)| *ratio > least).collect();
        rows.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        rows.truncate(wanted);
        rows.into_iter().map(|(_, row)| (row as u64, found[row])).collect()
    }
}

/// A matrix of floats times a vector, and the size of each of its rows.
pub(super) fn pass(
    matrix: &Matrix,
    vector: Vec<f64>,
    size: Size<'_>,
    threads: usize,
) -> Result<SumsOfLines, MatrixError> {
    fn of<T: Real>(pass: &Pass<'_, f64>) -> Result<SumsOfLines, MatrixError> {
        let rows = pass.real::<T>()?;
        let products = rows.products.into_iter().flatten().map(|[high, low]| high + low).collect();
        Ok((products, rows.sizes))
    }
    let pass = Pass { matrix, vectors: &[vector], size, mask: None, threads };
    if matrix.dtype() == DType::F32 { of::<f32>(&pass) } else { of::<f64>(&pass) }
}

/// Rows of αAB, whose elements are floats; or the sum of all of them.
pub struct SampledRows {
    /// Their numbers, and their sums as the machines have sent them.
    rows: Vec<(u64, f64)>,
    /// Their elements.
    elements: Vec<Vec<f64>>,
    /// How far each element may be from a right one.
    bounds: Vec<Vec<f64>>,
    /// The sum of all rows and its bounds, for sums of columns.
    whole: Option<(Vec<f64>, Vec<f64>)>,
    sketch: RowSketch,
    /// Rows of the product.
    all_rows: f64,
}

impl SampledRows {
    /// Computes these rows of αAB and, for sums of columns, the sum of all.
    pub fn of(
        reduction: Reduction,
        [a, b]: [&Matrix; 2],
        (rows, sketch): (Vec<(u64, f64)>, RowSketch),
        threads: usize,
    ) -> Result<Self, MatrixError> {
        let all_rows = a.shape().rows as f64;
        let limits = sketch.limits;
        let mut left = rows.iter().map(|(row, _)| one_row(a, *row)).collect::<Result<Vec<_>, _>>()?;
        if reduction == Reduction::ColSum {
            let ones = vec![1.0; a.shape().rows as usize];
            let (sums, sizes) = pass(&a.clone().transposed(), ones.clone(), Size::Weighted(&ones), threads)?;
            left.push(sums.into_iter().zip(sizes).collect());
        }
        let (mut elements, mut bounds) = times(limits.alpha, &left, b)?;
        let bound = limits.element();
        bounds.iter_mut().flatten().for_each(|size| *size = *size * bound + f64::from(f32::MIN_POSITIVE));
        let whole = match reduction {
            Reduction::ColSum => elements.pop().zip(bounds.pop()),
            _ => None,
        };
        Ok(Self { rows, elements, bounds, whole, sketch, all_rows })
    }

    /// Rows that were computed again.
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }
}

/// Some rows, each element with its size, times αB; and the sizes of all terms of each element.
pub(super) fn times(
    alpha: f64,
    left: &[Vec<(f64, f64)>],
    b: &Matrix,
) -> Result<(RowElements, RowElements), MatrixError> {
    let (depth, n) = (b.shape().rows, b.shape().cols);
    let zeros = || vec![vec![0.0; n as usize]; left.len()];
    let (mut elements, mut sizes) = (zeros(), zeros());
    if left.is_empty() {
        return Ok((elements, sizes));
    }
    let b = &b.clone().converted(DType::F64)?;
    let each = (BAND_ELEMENTS / n.max(1)).max(1);
    for start in (0..depth).step_by(each as usize) {
        let rect = Rect::new(Span::new(start, (start + each).min(depth)), Span::new(0, n));
        let buffer = b.block(rect)?;
        let of_b = b.block_view::<f64>(rect, &buffer);
        for (at, left) in left.iter().enumerate() {
            for l in 0..of_b.rows() {
                let (x, size) = left[start as usize + l];
                let (x, size) = (alpha * x, alpha * size);
                let sums = elements[at].iter_mut().zip(&mut sizes[at]);
                for (j, (sum, terms)) in sums.enumerate() {
                    let y = of_b.at(l, j);
                    *sum += x * y;
                    *terms += (size * y).abs();
                }
            }
        }
    }
    Ok((elements, sizes))
}

/// The elements of a row, each with its size.
pub(super) fn one_row(a: &Matrix, row: u64) -> Result<Vec<(f64, f64)>, MatrixError> {
    let a = a.clone().converted(DType::F64)?;
    let rect = Rect::new(Span::new(row, row + 1), Span::new(0, a.shape().cols));
    let buffer = a.block(rect)?;
    let of_a = a.block_view::<f64>(rect, &buffer);
    Ok((0..of_a.cols()).map(|l| of_a.at(0, l)).map(|x| (x, x.abs())).collect())
}

/// Compares a reduction with the rows; the text says what differs. It leaves out rows with NaN and infinities,
/// and rows whose terms may add up to more than the type holds.
pub fn judge(reduction: Reduction, sampled: &SampledRows, results: &[ReducedMatrix]) -> Result<(), String> {
    let wrong = |place: &str| {
        format!(
            "the reduction is wrong{place}: a machine has computed wrongly; check the memory, clock and cooling of those that \
             hold the placed matrix"
        )
    };
    let limits = sampled.sketch.limits;
    let unit = limits.unit();
    let is_near = |x: f64, want: f64, bound: f64| (x - want).abs() <= bound + unit * want.abs();
    // A sum of elements is as near as these are, and their addition.
    let per_row = limits.sum(limits.cols);
    match (reduction, results) {
        // Both have a sum to compare with, for each row and for each column.
        (Reduction::RowSum, [sums]) => {
            let is_right = |row: usize| {
                let size = sampled.sketch.size(row);
                let bound =
                    limits.alpha.abs() * size * limits.element() + limits.cols * f64::from(f32::MIN_POSITIVE);
                limits.may_overflow(size)
                    || is_near(value(sums, row), sampled.sketch.sums[row], bound * per_row)
            };
            if let Some(row) = (0..sampled.sketch.sums.len()).find(|row| !is_right(*row)) {
                return Err(wrong(&format!(" at row {row}")));
            }
        }
        (Reduction::ColSum, [sums]) => {
            let none = (Vec::new(), Vec::new());
            let (wanted, bounds) = sampled.whole.as_ref().unwrap_or(&none);
            let per_column = limits.sum(sampled.all_rows);
            let is_right = |col: usize| {
                let bound = bounds[col] + sampled.all_rows * f64::from(f32::MIN_POSITIVE);
                let size = bounds[col] / limits.element() / limits.alpha.abs();
                limits.may_overflow(size) || is_near(value(sums, col), wanted[col], bound * per_column)
            };
            if let Some(col) = (0..wanted.len()).find(|col| !is_right(*col)) {
                return Err(wrong(&format!(" at column {col}")));
            }
        }
        _ => {}
    }
    for (at, (row, sent)) in sampled.rows.iter().enumerate() {
        let (elements, bounds) = (&sampled.elements[at], &sampled.bounds[at]);
        let mut all = elements.iter().zip(bounds);
        let is_right = match (reduction, results) {
            (Reduction::Max, [most]) => all.all(|(x, bound)| value(most, 0) >= x - bound),
            (Reduction::Min, [least]) => all.all(|(x, bound)| value(least, 0) <= x + bound),
            (Reduction::TopK(count), [columns, values]) => {
                is_top((elements, bounds), (columns, values), (*row * count) as usize, count as usize)
            }
            (Reduction::Norm, [norm]) => {
                let least =
                    all.map(|(x, bound)| (x.abs() - bound).max(0.0)).map(|x| x * x).sum::<f64>().sqrt();
                value(norm, 0) >= least * (1.0 - 16.0 * unit)
            }
            _ => true,
        };
        let is_right =
            is_right && is_near(*sent, elements.iter().sum(), per_row * bounds.iter().sum::<f64>());
        if !is_right {
            return Err(wrong(&format!(" at row {row}")));
        }
    }
    Ok(())
}

/// Whether the largest elements of a row are these, as far as rounding leaves their order open.
fn is_top(
    (elements, bounds): (&[f64], &[f64]),
    (columns, values): (&ReducedMatrix, &ReducedMatrix),
    from: usize,
    count: usize,
) -> bool {
    let mut is_named = vec![false; elements.len()];
    let mut least = f64::INFINITY;
    for at in from..from + count {
        let (column, x) = (value(columns, at) as usize, value(values, at));
        let Some(known) = elements.get(column) else { return false };
        let is_near = (x - known).abs() <= bounds[column];
        if is_named[column] || !is_near || x > least {
            return false;
        }
        is_named[column] = true;
        least = x;
    }
    let others = elements.iter().zip(bounds).zip(&is_named).filter(|(_, is_named)| !**is_named);
    others.map(|((x, bound), _)| x - bound).all(|x| x <= least)
}

/// An element of a result.
fn value(of: &ReducedMatrix, at: usize) -> f64 {
    match of.dtype {
        DType::F32 => f64::from(of.elements.elements::<f32>()[at]),
        DType::F64 => of.elements.elements::<f64>()[at],
        DType::I32 => f64::from(of.elements.elements::<i32>()[at]),
        DType::I64 => of.elements.elements::<i64>()[at] as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_matrix::{RectReduction, Reducer, Reducible, View};

    /// A reduction of α A B with the element (3, 7) off by `fault`, its verdict, and whether row 3 was doubtful.
    fn judged<T: Reducible>(reduction: Reduction, fault: f64) -> (bool, bool) {
        let (a, b) = (format!("random:40x30:{}:1", T::DTYPE), format!("random:30x60:{}:2", T::DTYPE));
        let (a, b) = (Matrix::open(&a).unwrap(), Matrix::open(&b).unwrap());
        let all = |matrix: &Matrix| {
            let rect = matrix.shape().rect();
            let buffer = matrix.block(rect).unwrap();
            let of = matrix.block_view::<T>(rect, &buffer);
            (0..of.rows()).map(|i| (0..of.cols()).map(|j| of.at(i, j)).collect()).collect::<Vec<Vec<T>>>()
        };
        let (rows, of_b) = (all(&a), all(&b));
        let element = |i: usize, j: usize| {
            let sum = (0..30).fold(T::ZERO, |sum, l| sum.plus(rows[i][l].times(of_b[l][j])));
            T::from_f64(-2.0).times(sum).plus(T::from_f64(if (i, j) == (3, 7) { fault } else { 0.0 }))
        };
        let c: Vec<T> =
            (0..40).flat_map(|i| (0..60).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect();
        let shape = bramble_matrix::Shape::new(40, 60);
        let part = RectReduction::of(reduction, shape.rect(), &View::row_major(&c, 40, 60));
        let mut reducer = Reducer::new(reduction, "C", shape).unwrap();
        reducer.merge(part);
        let sums: Vec<f64> = c.chunks(60).map(|row| row.iter().map(|x| x.to_f64()).sum()).collect();
        let sketch = RowSketch::of(-2.0, [&a, &b], &LazyLines::default(), 2).unwrap();
        let sums = vec![(Span::new(0, 40), sums)];
        assert_eq!(sketch.doubtful(sums.clone(), Effort::Full).len(), ROWS_FULL);
        let doubtful = sketch.doubtful(sums, Effort::Fast);
        assert_eq!(doubtful.len(), usize::from(fault != 0.0), "rows that are right are not doubtful");
        let is_doubted = doubtful.iter().any(|(row, _)| *row == 3);
        let sampled = SampledRows::of(reduction, [&a, &b], (doubtful, sketch), 2).unwrap();
        (judge(reduction, &sampled, &reducer.finish().unwrap()).is_ok(), is_doubted)
    }

    #[test]
    fn right_reductions_pass_and_a_wrong_element_is_noticed() {
        let all =
            [Reduction::RowSum, Reduction::ColSum, Reduction::Norm, Reduction::TopK(60), Reduction::TopK(5)];
        for reduction in all.into_iter().chain([Reduction::Max, Reduction::Min]) {
            assert!(judged::<f32>(reduction, 0.0).0 && judged::<f64>(reduction, 0.0).0, "{reduction:?}");
            for fault in [1e3, -1e3] {
                assert_eq!(judged::<f32>(reduction, fault), (false, true), "{reduction:?}");
                assert_eq!(judged::<f64>(reduction, fault), (false, true), "{reduction:?}");
            }
        }
        // A fault that is a thousandth of the element.
        assert_eq!(judged::<f32>(Reduction::TopK(60), 1e-2), (false, true));
    }
}
