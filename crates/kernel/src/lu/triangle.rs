//! Triangular systems with several right-hand sides (BLAS's `trsm`), and the exchange of the rows of the right-hand sides.
//!
//! Place in the flow: the rows of U right of a panel, and the back-substitution.
//!
//! Invariants: the triangle is halved until it is small, so that most of the work is a product of the passed kernel; X is
//! solved in contiguous rows, to which other layouts are copied. Of the triangle's view only the elements of the triangle are
//! read, and with [`Triangle::UnitLower`] not the diagonal, which counts as 1.

use bramble_matrix::{View, ViewMut};

use super::lines::subtract;
use super::{LuElement, gather, scatter};
use crate::{Kernel, Product, part};

/// Largest triangle that is solved row by row.
pub(crate) const SMALL_TRIANGLE: usize = 16;

/// Which triangle of a square matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triangle {
    /// Below the diagonal, with ones on it: L of a factorisation.
    UnitLower,
    /// The diagonal and above: U of a factorisation.
    Upper,
}

/// `x = T⁻¹ x`, with the n × n triangle `t` and n × r `x`. A zero on the diagonal of an upper triangle gives infinite
/// or undefined elements. Panics if the shapes disagree: a bug of the caller.
pub fn solve_triangle<T: LuElement>(
    kernel: &dyn Kernel,
    which: Triangle,
    t: View<'_, T>,
    mut x: ViewMut<'_, T>,
) {
    assert!(t.rows() == t.cols() && t.rows() == x.rows(), "a triangle and its right-hand sides");
    let width = x.cols();
    let mut rows = vec![T::ZERO; x.rows() * width];
    gather(&mut x, &mut rows, (width, 1));
    solve_rows(kernel, which, t, &mut rows, width);
    scatter(&rows, (width, 1), &mut x);
}

/// The same for right-hand sides in contiguous rows of `width` elements.
pub(super) fn solve_rows<T: LuElement>(
    kernel: &dyn Kernel,
    which: Triangle,
    t: View<'_, T>,
    x: &mut [T],
    width: usize,
) {
    let n = t.rows();
    if n == 0 || width == 0 {
        return;
    }
    if n <= SMALL_TRIANGLE {
        return pulp::Arch::new().dispatch(
            #[inline(always)]
            || small(which, t, x, width),
        );
    }
    let half = upper_rows(n);
    let (upper, lower) = x.split_at_mut(half * width);
    let corner = |r: std::ops::Range<usize>, c: std::ops::Range<usize>| part(t, r, c);
    let subtract = |a: View<'_, T>, b: &[T], c: &mut [T]| {
        let (b, c) = (View::row_major(b, a.cols(), width), ViewMut::row_major(c, a.rows(), width));
        kernel.multiply(T::any(Product::new(T::ZERO.minus(T::ONE), a, b, T::ONE, c)));
    };
    match which {
        Triangle::UnitLower => {
            solve_rows(kernel, which, corner(0..half, 0..half), upper, width);
            subtract(corner(half..n, 0..half), upper, lower);
            solve_rows(kernel, which, corner(half..n, half..n), lower, width);
        }
        Triangle::Upper => {
            solve_rows(kernel, which, corner(half..n, half..n), lower, width);
            subtract(corner(0..half, half..n), lower, upper);
            solve_rows(kernel, which, corner(0..half, 0..half), upper, width);
        }
    }
}

/// Rows of the upper half of a triangle of more than [`SMALL_TRIANGLE`] rows: which sums are products, and so the bits, depend
/// on it.
pub(crate) fn upper_rows(n: usize) -> usize {
    (n / 2).next_multiple_of(SMALL_TRIANGLE).min(n - 1)
}

/// Substitution row by row.
#[inline(always)]
fn small<T: LuElement>(which: Triangle, t: View<'_, T>, x: &mut [T], width: usize) {
    match which {
        Triangle::UnitLower => {
            for i in 1..t.rows() {
                let (done, rest) = x.split_at_mut(i * width);
                for (j, line) in done.chunks_exact(width).enumerate() {
                    subtract(&mut rest[..width], t.at(i, j), line);
                }
            }
        }
        Triangle::Upper => {
            for i in (0..t.rows()).rev() {
                let (rest, done) = x.split_at_mut((i + 1) * width);
                let row = &mut rest[i * width..];
                for (j, line) in done.chunks_exact(width).enumerate() {
                    subtract(row, t.at(i, i + 1 + j), line);
                }
                let pivot = t.at(i, i);
                row.iter_mut().for_each(|x| *x = x.over(pivot));
            }
        }
    }
}
