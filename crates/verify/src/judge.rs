//! Judges single elements of a float product against a more exact recomputation.
//!
//! Place: the last stage of the check. An element that it convicts cannot come from a kernel with IEEE arithmetic in any
//! order of summation; an element that it acquits may still be less accurate than it should be (docs/verification.md).
//!
//! Invariants: NaN and infinities are required exactly where exact arithmetic on the operands has them. Where a partial sum
//! may overflow, a result of some order of summation is no fault; unless every order gives it, the element is unsure.
//! Comparisons are written so that NaN convicts.

use super::direct;
use super::recompute::{Chunk, VerifyProblem, recompute};
use super::scalar::{Real, add_scaled, two_sum, within};
use super::strassen::appeal;
use super::tile::{Loader, parallel, zeros};
use super::{Fault, MatrixError};
use bramble_matrix::{DType, Rect, Span};

/// The number of elements of a row that are compared with Strassen's bound, by two criteria: `APPEALS` with the largest
/// excess over the classical bound, and `APPEALS` of the rest with the largest error.
const APPEALS: usize = 4;

/// An element that is certainly wrong.
#[derive(Clone, Debug)]
pub(super) struct Conviction {
    pub(super) row: u64,
    pub(super) col: u64,
    /// Its error divided by the bound; infinite if C is NaN or infinite where it must not be, or the reverse.
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

    /// The same element under the wider bound `allowed`, or, if it is within that bound, its error divided by it as `Err`.
    /// The wider bound is raised by 2^-20 of the earlier one to cover the check's own rounding.
    pub(super) fn beyond(&self, allowed: f64) -> Result<Self, f64> {
        let allowed = allowed + self.allowed * 2f64.powi(-20);
        if within(self.error, allowed) {
            return Err(self.error / allowed);
        }
        let excess = if self.excess.is_finite() { self.error / allowed } else { self.excess };
        Ok(Self { excess, allowed, ..self.clone() })
    }

