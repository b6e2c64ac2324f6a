//! The check of floating-point products: Freivalds with a statistical tolerance, then arbitration.
//!
//! Place: `verify` for f32 and f64. docs/verification.md has the formulas and their derivations.
//!
//! Invariants: no product of a correct kernel fails, whatever its order of summation, with or without
//! fused multiply-add: an alarm of the statistical test only leads to recomputing elements. A NaN residual
//! counts as an alarm. Verdict and ratio do not depend on the number of threads. Every element is either checked or
//! counted as not verified.

use super::columns::weights;
use super::court::{Court, Record};
use super::direct::is_cheap;
use super::mixing::{Mixing, Side};
use super::pass::{Pass, Rows, Size, Wild, wild};
use super::random::{LARGEST_REAL, reals, sample};
use super::recompute::VerifyProblem;
use super::scalar::{Real, add_scaled, within};
use super::tile::zeros;
use super::{Effort, FULL_ROWS, MatrixError, SAMPLE_STREAM, Verdict};
use bramble_matrix::{Matrix, Span};

/// The tolerance in units of the modelled residual; the largest measured ratio was 0.83.
const SAFETY: f64 = 8.0;
/// A row stands out if its ratio exceeds this many times the median ratio of all rows (normally distributed ratios reach 8).
const OUTLIER: f64 = 32.0;
/// With fewer rows than this, the median is not used.
const ROWS_FOR_MEDIAN: usize = 16;
/// No row raises an alarm below this ratio, however small the ratios of all other rows are.
const LOWEST_LIMIT: f64 = 1.0 / 64.0;

/// The factor by which a level of Strassen–Winograd raises the modelled residual, beyond the root of the sum of squares
/// over each class of mixed lines (which itself doubles it for even data). For random data it is √18 / 4.
const GROWTH: f64 = 1.5;
/// The factor for each level in the rigorous bound, in the same units: 8 / `GROWTH`.
const GROWTH_MAX: f64 = 16.0 / 3.0;

/// The most columns that full effort checks together: the depth divided by this, or `COLUMNS_MIN` if that is more. A fault
/// of one element must stand out from the rounding errors of all columns in the same sum.
const DEPTH_PER_COLUMN: u64 = 8;
const COLUMNS_MIN: u64 = 32;
/// Full effort recomputes everything up to this depth: rounding errors are then so small a part of an element that faults
/// of that size do not show in a sum over columns.
const DEPTH_RECOMPUTED: u64 = 48;
/// The verdict's `method` where everything is recomputed.
const ALL: &str = "all elements recomputed";

/// Rows and columns that the statistical test leaves out because they hold NaN or infinities.
#[derive(Default)]
struct Exempt {
    rows: Wild,
    cols: Wild,
}

/// The sums of all passes.
pub(super) struct TestSums {
    /// A (B r); absent if alpha is 0.
    pub(super) product: Option<Rows<f64>>,
    /// C0 r.
    pub(super) base: Option<Rows<f64>>,
    /// C r.
    pub(super) c: Rows<f64>,
}

/// The parameters of one statistical test.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    /// The weight of each column of C.
    pub(super) weights: &'a [f64],
    pub(super) vectors: u64,
    pub(super) effort: Effort,
    pub(super) seed: u64,
}

