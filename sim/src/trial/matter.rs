//! The elements of a trial's matrices, and the arithmetic of its machines.
//!
//! Invariants: what a job computes is a function of its operands' bits and of the order of its jobs, as a real kernel's is. All
//! numbers are doubles; whole ones stay exact.

use super::scenario::{Scenario, Values};
use crate::random::Random;
use bramble_matrix::{Layout, Rect, Span};
use bramble_plan::{Plan, Problem};

/// What nobody has written, or half of a frame has overwritten: no sum of operands.
pub(super) const GARBAGE: f64 = -77_777.125;

/// The operands, and what the product is.
pub(super) struct Matter {
    pub(super) p: Problem,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) old_c: Vec<f64>,
    pub(super) alpha: f64,
    pub(super) beta: f64,
}

/// What a job starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing.
    Nothing,
    /// What is there.
    Sum,
    /// What is there, scaled by β.
    OldC,
}

impl Matter {
    pub(super) fn of(scenario: &Scenario, plan: &Plan) -> Self {
        let p = plan.problem;
        let mut random = Random::new(scenario.seed);
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

    /// Whether C is what it should be, whatever the order of additions: exact for whole numbers.
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

    /// What a sum of parts starts from.
    pub(super) fn before(&self, before: Before, old: f64) -> f64 {
        match before {
            Before::Nothing => 0.0,
            Before::Sum => old,
            Before::OldC => self.beta * old,
        }
    }

    /// α times a product, on what is there; all by rows.
    pub(super) fn multiply(&self, a: &[f64], b: &[f64], depth: usize, before: Before, to: &mut [f64]) {
        let cols = b.len() / depth.max(1);
        for (at, element) in to.iter_mut().enumerate() {
            let (i, j) = (at / cols, at % cols);
            let sum = (0..depth).fold(0.0, |sum, l| sum + a[i * depth + l] * b[l * cols + j]);
            *element = self.before(before, *element) + self.alpha * sum;
        }
    }

    /// A sum or a difference, on what is there.
    pub(super) fn combine(&self, a: &[f64], b: &[f64], subtracts: bool, before: Before, to: &mut [f64]) {
        for (at, element) in to.iter_mut().enumerate() {
            let sum = if subtracts { a[at] - b[at] } else { a[at] + b[at] };
            *element = self.before(before, *element) + sum;
        }
    }
}

fn element(values: Values, random: &mut Random) -> f64 {
    match values {
        Values::Rounded => random.between(-1.0, 1.0),
        Values::Whole => random.between(-20.0, 20.0).round() * 4.0,
        Values::Digits => 0.0,
    }
}

/// What a step adds to each element where each is a number of as many digits as there are steps.
fn digit(step: u64) -> f64 {
    2f64.powi(2 * i32::try_from(step).unwrap_or(i32::MAX))
}

/// Most steps of which a double has a digit each.
pub(super) const DIGITS_MAX: u64 = 26;

/// How often each step was added to an element, where that is not once.
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

/// Where an element lies in a matrix of so many columns, by rows.
pub(super) fn at(row: u64, col: u64, cols: u64) -> usize {
    usize::try_from(row * cols + col).unwrap_or(usize::MAX)
}

/// Where the elements of a rectangle lie, by rows.
pub(super) fn places(rect: Rect, cols: u64) -> impl Iterator<Item = usize> {
    rect.rows.iter().flat_map(move |i| rect.cols.iter().map(move |j| at(i, j, cols)))
}

/// Where the elements of some lines of a matrix lie in it, line by line, when it is stored by rows.
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
