//! Smaller rectangles of views, and passes over C, shared by several kernels.
//!
//! Invariant: a part lies inside its view; this is checked in release builds, since pointers are made of it.
#![allow(unsafe_code)] // A rectangle of C interleaves with its neighbours: only pointers describe it.

use std::ops::Range;

use bramble_matrix::{Element, View, ViewMut};

/// Rows and columns of a readable view. Panics outside.
pub fn part<T>(view: View<'_, T>, rows: Range<usize>, cols: Range<usize>) -> View<'_, T> {
    assert!(rows.start <= rows.end && rows.end <= view.rows());
    assert!(cols.start <= cols.end && cols.end <= view.cols());
    let (rs, cs) = (view.row_stride(), view.col_stride());
    let first = if rows.is_empty() || cols.is_empty() { 0 } else { rows.start * rs + cols.start * cs };
    View::new(&view.data()[first..], rows.len(), cols.len(), rs, cs)
}

/// Rows and columns of a writable view. Panics outside.
pub(crate) fn part_mut<'v, T>(
    view: &'v mut ViewMut<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
) -> ViewMut<'v, T> {
    assert!(rows.start <= rows.end && rows.end <= view.rows());
    assert!(cols.start <= cols.end && cols.end <= view.cols());
    let (rs, cs) = (view.row_stride(), view.col_stride());
    let first = if rows.is_empty() || cols.is_empty() { 0 } else { rows.start * rs + cols.start * cs };
    // SAFETY: every element of the part is one of `view`, which is borrowed exclusively for 'v; `first` is the
    // offset of such an element, or 0.
    unsafe { ViewMut::from_raw(view.as_mut_ptr().add(first), rows.len(), cols.len(), rs, cs) }
}

/// Pieces of `0..len`, each of at most `step`.
pub(crate) fn pieces(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..len).step_by(step).map(move |start| start..len.min(start + step))
}

/// `c = beta * c`, where 0 writes without reading and 1 does nothing.
pub(crate) fn scale<T: Element>(c: &mut ViewMut<'_, T>, beta: T) {
    if beta == T::ONE {
        return;
    }
    if beta == T::ZERO {
        for_each(c, |x| *x = T::ZERO);
    } else {
        for_each(c, |x| *x = beta.times(*x));
    }
}

/// Calls `f` with every element, in memory order.
fn for_each<T>(c: &mut ViewMut<'_, T>, f: impl Fn(&mut T)) {
    let (mut outer, mut inner) = ((c.rows(), c.row_stride()), (c.cols(), c.col_stride()));
    if outer.1 < inner.1 {
        std::mem::swap(&mut outer, &mut inner);
    }
    let base = c.as_mut_ptr();
    for i in 0..outer.0 {
        let line = base.wrapping_add(i * outer.1);
        if inner.1 == 1 {
            // SAFETY: `inner.0` consecutive elements of an exclusively borrowed view.
            unsafe { std::slice::from_raw_parts_mut(line, inner.0) }.iter_mut().for_each(&f);
        } else {
            for j in 0..inner.0 {
                // SAFETY: element (i, j) of an exclusively borrowed view.
                f(unsafe { &mut *line.add(j * inner.1) });
            }
        }
    }
}
