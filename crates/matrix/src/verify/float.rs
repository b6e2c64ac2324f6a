//! The check of floating-point products: Freivalds with a statistical tolerance, then arbitration.
//!
//! Place: what `verify` does for f32 and f64. docs/verification.md has the formulas and what they rest on.
//!
//! Invariants: no product of a correct kernel fails, whatever its order of summation, with or without
//! fused multiply-add: an alarm of the statistical test is only ever a reason to look at elements. A NaN
//! anywhere counts as an alarm. Verdict and ratio do not depend on the number of threads.

use super::court::Court;
use super::judge::{Conviction, judge_rows};
use super::mixing::{Mixing, Side};
use super::pass::{Pass, Rows, Size, wild};
use super::random::{LARGEST_REAL, reals, sample};
use super::recompute::Problem;
use super::scalar::{Real, add_scaled, within};
use super::tile::zeros;
use super::{Effort, FULL_ROWS, MatrixError, SAMPLE_STREAM, Verdict};
use crate::Matrix;

/// The tolerance in units of the modelled residual; the largest measured ratio was 0.83.
const SAFETY: f64 = 8.0;
/// A row stands out above this many medians of the rows' ratios (normally distributed ones reach 8).
const OUTLIER: f64 = 32.0;
/// Rows without which there is no median to speak of.
const ROWS_FOR_MEDIAN: usize = 16;
/// No row raises an alarm below this ratio, however good the others are.
const LOWEST_LIMIT: f64 = 1.0 / 64.0;

/// What a level of Strassen–Winograd adds to the modelled residual, on top of the root of sums of squares of what is
/// mixed (which doubles it for even data). Random data have √18 / 4.
const GROWTH: f64 = 1.5;
/// What a level adds to the rigorous bound in the same units: 8 / `GROWTH`.
const GROWTH_MAX: f64 = 16.0 / 3.0;

/// What is taken out of the statistical test, because NaN or infinities lie there.
#[derive(Default)]
struct Exempt {
    rows: Vec<u64>,
    cols: Vec<u64>,
}

/// The sums of all passes.
struct Sums {
    /// Of A with B r; absent where alpha is 0.
    product: Option<Rows<f64>>,
    /// Of C0 with r.
    base: Option<Rows<f64>>,
    /// Of C with r.
    c: Rows<f64>,
}

/// Checks the product.
pub(super) fn verify<T: Real>(problem: &Problem, effort: Effort, seed: u64) -> Result<Verdict, MatrixError> {
    let (sums, exempt) = passes::<T>(problem, effort.vectors(), seed)?;
    let alarms = Test::of::<T>(problem).alarms(&sums, &exempt.rows);
    let mut notes = vec![format!("Freivalds, {} random vector(s)", effort.vectors())];
    if problem.levels > 0 {
        notes.push(format!("norm-wise bounds for {} level(s) of Strassen–Winograd", problem.levels));
    } else if problem.levels_most() > 0 {
        let levels = problem.levels_most();
        notes.push(format!("norm-wise bounds for {levels} level(s) of Strassen–Winograd inside tiles"));
    }
    let mut court = Court { problem, seed, notes, arbitrated: 0 };
    let mut conviction = court.wild::<T>(&exempt.rows, &exempt.cols)?;
    if conviction.is_none() {
        conviction = court.arbitrate::<T>(&alarms.rows)?;
    }
    if effort == Effort::Full && conviction.is_none() {
        let rows = sample(seed, SAMPLE_STREAM, problem.c.shape().rows, FULL_ROWS);
        court.notes.push(format!("{} rows recomputed", rows.len()));
        conviction = judge_rows::<T>(problem, &rows)?;
    }
    let excess = conviction.as_ref().map_or(0.0, |c| c.excess);
    Ok(Verdict {
        method: court.notes.join(", "),
        passed: conviction.is_none(),
        worst_ratio: alarms.worst_ratio.max(excess),
        arbitrated_rows: court.arbitrated,
        fault: conviction.map(Conviction::fault),
    })
}

