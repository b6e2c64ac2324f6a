//! Checks a reduction of a product, which is never in one place.
//!
//! Place in the flow: the primary computes `RowSketch` beside the machines' work. Each machine also sends the sums of the rows
//! that it has computed, from the elements that it has reduced; they have to be those of A (B 1), as in Freivalds' check with a
//! vector of ones. Rows that differ more from that than rounding errors mostly do are computed again (`SampledRows`), and the
//! result is compared with them.
//!
//! Invariants: sums are added in f64. Rows are compared within twice the error bound of a classical product of the element type
//! (docs/kernel-contract.md), so no right result is refused, however doubtful its sums.
//!
//! Deliberately absent: finding the machine that was wrong, and machines that choose their errors: they know the vector.

use super::Effort;
use bramble_matrix::{DType, Matrix, MatrixError, Rect, ReducedMatrix, Reduction, Span};
use std::sync::{Arc, OnceLock};

/// Rows that are computed again.
const ROWS_FAST: usize = 4;
const ROWS_FULL: usize = 32;
/// A row is doubtful beyond this many times the rounding error that a row mostly has.
const SAFETY: f64 = 8.0;
/// Elements that are read at a time.
const BAND_ELEMENTS: u64 = 1 << 18;

/// For each row of a product αAB, what is known of it without the product.
pub struct RowSketch {
    /// The sum of its elements, by α A (B 1).
    sums: Vec<f64>,
    /// The sum of the sizes of all terms, by |α| |A| (|B| 1).
    sizes: Vec<f64>,
    /// The root of the sum of squares of all terms, which rounding errors of a row are in proportion to.
    norms: Vec<f64>,
}

/// The spacing of the floats after 1.
fn unit_of(dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
}

/// The elements of some rows.
type RowElements = Vec<Vec<f64>>;

/// Of a line of a matrix: the sum, the sum of sizes, the sum of squares.
type LineSums = [f64; 3];

/// The sums of the rows of a placed right operand, once a check has needed them.
pub type LazyLines = Arc<OnceLock<Vec<LineSums>>>;

impl RowSketch {
    /// Reads each operand once; B only if `lines` are not known.
    pub fn of(
        alpha: f64,
        [a, b]: [&Matrix; 2],
        lines: &LazyLines,
        threads: usize,
    ) -> Result<Self, MatrixError> {
        let of_b = match lines.get() {
            Some(of_b) => of_b,
            None => {
                let made = with_lines(b, &vec![[1.0; 3]; b.shape().cols as usize], threads)?;
                lines.get_or_init(|| made)
            }
        };
        let rows = with_lines(a, of_b, threads)?;
        let one =
            |part: usize, of: fn(f64, f64) -> f64| rows.iter().map(|row| of(alpha, row[part])).collect();
        Ok(Self {
            sums: one(0, |alpha, sum| alpha * sum),
            sizes: one(1, |alpha, size| alpha.abs() * size),
            norms: one(2, |alpha, squares| alpha.abs() * squares.sqrt()),
        })
    }

    /// The rows whose sums, as the machines have sent them, differ more from these than rounding errors of the product's depth
    /// mostly do; of many, those that differ most. Each with its sum as it was sent. With full effort also rows that differ less.
    pub fn doubtful(
        &self,
        sums: Vec<(Span, Vec<f64>)>,
        (depth, dtype): (u64, DType),
        effort: Effort,
    ) -> Vec<(u64, f64)> {
        let least =
            if effort == Effort::Full { 0.0 } else { SAFETY * unit_of(dtype) * (depth as f64 + 16.0).sqrt() };
        let mut found = vec![0.0; self.sums.len()];
        for (rows, of_rows) in sums {
            found[rows.start as usize..rows.end as usize]
                .iter_mut()
                .zip(of_rows)
                .for_each(|(all, x)| *all += x);
        }
        let ratio = |row: usize| {
            let ratio = (found[row] - self.sums[row]).abs() / self.norms[row].max(f64::MIN_POSITIVE);
            // NaN is the most doubtful of all.
            if ratio.is_nan() { f64::INFINITY } else { ratio }
        };
        let wanted = if effort == Effort::Full { ROWS_FULL } else { ROWS_FAST };
        let all = (0..found.len()).map(|row| (ratio(row), row as u64));
        let mut rows: Vec<(f64, u64)> = all.filter(|(ratio, _)| *ratio > least).collect();
        rows.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        rows.truncate(wanted);
        rows.into_iter().map(|(_, row)| (row, found[row as usize])).collect()
    }
}

