//! The check of integer products: exact, mod 2^w.
//!
//! Place: what `verify` does for i32 and i64.
//!
//! Invariants: all arithmetic is done mod 2^64 and compared mod 2^w, which is what wrapping kernels
//! compute in any order; a difference is therefore always a fault, and there is no tolerance.

use super::pass::{Pass, Rows, Size};
use super::random::{integers, sample};
use super::recompute::{Problem, recompute};
use super::scalar::Scalar;
use super::tile::zeros;
use super::{Effort, FULL_ROWS, Fault, MatrixError, SAMPLE_STREAM, Unverified, Verdict};
use crate::Matrix;

/// A factor as an integer; an error where it is none.
fn integer(name: &str, x: f64) -> Result<i64, MatrixError> {
    let limit = 2f64.powi(63);
    if x.fract() == 0.0 && x >= -limit && x < limit {
        return Ok(x as i64);
    }
    let what = format!("{x} is no 64-bit integer; integer products take integer factors only");
    Err(MatrixError::format(name, what))
}

/// Checks the product; the first wrong element in reading order of the first wrong row is named.
pub(super) fn verify<T: Scalar<X = i64>>(
    problem: &Problem,
    effort: Effort,
    seed: u64,
) -> Result<Verdict, MatrixError> {
    let factors = (integer("alpha", problem.alpha)?, integer("beta", problem.beta)?);
    let vectors = effort.vectors();
    let mut method = format!("Freivalds mod 2^{}, {vectors} random vector(s)", 8 * size_of::<T>());
    let shape = problem.c.shape();
    let mut suspects = freivalds::<T>(problem, factors, vectors, seed)?;
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
        // The sums differ and the elements do not: the checking machine itself computed wrongly.
        let what = "the check contradicts itself; this machine's memory or processor is unreliable";
        return Err(MatrixError::format(problem.c.name(), what));
    }
    let worst_ratio = if fault.is_some() { f64::INFINITY } else { 0.0 };
    let unverified = Unverified::default();
    Ok(Verdict {
        method,
        passed: fault.is_none(),
        worst_ratio,
        arbitrated_rows: arbitrated,
        unverified,
        fault,
    })
}

/// The rows whose products with some vector differ.
fn freivalds<T: Scalar<X = i64>>(
    problem: &Problem,
    (alpha, beta): (i64, i64),
    vectors: u64,
    seed: u64,
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
    let product = if problem.depth == 0 {
        None
    } else {
        let y: Vec<Vec<i64>> =
            pass(&problem.b, &r)?.products.iter().map(|v| v.iter().map(|p| p[0]).collect()).collect();
        Some(pass(&problem.a, &y)?)
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
    problem: &Problem,
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
            (!same::<T>(expected, got[i])).then(|| (place, got[i], T::from_i64(expected)))
        }))
    })?;
    let first = found.into_iter().flatten().min_by_key(|(place, ..)| *place);
    Ok(first.map(|((row, col), got, expected)| {
        let text = format!("C[{row}, {col}] is {got}, should be {expected:?}");
        Fault { row, col, got: got as f64, expected: expected.to_f64(), text }
    }))
}
