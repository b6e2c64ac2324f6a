//! The check of integer products: exact, mod 2^w.
//!
//! Place: `verify` for i32 and i64.
//!
//! Invariants: all arithmetic is done mod 2^64 and compared mod 2^w (w = 32 or 64). Kernels wrap mod 2^w, so
//! their result does not depend on the order of summation: any difference is a fault, and no tolerance is needed.

use super::direct::{is_cheap, sums};
use super::pass::{Pass, Rows, Size};
use super::random::{integers, sample};
use super::recompute::{VerifyProblem, recompute};
use super::scalar::Scalar;
use super::tile::{Loader, zeros};
use super::{Effort, FULL_ROWS, Fault, MatrixError, SAMPLE_STREAM, Unverified, Verdict};
use bramble_matrix::{Matrix, Rect, Span};

/// A factor as an integer; an error if it is not a 64-bit integer.
fn integer(name: &str, x: f64) -> Result<i64, MatrixError> {
    let limit = 2f64.powi(63);
    if x.fract() == 0.0 && x >= -limit && x < limit {
        return Ok(x as i64);
    }
    let what = format!("{x} is no 64-bit integer; integer products take integer factors only");
    Err(MatrixError::format(name, what))
}

/// Checks the product; names the first wrong element of the first wrong row.
pub(super) fn verify<T: Scalar<X = i64>>(
    problem: &VerifyProblem,
    effort: Effort,
    seed: u64,
) -> Result<Verdict, MatrixError> {
    let factors = (integer("alpha", problem.alpha)?, integer("beta", problem.beta)?);
    if is_cheap(problem) {
        let fault = judge_all::<T>(problem, factors)?;
        return Ok(verdict("all elements recomputed".to_owned(), 0, fault));
    }
    let vectors = effort.vectors();
    let mut method = format!("Freivalds mod 2^{}, {vectors} random vector(s)", 8 * size_of::<T>());
    let shape = problem.c.shape();
    let mut suspects = freivalds::<T>(problem, factors, (vectors, seed), None)?;
    suspects.truncate(1);
    let arbitrated = suspects.len() as u64;
    if effort == Effort::Full {
        let rows = sample(seed, SAMPLE_STREAM, shape.rows, FULL_ROWS);
        method += &format!(", {} rows recomputed", rows.len());
        if suspects.is_empty() {
            suspects = rows;
        }
    }
    let mut fault = None;
    for batch in problem.batches(&suspects) {
        fault = fault.or(first_fault::<T>(problem, factors, batch)?);
    }
    if fault.is_none() && arbitrated > 0 {
        // The sums differ but no element does: the checking machine itself computed wrongly.
        let what = "the check contradicts itself; this machine's memory or processor is unreliable";
        return Err(MatrixError::format(problem.c.name(), what));
    }
    Ok(verdict(method, arbitrated, fault))
}

fn verdict(method: String, arbitrated_rows: u64, fault: Option<Fault>) -> Verdict {
    let (passed, unverified) = (fault.is_none(), Unverified::default());
    let worst_ratio = if passed { 0.0 } else { f64::INFINITY };
    Verdict { method, passed, worst_ratio, arbitrated_rows, unverified, fault }
}

/// The first wrong element of a C for which recomputing everything is cheap.
fn judge_all<T: Scalar<X = i64>>(
    problem: &VerifyProblem,
    (alpha, beta): (i64, i64),
) -> Result<Option<Fault>, MatrixError> {
    let sums = sums::<T>(problem)?;
    let shape = problem.c.shape();
    let (mut got, mut base) = (zeros(sums.hi.len())?, zeros(sums.hi.len())?);
    let rect = Rect::new(Span::new(0, shape.rows), Span::new(0, shape.cols));
    let mut loader = Loader::default();
    loader.gather::<T, i64>(&problem.c, rect, T::widen, &mut got)?;
    if let Some(c0) = &problem.c0 {
        loader.gather::<T, i64>(c0, rect, T::widen, &mut base)?;
    }
    let mut elements = (0u64..).zip(sums.hi.into_iter().zip(base).zip(got));
    Ok(elements.find_map(|(at, ((sum, base), got))| {
        let expected = alpha.wrapping_mul(sum).wrapping_add(beta.wrapping_mul(base));
        (!same::<T>(expected, got)).then(|| fault::<T>((at / shape.cols, at % shape.cols), got, expected))
    }))
}

