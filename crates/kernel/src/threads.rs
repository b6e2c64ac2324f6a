//! Threads of one call: a shared queue of items, and passes over matrices that threads share by rows.
//!
//! Place in the flow: below the kernels that may use more than the calling thread.
//!
//! Invariants: with one thread no thread is started, and the calling thread does everything; threads end with the
//! call; two threads never write to the same element.
#![allow(unsafe_code)] // Parts of C interleave: only pointers describe them.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bramble_matrix::{View, ViewMut};

use crate::parts::part;

/// Calls `work` with every item, on `threads` threads, including the calling one. Each takes the next item when it
/// has finished one.
pub(crate) fn share<I: Send>(threads: usize, items: Vec<I>, work: impl Fn(I) + Sync) {
    let helpers = threads.min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.into_iter().for_each(work);
    }
    let queue = Mutex::new(items.into_iter());
    // A panic of a thread ends the scope; the queue itself is never in an inconsistent state.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_threads(helpers, &|| std::iter::from_fn(next).for_each(&work));
}

/// Calls `work` on this thread and on `helpers` others at the same time; returns when all calls have. Not generic: the compiler
/// would make threads anew for each of the dozens of types and kernels that `share` is called with.
fn on_threads(helpers: usize, work: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        (0..helpers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

/// `0..len` in that many even parts, none of them empty.
pub fn even(len: usize, parts: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let parts = parts.min(len);
    (0..parts).map(move |at| len * at / parts..len * (at + 1) / parts)
}

/// The rectangles into which rows and columns cut a writable view, row by row. Panics if they overlap or are
/// outside.
pub fn grid_mut<'v, T>(
    mut view: ViewMut<'v, T>,
    rows: &[Range<usize>],
    cols: &[Range<usize>],
) -> Vec<ViewMut<'v, T>> {
    let apart = |spans: &[Range<usize>], len: usize| {
        spans.iter().all(|s| s.start <= s.end && s.end <= len)
            && spans.windows(2).all(|w| w[0].end <= w[1].start)
    };
    assert!(apart(rows, view.rows()) && apart(cols, view.cols()), "rectangles of a view lie apart in it");
    let (rs, cs) = (view.row_stride(), view.col_stride());
    let base = view.as_mut_ptr();
    let mut all = Vec::with_capacity(rows.len() * cols.len());
    for r in rows {
        for c in cols {
            let first = if r.is_empty() || c.is_empty() { 0 } else { r.start * rs + c.start * cs };
            // SAFETY: the rectangles are inside the view and share no element, as just checked; the view, which is
            // exclusive for 'v, is consumed by this call.
            all.push(unsafe { ViewMut::from_raw(base.add(first), r.len(), c.len(), rs, cs) });
        }
    }
    all
}

/// The four quarters of a view with an even number of rows and columns: upper left, upper right, lower left, lower right.
pub(crate) fn quarters_mut<T>(view: ViewMut<'_, T>) -> [ViewMut<'_, T>; 4] {
    let (rows, cols) = (view.rows(), view.cols());
    let halves = |len: usize| [0..len / 2, len / 2..len];
    let Ok(quarters) = grid_mut(view, &halves(rows), &halves(cols)).try_into() else {
        unreachable!("two by two are four");
    };
    quarters
}

/// The four quarters of a readable view.
pub(crate) fn quarters<T: Copy>(view: View<'_, T>) -> [View<'_, T>; 4] {
    let (mh, nh) = (view.rows() / 2, view.cols() / 2);
    let (m, n) = (2 * mh, 2 * nh);
    [part(view, 0..mh, 0..nh), part(view, 0..mh, nh..n), part(view, mh..m, 0..nh), part(view, mh..m, nh..n)]
}