/// Makes the passes over B, C0, A and C; those over B and C0 twice where they hold NaN or infinities.
fn passes<T: Real>(problem: &Problem, vectors: u64, seed: u64) -> Result<(Sums, Exempt), MatrixError> {
    let mut r = Vec::new();
    for v in 0..vectors {
        let mut vector = zeros(problem.c.shape().cols as usize)?;
        reals(seed, v, &mut vector);
        r.push(vector);
    }
    let threads = problem.threads;
    let with_r = |matrix: &Matrix, mask: Option<&[bool]>| {
        Pass { matrix, vectors: &r, size: Size::Norm, mask, threads }.real::<T>()
    };
    let with_b = problem.depth > 0;
    let mut b = if with_b { Some(with_r(&problem.b, None)?) } else { None };
    let mut base = problem.c0.as_ref().map(|c0| with_r(c0, None)).transpose()?;
    let mut exempt = Exempt::default();
    if b.as_ref().is_some_and(Rows::any_wild) {
        exempt.cols = Mixing::of(problem, Side::Cols).touched(&wild::<T>(&problem.b, threads)?.1);
    }
    if let (Some(c0), true) = (&problem.c0, base.as_ref().is_some_and(Rows::any_wild)) {
        // Whichever is less leaves the test; both are judged element by element.
        let (rows, cols) = wild::<T>(c0, threads)?;
        if cols.len() < rows.len() {
            exempt.cols.extend(cols);
        } else {
            exempt.rows = rows;
        }
    }
    let mask = mask_of(&mut exempt.cols, problem.c.shape().cols)?;
    let mask = mask.as_deref();
    if mask.is_some() {
        b = if with_b { Some(with_r(&problem.b, mask)?) } else { None };
        base = problem.c0.as_ref().map(|c0| with_r(c0, mask)).transpose()?;
    }
    let product = match b {
        Some(b) => {
            // Rounding B r to f64 costs at most u |B r|: see the documentation on the check's own error.
            let rows = Mixing::of(problem, Side::Rows);
            let y: Vec<Vec<f64>> =
                b.products.iter().map(|v| v.iter().map(|[hi, lo]| hi + lo).collect()).collect();
            let weights = weights(problem, b.sizes);
            let size = Size::Weighted(&weights);
            let mut product =
                Pass { matrix: &problem.a, vectors: &y, size, mask: None, threads }.real::<T>()?;
            if product.any_wild() {
                exempt.rows.extend(rows.touched(&wild::<T>(&problem.a, threads)?.0));
            }
            rows.spread(&mut product.sizes, GROWTH.powi(problem.levels_most() as i32));
            Some(product)
        }
        None => None,
    };
    exempt.rows.sort_unstable();
    exempt.rows.dedup();
    let c = with_r(&problem.c, mask)?;
    Ok((Sums { product, base, c }, exempt))
}

/// What an element of A weighs: the norm of the row of B that it meets, or with levels of all rows that its sums meet.
fn weights(problem: &Problem, mut sizes: Vec<f64>) -> Vec<f64> {
    Mixing::of(problem, Side::Depth).spread(&mut sizes, 1.0);
    sizes
}

/// Sorts the columns and marks them in a mask; `None` where there are none.
fn mask_of(cols: &mut Vec<u64>, count: u64) -> Result<Option<Vec<bool>>, MatrixError> {
    cols.sort_unstable();
    cols.dedup();
    if cols.is_empty() {
        return Ok(None);
    }
    let mut mask: Vec<bool> = bytemuck::allocation::try_zeroed_vec(count as usize)
        .map_err(|()| MatrixError::OutOfMemory { bytes: count })?;
    cols.iter().for_each(|col| mask[*col as usize] = true);
    Ok(Some(mask))
}

/// A row's residual; among `Alarms` one that is above the limit.
pub(super) struct Alarm {
    /// Which row of C.
    pub(super) row: u64,
    /// Residual in units of the tolerance; infinite where it could not be computed.
    pub(super) ratio: f64,
    /// Above what any order of summation can explain.
    pub(super) certain: bool,
    /// A partial sum of the row may overflow, so that NaN or infinities may be right.
    pub(super) may_overflow: bool,
}

/// All alarms, worst first.
struct Alarms {
    rows: Vec<Alarm>,
    /// Largest ratio of all rows whose residual could be computed.
    worst_ratio: f64,
}

/// The ratio above which a row raises an alarm: 1, or less where the other rows are much better. The
/// model allows for the worst data; on random data real ratios are far smaller, and a row that stands
/// out is worth a look, which is all that an alarm costs.
fn limit(mut ratios: Vec<f64>) -> f64 {
    if ratios.len() < ROWS_FOR_MEDIAN {
        return 1.0;
    }
    let middle = ratios.len() / 2;
    let (_, median, _) = ratios.select_nth_unstable_by(middle, f64::total_cmp);
    (OUTLIER * *median).clamp(LOWEST_LIMIT, 1.0)
}

