//! Judges single elements of a float product against what they should be.
//!
//! Place: the court of last resort. What it convicts is wrong for every kernel that does IEEE arithmetic
//! in any order; what it acquits may still be less accurate than it should be (docs/verification.md).
//!
//! Invariants: NaN and infinities are demanded exactly where exact arithmetic on the operands has them;
//! where a partial sum may overflow, either outcome is accepted. Comparisons are written so that NaN
//! convicts.

use super::recompute::{Chunk, Problem, recompute};
use super::scalar::{Real, add_scaled, two_sum, within};
use super::strassen::appeal;
use super::tile::{Loader, zeros};
use super::{Fault, MatrixError};

/// Elements of a row that are looked at twice for each reason, where Strassen's bound decides.
const APPEALS: usize = 4;

/// An element that is certainly wrong.
#[derive(Clone, Debug)]
pub(super) struct Conviction {
    pub(super) row: u64,
    pub(super) col: u64,
    /// Its error in units of what was allowed; infinite where the class is wrong.
    pub(super) excess: f64,
    got: f64,
    expected: f64,
    error: f64,
    allowed: f64,
}

impl Conviction {
    /// Whether this one is worse than `other`; the first in reading order among equals.
    fn worse_than(&self, other: &Self) -> bool {
        let place = (other.row, other.col) > (self.row, self.col);
        self.excess > other.excess || (self.excess == other.excess && place)
    }

    /// The same element seen in the transposed product.
    pub(super) fn transposed(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }

    /// The same element with more allowed; `None` if it is within that. What both bounds leave of the check's own
    /// rounding is 2^-20 of what was allowed before.
    pub(super) fn beyond(&self, allowed: f64) -> Option<Self> {
        let allowed = allowed + self.allowed * 2f64.powi(-20);
        let excess = if self.excess.is_finite() { self.error / allowed } else { self.excess };
        (!within(self.error, allowed)).then(|| Self { excess, allowed, ..self.clone() })
    }

    /// What is told to the user.
    pub(super) fn fault(self) -> Fault {
        let Self { row, col, got, expected, error, allowed, .. } = self;
        let text = if error.is_finite() {
            format!(
                "C[{row}, {col}] is {got:e}, should be {expected:e} (off by {error:.3e}, {allowed:.3e} allowed)"
            )
        } else {
            format!("C[{row}, {col}] is {got:e}, should be {expected:e}")
        };
        Fault { row, col, got, expected, text }
    }
}

/// The worst of several.
pub(super) fn worst(convictions: impl IntoIterator<Item = Option<Conviction>>) -> Option<Conviction> {
    convictions.into_iter().flatten().reduce(|a, b| if b.worse_than(&a) { b } else { a })
}

/// Recomputes whole rows and returns the worst element that is certainly wrong. Stops after the first
/// batch that has one.
pub(super) fn judge_rows<T: Real>(
    problem: &Problem,
    rows: &[u64],
) -> Result<Option<Conviction>, MatrixError> {
    for batch in problem.batches(rows) {
        let found =
            recompute::<T, _>(problem, batch, |loader, chunk| judge_chunk::<T>(problem, loader, chunk))?;
        let mut convictions: Vec<Option<Conviction>> = found.into_iter().flatten().map(Some).collect();
        if problem.levels_most() > 0 {
            let suspects = foremost(convictions.into_iter().flatten().collect());
            convictions = appeal::<T>(problem, &suspects)?;
        }
        if let Some(conviction) = worst(convictions) {
            return Ok(Some(conviction));
        }
    }
    Ok(None)
}

/// Whether an element has to be NaN or infinite, summed up without the finite values' size.
struct Classes {
    /// Σ of products of signs and non-finite values: finite, or exactly what the sum must be.
    kind: Vec<f64>,
    /// Σ |a| |b| over finite factors.
    finite_mag: Vec<f64>,
}

impl Classes {
    /// Reads B's part once more; needed only where some magnitude is not finite.
    fn of<T: Real>(
        problem: &Problem,
        loader: &mut Loader,
        chunk: &Chunk<'_, f64>,
    ) -> Result<Self, MatrixError> {
        let width = chunk.cols.len() as usize;
        let (mut kind, mut finite_mag) = (zeros(chunk.hi.len())?, zeros(chunk.hi.len())?);
        chunk.for_each_term::<T>(problem, loader, |row, a, b| {
            let at = row * width..(row + 1) * width;
            for ((kind, mag), b) in kind[at.clone()].iter_mut().zip(&mut finite_mag[at]).zip(b) {
                *kind += sign_or_wild(a) * sign_or_wild(*b);
                *mag += if a.is_finite() && b.is_finite() { (a * b).abs() } else { 0.0 };
            }
        })?;
        Ok(Self { kind, finite_mag })
    }
}

/// -1, 0 or 1 for a finite number, itself otherwise: products and sums then have IEEE's NaN and
/// infinities, and finite ones cannot overflow.
fn sign_or_wild(x: f64) -> f64 {
    if !x.is_finite() || x == 0.0 { x } else { 1f64.copysign(x) }
}

