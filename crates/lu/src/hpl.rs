//! The rules of the High Performance Linpack benchmark (HPL 2.3): its matrix, its count of operations and its check.
//!
//! Place in the flow: `bench hpl` generates the system, times elimination and back-substitution, and checks the solution with a
//! matrix that is generated again.
//!
//! Invariants: element (i, j) of the N × (N + 1) system [A | b] is draw 1 + i + jN after the seed of a linear congruential
//! generator with modulus 2⁶⁴, so any part can be made anywhere. LU with partial pivoting in f64, nothing else: no Strassen, no
//! lower precision.
//!
//! Source: `HPL_pdmatgen`, `HPL_rand` and `HPL_pdtest` of netlib's HPL define the numbers and formulas; this is an independent
//! implementation.

use crate::load::AbsoluteSums;
use crate::working::WorkingMatrix;
use crate::{LuKernels, MatrixNorms, threads};
use bramble_kernel::lu::{LuElement, scatter};
use bramble_kernel::{Product, even};
use bramble_matrix::{View, ViewMut};
use std::ops::Range;

/// Multiplier of the generator.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
/// Increment of the generator.
const INCREMENT: u64 = 1;
/// The number before the first draw.
const SEED: u64 = 100;
/// Columns that are generated at a time.
const COLUMNS: usize = 64;
/// A solution is valid if its scaled residual is below this.
pub const THRESHOLD: f64 = 16.0;

/// The map of a number of draws: x ↦ a x + c.
#[derive(Clone, Copy)]
pub(crate) struct Jump {
    a: u64,
    c: u64,
}

impl Jump {
    const IDENTITY: Self = Self { a: 1, c: 0 };
    pub(crate) const ONE: Self = Self { a: MULTIPLIER, c: INCREMENT };

    /// First this map, then the other.
    fn then(self, next: Self) -> Self {
        Self { a: next.a.wrapping_mul(self.a), c: next.a.wrapping_mul(self.c).wrapping_add(next.c) }
    }

    /// The map of that number of draws.
    pub(crate) fn of(mut draws: u64) -> Self {
        let (mut all, mut power) = (Self::IDENTITY, Self::ONE);
        while draws > 0 {
            if draws & 1 == 1 {
                all = all.then(power);
            }
            power = power.then(power);
            draws >>= 1;
        }
        all
    }

    pub(crate) fn apply(self, x: u64) -> u64 {
        self.a.wrapping_mul(x).wrapping_add(self.c)
    }
}

/// The element in (−½, ½] that HPL makes of a draw.
fn element(draw: u64) -> f64 {
    let (low, high) = (draw as u32, (draw >> 32) as u32);
    let scale = 1.0 / 4_294_967_296.0;
    0.5 - (f64::from(low) * scale + f64::from(high)) * scale
}

/// Fills columns of the system of this order, `first` and the following, as contiguous rows of `columns.len() / order` elements.
pub(crate) fn fill(order: usize, first: usize, columns: &mut [f64]) {
    let width = columns.len() / order.max(1);
    let start =
        |j: usize| Jump::of((order as u64).wrapping_mul((first + j) as u64).wrapping_add(1)).apply(SEED);
    let mut draws: Vec<u64> = (0..width).map(start).collect();
    for row in columns.chunks_exact_mut(width.max(1)) {
        for (x, draw) in row.iter_mut().zip(&mut draws) {
            *x = element(*draw);
            *draw = Jump::ONE.apply(*draw);
        }
    }
}

/// Calls `each` with a state, the first of some columns and their elements, for all columns of [A | b], on all threads. Each
/// thread has a state of its own; they are returned in the order of the columns.
fn columns<S: Send>(
    order: usize,
    threads: usize,
    state: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, usize, &[f64]) + Sync,
) -> Vec<S> {
    let bands = even((order + 1).div_ceil(COLUMNS), threads).collect();
    threads::each(threads, bands, |band: Range<usize>| {
        let (mut state, mut elements) = (state(), Vec::new());
        for first in band.map(|at| at * COLUMNS) {
            elements.resize(order * COLUMNS.min(order + 1 - first), 0.0);
            fill(order, first, &mut elements);
            each(&mut state, first, &elements);
        }
        state
    })
}

/// The system [A | b] of this order.
pub fn generate(working: &WorkingMatrix, threads: usize) {
    let order = working.rows();
    columns(
        order,
        threads,
        || (),
        |(), first, elements| {
            let width = elements.len() / order.max(1);
            scatter(
                elements,
                (width, 1),
                &mut working.lease(0..order, first..first + width).view_mut::<f64>(),
            );
        },
    );
}

