//! Products and sums whose factors do not fit the element type: `C = alpha * A * B + beta * C` with factors in
//! `f64`.
//!
//! Place in the flow: between a worker's jobs, whose factors are `f64`, and the kernels, whose factors are
//! elements.
//!
//! Invariants: a factor that the element type holds as a normal number goes to the kernel, rounded to that type. Any other
//! (`f32` only: smaller than 2^-126 or larger than its largest number) is applied in `f64` to finished elements of A B, or of
//! C, and rounded once. Memory beside the operands is one square of 512 elements a side.
//!
//! Deliberately absent: integers' factors are exact already, and those of `f64` are exactly the user's.

use bramble_matrix::{Element, View, ViewMut};

use crate::combine::walk;
use crate::parts::{part, part_mut, pieces};
use crate::{Kernel, KernelElement, Product, Sign, combine};

/// A C with at most this many columns is thin; rows that are multiplied together then.
const THIN_COLS: usize = 16;
const THIN_ROWS: usize = 16;

/// Edge of the pieces of A B to which a factor is applied afterwards.
const EDGE: usize = 512;

/// `c = alpha * a * b + beta * c`. Panics if the dimensions disagree: a bug of the caller.
pub fn multiply<T: KernelElement>(
    kernel: &dyn Kernel,
    alpha: f64,
    [a, b]: [View<'_, T>; 2],
    beta: f64,
    mut c: ViewMut<'_, T>,
) {
    let beta = scaled_before(&mut c, beta);
    if T::DTYPE.holds_factor(alpha) {
        return kernel.multiply(T::any(Product::new(T::from_f64(alpha), a, b, beta, c)));
    }
    let mut square = vec![T::ZERO; EDGE.min(c.rows()) * EDGE.min(c.cols())];
    for rows in pieces(c.rows(), EDGE) {
        for cols in pieces(c.cols(), EDGE) {
            let (m, n) = (rows.len(), cols.len());
            let square = &mut square[..m * n];
            let (a, b) = (part(a, rows.clone(), 0..a.cols()), part(b, 0..b.rows(), cols.clone()));
            let whole = ViewMut::row_major(square, m, n);
            kernel.multiply(T::any(Product::new(T::ONE, a, b, T::ZERO, whole)));
            let made = View::row_major(square, m, n);
            add_times(alpha, made, beta, part_mut(&mut c, rows.clone(), cols));
        }
    }
}

/// `c = alpha * a * b`, or that added to `c`, as the sum of products of slices of `depth`, in their order. So the bits are those
/// of one call for each slice, wherever the depth is cut. Where C has few columns, the time is that of reading A: a few rows at a
/// time, so that each row is read on where the slice before has ended.
pub fn multiply_in_slices<T: KernelElement>(
    kernel: &dyn Kernel,
    alpha: f64,
    [a, b]: [View<'_, T>; 2],
    adds: bool,
    depth: usize,
    mut c: ViewMut<'_, T>,
) {
    let (rows, cols) = (c.rows(), c.cols());
    for rows in pieces(rows, if cols <= THIN_COLS { THIN_ROWS } else { rows.max(1) }) {
        for slice in pieces(a.cols(), depth) {
            let beta = if adds || slice.start > 0 { 1.0 } else { 0.0 };
            let factors = [part(a, rows.clone(), slice.clone()), part(b, slice, 0..cols)];
            multiply(kernel, alpha, factors, beta, part_mut(&mut c, rows.clone(), 0..cols));
        }
    }
}

/// `c = beta * c + (a ± b)`.
pub fn sum<T: Element>([a, b]: [View<'_, T>; 2], sign: Sign, beta: f64, mut c: ViewMut<'_, T>) {
    let beta = scaled_before(&mut c, beta);
    combine(a, sign, b, beta, c);
}

/// An element times a factor, rounded once.
pub fn times<T: Element>(element: T, factor: f64) -> T {
    if T::DTYPE.holds_factor(factor) {
        return element.times(T::from_f64(factor));
    }
    T::from_f64(element.to_f64() * factor)
}

/// `c = alpha * x`, or `alpha * x + beta * y`. Each element is rounded once for each factor, and once for the sum.
pub fn scaled_sum<T: Element>(
    (alpha, x): (f64, View<'_, T>),
    y: Option<(f64, View<'_, T>)>,
    c: ViewMut<'_, T>,
) {
    match y {
        Some((beta, y)) => walk(x, y, c, |c, x, y| *c = times(x, alpha).plus(times(y, beta))),
        None => walk(x, x, c, |c, x, _| *c = times(x, alpha)),
    }
}

/// The factor of C that is left for the kernel: `beta`, or 1 if it was applied here.
fn scaled_before<T: Element>(c: &mut ViewMut<'_, T>, beta: f64) -> T {
    if T::DTYPE.holds_factor(beta) {
        return T::from_f64(beta);
    }
    for i in 0..c.rows() {
        for j in 0..c.cols() {
            let x = c.at_mut(i, j);
            *x = times(*x, beta);
        }
    }
    T::ONE
}

/// `c = beta * c + alpha * made`, where `beta` is 0 without reading C. Each element of `alpha * made` is rounded once.
fn add_times<T: Element>(alpha: f64, made: View<'_, T>, beta: T, c: ViewMut<'_, T>) {
    let scaled = |x: T| T::from_f64(x.to_f64() * alpha);
    if beta == T::ZERO {
        walk(made, made, c, |c, x, _| *c = scaled(x));
    } else {
        walk(made, made, c, |c, x, _| *c = beta.times(*c).plus(scaled(x)));
    }
}
