//! Trial data: the elements of a trial's matrices, and the arithmetic of its machines.
//!
//! Invariants: the result of a job is a function of its operands' bits and of the order of jobs, as with a real kernel. All
//! numbers are doubles; whole ones stay exact.

use super::scenario::{Scenario, Values};
use crate::random::SeededRandom;
use bramble_matrix::{Layout, Rect, Span};
use bramble_plan::{Plan, Problem};

pub(super) use crate::machine::GARBAGE;

/// The operands and factors of the product.
pub(super) struct TrialData {
    pub(super) p: Problem,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) old_c: Vec<f64>,
    pub(super) alpha: f64,
    pub(super) beta: f64,
}

/// The initial value of a job's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitialValue {
    /// Zero.
    Nothing,
    /// The present value.
    Sum,
    /// The present value times β.
    OldC,
}

impl TrialData {
    pub(super) fn of(scenario: &Scenario, plan: &Plan) -> Self {
        let p = plan.problem;
        let mut random = SeededRandom::new(scenario.seed);
        let digits = scenario.values == Values::Digits;
        let mut some =
            |count: u64| -> Vec<f64> { (0..count).map(|_| element(scenario.values, &mut random)).collect() };
        let (mut a, mut b, old_c) = (some(p.m * p.k), some(p.k * p.n), some(p.m * p.n));
        if digits {
            let grid = plan.regions.first().map(|region| region.grid);
            for (step, grid) in grid.iter().flat_map(|grid| (0..grid.steps()).map(move |s| (s, grid))) {
                let first = grid.step_span(step).start;
                (0..p.m).for_each(|i| a[at(i, first, p.k)] = 1.0);
                (0..p.n).for_each(|j| b[at(first, j, p.n)] = digit(step));
            }
        }
        let (alpha, beta) = if digits { (1.0, 1.0) } else { (1.25, -0.75) };
        Self { p, a, b, old_c, alpha, beta }
    }

    /// How C differs from the product, whatever the order of additions; exact for whole numbers.
    pub(super) fn far_off(&self, c: &[f64]) -> Option<String> {
        let p = &self.p;
        for (i, j) in (0..p.m).flat_map(|i| (0..p.n).map(move |j| (i, j))) {
            let terms = (0..p.k).map(|l| self.a[at(i, l, p.k)] * self.b[at(l, j, p.n)]);
            let old = if p.reads_c { self.beta * self.old_c[at(i, j, p.n)] } else { 0.0 };
            let (is, should) = (c[at(i, j, p.n)], self.alpha * terms.sum::<f64>() + old);
            if (is - should).abs() > 1e-9 * (1.0 + should.abs()) || is.is_nan() {
                return Some(format!("element ({i}, {j}) is {is}, should be {should}"));
            }
        }
        None
    }

    /// The initial value of an element.
    pub(super) fn before(&self, before: InitialValue, old: f64) -> f64 {
        match before {
            InitialValue::Nothing => 0.0,
            InitialValue::Sum => old,
            InitialValue::OldC => self.beta * old,
        }
    }

    /// Adds α times a product to the initial value; all by rows.
    pub(super) fn multiply(&self, a: &[f64], b: &[f64], depth: usize, before: InitialValue, to: &mut [f64]) {
        let cols = b.len() / depth.max(1);
        for (at, element) in to.iter_mut().enumerate() {
            let (i, j) = (at / cols, at % cols);
            let sum = (0..depth).fold(0.0, |sum, l| sum + a[i * depth + l] * b[l * cols + j]);
            *element = self.before(before, *element) + self.alpha * sum;
        }
    }

    /// Adds a sum or a difference to the initial value.
    pub(super) fn combine(
        &self,
        a: &[f64],
        b: &[f64],
        subtracts: bool,
        before: InitialValue,
        to: &mut [f64],
    ) {
        for (at, element) in to.iter_mut().enumerate() {
            let sum = if subtracts { a[at] - b[at] } else { a[at] + b[at] };
            *element = self.before(before, *element) + sum;
        }
    }
}

fn element(values: Values, random: &mut SeededRandom) -> f64 {
    match values {
        Values::Rounded => random.between(-1.0, 1.0),
        Values::Whole => random.between(-20.0, 20.0).round() * 4.0,
        Values::Digits => 0.0,
    }
}

/// The contribution of a step to each element, if elements have one digit for each step.
fn digit(step: u64) -> f64 {
    2f64.powi(2 * i32::try_from(step).unwrap_or(i32::MAX))
}

/// Most steps for which a double has a digit each.
pub(super) const DIGITS_MAX: u64 = 26;

/// Lists the steps that were not added exactly once to an element.
pub(super) fn wrong_digits(element: f64, steps: u64) -> Option<String> {
    let mut rest = element;
    let mut wrong = Vec::new();
    for step in (0..steps).rev() {
        let times = (rest / digit(step)).floor();
        rest -= times * digit(step);
        if times != 1.0 {
            wrong.push(format!("step {step} {times} times"));
        }
    }
    (!wrong.is_empty() || rest != 0.0).then(|| wrong.join(", "))
}

/// Index of an element in a matrix of `cols` columns, by rows.
pub(super) fn at(row: u64, col: u64, cols: u64) -> usize {
    usize::try_from(row * cols + col).unwrap_or(usize::MAX)
}

/// Indices of the elements of a rectangle, by rows.
pub(super) fn places(rect: Rect, cols: u64) -> impl Iterator<Item = usize> {
    rect.rows.iter().flat_map(move |i| rect.cols.iter().map(move |j| at(i, j, cols)))
}

/// Indices of the elements of some lines of a matrix, line by line, if it is stored by rows.
pub(super) fn line_places(
    layout: Layout,
    (rows, cols): (u32, u32),
    lines: Span,
) -> impl Iterator<Item = usize> {
    let (rows, cols) = (u64::from(rows), u64::from(cols));
    lines.iter().flat_map(move |line| {
        let across = if layout == Layout::RowMajor { cols } else { rows };
        (0..across).map(move |other| match layout {
            Layout::RowMajor => at(line, other, cols),
            Layout::ColMajor => at(other, line, cols),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_tell_which_step_is_missing_or_there_twice() {
        let sum = (0..26).map(digit).sum::<f64>();
        assert_eq!(wrong_digits(sum, 26), None);
        let wrong = sum - digit(3) + digit(25);
        assert_eq!(wrong_digits(wrong, 26).as_deref(), Some("step 25 2 times, step 3 0 times"));
    }

    #[test]
    fn lines_of_a_matrix_by_columns_lie_apart() {
        let places = |layout| line_places(layout, (2, 3), Span::new(1, 2)).collect::<Vec<_>>();
        assert_eq!(places(Layout::RowMajor), [3, 4, 5]);
        assert_eq!(places(Layout::ColMajor), [1, 4]);
    }
}