/// Operations of a solution by HPL's count: 2/3 N³ + 3/2 N².
pub fn operations(order: usize) -> f64 {
    let n = order as f64;
    n * n * (2.0 / 3.0 * n + 1.5)
}

/// HPL's check of a solution.
#[derive(Clone, Copy, Debug)]
pub struct HplCheck {
    /// ‖A‖₁ and ‖A‖∞.
    pub norms: MatrixNorms,
    /// ‖b‖∞.
    pub b_inf: f64,
    /// ‖x‖₁.
    pub x_one: f64,
    /// ‖x‖∞.
    pub x_inf: f64,
    /// ‖A x − b‖∞.
    pub residual_inf: f64,
    /// ‖A x − b‖∞ / (ε (‖A‖∞ ‖x‖∞ + ‖b‖∞) N).
    pub scaled_residual: f64,
}

impl HplCheck {
    /// Whether the solution is valid.
    pub fn is_valid(&self) -> bool {
        self.scaled_residual < THRESHOLD
    }

    /// The check of the solution `x` with the residual `r`, for a matrix with these norms and ‖b‖∞.
    pub(crate) fn of(norms: MatrixNorms, b_inf: f64, x: &[f64], r: &[f64]) -> Self {
        let largest = |of: &[f64]| {
            of.iter().fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) })
        };
        let (x_inf, residual_inf) = (largest(x), largest(r));
        let scaled = residual_inf / (<f64 as LuElement>::UNIT * (norms.inf * x_inf + b_inf) * x.len() as f64);
        Self {
            norms,
            b_inf,
            x_one: x.iter().map(|x| x.abs()).sum(),
            x_inf,
            residual_inf,
            scaled_residual: if scaled.is_nan() { f64::INFINITY } else { scaled },
        }
    }
}

/// Checks a solution against a system that is generated again.
pub fn check(x: &[f64], threads: usize, kernels: &LuKernels) -> HplCheck {
    let order = x.len();
    let new = || CheckPart { rows: AbsoluteSums::new(order, 0), one: 0.0, r: vec![0.0; order], b_inf: 0.0 };
    let parts = columns(order, threads, new, |part, first, elements| part.add(x, first, elements, kernels));
    let mut all = new();
    for part in parts {
        all.rows.merge(&part.rows);
        all.one = all.one.max(part.one);
        all.r.iter_mut().zip(part.r).for_each(|(sum, x)| *sum += x);
        all.b_inf = all.b_inf.max(part.b_inf);
    }
    HplCheck::of(MatrixNorms { one: all.one, ..all.rows.norms() }, all.b_inf, x, &all.r)
}

/// What some of the columns contribute to the check.
struct CheckPart {
    /// AbsoluteSums of absolute values by row.
    rows: AbsoluteSums,
    /// The largest sum of a column.
    one: f64,
    /// Their part of b − A x.
    r: Vec<f64>,
    b_inf: f64,
}

impl CheckPart {
    fn add(&mut self, x: &[f64], first: usize, elements: &[f64], kernels: &LuKernels) {
        let order = x.len();
        let width = elements.len() / order.max(1);
        let in_a = width.min(order - first);
        let mut sums = AbsoluteSums::new(order, in_a);
        for (i, row) in elements.chunks_exact(width.max(1)).enumerate() {
            sums.add_line(&row[..in_a], (i, 0), true);
            if let Some(b) = row.get(in_a) {
                self.r[i] += b;
                self.b_inf = self.b_inf.max(b.abs());
            }
        }
        self.rows.merge(&sums);
        self.one = self.one.max(sums.norms().one);
        let (a, x) =
            (View::new(elements, order, in_a, width, 1), View::row_major(&x[first..first + in_a], in_a, 1));
        let r = ViewMut::row_major(&mut self.r, order, 1);
        kernels.one.multiply(Product::new(-1.0, a, x, 1.0, r).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_as_many_draws_one_after_another() {
        let mut x = SEED;
        for draws in 0..100 {
            assert_eq!(Jump::of(draws).apply(SEED), x);
            x = Jump::ONE.apply(x);
        }
        assert_eq!(Jump::of(1 << 40).then(Jump::of(5)).apply(7), Jump::of((1 << 40) + 5).apply(7));
    }

    #[test]
    fn columns_are_the_draws_in_order() {
        let mut all = vec![0.0; 5 * 6];
        fill(5, 0, &mut all);
        let mut draw = SEED;
        for j in 0..6 {
            for i in 0..5 {
                draw = Jump::ONE.apply(draw);
                assert_eq!(all[i * 6 + j], element(draw));
            }
        }
    }
}