fn fault<T: Scalar>((row, col): (u64, u64), got: i64, expected: i64) -> Fault {
    let expected = T::from_i64(expected);
    let text = format!("C[{row}, {col}] is {got}, should be {expected:?}");
    Fault { row, col, got: got as f64, expected: expected.to_f64(), text }
}

/// Checks a product of which B r is known, for the one vector of that seed; `None` if a row is wrong.
pub(super) fn sketched<T: Scalar<X = i64>>(
    problem: &VerifyProblem,
    products: &[i64],
    seed: u64,
) -> Result<Option<Verdict>, MatrixError> {
    let factors = (integer("alpha", problem.alpha)?, integer("beta", problem.beta)?);
    let suspects = freivalds::<T>(problem, factors, (1, seed), Some(products))?;
    let method =
        format!("Freivalds mod 2^{}, 1 random vector(s), one operand by its sketch", 8 * size_of::<T>());
    Ok(suspects.is_empty().then(|| Verdict::passed(&method, 0.0)))
}

/// The rows in which, for some vector, C r differs from alpha A (B r) + beta C0 r. `known`: B r for a single vector.
fn freivalds<T: Scalar<X = i64>>(
    problem: &VerifyProblem,
    (alpha, beta): (i64, i64),
    (vectors, seed): (u64, u64),
    known: Option<&[i64]>,
) -> Result<Vec<u64>, MatrixError> {
    let shape = problem.c.shape();
    let mut r = Vec::new();
    for v in 0..vectors {
        let mut vector = zeros(shape.cols as usize)?;
        integers(seed, v, &mut vector);
        r.push(vector);
    }
    let pass = |matrix: &Matrix, vectors: &[Vec<i64>]| -> Result<Rows<i64>, MatrixError> {
        Pass { matrix, vectors, size: Size::None, mask: None, threads: problem.threads }.integer::<T>()
    };
    let product = match known {
        _ if problem.depth == 0 => None,
        Some(y) => Some(pass(&problem.a, &[y.to_vec()])?),
        None => {
            let y: Vec<Vec<i64>> =
                pass(&problem.b, &r)?.products.iter().map(|v| v.iter().map(|p| p[0]).collect()).collect();
            Some(pass(&problem.a, &y)?)
        }
    };
    let base = problem.c0.as_ref().map(|c0| pass(c0, &r)).transpose()?;
    let c = pass(&problem.c, &r)?;
    let at =
        |rows: &Option<Rows<i64>>, v: usize, i: usize| rows.as_ref().map_or(0, |rows| rows.products[v][i][0]);
    let differs = |i: usize| {
        (0..r.len()).any(|v| {
            let expected = alpha.wrapping_mul(at(&product, v, i));
            let expected = expected.wrapping_add(beta.wrapping_mul(at(&base, v, i)));
            !same::<T>(expected, c.products[v][i][0])
        })
    };
    Ok((0..shape.rows).filter(|i| differs(*i as usize)).collect())
}

/// Whether two numbers are equal mod 2^w.
fn same<T: Scalar>(a: i64, b: i64) -> bool {
    T::from_i64(a) == T::from_i64(b)
}

/// The first wrong element of the first wrong row of a batch.
fn first_fault<T: Scalar<X = i64>>(
    problem: &VerifyProblem,
    (alpha, beta): (i64, i64),
    rows: &[u64],
) -> Result<Option<Fault>, MatrixError> {
    let found = recompute::<T, _>(problem, rows, |loader, chunk| {
        let got = chunk.same_place::<T>(loader, &problem.c)?;
        let base = match &problem.c0 {
            Some(c0) => chunk.same_place::<T>(loader, c0)?,
            None => zeros(got.len())?,
        };
        let width = chunk.cols.len() as usize;
        Ok((0..got.len()).find_map(|i| {
            let expected = alpha.wrapping_mul(chunk.hi[i]).wrapping_add(beta.wrapping_mul(base[i]));
            let place = (rows[i / width], chunk.cols.start + (i % width) as u64);
            (!same::<T>(expected, got[i])).then(|| (place, got[i], expected))
        }))
    })?;
    let first = found.into_iter().flatten().min_by_key(|(place, ..)| *place);
    Ok(first.map(|(place, got, expected)| fault::<T>(place, got, expected)))
}