/// A matrix times three vectors: itself, its sizes and its squares, each times one of them.
fn with_lines(matrix: &Matrix, lines: &[LineSums], threads: usize) -> Result<Vec<LineSums>, MatrixError> {
    let matrix = matrix.clone().converted(DType::F64)?;
    let shape = matrix.shape();
    let each = (BAND_ELEMENTS / shape.cols.max(1)).max(1);
    let bands: Vec<Span> = (0..shape.rows.div_ceil(each))
        .map(|at| Span::new(at * each, shape.rows.min((at + 1) * each)))
        .collect();
    let band = |rows: &Span| -> Result<Vec<LineSums>, MatrixError> {
        let rect = Rect::new(*rows, Span::new(0, shape.cols));
        let buffer = matrix.block(rect)?;
        let of = matrix.block_view::<f64>(rect, &buffer);
        let row = |i: usize| {
            lines.iter().enumerate().fold([0.0; 3], |[sum, size, squares], (j, line)| {
                let x = of.at(i, j);
                [sum + x * line[0], size + x.abs() * line[1], squares + x * x * line[2]]
            })
        };
        Ok((0..of.rows()).map(row).collect())
    };
    let of_thread = |bands: &[Span]| bands.iter().map(band).collect::<Result<Vec<_>, _>>();
    let shares = bands.chunks(bands.len().div_ceil(threads.max(1)).max(1));
    let all: Vec<Result<Vec<Vec<LineSums>>, MatrixError>> = std::thread::scope(|scope| {
        let start = |share| std::thread::Builder::new().spawn_scoped(scope, move || of_thread(share)).ok();
        let started: Vec<_> = shares.map(|share| (share, start(share))).collect();
        // If the system gives no more threads, or one fails, this one does the work.
        let end = |(share, thread): (&[Span], Option<std::thread::ScopedJoinHandle<'_, _>>)| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| of_thread(share))
        };
        started.into_iter().map(end).collect()
    });
    let mut rows = Vec::with_capacity(shape.rows as usize);
    for share in all {
        share?.into_iter().for_each(|band| rows.extend(band));
    }
    Ok(rows)
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
    /// The bound of an element's error in units of the sizes of its terms.
    bound: f64,
    /// Rows that were computed again.
    pub count: u64,
}

impl SampledRows {
    /// Computes these rows of αAB and, for sums of columns, the sum of all.
    pub fn of(
        reduction: Reduction,
        alpha: f64,
        [a, b]: [&Matrix; 2],
        (rows, sketch): (Vec<(u64, f64)>, RowSketch),
    ) -> Result<Self, MatrixError> {
        let bound = 2.0 * (a.shape().cols + 4) as f64 * unit_of(a.dtype());
        let (a, b) = (a.clone().converted(DType::F64)?, b.clone().converted(DType::F64)?);
        let mut left = rows.iter().map(|(row, _)| one_row(&a, *row)).collect::<Result<Vec<_>, _>>()?;
        if reduction == Reduction::ColSum {
            left.push(summed(&a)?);
        }
        let (mut elements, mut bounds) = times(alpha, &left, &b)?;
        bounds.iter_mut().flatten().for_each(|size| *size = *size * bound + f64::from(f32::MIN_POSITIVE));
        let whole = match reduction {
            Reduction::ColSum => elements.pop().zip(bounds.pop()),
            _ => None,
        };
        let count = rows.len() as u64;
        Ok(Self { rows, elements, bounds, whole, sketch, bound, count })
    }
}

