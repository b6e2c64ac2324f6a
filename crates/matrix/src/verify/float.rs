//! The check of floating-point products: Freivalds with a statistical tolerance, then arbitration.
//!
//! Place: what `verify` does for f32 and f64. docs/verification.md has the formulas and what they rest on.
//!
//! Invariants: no product of a correct kernel fails, whatever its order of summation, with or without
//! fused multiply-add: an alarm of the statistical test is only ever a reason to look at elements. A NaN
//! anywhere counts as an alarm. Verdict and ratio do not depend on the number of threads. Every element is covered, or
//! counted as not verified.

use super::columns::weights;
use super::court::{Court, Record};
use super::mixing::{Mixing, Side};
use super::pass::{Pass, Rows, Size, Wild, wild};
use super::random::{LARGEST_REAL, reals, sample};
use super::recompute::Problem;
use super::scalar::{Real, add_scaled, within};
use super::tile::zeros;
use super::{Effort, FULL_ROWS, MatrixError, SAMPLE_STREAM, Verdict};
use crate::{Matrix, Span};

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

/// Full effort looks at so many columns together at most: an eighth of the depth, and not fewer than `COLUMNS_MIN`.
/// A fault of one element must stand out from the rounding of all columns that share its sum.
const DEPTH_PER_COLUMN: u64 = 8;
const COLUMNS_MIN: u64 = 32;
/// Full effort recomputes everything up to this depth: rounding is then too little of an element for sums to show less.
const DEPTH_RECOMPUTED: u64 = 48;

/// What is taken out of the statistical test, because NaN or infinities lie there.
#[derive(Default)]
struct Exempt {
    rows: Wild,
    cols: Wild,
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

/// How a product is looked at.
#[derive(Clone, Copy)]
struct Look<'a> {
    /// What each column of C is multiplied by.
    weights: &'a [f64],
    vectors: u64,
    effort: Effort,
    seed: u64,
}

/// Checks the product.
pub(super) fn verify<T: Real>(problem: &Problem, effort: Effort, seed: u64) -> Result<Verdict, MatrixError> {
    let mut record = Record::default();
    let shape = problem.c.shape();
    if effort == Effort::Full && problem.levels_most() == 0 && problem.depth <= DEPTH_RECOMPUTED {
        let rows: Vec<u64> = (0..shape.rows).collect();
        record.notes.push("all elements recomputed".to_owned());
        Court { problem, seed, effort, record: &mut record }.judge::<T>(&rows)?;
        return Ok(record.verdict(shape));
    }
    let weights = weights::<T>(problem, effort, seed)?;
    let vectors = effort.vectors();
    let slabs = slabs(problem, effort);
    record.notes.push(match slabs.len() {
        0 | 1 => format!("Freivalds, {vectors} random vector(s)"),
        parts => format!("Freivalds, {vectors} random vector(s) for each of {parts} parts of the columns"),
    });
    if problem.levels > 0 {
        record.notes.push(format!("norm-wise bounds for {} level(s) of Strassen–Winograd", problem.levels));
    } else if problem.levels_most() > 0 {
        let levels = problem.levels_most();
        record
            .notes
            .push(format!("norm-wise bounds for {levels} level(s) of Strassen–Winograd inside tiles"));
    }
    for (number, cols) in (0u64..).zip(&slabs) {
        let weights = &weights[cols.start as usize..cols.end as usize];
        // Each part has vectors of its own.
        let seed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let look = Look { weights, vectors, effort, seed };
        if slabs.len() == 1 {
            look_at::<T>(problem, look, &mut record)?;
        } else {
            record.first_col = cols.start;
            look_at::<T>(&problem.columns(*cols), look, &mut record)?;
        }
        if record.conviction.is_some() {
            return Ok(record.verdict(shape));
        }
    }
    record.first_col = 0;
    if effort == Effort::Full {
        let rows = sample(seed, SAMPLE_STREAM, shape.rows, FULL_ROWS);
        record.notes.push(format!("{} rows recomputed", rows.len()));
        Court { problem, seed, effort, record: &mut record }.judge::<T>(&rows)?;
    }
    Ok(record.verdict(shape))
}

