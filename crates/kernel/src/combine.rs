//! Sums and differences of two matrices: `c = beta * c + (a ± b)` on the calling thread.
//!
//! Place in the flow: beside the kernels; a worker makes operands of Strassen's method with it, and adds to tiles.
//!
//! Invariants: each element is `beta * c + (a ± b)`, each operation rounded separately, so its bits do not depend
//! on layouts, shapes or machines; `beta == 0` never reads C; integers wrap; only the elements of C are written.
//!
//! Deliberately absent: a variant for each kernel. Memory is the limit, and the compiler vectorises the loops.
#![allow(unsafe_code)] // A line of C interleaves with its neighbours: only pointers describe it.

use std::ops::Range;

use bramble_matrix::{Element, View, ViewMut};

use crate::parts::{part, pieces};

/// Edge of the squares in which an operand with the other storage order is transposed: two of them of `f64` are 16
/// KiB, half of the smallest first-level cache.
const EDGE: usize = 32;

/// Whether the second operand is added or subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// `a + b`.
    Plus,
    /// `a − b`.
    Minus,
}

/// `c = beta * c + (a ± b)`. Operands may have any strides, and may share memory with each other. Panics if shapes
/// disagree: a bug of the caller.
pub fn combine<T: Element>(a: View<'_, T>, sign: Sign, b: View<'_, T>, beta: T, c: ViewMut<'_, T>) {
    let shape = |v: &View<'_, T>| (v.rows(), v.cols());
    assert_eq!(shape(&a), (c.rows(), c.cols()), "A and C have one shape");
    assert_eq!(shape(&b), (c.rows(), c.cols()), "B and C have one shape");
    match sign {
        Sign::Plus => scaled(a, b, beta, c, T::plus),
        Sign::Minus => scaled(a, b, beta, c, T::minus),
    }
}

/// Chooses the handling of C's old elements once, and not for each element.
fn scaled<T: Element>(a: View<'_, T>, b: View<'_, T>, beta: T, c: ViewMut<'_, T>, op: impl Fn(T, T) -> T) {
    if beta == T::ZERO {
        walk(a, b, c, |c, x, y| *c = op(x, y));
    } else if beta == T::ONE {
        walk(a, b, c, |c, x, y| *c = c.plus(op(x, y)));
    } else {
        walk(a, b, c, |c, x, y| *c = beta.times(*c).plus(op(x, y)));
    }
}

/// Calls `f` with every element of C and the corresponding ones of A and B, along the lines of C in memory. An
/// operand with the other storage order is transposed square by square.
pub(crate) fn walk<T: Element>(
    a: View<'_, T>,
    b: View<'_, T>,
    mut c: ViewMut<'_, T>,
    f: impl Fn(&mut T, T, T),
) {
    if c.row_stride() < c.col_stride() {
        return walk(a.transposed(), b.transposed(), c.transposed(), f);
    }
    if c.col_stride() != 1 {
        return each(a, b, c, f);
    }
    let along = |v: &View<'_, T>| v.col_stride() == 1;
    let width = if along(&a) && along(&b) { c.cols().max(1) } else { EDGE };
    let (mut turned_a, mut turned_b) = ([T::ZERO; EDGE * EDGE], [T::ZERO; EDGE * EDGE]);
    // Down the columns: an operand in column order is then read in memory order, which is a third faster at 1000 x
    // 1000.
    for cols in pieces(c.cols(), width) {
        for rows in pieces(c.rows(), EDGE) {
            let (in_a, in_b) = (
                block(a, rows.clone(), cols.clone(), &mut turned_a),
                block(b, rows.clone(), cols.clone(), &mut turned_b),
            );
            for (at, i) in rows.clone().enumerate() {
                let (from_a, from_b) = (&in_a.line(at)[..cols.len()], &in_b.line(at)[..cols.len()]);
                let first = i * c.row_stride() + cols.start;
                // SAFETY: a run of elements of row i, whose column stride is 1; the view is borrowed exclusively,
                // and no other reference to these elements exists here.
                let to = unsafe { std::slice::from_raw_parts_mut(c.as_mut_ptr().add(first), cols.len()) };
                for ((c, x), y) in to.iter_mut().zip(from_a).zip(from_b) {
                    f(c, *x, *y);
                }
            }
        }
    }
}

/// Lines of a block of an operand, at a fixed distance.
struct Lines<'a, T> {
    data: &'a [T],
    pitch: usize,
}

impl<T> Lines<'_, T> {
    fn line(&self, at: usize) -> &[T] {
        &self.data[at * self.pitch..]
    }
}

/// The lines of a block, directly or transposed into `buffer`.
fn block<'a, T: Element>(
    view: View<'a, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    buffer: &'a mut [T; EDGE * EDGE],
) -> Lines<'a, T> {
    let view = part(view, rows, cols);
    if view.col_stride() == 1 {
        return Lines { data: view.data(), pitch: view.row_stride() };
    }
    for j in 0..view.cols() {
        let column = &view.data()[j * view.col_stride()..];
        if view.row_stride() == 1 {
            for (i, x) in column[..view.rows()].iter().enumerate() {
                buffer[i * EDGE + j] = *x;
            }
        } else {
            for i in 0..view.rows() {
                buffer[i * EDGE + j] = column[i * view.row_stride()];
            }
        }
    }
    Lines { data: buffer, pitch: EDGE }
}

/// The same for a C without contiguous elements.
fn each<T: Element>(a: View<'_, T>, b: View<'_, T>, mut c: ViewMut<'_, T>, f: impl Fn(&mut T, T, T)) {
    for i in 0..c.rows() {
        for j in 0..c.cols() {
            f(c.at_mut(i, j), a.at(i, j), b.at(i, j));
        }
    }
}