/// The infinity or NaN that `scale * x` is, or 0.
fn wild_part(scale: f64, x: f64) -> f64 {
    if x.is_finite() { 0.0 } else { scale.signum() * x }
}

/// Of each row those elements that are off most, and those that break their bounds by most.
fn foremost(mut all: Vec<Conviction>) -> Vec<Conviction> {
    // A NaN counts as the largest.
    let above = |a: f64, b: f64| b.abs().total_cmp(&a.abs());
    let mut kept = Vec::new();
    all.sort_by(|a, b| a.row.cmp(&b.row).then(above(a.excess, b.excess)).then(a.col.cmp(&b.col)));
    for row in all.chunk_by_mut(|a, b| a.row == b.row) {
        let (first, rest) = row.split_at_mut(row.len().min(APPEALS));
        rest.sort_by(|a, b| above(a.error, b.error).then(a.col.cmp(&b.col)));
        kept.extend(first.iter().chain(rest.iter().take(APPEALS)).cloned());
    }
    kept
}

/// The elements of a chunk that break the bound for classical products: the worst one, or with levels the foremost.
fn judge_chunk<T: Real>(
    problem: &Problem,
    loader: &mut Loader,
    chunk: &Chunk<'_, f64>,
) -> Result<Vec<Conviction>, MatrixError> {
    let got = chunk.same_place::<T>(loader, &problem.c)?;
    let base = match &problem.c0 {
        Some(c0) => chunk.same_place::<T>(loader, c0)?,
        None => zeros(got.len())?,
    };
    let all_finite = chunk.mag.iter().all(|mag| mag.is_finite());
    let classes = if all_finite { None } else { Some(Classes::of::<T>(problem, loader, chunk)?) };
    let law = Law::of::<T>(problem);
    let width = chunk.cols.len() as usize;
    let found = (0..got.len()).map(|i| {
        let (kind, mag) = match &classes {
            Some(classes) => (classes.kind[i], classes.finite_mag[i]),
            None => (0.0, chunk.mag[i]),
        };
        let verdict = law.judge([chunk.hi[i], chunk.lo[i]], kind, mag, base[i], got[i])?;
        let (row, col) = (chunk.rows[i / width], chunk.cols.start + (i % width) as u64);
        Some(Conviction { row, col, ..verdict })
    });
    Ok(if problem.levels_most() > 0 {
        foremost(found.flatten().collect())
    } else {
        Vec::from_iter(worst(found))
    })
}

/// How far an element may be off.
struct Law {
    alpha: f64,
    beta: f64,
    /// Rounding: q u with q = k + 3 operations on each term (Jeannerod & Rump 2013: no 1/(1 - q u) is
    /// needed, whatever the order of summation).
    relative: f64,
    /// Underflow: every operation may lose the smallest normal number.
    absolute: f64,
    /// From here on a partial sum may overflow.
    overflow: f64,
}

impl Law {
    fn of<T: Real>(problem: &Problem) -> Self {
        let depth = problem.depth as f64;
        Self {
            alpha: problem.alpha,
            beta: problem.beta,
            relative: (depth + 3.0) * T::UNIT,
            absolute: (2.0 * depth + 4.0) * T::SMALLEST * problem.alpha.abs().max(1.0),
            overflow: T::LARGEST / 4.0,
        }
    }

    /// A conviction (without its place), or `None`: `sum` is Σ a b, `mag` is Σ |a b| over finite factors,
    /// `kind` non-finite where Σ a b must be.
    fn judge(&self, sum: [f64; 2], kind: f64, mag: f64, base: f64, got: f64) -> Option<Conviction> {
        let convict = |excess, expected, error, allowed| {
            Some(Conviction { row: 0, col: 0, excess, got, expected, error, allowed })
        };
        let finite_base = if base.is_finite() { (self.beta * base).abs() } else { 0.0 };
        let size = self.alpha.abs() * mag + finite_base;
        let may_overflow = !within(size.max(mag), self.overflow);
        let must_be =
            wild_part(self.alpha, kind) + if self.beta == 0.0 { 0.0 } else { wild_part(self.beta, base) };
        if must_be != 0.0 {
            // An infinity may meet an overflow of the other sign on its way.
            let as_due = got.is_nan() && (must_be.is_nan() || may_overflow) || got == must_be;
            return if as_due { None } else { convict(f64::INFINITY, must_be, f64::INFINITY, 0.0) };
        }
        if may_overflow {
            return None;
        }
        let [hi, lo] = add_scaled(add_scaled([0.0; 2], self.alpha, sum), self.beta, [base, 0.0]);
        let (difference, rest) = two_sum(got, -hi);
        let error = (difference + (rest - lo)).abs();
        let allowed = self.relative * size + self.absolute;
        if within(error, allowed) { None } else { convict(error / allowed, hi + lo, error, allowed) }
    }
}
