//! Exchanges of rows, and copies between a view and contiguous memory.
//!
//! Place in the flow: LAPACK's `laswp`, and the packing of panels.
//!
//! Invariant: only elements of the view are accessed. The memory between them belongs to other holders.
#![allow(unsafe_code)] // Lines of a view interleave with those of other views: only pointers describe them.

use bramble_matrix::{Element, View, ViewMut};

use super::LuElement;
use super::lines::round_line;
use crate::grid_mut;
use crate::prefetch::prefetch;
use crate::threads::line_mut;

/// Edge of the squares in which a copy transposes: a row of `f64` is a cache line.
const SIDE: usize = 8;
/// Rows of a strip of squares.
const STRIP: usize = 64;

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

/// The rows above `at`, and the others. Panics if there are fewer rows: a bug of the caller.
pub(super) fn split_rows<T>(view: ViewMut<'_, T>, at: usize) -> [ViewMut<'_, T>; 2] {
    let (rows, cols) = (view.rows(), 0..view.cols());
    let Ok(both) = grid_mut(view, &[0..at, at..rows], std::slice::from_ref(&cols)).try_into() else {
        unreachable!("two bands of rows");
    };
    both
}

/// Copies the view to `to`, element (i, j) to `i * strides.0 + j * strides.1`. Panics if `to` is too short.
pub fn gather<T: Element>(view: &mut ViewMut<'_, T>, to: &mut [T], strides: (usize, usize)) {
    let (rs, cs) = (view.row_stride(), view.col_stride());
    if cs == 1 && strides.1 == 1 {
        let (rows, cols) = (view.rows(), view.cols());
        return (0..rows).for_each(|i| to[i * strides.0..][..cols].copy_from_slice(line_mut(view, i)));
    }
    let base = view.as_mut_ptr();
    let whole = |i: usize, j: usize| -> [[T; SIDE]; SIDE] {
        // SAFETY: SIDE rows from i on and SIDE columns from j on are inside the view, whose rows are contiguous.
        std::array::from_fn(|row| unsafe { *base.add((i + row) * rs + j).cast::<[T; SIDE]>() })
    };
    let one = |to: &mut [T], i: usize, j: usize| {
        // SAFETY: (i, j) is inside the view.
        to[i * strides.0 + j * strides.1] = unsafe { *base.add(i * rs + j * cs) };
    };
    let target = to.as_ptr();
    squares(view.rows(), view.cols(), cs == 1 && strides.0 == 1, |i, j, is_whole| match is_whole {
        true => {
            prefetch_next((base, rs), (target, strides.1), i + SIDE, j);
            turned(&whole(i, j)).iter().enumerate().for_each(|(col, line)| {
                to[i + (j + col) * strides.1..][..SIDE].copy_from_slice(line);
            });
        }
        false => one(to, i, j),
    });
}

/// Copies `from` to the view, element (i, j) from `i * strides.0 + j * strides.1`. Panics if `from` is too short.
pub fn scatter<T: Element>(from: &[T], strides: (usize, usize), view: &mut ViewMut<'_, T>) {
    let (rs, cs) = (view.row_stride(), view.col_stride());
    if cs == 1 && strides.1 == 1 {
        let (rows, cols) = (view.rows(), view.cols());
        return (0..rows).for_each(|i| line_mut(view, i).copy_from_slice(&from[i * strides.0..][..cols]));
    }
    let base = view.as_mut_ptr();
    let whole = |i: usize, j: usize| -> [[T; SIDE]; SIDE] {
        std::array::from_fn(|col| {
            let mut line = [T::ZERO; SIDE];
            line.copy_from_slice(&from[i + (j + col) * strides.1..][..SIDE]);
            line
        })
    };
    squares(view.rows(), view.cols(), cs == 1 && strides.0 == 1, |i, j, is_whole| match is_whole {
        true => {
            prefetch_next((base, rs), (from.as_ptr(), strides.1), i + SIDE, j);
            turned(&whole(i, j)).into_iter().enumerate().for_each(|(row, line)| {
                // SAFETY: SIDE rows from i on and SIDE columns from j on are inside the view, whose rows are contiguous and which
                // is borrowed exclusively.
                unsafe { *base.add((i + row) * rs + j).cast::<[T; SIDE]>() = line };
            });
        }
        // SAFETY: (i, j) is inside the view, which is borrowed exclusively.
        false => unsafe { *base.add(i * rs + j * cs) = from[i * strides.0 + j * strides.1] },
    });
}

/// Rounds `from` to `view`. Returns the largest sum of the absolute values of a row, NaN if that of a row is. Panics if the
/// shapes differ or a row is not contiguous: a bug of the caller.
pub fn round_rows<T: LuElement>(from: View<'_, f64>, view: &mut ViewMut<'_, T>) -> f64 {
    let (rows, cols) = (from.rows(), from.cols());
    assert!((view.rows(), view.cols()) == (rows, cols), "views of one shape");
    assert!(from.col_stride() == 1 && view.col_stride() == 1, "contiguous rows");
    (0..rows).fold(0.0, |most: f64, i| {
        let sum = round_line(&from.data()[i * from.row_stride()..][..cols], line_mut(view, i));
        if sum > most || sum.is_nan() { sum } else { most }
    })
}

/// Asks for the cache lines of the next square down: its rows, and its columns on the other side. All are far apart, so no
/// processor predicts them; without this a copy waits for each, and takes up to twice as long.
#[inline(always)]
fn prefetch_next<T>(
    (rows, row_stride): (*const T, usize),
    (columns, column_stride): (*const T, usize),
    i: usize,
    j: usize,
) {
    for line in 0..SIDE {
        prefetch(rows.wrapping_add((i + line) * row_stride + j));
        prefetch(columns.wrapping_add(i + (j + line) * column_stride));
    }
}

/// The transposed square.
#[inline(always)]
fn turned<T: Element>(square: &[[T; SIDE]; SIDE]) -> [[T; SIDE]; SIDE] {
    std::array::from_fn(|i| std::array::from_fn(|j| square[j][i]))
}

/// Calls `each` for the place of every element; with `by_squares`, for that of every whole square of SIDE × SIDE instead, and
/// says so. Squares go down strips of rows, so that few pages are in use at a time.
#[inline(always)]
fn squares(rows: usize, cols: usize, by_squares: bool, mut each: impl FnMut(usize, usize, bool)) {
    for top in (0..rows).step_by(STRIP) {
        let end = rows.min(top + STRIP);
        for left in (0..cols).step_by(SIDE) {
            let right = cols.min(left + SIDE);
            let is_wide = by_squares && right - left == SIDE;
            for i in (top..end).step_by(SIDE) {
                let bottom = end.min(i + SIDE);
                if is_wide && bottom - i == SIDE {
                    each(i, left, true);
                } else {
                    (i..bottom).for_each(|i| (left..right).for_each(|j| each(i, j, false)));
                }
            }
        }
    }
}
