//! Judges single elements of a float product against what they should be.
//!
//! Place: the court of last resort. What it convicts is wrong for every kernel that does IEEE arithmetic
//! in any order; what it acquits may still be less accurate than it should be (docs/verification.md).
//!
//! Invariants: NaN and infinities are demanded exactly where exact arithmetic on the operands has them. Where a partial sum
//! may overflow, what some order of summation gives is no fault; unless every order gives it, the element counts as unsure.
//! Comparisons are written so that NaN convicts.

use super::recompute::{Chunk, Problem, recompute};
use super::scalar::{Real, add_scaled, two_sum, within};
use super::strassen::appeal;
use super::tile::{Loader, zeros};
use super::{Fault, MatrixError};
use crate::DType;

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

    /// The same element with more allowed; if it is within that, how much of it is used. What both bounds leave of the
    /// check's own rounding is 2^-20 of what was allowed before.
    pub(super) fn beyond(&self, allowed: f64) -> Result<Self, f64> {
        let allowed = allowed + self.allowed * 2f64.powi(-20);
        if within(self.error, allowed) {
            return Err(self.error / allowed);
        }
        let excess = if self.excess.is_finite() { self.error / allowed } else { self.excess };
        Ok(Self { excess, allowed, ..self.clone() })
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

/// What recomputing some rows has shown.
#[derive(Default)]
pub(super) struct Judged {
    /// The worst element that is certainly wrong.
    pub(super) conviction: Option<Conviction>,
    /// The largest error of the others, in units of what was allowed.
    pub(super) worst: f64,
    /// Elements that are not finite, where some orders of summation overflow and others do not.
    pub(super) unsure: u64,
}

/// What a chunk has shown.
#[derive(Default)]
struct Found {
    convictions: Vec<Conviction>,
    worst: f64,
    unsure: u64,
}

/// Recomputes whole rows and judges every element. Stops after the first batch that has a wrong one.
pub(super) fn judge_rows<T: Real>(problem: &Problem, rows: &[u64]) -> Result<Judged, MatrixError> {
    let mut judged = Judged::default();
    for batch in problem.batches(rows) {
        let found =
            recompute::<T, _>(problem, batch, |loader, chunk| judge_chunk::<T>(problem, loader, chunk))?;
        judged.unsure += found.iter().map(|found| found.unsure).sum::<u64>();
        judged.worst = found.iter().map(|found| found.worst).fold(judged.worst, f64::max);
        let mut convictions: Vec<Conviction> =
            found.into_iter().flat_map(|found| found.convictions).collect();
        if problem.levels_most() > 0 {
            let appeals = appeal::<T>(problem, &foremost(convictions))?;
            let ratios = || appeals.iter().filter_map(|appeal| appeal.as_ref().err()).copied();
            judged.unsure += ratios().filter(|ratio| ratio.is_infinite()).count() as u64;
            judged.worst = ratios().filter(|ratio| ratio.is_finite()).fold(judged.worst, f64::max);
            convictions = appeals.into_iter().filter_map(Result::ok).collect();
        }
        if let Some(conviction) = worst(convictions.into_iter().map(Some)) {
            judged.conviction = Some(conviction);
            break;
        }
    }
    Ok(judged)
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

/// f64 sums near the largest number are made of elements of A that are so much smaller.
const SMALLER: f64 = f64::from_bits((1023 - 600) << 52);

/// Σ a b and Σ |a b| over finite factors, in units of 1 / `scale`.
struct Exact {
    sum: [f64; 2],
    mag: f64,
    scale: f64,
}

/// The elements of a chunk that break the bound for classical products: the worst one, or with levels the foremost.
fn judge_chunk<T: Real>(
    problem: &Problem,
    loader: &mut Loader,
    chunk: &Chunk<'_, f64>,
) -> Result<Found, MatrixError> {
    let got = chunk.same_place::<T>(loader, &problem.c)?;
    let base = match &problem.c0 {
        Some(c0) => chunk.same_place::<T>(loader, c0)?,
        None => zeros(got.len())?,
    };
    let all_finite = chunk.mag.iter().all(|mag| mag.is_finite());
    let classes = if all_finite { None } else { Some(Classes::of::<T>(problem, loader, chunk)?) };
    let law = Law::of::<T>(problem);
    // f32 stays in f64's range.
    let near =
        |mag: &f64| T::DTYPE == DType::F64 && !within(*mag * law.alpha.abs().max(1.0), law.largest / 4.0);
    let smaller =
        if chunk.mag.iter().any(near) { Some(chunk.smaller::<T>(problem, loader, SMALLER)?) } else { None };
    let width = chunk.cols.len() as usize;
    let mut found = Found::default();
    for (i, got) in got.into_iter().enumerate() {
        let kind = classes.as_ref().map_or(0.0, |classes| classes.kind[i]);
        let exact = match &smaller {
            Some([hi, lo, mag]) if near(&chunk.mag[i]) => {
                Exact { sum: [hi[i], lo[i]], mag: mag[i], scale: SMALLER }
            }
            _ => Exact { sum: [chunk.hi[i], chunk.lo[i]], mag: chunk.mag[i], scale: 1.0 },
        };
        let exact = match &classes {
            Some(classes) if !kind.is_finite() => {
                Exact { sum: [0.0; 2], mag: classes.finite_mag[i], scale: 1.0 }
            }
            _ => exact,
        };
        match law.judge(&exact, kind, base[i], got) {
            Judgement::Right(ratio) => found.worst = found.worst.max(ratio),
            Judgement::Unsure => found.unsure += 1,
            Judgement::Wrong(verdict) => {
                let (row, col) = (chunk.rows[i / width], chunk.cols.start + (i % width) as u64);
                found.convictions.push(Conviction { row, col, ..verdict });
            }
        }
    }
    found.convictions = if problem.levels_most() > 0 {
        foremost(found.convictions)
    } else {
        Vec::from_iter(worst(found.convictions.into_iter().map(Some)))
    };
    Ok(found)
}

/// What an element is.
enum Judgement {
    /// What it has to be, within so much of what is allowed.
    Right(f64),
    /// What some orders of summation give, where others give something else.
    Unsure,
    /// A conviction without its place.
    Wrong(Conviction),
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
    /// The largest finite number.
    largest: f64,
    /// Levels of Strassen–Winograd: their sums may overflow though no sum of terms does.
    is_mixed: bool,
}

impl Law {
    fn of<T: Real>(problem: &Problem) -> Self {
        let depth = problem.depth as f64;
        Self {
            alpha: problem.alpha,
            beta: problem.beta,
            relative: (depth + 3.0) * T::UNIT,
            absolute: (2.0 * depth + 4.0) * T::SMALLEST * problem.alpha.abs().max(1.0),
            largest: T::LARGEST,
            is_mixed: problem.levels_most() > 0,
        }
    }

    /// Judges an element: `kind` is not finite where Σ a b must not be.
    fn judge(&self, exact: &Exact, kind: f64, base: f64, got: f64) -> Judgement {
        let Exact { sum, mag, scale } = *exact;
        let (scaled_base, scaled_got) = (if base.is_finite() { base * scale } else { 0.0 }, got * scale);
        let convict = |excess, expected, error, allowed| {
            Judgement::Wrong(Conviction { row: 0, col: 0, excess, got, expected, error, allowed })
        };
        let size = self.alpha.abs() * mag + (self.beta * scaled_base).abs();
        let largest = self.largest * scale;
        let must_be =
            wild_part(self.alpha, kind) + if self.beta == 0.0 { 0.0 } else { wild_part(self.beta, base) };
        if must_be != 0.0 {
            // An infinity may meet an overflow of the other sign on its way.
            let may_overflow = !within(size.max(mag), largest / 4.0);
            if got == must_be || got.is_nan() && must_be.is_nan() {
                return Judgement::Right(0.0);
            }
            let is_possible = got.is_nan() && may_overflow;
            return if is_possible {
                Judgement::Unsure
            } else {
                convict(f64::INFINITY, must_be, f64::INFINITY, 0.0)
            };
        }
        let [hi, lo] = add_scaled(add_scaled([0.0; 2], self.alpha, sum), self.beta, [scaled_base, 0.0]);
        let allowed = self.relative * size + self.absolute * scale;
        let (difference, rest) = two_sum(scaled_got, -hi);
        let error = (difference + (rest - lo)).abs();
        let expected = (hi + lo) / scale;
        if got.is_finite() {
            // Whatever might have overflowed has not.
            if within(error, allowed) {
                return Judgement::Right(error / allowed);
            }
            return convict(error / allowed, expected, error / scale, allowed / scale);
        }
        let [up, down] = self.reach(exact, scaled_base);
        let may_be_up = self.is_mixed && !within(size.max(mag), largest / 64.0) || !within(up, largest);
        let may_be_down = self.is_mixed && !within(size.max(mag), largest / 64.0) || !within(down, largest);
        let is_possible = if got.is_nan() {
            may_be_up && may_be_down
        } else if got > 0.0 {
            may_be_up
        } else {
            may_be_down
        };
        if !is_possible {
            return convict(f64::INFINITY, expected, f64::INFINITY, 0.0);
        }
        // Too large however it is rounded: then this infinity is the answer, whichever way it came about.
        let is_due = (hi + lo).abs() - allowed > largest && !got.is_nan() && (hi > 0.0) == (got > 0.0);
        if is_due { Judgement::Right(0.0) } else { Judgement::Unsure }
    }

    /// How far up and down any sum of some of the terms may come, scaled before, after or in between; with rounding.
    fn reach(&self, exact: &Exact, base: f64) -> [f64; 2] {
        let sum = exact.sum[0] + exact.sum[1];
        let (plus, minus) = ((exact.mag + sum) / 2.0, (exact.mag - sum) / 2.0);
        let (alpha, base) = (self.alpha.abs(), self.beta * base);
        let scaled = if self.alpha > 0.0 { [plus, minus] } else { [minus, plus] };
        let rounded = 1.0 + 2.0 * self.relative;
        let up = (alpha * scaled[0] + base.max(0.0)).max(plus) * rounded;
        let down = (alpha * scaled[1] + (-base).max(0.0)).max(minus) * rounded;
        [up, down]
    }
}