/// Checks the product.
pub(super) fn verify<T: Real>(
    problem: &VerifyProblem,
    effort: Effort,
    seed: u64,
) -> Result<Verdict, MatrixError> {
    let mut record = Record::default();
    let shape = problem.c.shape();
    if is_cheap(problem) && (Court { problem, seed, effort, record: &mut record }).judge_cheaply::<T>()? {
        record.notes.push(ALL.to_owned());
        return Ok(record.verdict(shape));
    }
    if effort == Effort::Full && problem.levels_most() == 0 && is_recomputed(problem) {
        let rows: Vec<u64> = (0..shape.rows).collect();
        record.notes.push(ALL.to_owned());
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
        // Each part has its own random vectors.
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

/// Whether full effort recomputes everything.
fn is_recomputed(problem: &VerifyProblem) -> bool {
    let shape = problem.c.shape();
    let terms = shape.rows.saturating_mul(shape.cols).saturating_mul(problem.depth);
    problem.depth <= DEPTH_RECOMPUTED || terms <= problem.recomputed_max
}

/// The parts of the columns, each checked by its own statistical test.
fn slabs(problem: &VerifyProblem, effort: Effort) -> Vec<Span> {
    let cols = problem.c.shape().cols;
    let width = if effort == Effort::Full && problem.levels_most() == 0 {
        (problem.depth / DEPTH_PER_COLUMN).max(COLUMNS_MIN)
    } else {
        cols
    };
    let count = cols.div_ceil(width.max(1)).max(1);
    (0..count).map(|i| Span::new(cols * i / count, cols * (i + 1) / count)).collect()
}

/// Tests all rows, then judges the rows and columns left out of the test and the rows that raised an alarm.
fn look_at<T: Real>(problem: &VerifyProblem, look: Look<'_>, record: &mut Record) -> Result<(), MatrixError> {
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
fn passes<T: Real>(problem: &VerifyProblem, look: Look<'_>) -> Result<(TestSums, Exempt), MatrixError> {
    let threads = problem.threads;
    let r = random_vectors(look)?;
    // All columns together use the 2-norm of a row, which holds however its weight is distributed. Narrow parts use the mean.
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
        // Leave out either these rows or these columns, whichever are fewer; they are judged element by element.
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
    Ok((TestSums { product, base, c }, exempt))
}

/// The random vectors of a test, weighted.
fn random_vectors(look: Look<'_>) -> Result<Vec<Vec<f64>>, MatrixError> {
    let mut all = Vec::new();
    for v in 0..look.vectors {
        let mut vector = zeros(look.weights.len())?;
        reals(look.seed, v, &mut vector);
        vector.iter_mut().zip(look.weights).for_each(|(r, weight)| *r *= weight);
        all.push(vector);
    }
    Ok(all)
}

/// A matrix times the random vectors of a test of all columns together, and the size of each row.
pub(super) fn with_vectors<T: Real>(
    matrix: &Matrix,
    look: Look<'_>,
    threads: usize,
) -> Result<Rows<f64>, MatrixError> {
    let vectors = random_vectors(look)?;
    Pass { matrix, vectors: &vectors, size: Size::Norm(look.weights), mask: None, threads }.real::<T>()
}

/// The weight of each column of A: the norm of the row of B that it is multiplied by, or, with levels of Strassen–Winograd,
/// of all rows of B that its sums are multiplied by.
fn spread(problem: &VerifyProblem, mut sizes: Vec<f64>) -> Vec<f64> {
    Mixing::of(problem, Side::Depth).spread(&mut sizes, 1.0);
    sizes
}

/// A mask of `count` columns in which `cols` are marked; `None` if `cols` is empty.
fn mask_of(cols: &[u64], count: u64) -> Result<Option<Vec<bool>>, MatrixError> {
    if cols.is_empty() {
        return Ok(None);
    }
    let mut mask: Vec<bool> = bytemuck::allocation::try_zeroed_vec(count as usize)
        .map_err(|()| MatrixError::OutOfMemory { bytes: count })?;
    cols.iter().for_each(|col| mask[*col as usize] = true);
    Ok(Some(mask))
}

/// A row's residual; in `Alarms`, one above the limit.
pub(super) struct Alarm {
    /// Which row of C.
    pub(super) row: u64,
    /// Residual in units of the tolerance; infinite where it could not be computed.
    pub(super) ratio: f64,
    /// Residual divided by the most that rounding in any order of summation can cause; above 1 the row is wrong.
    pub(super) rigorous: f64,
}

impl Alarm {
    /// Whether the test measured the row: a NaN or an infinity in it makes the residual useless.
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

/// The ratio above which a row raises an alarm: 1, or less if most rows have much smaller ratios. The
/// tolerance allows for the worst data; on random data ratios are far smaller, and a row that stands
/// out is worth recomputing, which is all that an alarm costs.
fn limit(mut ratios: Vec<f64>) -> f64 {
    if ratios.len() < ROWS_FOR_MEDIAN {
        return 1.0;
    }
    let middle = ratios.len() / 2;
    let (_, median, _) = ratios.select_nth_unstable_by(middle, f64::total_cmp);
    (OUTLIER * *median).clamp(LOWEST_LIMIT, 1.0)
}

/// The statistical test of one row.
pub(super) struct Test {
    alpha: f64,
    beta: f64,
    unit: f64,
    depth: f64,
    cols: f64,
    /// Roundings of a term, for the rigorous bound: k + 3, and with levels of Strassen–Winograd also those of its sums,
    /// q · 12 · levels for each step.
    roundings: f64,
    /// The factor of levels in the rigorous bound.
    growth_max: f64,
    /// The most that underflow may add to a row's residual: in the statistical tolerance and in the rigorous bound.
    lost: (f64, f64),
}

impl Test {
    pub(super) fn of<T: Real>(problem: &VerifyProblem, weights: &[f64]) -> Self {
        // With no columns all residuals are 0; the tolerance must still be above 0.
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
            // The statistical tolerance assumes gradual underflow. A kernel that flushes to zero may raise an alarm; the
            // element-wise judgement then acquits it.
            lost: (SAFETY * squares.sqrt() * element * 2.0 * T::UNIT, LARGEST_REAL * sum * element),
        }
    }

    /// The largest ratio of all rows, if none raises an alarm.
    pub(super) fn quiet(&self, sums: &TestSums) -> Option<f64> {
        let alarms = self.alarms(sums, &[]);
        alarms.rows.is_empty().then_some(alarms.worst_ratio)
    }

    /// Tests every row that is not exempt.
    fn alarms(&self, sums: &TestSums, exempt: &[u64]) -> Alarms {
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

    /// One row's residual in units of its tolerance and of its rigorous bound.
    fn row(&self, sums: &TestSums, i: usize) -> Alarm {
        let size_of = |rows: &Option<Rows<f64>>| rows.as_ref().map_or(0.0, |rows| rows.sizes[i]);
        let (product, base, c) = (size_of(&sums.product), size_of(&sums.base), sums.c.sizes[i]);
        let residual = self.residual(sums, i);
        let tolerance = self.tolerance(product, base, c);
        let ratio = residual / tolerance;
        let sizes = self.alpha.abs() * product + self.beta.abs() * base;
        // An upper bound of ‖r‖₂.
        let norm = LARGEST_REAL * self.cols.sqrt();
        let most = self.growth_max * norm * sizes;
        let rigorous = residual / (self.roundings * self.unit * most + self.lost.1);
        Alarm {
            row: i as u64,
            // An infinite tolerance is no measurement.
            ratio: if ratio.is_finite() && tolerance.is_finite() { ratio } else { f64::INFINITY },
            rigorous: if within(rigorous, f64::MAX) { rigorous } else { f64::INFINITY },
        }
    }

    /// The largest |alpha A (B r) + beta C0 r - C r| of a row over all vectors; NaN if any is NaN.
    fn residual(&self, sums: &TestSums, i: usize) -> f64 {
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

    /// 8 u (√k |alpha| Σ|a_il| ‖b_l‖ + √(k+1) |beta| ‖c0_i‖ + ‖c_i‖), plus the allowance for underflow.
    fn tolerance(&self, product: f64, base: f64, c: f64) -> f64 {
        let sum = self.depth.sqrt() * self.alpha.abs() * product;
        let base = (self.depth + 1.0).sqrt() * self.beta.abs() * base;
        SAFETY * self.unit * (sum + base + c) + self.lost.0
    }
}
