//! Verification: whether C equals `alpha` A B + `beta` C0 up to rounding, at about the cost of reading each
//! matrix once.
//!
//! Place in the flow: the last step before a product is reported as finished. The operands are read again
//! from their sources, so that any fault after the first reading (a wrong tile, a bad processor, a
//! flipped bit) is detected.
//!
//! Freivalds' test (1979): for a random vector r, C r must equal `alpha` A (B r) + `beta` C0 r. Exact for
//! integers; for floats the test uses a statistical tolerance, and each alarm is arbitrated by recomputing
//! elements more exactly, so that no correct product fails. docs/verification.md has the formulas, the
//! faults that can go undetected, and the cost.
//!
//! A C that is a vector or very small is recomputed instead, which costs no more. Where many products have the same B, a `Sketch`
//! of it checks them without reading it again.
//!
//! Invariants: nothing is written; memory is a few vectors of lengths m, n and k, and a small buffer per
//! thread; the verdict does not depend on the number of threads; threads end with the call.
//!
//! It repairs nothing (it names wrong tiles) and draws no seed: machines that compute C must not know the seed beforehand.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod columns;
mod court;
mod direct;
mod exact;
mod expression;
mod float;
mod judge;
mod locate;
mod mixing;
mod pass;
mod random;
mod recompute;
mod reduced;
mod scalar;
mod scaling;
mod sketch;
mod strassen;
#[cfg(test)]
mod tests;
mod tile;

pub use expression::{ComputedLines, KeptExpression, KnownSums, LineSums, SourceExpression};
pub use locate::{part_is_wrong, wrong_tiles};
pub use reduced::{LazyLines, RowSketch, SampledRows, judge};
pub use scaling::{Scaling, largest_element, scaling};
pub use sketch::Sketch;

use bramble_matrix::{DType, Matrix, MatrixError, Shape, Winograd};
use recompute::VerifyProblem;

/// The most levels of Strassen–Winograd that can be checked: 7^3 = 343 products.
const LEVELS_MAX: u32 = 3;
/// The most terms that are recomputed where everything is suspect: about one second of work.
const TERMS_MAX: u64 = 1 << 31;
/// Full effort recomputes everything up to this many terms: about 0.1 s on two threads of a server.
const RECOMPUTED_MAX: u64 = 1 << 27;
/// Random rows that full effort recomputes in larger products.
const FULL_ROWS: u64 = 16;
/// The random stream that chooses these rows.
const SAMPLE_STREAM: u64 = 1 << 32;

/// How thorough the check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// No check.
    Off,
    /// One random vector.
    #[default]
    Fast,
    /// Small or shallow products are recomputed entirely. All other products are checked by eight random vectors for each
    /// part of the columns, parts so narrow that a wrong element stands out from the rounding errors of its part; and 16
    /// random rows are recomputed element by element.
    Full,
}

impl Effort {
    /// The effort named `off`, `fast` or `full`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "fast" => Some(Self::Fast),
            "full" => Some(Self::Full),
            _ => None,
        }
    }

    /// The name that users type and read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fast => "fast",
            Self::Full => "full",
        }
    }

    const fn vectors(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Fast => 1,
            Self::Full => 8,
        }
    }
}

impl std::fmt::Display for Effort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Effort {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::parse(name).ok_or_else(|| format!("{name}: no such effort; use off, fast or full"))
    }
}

/// A product to be checked: C should be `alpha` A B + `beta` C0.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// m × k. Not read where `alpha` is 0, as in BLAS: a NaN in it then does not matter.
    pub a: &'a Matrix,
    /// k × n. Not read where `alpha` is 0.
    pub b: &'a Matrix,
    /// m × n: the result.
    pub c: &'a Matrix,
    /// m × n; `None` counts as zero. Not read where `beta` is 0.
    pub c0: Option<&'a Matrix>,
    /// Rounded to the element type, as a kernel would; an integer for integer types.
    pub alpha: f64,
    /// As `alpha`.
    pub beta: f64,
    /// Levels of Strassen–Winograd in the plan that C was computed with; 0 for classical products. Integers do not need it.
    pub levels: u32,
    /// Levels that kernels may have used inside the tiles of a classical product, one entry for each kernel that may have
    /// taken part. Must be empty unless `levels` is 0. Integers do not need it.
    pub tiles: &'a [TileLevels],
    /// How thorough the check is.
    pub effort: Effort,
    /// Seed of the random vectors. It must be unknown to the machines that compute C until C is finished.
    pub seed: u64,
    /// The most threads to use; 0 counts as 1.
    pub threads: usize,
}

/// How a kernel cuts tiles and steps when it multiplies them with levels of Strassen–Winograd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLevels {
    /// Rows of a tile of C.
    pub tile_rows: u64,
    /// Columns of a tile.
    pub tile_cols: u64,
    /// Depth of a step.
    pub depth: u64,
    /// The rules by which the kernel cuts the product of a tile and a step.
    pub rules: Winograd,
}

/// The result of the check.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The steps of the check in words, including sampling.
    pub method: String,
    /// Whether no fault was found. Elements that could not be checked are counted in `unverified`.
    pub passed: bool,
    /// The largest error or residual relative to its bound. For rows that raised no alarm: the residual divided by the
    /// statistical tolerance. For recomputed elements: the error divided by the rigorous bound. For alarmed rows that were
    /// not recomputed: the residual divided by the most that rounding in any order of summation can cause. At most 1 if
    /// no fault was found; otherwise the ratio of the fault, above 1. 0 for correct integers.
    pub worst_ratio: f64,
    /// Rows recomputed because they were above the tolerance or stood out from the others.
    pub arbitrated_rows: u64,
    /// Elements that could not be checked.
    pub unverified: Unverified,
    /// A wrong element, if one was found.
    pub fault: Option<Fault>,
}