    /// The fault as reported to the user.
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

/// The result of recomputing some rows.
#[derive(Default)]
pub(super) struct Judged {
    /// The worst element that is certainly wrong.
    pub(super) conviction: Option<Conviction>,
    /// The largest error divided by its bound, among elements that are not wrong.
    pub(super) worst: f64,
    /// Elements that are neither right nor wrong for certain, since sums overflow in one order and not in another.
    pub(super) unsure: u64,
}

/// The result of judging one chunk.
#[derive(Default)]
struct Found {
    convictions: Vec<Conviction>,
    worst: f64,
    unsure: u64,
}

/// Recomputes whole rows and judges every element. Stops after the first batch that has a wrong one.
pub(super) fn judge_rows<T: Real>(problem: &VerifyProblem, rows: &[u64]) -> Result<Judged, MatrixError> {
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

/// Lines of C that one thread judges at a time where all of C is judged.
const LINES: u64 = 1 << 14;

/// Judges every element of a C for which `direct::is_cheap`. `None` if a sum is not finite or near the largest number.
pub(super) fn judge_all<T: Real>(problem: &VerifyProblem) -> Result<Option<Judged>, MatrixError> {
    let sums = direct::sums::<T>(problem)?;
    let law = Law::of::<T>(problem);
    if !sums.mag.iter().all(|mag| within(mag * law.alpha.abs().max(1.0), law.largest / 4.0)) {
        return Ok(None);
    }
    let shape = problem.c.shape();
    let is_row = shape.rows == 1;
    let (lines, width) = if is_row { (shape.cols, 1) } else { (shape.rows, shape.cols) };
    let found = parallel(lines.div_ceil(LINES) as usize, problem.threads, |loader, part| {
        let start = part as u64 * LINES;
        let span = Span::new(start, (start + LINES).min(lines));
        let rect =
            if is_row { Rect::new(Span::new(0, 1), span) } else { Rect::new(span, Span::new(0, width)) };
        let len = (span.len() * width) as usize;
        let (mut got, mut base) = (zeros(len)?, zeros(len)?);
        loader.gather::<T, f64>(&problem.c, rect, T::widen, &mut got)?;
        if let Some(c0) = &problem.c0 {
            loader.gather::<T, f64>(c0, rect, T::widen, &mut base)?;
        }
        let mut found = Found::default();
        for (i, (got, base)) in got.into_iter().zip(base).enumerate() {
            let at = (start * width) as usize + i;
            let exact = Exact { sum: [sums.hi[at], sums.lo[at]], mag: sums.mag[at], scale: 1.0 };
            let place = (at as u64 / shape.cols, at as u64 % shape.cols);
            found.add(law.judge(&exact, 0.0, base, got), place);
        }
        found.convictions = Vec::from_iter(worst(found.convictions.into_iter().map(Some)));
        Ok(found)
    })?;
    let mut judged = Judged::default();
    for found in found {
        judged.unsure += found.unsure;
        judged.worst = judged.worst.max(found.worst);
        judged.conviction = worst([judged.conviction.take(), found.convictions.into_iter().next()]);
    }
    Ok(Some(judged))
}

impl Found {
    /// Records the judgement of one element.
    fn add(&mut self, judgement: Judgement, (row, col): (u64, u64)) {
        match judgement {
            Judgement::Right(ratio) => self.worst = self.worst.max(ratio),
            Judgement::Unsure => self.unsure += 1,
            Judgement::Wrong(verdict) => self.convictions.push(Conviction { row, col, ..verdict }),
        }
    }
}

/// Whether each element must be NaN or infinite, from sums that use only the signs of finite values.
struct Classes {
    /// Σ of products of signs and non-finite values: either finite, or the exact NaN or infinity that the sum must be.
    kind: Vec<f64>,
    /// Σ |a| |b| over finite factors.
    finite_mag: Vec<f64>,
}

impl Classes {
    /// Reads B's part once more; needed only where some magnitude is not finite.
    fn of<T: Real>(
        problem: &VerifyProblem,
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

/// For each row, the elements with the largest excess over their bounds, and, of the rest, those with the largest error.
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

/// The factor by which A is scaled down to recompute f64 sums near the largest number.
const SMALLER: f64 = f64::from_bits((1023 - 600) << 52);

/// Σ a b and Σ |a b| over finite factors, in units of 1 / `scale`.
struct Exact {
    sum: [f64; 2],
    mag: f64,
    scale: f64,
}

/// The elements of a chunk that exceed the bound for classical products: the worst one, or with levels of
/// Strassen–Winograd the candidates that `foremost` selects.
fn judge_chunk<T: Real>(
    problem: &VerifyProblem,
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
    // Only f64 sums can overflow here: f32 is summed in f64.
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
        let place = (chunk.rows[i / width], chunk.cols.start + (i % width) as u64);
        found.add(law.judge(&exact, kind, base[i], got), place);
    }
    found.convictions = if problem.levels_most() > 0 {
        foremost(found.convictions)
    } else {
        Vec::from_iter(worst(found.convictions.into_iter().map(Some)))
    };
    Ok(found)
}

/// The judgement of one element.
enum Judgement {
    /// Within the bound; the value is the error divided by the bound.
    Right(f64),
    /// A result that some orders of summation give and others do not.
    Unsure,
    /// Certainly wrong; the caller fills in row and column.
    Wrong(Conviction),
}

/// The rigorous error bound of an element, with the scaling factors.
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
    fn of<T: Real>(problem: &VerifyProblem) -> Self {
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
            // An infinity may be added to a partial sum that overflowed with the opposite sign: the result is NaN.
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
            // The result is finite, so nothing overflowed.
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
        // Beyond the largest number even after allowing for rounding: every order of summation gives this infinity.
        let is_due = (hi + lo).abs() - allowed > largest && !got.is_nan() && (hi > 0.0) == (got > 0.0);
        if is_due { Judgement::Right(0.0) } else { Judgement::Unsure }
    }

    /// The largest and the smallest value (as absolute values) that a sum of any subset of the terms may reach, with
    /// scaling by alpha before, after or during summation, and with rounding.
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