/// The statistical test of one row.
struct Test {
    alpha: f64,
    beta: f64,
    unit: f64,
    depth: f64,
    cols: f64,
    /// Roundings that a term goes through, for the rigorous bound: k + 3, or q times those of a part with its sums.
    roundings: f64,
    /// What levels add to the rigorous bound.
    growth_max: f64,
    /// What underflow may add to a row's residual, in the statistical and in the rigorous bound.
    lost: (f64, f64),
    overflow: f64,
}

impl Test {
    fn of<T: Real>(problem: &Problem) -> Self {
        // Without columns all residuals are 0, and the tolerance must not be.
        let (depth, cols) = (problem.depth as f64, problem.c.shape().cols.max(1) as f64);
        let levels = problem.levels_most();
        let (q, steps) = (f64::from(1u32 << levels), problem.tiles.iter().map(|t| t.steps(problem.depth)));
        let steps = steps.max().unwrap_or(1) as f64;
        let element = (2.0 * depth + 4.0) * T::SMALLEST * problem.alpha.abs().max(1.0);
        Self {
            alpha: problem.alpha,
            beta: problem.beta,
            unit: T::UNIT,
            depth,
            cols,
            roundings: depth + 3.0 + q * 12.0 * f64::from(levels) * steps,
            growth_max: GROWTH_MAX.powi(levels as i32),
            lost: (SAFETY * cols.sqrt() * element, LARGEST_REAL * cols * element),
            overflow: T::LARGEST / 4.0,
        }
    }

    /// Tests every row that is not exempt.
    fn alarms(&self, sums: &Sums, exempt: &[u64]) -> Alarms {
        let tested = (0..sums.c.sizes.len()).filter(|i| exempt.binary_search(&(*i as u64)).is_err());
        let mut rows: Vec<Alarm> = tested.map(|i| self.row(sums, i)).collect();
        let finite = || rows.iter().map(|row| row.ratio).filter(|ratio| ratio.is_finite());
        let worst_ratio = finite().fold(0.0, f64::max);
        let limit = limit(finite().filter(|ratio| *ratio > 0.0).collect());
        rows.retain(|row| row.ratio > limit);
        rows.sort_by(|a, b| b.ratio.total_cmp(&a.ratio).then(a.row.cmp(&b.row)));
        Alarms { rows, worst_ratio }
    }

    /// One row's residual and what it is compared with.
    fn row(&self, sums: &Sums, i: usize) -> Alarm {
        let size_of = |rows: &Option<Rows<f64>>| rows.as_ref().map_or(0.0, |rows| rows.sizes[i]);
        let (product, base, c) = (size_of(&sums.product), size_of(&sums.base), sums.c.sizes[i]);
        let residual = self.residual(sums, i);
        let tolerance = self.tolerance(product, base, c);
        let ratio = residual / tolerance;
        let sizes = self.alpha.abs() * product + self.beta.abs() * base;
        // ‖r‖₂ is at most this.
        let norm = LARGEST_REAL * self.cols.sqrt();
        let most = self.growth_max * norm * sizes;
        let rigorous = self.roundings * self.unit * most + self.lost.1;
        Alarm {
            row: i as u64,
            // An infinite tolerance has measured nothing.
            ratio: if ratio.is_finite() && tolerance.is_finite() { ratio } else { f64::INFINITY },
            certain: !within(residual, rigorous),
            may_overflow: !within(self.growth_max * norm * sizes.max(product), self.overflow),
        }
    }

    /// The largest |alpha A (B r) + beta C0 r - C r| of a row over all vectors; NaN where one is.
    fn residual(&self, sums: &Sums, i: usize) -> f64 {
        (0..sums.c.products.len()).fold(0.0, |largest: f64, v| {
            let mut sum = [0.0; 2];
            if let Some(product) = &sums.product {
                sum = add_scaled(sum, self.alpha, product.products[v][i]);
            }
            if let Some(base) = &sums.base {
                sum = add_scaled(sum, self.beta, base.products[v][i]);
            }
            let [hi, lo] = add_scaled(sum, -1.0, sums.c.products[v][i]);
            let residual = (hi + lo).abs();
            // `max` would drop a NaN.
            if residual.is_nan() || residual > largest { residual } else { largest }
        })
    }

    /// 8 u (√k |alpha| Σ|a_il| ‖b_l‖ + √(k+1) |beta| ‖c0_i‖ + ‖c_i‖), and what underflow may cost.
    fn tolerance(&self, product: f64, base: f64, c: f64) -> f64 {
        let sum = self.depth.sqrt() * self.alpha.abs() * product;
        let base = (self.depth + 1.0).sqrt() * self.beta.abs() * base;
        SAFETY * self.unit * (sum + base + c) + self.lost.0
    }
}