/// Calls `work` with bands of rows of all these matrices, which have the same number of rows, on `threads` threads.
pub(crate) fn banded<T: Copy + Send + Sync, const W: usize, const R: usize>(
    threads: usize,
    written: [ViewMut<'_, T>; W],
    read: [View<'_, T>; R],
    work: impl Fn([ViewMut<'_, T>; W], [View<'_, T>; R]) + Sync,
) {
    share(threads, bands(threads.max(1), written, read), |(written, read)| work(written, read));
}

/// One band of rows: of each matrix to write, and of each to read.
type Band<'v, T, const W: usize, const R: usize> = ([ViewMut<'v, T>; W], [View<'v, T>; R]);

/// Matrices with the same number of rows, cut into as many bands of rows. Apart from `banded`, which the compiler makes for each
/// kind of work.
fn bands<'v, T: Copy, const W: usize, const R: usize>(
    number: usize,
    written: [ViewMut<'v, T>; W],
    read: [View<'v, T>; R],
) -> Vec<Band<'v, T, W, R>> {
    let rows = written[0].rows();
    assert!(written.iter().all(|v| v.rows() == rows) && read.iter().all(|v| v.rows() == rows));
    let spans: Vec<Range<usize>> = even(rows, number).collect();
    let mut split = written.map(|view| {
        let cols = 0..view.cols();
        grid_mut(view, &spans, std::slice::from_ref(&cols)).into_iter()
    });
    let band = |span: &Range<usize>| {
        let mine = split.each_mut().map(|views| {
            let Some(view) = views.next() else { unreachable!("a view for each band") };
            view
        });
        (mine, read.map(|view| part(view, span.clone(), 0..view.cols())))
    };
    spans.iter().map(band).collect()
}

/// Row `i` of a view with contiguous rows. Panics for other views.
pub(crate) fn line_mut<'v, T>(view: &'v mut ViewMut<'_, T>, i: usize) -> &'v mut [T] {
    assert!(i < view.rows() && (view.col_stride() == 1 || view.cols() <= 1));
    let (first, len) = (i * view.row_stride(), view.cols());
    // SAFETY: row i is inside the view, which is borrowed exclusively, and contiguous.
    unsafe { std::slice::from_raw_parts_mut(view.as_mut_ptr().add(if len == 0 { 0 } else { first }), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_taken_once_whatever_the_threads() {
        for threads in [1, 2, 5] {
            let seen: Vec<Mutex<u32>> = (0..17).map(|_| Mutex::new(0)).collect();
            share(threads, (0..17).collect(), |i: usize| *seen[i].lock().unwrap() += 1);
            assert!(seen.iter().all(|n| *n.lock().unwrap() == 1), "{threads}");
        }
    }

    #[test]
    fn even_parts_cover_a_length_once() {
        for (len, parts) in [(0, 3), (2, 5), (17, 4), (16, 4)] {
            let spans: Vec<_> = even(len, parts).collect();
            assert_eq!(spans.len(), parts.min(len));
            assert_eq!(spans.iter().map(Range::len).sum::<usize>(), len);
            assert!(spans.windows(2).all(|w| w[0].end == w[1].start));
        }
    }

    #[test]
    #[should_panic(expected = "lie apart")]
    fn rectangles_that_overlap_are_refused() {
        let mut data = [0u8; 12];
        grid_mut(ViewMut::row_major(&mut data, 3, 4), &[0..2, 1..3], &[0..2, 2..4]);
    }

    #[test]
    fn bands_are_of_the_same_rows() {
        let (a, mut c) = ([1, 2, 3, 4, 5, 6], [0; 6]);
        for threads in [1, 2, 7] {
            let (a, c) = (View::row_major(&a, 3, 2), ViewMut::row_major(&mut c, 3, 2));
            banded(threads, [c], [a], |[mut c], [a]| {
                for i in 0..c.rows() {
                    line_mut(&mut c, i).iter_mut().enumerate().for_each(|(j, x)| *x += a.at(i, j));
                }
            });
        }
        assert_eq!(c, [3, 6, 9, 12, 15, 18]);
    }
}