/// The columns that are looked at together.
fn slabs(problem: &Problem, effort: Effort) -> Vec<Span> {
    let cols = problem.c.shape().cols;
    let width = if effort == Effort::Full && problem.levels_most() == 0 {
        (problem.depth / DEPTH_PER_COLUMN).max(COLUMNS_MIN)
    } else {
        cols
    };
    let count = cols.div_ceil(width.max(1)).max(1);
    (0..count).map(|i| Span::new(cols * i / count, cols * (i + 1) / count)).collect()
}

/// The test of all rows, and what follows from it.
fn look_at<T: Real>(problem: &Problem, look: Look<'_>, record: &mut Record) -> Result<(), MatrixError> {
    let (sums, exempt) = passes::<T>(problem, look)?;
    let alarms = Test::of::<T>(problem, look.weights).alarms(&sums, &exempt.rows.lines);
    drop(sums);
    record.worst_ratio = record.worst_ratio.max(alarms.worst_ratio);
    let mut court = Court { problem, seed: look.seed, effort: look.effort, record };
    court.wild::<T>(&exempt.rows, &exempt.cols)?;
    if court.record.conviction.is_none() {
        court.arbitrate::<T>(&alarms.rows)?;
    }
    Ok(())
}

/// Makes the passes over B, C0, A and C; those over B and C0 twice where they hold NaN or infinities.
fn passes<T: Real>(problem: &Problem, look: Look<'_>) -> Result<(Sums, Exempt), MatrixError> {
    let threads = problem.threads;
    let mut r = Vec::new();
    for v in 0..look.vectors {
        let mut vector = zeros(problem.c.shape().cols as usize)?;
        reals(look.seed, v, &mut vector);
        vector.iter_mut().zip(look.weights).for_each(|(r, weight)| *r *= weight);
        r.push(vector);
    }
    // One large part of the columns has the norm, which holds for whatever is in them; small parts the mean.
    let size = match look.effort {
        Effort::Full if problem.levels_most() == 0 => Size::Weighted(look.weights),
        _ => Size::Norm(look.weights),
    };
    let with_r = |matrix: &Matrix, mask: Option<&[bool]>| -> Result<Rows<f64>, MatrixError> {
        let mut rows = Pass { matrix, vectors: &r, size, mask, threads }.real::<T>()?;
        if let Size::Weighted(weights) = size {
            let root = (weights.len().max(1) as f64).sqrt();
            rows.sizes.iter_mut().for_each(|size| *size /= root);
        }
        Ok(rows)
    };
    let with_b = problem.depth > 0;
    let mut b = if with_b { Some(with_r(&problem.b, None)?) } else { None };
    let mut base = problem.c0.as_ref().map(|c0| with_r(c0, None)).transpose()?;
    let mut exempt = Exempt::default();
    if b.as_ref().is_some_and(Rows::any_wild) {
        let (_, cols) = wild::<T>(&problem.b, threads)?;
        exempt.cols = cols.spread(&Mixing::of(problem, Side::Cols));
    }
    if let (Some(c0), true) = (&problem.c0, base.as_ref().is_some_and(Rows::any_wild)) {
        // Whichever is less leaves the test; both are judged element by element.
        let (rows, cols) = wild::<T>(c0, threads)?;
        if cols.lines.len() < rows.lines.len() {
            exempt.cols.add(cols.lines);
        } else {
            exempt.rows.add(rows.lines);
        }
    }
    let mask = mask_of(&exempt.cols.lines, problem.c.shape().cols)?;
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
            let weights = spread(problem, b.sizes);
            let size = Size::Weighted(&weights);
            let mut product =
                Pass { matrix: &problem.a, vectors: &y, size, mask: None, threads }.real::<T>()?;
            if product.any_wild() {
                let (found, _) = wild::<T>(&problem.a, threads)?;
                let nans = found.nans.clone();
                exempt.rows.add(found.spread(&rows).lines);
                exempt.rows.nans = nans;
            }
            rows.spread(&mut product.sizes, GROWTH.powi(problem.levels_most() as i32));
            Some(product)
        }
        None => None,
    };
    let c = with_r(&problem.c, mask)?;
    Ok((Sums { product, base, c }, exempt))
}

