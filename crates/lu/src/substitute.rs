//! Substitution with the factors, block by block: triangular systems, and products for all other rows.
//!
//! Place in the flow: after the elimination. Right-hand sides are contiguous rows, so that one block of rows can be solved while
//! the others are read.
//!
//! Invariant: every element of the factors is read once, which bounds the time with few right-hand sides.

use bramble_kernel::lu::{LuElement, Triangle, dot, dot_in_f64, solve_triangle, subtract_multiple};
use bramble_kernel::{Kernel, Product, even, part};
use bramble_matrix::{View, ViewMut};
use std::ops::Range;

/// `X = T⁻¹ X` for a triangle of the square view `t` and n × `width` right-hand sides in rows.
pub(crate) fn substitute<T: LuElement>(
    kernel: &dyn Kernel,
    which: Triangle,
    t: View<'_, T>,
    x: &mut [T],
    width: usize,
    block: usize,
) {
    let n = t.rows();
    if width == 0 {
        return;
    }
    let mut blocks: Vec<Range<usize>> =
        (0..n).step_by(block).map(|start| start..n.min(start + block)).collect();
    if which == Triangle::Upper {
        blocks.reverse();
    }
    for b in blocks {
        let (above, rest) = x.split_at_mut(b.start * width);
        let (solved, below) = rest.split_at_mut(b.len() * width);
        let corner = part(t, b.clone(), b.clone());
        if width == 1 {
            solve_one(which, corner, solved);
        } else {
            solve_triangle(kernel, which, corner, ViewMut::row_major(solved, b.len(), width));
        }
        let (rows, target) = match which {
            Triangle::UnitLower => (b.end..n, below),
            Triangle::Upper => (0..b.start, above),
        };
        let (l, x) = (part(t, rows.clone(), b.clone()), View::row_major(solved, b.len(), width));
        let c = ViewMut::row_major(target, rows.len(), width);
        kernel.multiply(T::any(Product::new(T::ZERO.minus(T::ONE), l, x, T::ONE, c)));
    }
}

/// Elements of a block of rows from which on the threads share its dot products: fewer take less time than starting a thread.
const SHARED_ELEMENTS: usize = 1 << 17;

/// `x = T⁻¹ x` for one right-hand side in f64, with a triangle of any type, by blocks of rows. Each row is one dot product with
/// the elements of x that are known, so the bits do not depend on the threads.
pub(crate) fn substitute_in_f64<T: LuElement>(
    which: Triangle,
    t: View<'_, T>,
    x: &mut [f64],
    block: usize,
    threads: usize,
) {
    let n = t.rows();
    let line = |i: usize, cols: Range<usize>| &t.data()[i * t.row_stride() + cols.start..][..cols.len()];
    let starts = (0..n).step_by(block.max(1));
    let starts: Vec<usize> = if which == Triangle::Upper { starts.rev().collect() } else { starts.collect() };
    for start in starts {
        let b = start..n.min(start + block.max(1));
        let known = if which == Triangle::Upper { b.end..n } else { 0..b.start };
        let sharing = if known.len() * b.len() < SHARED_ELEMENTS { 1 } else { threads };
        let given = &x[known.clone()];
        let parts = crate::threads::each(sharing, even(b.len(), sharing).collect(), |rows: Range<usize>| {
            rows.map(|row| dot_in_f64(line(b.start + row, known.clone()), given)).collect::<Vec<f64>>()
        });
        x[b.clone()].iter_mut().zip(parts.concat()).for_each(|(x, sum)| *x -= sum);
        match which {
            Triangle::UnitLower => {
                b.clone().for_each(|i| x[i] -= dot_in_f64(line(i, b.start..i), &x[b.start..i]))
            }
            Triangle::Upper => b.clone().rev().for_each(|i| {
                let sum = dot_in_f64(line(i, i + 1..b.end), &x[i + 1..b.end]);
                x[i] = (x[i] - sum) / t.at(i, i).to_f64();
            }),
        }
    }
}

/// One right-hand side, by rows of the triangle.
pub(crate) fn solve_one<T: LuElement>(which: Triangle, t: View<'_, T>, x: &mut [T]) {
    let n = t.rows();
    let line = |i: usize, cols: Range<usize>| &t.data()[i * t.row_stride() + cols.start..][..cols.len()];
    match which {
        Triangle::UnitLower => {
            for i in 1..n {
                x[i] = x[i].minus(dot(line(i, 0..i), &x[..i]));
            }
        }
        Triangle::Upper => {
            for i in (0..n).rev() {
                let (row, pivot) = (line(i, i + 1..n), t.at(i, i));
                x[i] = x[i].minus(dot(row, &x[i + 1..])).over(pivot);
            }
        }
    }
}

/// `x = T⁻ᵀ x` for one right-hand side, by rows of the triangle.
pub(crate) fn substitute_transposed<T: LuElement>(which: Triangle, t: View<'_, T>, x: &mut [T]) {
    let n = t.rows();
    let line = |i: usize, cols: Range<usize>| &t.data()[i * t.row_stride() + cols.start..][..cols.len()];
    match which {
        Triangle::Upper => {
            for i in 0..n {
                let (head, rest) = x.split_at_mut(i + 1);
                head[i] = head[i].over(t.at(i, i));
                subtract_multiple(rest, head[i], line(i, i + 1..n));
            }
        }
        Triangle::UnitLower => {
            for i in (1..n).rev() {
                let (rest, tail) = x.split_at_mut(i);
                subtract_multiple(rest, tail[0], line(i, 0..i));
            }
        }
    }
}