/// Some rows, each element with its size, times αB; and the sizes of all terms of each element.
fn times(
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
fn one_row(a: &Matrix, row: u64) -> Result<Vec<(f64, f64)>, MatrixError> {
    let rect = Rect::new(Span::new(row, row + 1), Span::new(0, a.shape().cols));
    let buffer = a.block(rect)?;
    let of_a = a.block_view::<f64>(rect, &buffer);
    Ok((0..of_a.cols()).map(|l| of_a.at(0, l)).map(|x| (x, x.abs())).collect())
}

/// The sum of each column, and that of the sizes.
fn summed(a: &Matrix) -> Result<Vec<(f64, f64)>, MatrixError> {
    let shape = a.shape();
    let mut sums = vec![(0.0, 0.0); shape.cols as usize];
    let each = (BAND_ELEMENTS / shape.cols.max(1)).max(1);
    for start in (0..shape.rows).step_by(each as usize) {
        let rect = Rect::new(Span::new(start, (start + each).min(shape.rows)), Span::new(0, shape.cols));
        let buffer = a.block(rect)?;
        let of_a = a.block_view::<f64>(rect, &buffer);
        for i in 0..of_a.rows() {
            for (l, (sum, size)) in sums.iter_mut().enumerate() {
                let x: f64 = of_a.at(i, l);
                *sum += x;
                *size += x.abs();
            }
        }
    }
    Ok(sums)
}

/// Compares a reduction with the rows; the text says what differs. Rows with NaN or infinities say nothing.
pub fn judge(reduction: Reduction, sampled: &SampledRows, results: &[ReducedMatrix]) -> Result<(), String> {
    let wrong = |place: &str| {
        format!(
            "the reduction is wrong{place}: a machine has computed wrongly; check the memory, clock and cooling of those that \
             hold the placed matrix"
        )
    };
    let unit = results.last().map_or(0.0, |of| unit_of(of.dtype));
    let is_near =
        |x: f64, want: f64, bound: f64| !want.is_finite() || (x - want).abs() <= bound + unit * want.abs();
    match (reduction, results) {
        // Both have a sum to compare with, for each row and for each column.
        (Reduction::RowSum, [sums]) => {
            let RowSketch { sums: wanted, sizes, .. } = &sampled.sketch;
            let of = |row: usize| is_near(value(sums, row), wanted[row], sampled.bound * sizes[row]);
            if let Some(row) = (0..wanted.len()).find(|row| !of(*row)) {
                return Err(wrong(&format!(" at row {row}")));
            }
        }
        (Reduction::ColSum, [sums]) => {
            let none = (Vec::new(), Vec::new());
            let (wanted, bounds) = sampled.whole.as_ref().unwrap_or(&none);
            let of = |col: usize| is_near(value(sums, col), wanted[col], bounds[col]);
            if let Some(col) = (0..wanted.len()).find(|col| !of(*col)) {
                return Err(wrong(&format!(" at column {col}")));
            }
        }
        _ => {}
    }
    for (at, (row, sent)) in sampled.rows.iter().enumerate() {
        let (elements, bounds) = (&sampled.elements[at], &sampled.bounds[at]);
        if elements.iter().any(|x| !x.is_finite()) {
            continue;
        }
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
        let is_right = is_right && is_near(*sent, elements.iter().sum(), bounds.iter().sum());
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
        assert_eq!(sketch.doubtful(sums.clone(), (30, T::DTYPE), Effort::Full).len(), ROWS_FULL);
        let doubtful = sketch.doubtful(sums, (30, T::DTYPE), Effort::Fast);
        assert_eq!(doubtful.len(), usize::from(fault != 0.0), "rows that are right are not doubtful");
        let is_doubted = doubtful.iter().any(|(row, _)| *row == 3);
        let sampled = SampledRows::of(reduction, -2.0, [&a, &b], (doubtful, sketch)).unwrap();
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
