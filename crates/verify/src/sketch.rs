//! *Sketches*: vectors of one operand, computed once, with which many products are checked.
//!
//! Place: for a B that stays while A changes, such as a matrix that is placed on workers. The check of C then reads A
//! and C only, not B. The caller checks as usual (`verify`) where the sketch does not serve.
//!
//! Freivalds' test compares C r with A (B r). B r, the size of each row of B, and the weight of each column
//! (`columns.rs`) do not depend on A, except that A may scale the rows of B, and with them the columns of C. So the
//! sketch also has the exponent of the largest element of each column in each group of `GROUP` rows of B. From these
//! and the columns of A follow the sizes of the columns of C; if they differ from those without A by more than `EVEN`
//! binary orders, the sketch does not serve.
//!
//! Invariants: the random vector is secret as that of every check, and is used for all products with this B: no
//! machine that computes C learns anything of it. A sketch says "passed" or nothing: alarms, NaN and infinities, and
//! levels of Strassen–Winograd are left to `verify`.

use super::columns::{Scan, weights_of};
use super::float::{Look, Test, TestSums, with_vectors};
use super::pass::{Pass, Rows, Size};
use super::random::integers;
use super::recompute::VerifyProblem;
use super::scalar::{Real, Scalar};
use super::tile::zeros;
use super::{Check, Effort, MatrixError, Verdict, exact, problem};
use bramble_matrix::{DType, Matrix, Rect, Shape, Span};

/// Rows of B in a group.
const GROUP: u64 = 32;
/// Most binary orders between the scales that A gives to two columns of C. The sketch is that much less sensitive to
/// faults in some columns.
const EVEN: i32 = 4;
/// The verdict's `method`.
const METHOD: &str = "Freivalds, 1 random vector(s), one operand by its sketch";
/// The exponent of zero.
const NOTHING: i16 = i16::MIN / 4;

/// A sketch of the right operand of products.
#[derive(Debug)]
pub struct Sketch {
    shape: Shape,
    dtype: DType,
    seed: u64,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Real(RealSketch),
    /// B r, mod 2^64.
    Integer(Vec<i64>),
}

#[derive(Debug)]
struct RealSketch {
    /// The weight of each column.
    weights: Vec<f64>,
    /// B r, rounded to f64, for the weighted random vector.
    products: Vec<f64>,
    /// The weighted 2-norm of each row.
    sizes: Vec<f64>,
    /// For each group of rows, the exponent of the largest element of each column.
    groups: Vec<Vec<i16>>,
    /// The same of all rows.
    whole: Vec<i16>,
}

impl Sketch {
    /// The sketch of B; `None` if it holds NaN or infinities, which are checked element by element. `seed` must be
    /// unknown to the machines that compute products with B.
    pub fn of(b: &Matrix, seed: u64, threads: usize) -> Result<Option<Self>, MatrixError> {
        let threads = threads.max(1);
        let values = match b.dtype() {
            DType::F32 => RealSketch::of::<f32>(b, seed, threads)?.map(Values::Real),
            DType::F64 => RealSketch::of::<f64>(b, seed, threads)?.map(Values::Real),
            DType::I32 => Some(Values::Integer(times_integers::<i32>(b, seed, threads)?)),
            DType::I64 => Some(Values::Integer(times_integers::<i64>(b, seed, threads)?)),
        };
        Ok(values.map(|values| Self { shape: b.shape(), dtype: b.dtype(), seed, values }))
    }

    /// Checks a product whose B this is a sketch of, without reading B; `check.seed` is not used. `None` if the
    /// sketch does not serve for this product, or something in C looks wrong: then `verify` decides.
    pub fn verify(&self, check: &Check<'_>) -> Result<Option<Verdict>, MatrixError> {
        if check.effort != Effort::Fast || check.b.shape() != self.shape || check.b.dtype() != self.dtype {
            return Ok(None);
        }
        let problem = problem(check)?;
        let is_empty = problem.c.shape().elements() == Some(0) || problem.depth == 0;
        if is_empty || self.dtype.is_float() && problem.levels_most() > 0 {
            return Ok(None);
        }
        match (&self.values, self.dtype) {
            (Values::Real(real), DType::F32) => real.verify::<f32>(&problem, self.seed),
            (Values::Real(real), _) => real.verify::<f64>(&problem, self.seed),
            (Values::Integer(products), DType::I32) => exact::sketched::<i32>(&problem, products, self.seed),
            (Values::Integer(products), _) => exact::sketched::<i64>(&problem, products, self.seed),
        }
    }
}

