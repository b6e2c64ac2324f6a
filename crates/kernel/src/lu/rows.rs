//! Exchanges of rows, and copies between a view and contiguous memory.
//!
//! Place in the flow: LAPACK's `laswp`, and the packing of panels.
//!
//! Invariant: only elements of the view are accessed. The memory between them belongs to other holders.
#![allow(unsafe_code)] // Lines of a view interleave with those of other views: only pointers describe them.

use bramble_matrix::{Element, ViewMut};

/// Edge of the squares in which a copy transposes: a square of `f64` is 8 KiB.
const EDGE: usize = 32;

/// Exchanges row `i` with row `pivots[i]`, for each `i` in order. Panics if a row is outside: a bug of the caller.
pub fn exchange_rows<T: Element>(view: &mut ViewMut<'_, T>, pivots: &[usize]) {
    let (rows, cols) = (view.rows(), view.cols());
    let (rs, cs) = (view.row_stride(), view.col_stride());
    assert!(pivots.len() <= rows && pivots.iter().all(|p| *p < rows), "exchanged rows are inside the view");
    if cols == 0 {
        return;
    }
    let base = view.as_mut_ptr();
    // Columns in pieces, so that the rows that several exchanges touch stay in the cache.
    let step = if cs == 1 { cols } else { 1 };
    for first in (0..cols).step_by(step) {
        for (i, &p) in pivots.iter().enumerate().filter(|(i, p)| i != *p) {
            for j in first..cols.min(first + step) {
                // SAFETY: both elements are inside the view, which is borrowed exclusively, and distinct (i != p).
                unsafe { std::ptr::swap(base.add(i * rs + j * cs), base.add(p * rs + j * cs)) };
            }
        }
    }
}

/// Copies the view to `to`, element (i, j) to `i * strides.0 + j * strides.1`. Panics if `to` is too short.
pub fn gather<T: Element>(view: &mut ViewMut<'_, T>, to: &mut [T], strides: (usize, usize)) {
    let (rs, cs) = (view.row_stride(), view.col_stride());
    let base = view.as_mut_ptr();
    squares(view.rows(), view.cols(), |i, j| {
        // SAFETY: (i, j) is inside the view.
        to[i * strides.0 + j * strides.1] = unsafe { *base.add(i * rs + j * cs) };
    });
}

/// Copies `from` to the view, element (i, j) from `i * strides.0 + j * strides.1`. Panics if `from` is too short.
pub fn scatter<T: Element>(from: &[T], strides: (usize, usize), view: &mut ViewMut<'_, T>) {
    let (rs, cs) = (view.row_stride(), view.col_stride());
    let base = view.as_mut_ptr();
    squares(view.rows(), view.cols(), |i, j| {
        // SAFETY: (i, j) is inside the view, which is borrowed exclusively.
        unsafe { *base.add(i * rs + j * cs) = from[i * strides.0 + j * strides.1] };
    });
}

/// Calls `each` for all indices, square by square: a copy that transposes then reads and writes whole cache lines.
#[inline(always)]
fn squares(rows: usize, cols: usize, mut each: impl FnMut(usize, usize)) {
    for top in (0..rows).step_by(EDGE) {
        for left in (0..cols).step_by(EDGE) {
            for i in top..rows.min(top + EDGE) {
                for j in left..cols.min(left + EDGE) {
                    each(i, j);
                }
            }
        }
    }
}