impl Verdict {
    /// Whether all of C was checked and no fault was found.
    pub fn is_complete(&self) -> bool {
        self.passed && self.unverified.elements == 0
    }
}

/// Elements that the check could neither confirm nor refute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unverified {
    /// The number of such elements.
    pub elements: u64,
    /// The reasons, each listed once.
    pub reasons: Vec<&'static str>,
}

impl Verdict {
    /// The verdict of a check that found nothing.
    fn passed(method: &str, worst_ratio: f64) -> Self {
        Self {
            method: method.to_owned(),
            passed: true,
            worst_ratio,
            arbitrated_rows: 0,
            unverified: Unverified::default(),
            fault: None,
        }
    }
}

impl Unverified {
    fn add(&mut self, elements: u64, why: &'static str) {
        self.elements = self.elements.saturating_add(elements);
        if elements > 0 && !self.reasons.contains(&why) {
            self.reasons.push(why);
        }
    }
}

/// An element of C that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Its row.
    pub row: u64,
    /// Its column.
    pub col: u64,
    /// The value in C (i64 beyond 2^53 rounded).
    pub got: f64,
    /// The recomputed value.
    pub expected: f64,
    /// The same as a sentence, exact for integers.
    pub text: String,
}

/// Checks a product. An error means that the check could not be made; a wrong product is a `Verdict`
/// that has not passed.
pub fn verify(check: &Check<'_>) -> Result<Verdict, MatrixError> {
    if check.effort == Effort::Off {
        return Ok(Verdict::passed("not verified", 0.0));
    }
    let problem = problem(check)?;
    // Return before vectors of a side's length are allocated: one side may be very long although C is empty.
    if check.c.shape().elements() == Some(0) {
        return Ok(Verdict::passed("C has no elements", 0.0));
    }
    match check.c.dtype() {
        DType::F32 => float::verify::<f32>(&problem, check.effort, check.seed),
        DType::F64 => float::verify::<f64>(&problem, check.effort, check.seed),
        DType::I32 => exact::verify::<i32>(&problem, check.effort, check.seed),
        DType::I64 => exact::verify::<i64>(&problem, check.effort, check.seed),
    }
}

/// Validates the check: types, shapes, factors and levels.
fn problem(check: &Check<'_>) -> Result<VerifyProblem, MatrixError> {
    let (a, b, c) = (check.a, check.b, check.c);
    // For f32, a kernel rounds alpha and beta to f32 if f32 can represent them.
    let is_rounded = |x: f64| c.dtype() == DType::F32 && c.dtype().holds_factor(x);
    let factor = |x: f64| if is_rounded(x) { f64::from(x as f32) } else { x };
    let (alpha, beta) = (factor(check.alpha), factor(check.beta));
    let c0 = check.c0.filter(|_| beta != 0.0);
    fits(b, c.dtype(), Shape::new(a.shape().cols, c.shape().cols))?;
    fits(a, c.dtype(), Shape::new(c.shape().rows, b.shape().rows))?;
    if let Some(c0) = c0 {
        fits(c0, c.dtype(), c.shape())?;
    }
    for (name, x) in [("alpha", alpha), ("beta", beta)] {
        if !x.is_finite() {
            return Err(MatrixError::format(
                name,
                format!("{x} is not a finite number of type {}", c.dtype()),
            ));
        }
    }
    if check.levels > LEVELS_MAX {
        let what =
            format!("{} levels of Strassen–Winograd; at most {LEVELS_MAX} can be checked", check.levels);
        return Err(MatrixError::format(c.name(), what));
    }
    if check.levels > 0 && !check.tiles.is_empty() {
        let what =
            "made with levels of Strassen–Winograd above tiles and inside them; either alone can be checked";
        return Err(MatrixError::format(c.name(), what.to_owned()));
    }
    let depth = if alpha == 0.0 { 0 } else { a.shape().cols };
    // A product that is too small to be cut `levels` times was multiplied classically.
    let smallest = c.shape().rows.min(c.shape().cols).min(depth);
    Ok(VerifyProblem {
        a: a.clone(),
        b: b.clone(),
        c: c.clone(),
        c0: c0.cloned(),
        alpha,
        beta,
        depth,
        levels: if smallest >> check.levels == 0 { 0 } else { check.levels },
        tiles: check.tiles.iter().copied().filter(|t| t.most(c.shape(), depth) > 0).collect(),
        threads: check.threads.max(1),
        terms_max: TERMS_MAX,
        recomputed_max: RECOMPUTED_MAX,
    })
}

/// An error if a matrix does not have the type and shape that the product needs.
fn fits(matrix: &Matrix, dtype: DType, shape: Shape) -> Result<(), MatrixError> {
    if matrix.dtype() == dtype && matrix.shape() == shape {
        return Ok(());
    }
    let (has, is) = (matrix.shape(), matrix.dtype());
    let what = format!("is {has} of {is}, but this product needs {shape} of {dtype}");
    Err(MatrixError::format(matrix.name(), what))
}