/// B r for a random vector r of integers.
fn times_integers<T: Scalar<X = i64>>(
    b: &Matrix,
    seed: u64,
    threads: usize,
) -> Result<Vec<i64>, MatrixError> {
    let mut r = zeros(b.shape().cols as usize)?;
    integers(seed, 0, &mut r);
    let pass = Pass { matrix: b, vectors: &[r], size: Size::None, mask: None, threads };
    Ok(pass.integer::<T>()?.products.into_iter().flatten().map(|[sum, _]| sum).collect())
}

impl RealSketch {
    fn of<T: Real>(b: &Matrix, seed: u64, threads: usize) -> Result<Option<Self>, MatrixError> {
        let (rows, cols) = (b.shape().rows, b.shape().cols as usize);
        let mut sizes: Vec<f64> = zeros(cols)?;
        let mut groups = Vec::new();
        for start in (0..rows).step_by(GROUP as usize) {
            let span = Span::new(start, (start + GROUP).min(rows));
            let part = b.part(Rect::new(span, Span::new(0, b.shape().cols)));
            let mut most: Vec<f64> = zeros(cols)?;
            let ones = vec![1.0; span.len() as usize];
            Scan { matrix: &part, rows: Some(&ones), threads }.run::<T>(&mut [], &mut most)?;
            groups.push(most.iter().copied().map(exponent).collect());
            sizes.iter_mut().zip(most).for_each(|(size, most)| *size = size.max(most));
        }
        let whole = sizes.iter().copied().map(exponent).collect();
        let weights = weights_of(sizes);
        let look = Look { weights: &weights, vectors: 1, effort: Effort::Fast, seed };
        let Rows { products, sizes } = with_vectors::<T>(b, look, threads)?;
        if sizes.iter().any(|size| !size.is_finite()) {
            return Ok(None);
        }
        let products = products.into_iter().flatten().map(|[hi, lo]| hi + lo).collect();
        Ok(Some(Self { weights, products, sizes, groups, whole }))
    }

    fn verify<T: Real>(&self, problem: &VerifyProblem, seed: u64) -> Result<Option<Verdict>, MatrixError> {
        if !self.suits::<T>(problem)? {
            return Ok(None);
        }
        let threads = problem.threads;
        let look = Look { weights: &self.weights, vectors: 1, effort: Effort::Fast, seed };
        let size = Size::Weighted(&self.sizes);
        let vectors = std::slice::from_ref(&self.products);
        let product = Pass { matrix: &problem.a, vectors, size, mask: None, threads }.real::<T>()?;
        let base = problem.c0.as_ref().map(|c0| with_vectors::<T>(c0, look, threads)).transpose()?;
        let c = with_vectors::<T>(&problem.c, look, threads)?;
        if product.any_wild() || base.as_ref().is_some_and(Rows::any_wild) || c.any_wild() {
            return Ok(None);
        }
        let sums = TestSums { product: Some(product), base, c };
        let quiet = Test::of::<T>(problem, &self.weights).quiet(&sums);
        Ok(quiet.map(|worst_ratio| Verdict::passed(METHOD, worst_ratio)))
    }

    /// Whether A scales the columns of C about evenly.
    fn suits<T: Real>(&self, problem: &VerifyProblem) -> Result<bool, MatrixError> {
        if self.whole.len() < 2 || problem.a.generator().is_some() && problem.c0.is_none() {
            return Ok(true);
        }
        if problem.c0.is_some() {
            // The old C has column sizes of its own.
            return Ok(false);
        }
        let mut rows: Vec<f64> = zeros(problem.c.shape().rows as usize)?;
        let mut depth: Vec<f64> = zeros(problem.depth as usize)?;
        Scan { matrix: &problem.a, rows: None, threads: problem.threads }.run::<T>(&mut rows, &mut depth)?;
        let mut with_a = vec![NOTHING; self.whole.len()];
        for (group, of_a) in self.groups.iter().zip(depth.chunks(GROUP as usize)) {
            let of_a = exponent(of_a.iter().copied().fold(0.0, f64::max));
            with_a
                .iter_mut()
                .zip(group)
                .for_each(|(most, own)| *most = (*most).max(own.saturating_add(of_a)));
        }
        let columns = with_a.iter().zip(&self.whole).filter(|(_, own)| **own > NOTHING);
        let shifts = columns.map(|(with_a, own)| i32::from(*with_a) - i32::from(*own));
        let (least, most) =
            shifts.fold((i32::MAX, i32::MIN), |(least, most), shift| (least.min(shift), most.max(shift)));
        Ok(most.saturating_sub(least) <= EVEN || least > most)
    }
}

/// The binary exponent of a size.
fn exponent(size: f64) -> i16 {
    if size > 0.0 && size.is_finite() { (size.to_bits() >> 52) as i16 - 1023 } else { NOTHING }
}
