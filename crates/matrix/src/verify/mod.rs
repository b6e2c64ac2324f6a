//! Verification: whether C is what `alpha` A B + `beta` C0 should be, at the cost of reading each matrix
//! once.
//!
//! Place in the flow: the last step before a product is called finished. The operands are read again
//! from where they came from, so that whatever happened on the way (a wrong tile, a bad processor, a
//! flipped bit) shows.
//!
//! Freivalds' test (1979): for a random vector r, C r must equal `alpha` A (B r) + `beta` C0 r. Exact for
//! integers; for floats within a statistical tolerance, and an alarm is arbitrated by recomputing
//! elements more exactly, so that no correct product fails. docs/verification.md has the formulas, what
//! can slip through, and the cost.
//!
//! Invariants: nothing is written; memory is a few vectors as long as m, n and k, and a small buffer per
//! thread; the verdict does not depend on the number of threads; threads end with the call.
//!
//! It repairs nothing (it says which tiles are wrong), and draws no seed: the seed must not be known to who computes C.

mod columns;
mod court;
mod exact;
mod float;
mod judge;
mod locate;
mod mixing;
mod pass;
mod random;
mod recompute;
mod scalar;
mod scaling;
mod strassen;
#[cfg(test)]
mod tests;
mod tile;

pub use locate::{part_is_wrong, wrong_tiles};
pub use scaling::{Scaling, largest_element, scaling};

use crate::{DType, Matrix, MatrixError, Shape, Winograd};
use recompute::Problem;

/// Most levels of Strassen–Winograd that can be checked: 343 products.
const LEVELS_MAX: u32 = 3;
/// How many terms are recomputed where there is reason to recompute everything: a second's worth.
const TERMS_MAX: u64 = 1 << 31;
/// Rows that full effort recomputes.
const FULL_ROWS: u64 = 16;
/// The seed's stream that chooses them.
const SAMPLE_STREAM: u64 = 1 << 32;

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// Not at all.
    Off,
    /// One random vector.
    #[default]
    Fast,
    /// Eight random vectors for each part of the columns, parts so narrow that a wrong element stands out from the
    /// rounding of the others; and 16 random rows recomputed element by element. Little depth: everything recomputed.
    Full,
}

impl Effort {
    /// The effort with that name: `off`, `fast`, `full`.
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
    /// Levels of Strassen–Winograd that C was made with; 0 for classical products. Integers do not need it.
    pub levels: u32,
    /// Levels that kernels may have used inside the tiles of a classical product, in each of the ways that they may; not
    /// beside `levels`. Integers do not need them.
    pub tiles: &'a [TileLevels],
    /// How hard to look.
    pub effort: Effort,
    /// What the random vectors come from. Unknown to who computed C until C is finished.
    pub seed: u64,
    /// How many threads may be used; 0 counts as 1.
    pub threads: usize,
}

/// Tiles and steps whose products a kernel made with levels of Strassen–Winograd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLevels {
    /// Rows of a tile of C.
    pub tile_rows: u64,
    /// Columns of a tile.
    pub tile_cols: u64,
    /// Depth of a step.
    pub depth: u64,
    /// How the kernel cuts a tile's product.
    pub rules: Winograd,
}

/// What the check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What was done, in words, including what was only sampled.
    pub method: String,
    /// Whether nothing was found wrong. What could not be checked is in `unverified`.
    pub passed: bool,
    /// How much of what is allowed was used at most. Of rows that raised no alarm: the residual in units of the
    /// statistical tolerance. Of elements that were recomputed: the error in units of the rigorous bound. Of other rows
    /// that raised an alarm: the residual in units of what any order of summation may do. At most 1 where nothing is
    /// wrong; otherwise the fault's own excess, above 1. 0 for right integers.
    pub worst_ratio: f64,
    /// Rows recomputed because they were above the tolerance or stood out from the others.
    pub arbitrated_rows: u64,
    /// What could not be checked.
    pub unverified: Unverified,
    /// A wrong element, where there is one.
    pub fault: Option<Fault>,
}

impl Verdict {
    /// Whether all of C was checked, and nothing was found wrong.
    pub fn is_complete(&self) -> bool {
        self.passed && self.unverified.elements == 0
    }
}

/// Elements that nothing was found out about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unverified {
    /// How many.
    pub elements: u64,
    /// Why, each reason once.
    pub reasons: Vec<&'static str>,
}

impl Verdict {
    /// The verdict where no element was tested.
    fn without_a_test(method: &str) -> Self {
        Self {
            method: method.to_owned(),
            passed: true,
            worst_ratio: 0.0,
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
    /// What C holds (i64 beyond 2^53 rounded).
    pub got: f64,
    /// What it should be.
    pub expected: f64,
    /// The same as a sentence, exact for integers.
    pub text: String,
}

/// Checks a product. An error means that the check could not be made; a wrong product is a `Verdict`
/// that has not passed.
pub fn verify(check: &Check<'_>) -> Result<Verdict, MatrixError> {
    if check.effort == Effort::Off {
        return Ok(Verdict::without_a_test("not verified"));
    }
    let problem = problem(check)?;
    // No vectors in the length of a side, which may be very long: there is nothing that could be wrong.
    if check.c.shape().elements() == Some(0) {
        return Ok(Verdict::without_a_test("C has no elements"));
    }
    match check.c.dtype() {
        DType::F32 => float::verify::<f32>(&problem, check.effort, check.seed),
        DType::F64 => float::verify::<f64>(&problem, check.effort, check.seed),
        DType::I32 => exact::verify::<i32>(&problem, check.effort, check.seed),
        DType::I64 => exact::verify::<i64>(&problem, check.effort, check.seed),
    }
}

/// The check with everything in it known to fit together.
fn problem(check: &Check<'_>) -> Result<Problem, MatrixError> {
    let (a, b, c) = (check.a, check.b, check.c);
    // A kernel rounds factors to f32 where that holds them.
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
    // What is too small to be cut was multiplied classically.
    let smallest = c.shape().rows.min(c.shape().cols).min(depth);
    Ok(Problem {
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
    })
}

/// Whether a matrix is what the product needs.
fn fits(matrix: &Matrix, dtype: DType, shape: Shape) -> Result<(), MatrixError> {
    if matrix.dtype() == dtype && matrix.shape() == shape {
        return Ok(());
    }
    let (has, is) = (matrix.shape(), matrix.dtype());
    let what = format!("is {has} of {is}, but this product needs {shape} of {dtype}");
    Err(MatrixError::format(matrix.name(), what))
}