/// What an element of A weighs: the norm of the row of B that it meets, or with levels of all rows that its sums meet.
fn spread(problem: &Problem, mut sizes: Vec<f64>) -> Vec<f64> {
    Mixing::of(problem, Side::Depth).spread(&mut sizes, 1.0);
    sizes
}

/// Marks columns in a mask; `None` where there are none.
fn mask_of(cols: &[u64], count: u64) -> Result<Option<Vec<bool>>, MatrixError> {
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
    /// Residual in units of what any order of summation can explain; above 1 the row is wrong.
    pub(super) rigorous: f64,
}

impl Alarm {
    /// Whether the test says anything of the row: a NaN or an infinity in it leaves nothing to compare.
    pub(super) fn is_measured(&self) -> bool {
        self.ratio.is_finite() && self.rigorous.is_finite()
    }
}

/// All alarms, worst first.
struct Alarms {
    rows: Vec<Alarm>,
    /// Largest ratio of all rows that raised none.
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
}

impl Test {
    fn of<T: Real>(problem: &Problem, weights: &[f64]) -> Self {
        // Without columns all residuals are 0, and the tolerance must not be.
        let (depth, cols) = (problem.depth as f64, problem.c.shape().cols.max(1) as f64);
        let levels = problem.levels_most();
        let (q, steps) = (f64::from(1u32 << levels), problem.tiles.iter().map(|t| t.steps(problem.depth)));
        let steps = steps.max().unwrap_or(1) as f64;
        let element = (2.0 * depth + 4.0) * T::SMALLEST * problem.alpha.abs().max(1.0);
        let squares: f64 = weights.iter().map(|w| w * w).sum::<f64>().max(1.0);
        let sum: f64 = weights.iter().sum::<f64>().max(1.0);
        Self {
            alpha: problem.alpha,
            beta: problem.beta,
            unit: T::UNIT,
            depth,
            cols,
            roundings: depth + 3.0 + q * 12.0 * f64::from(levels) * steps,
            growth_max: GROWTH_MAX.powi(levels as i32),
            // Gradual underflow; a kernel that flushes to zero may raise an alarm, and is acquitted by elements.
            lost: (SAFETY * squares.sqrt() * element * 2.0 * T::UNIT, LARGEST_REAL * sum * element),
        }
    }

    /// Tests every row that is not exempt.
    fn alarms(&self, sums: &Sums, exempt: &[u64]) -> Alarms {
        let tested = (0..sums.c.sizes.len()).filter(|i| exempt.binary_search(&(*i as u64)).is_err());
        let mut rows: Vec<Alarm> = tested.map(|i| self.row(sums, i)).collect();
        let finite = rows.iter().map(|row| row.ratio).filter(|ratio| ratio.is_finite());
        let limit = limit(finite.filter(|ratio| *ratio > 0.0).collect());
        let quiet = rows.iter().map(|row| row.ratio).filter(|ratio| *ratio <= limit);
        let worst_ratio = quiet.fold(0.0, f64::max);
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
        let rigorous = residual / (self.roundings * self.unit * most + self.lost.1);
        Alarm {
            row: i as u64,
            // An infinite tolerance has measured nothing.
            ratio: if ratio.is_finite() && tolerance.is_finite() { ratio } else { f64::INFINITY },
            rigorous: if within(rigorous, f64::MAX) { rigorous } else { f64::INFINITY },
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
