//! Floating-point products, by `packed` or the `gemm` crate, arranged so that bits do not depend on the machine's
//! caches or on where a product was cut.
//!
//! Place in the flow: called by [`super::Simd`].
//!
//! Invariant: with `C₀ = beta * C`, element (i, j) is `C₀` plus, slice of k after slice of k, `alpha * s`,
//! where s is the chain `s = fma(a[i,p], b[p,j], s)` over the slice, from zero. Machines without fused
//! multiply-add round the product first; that is the only difference between machines.
//!
//! Left alone, `gemm` would take its slices of k from the detected cache sizes (two machines of one class
//! would differ), and sum in other orders where m or n is 1, where m * n <= 256, and where k <= 2 (then
//! the cut into tiles would show). So k is sliced here, and those shapes are given to it with strides for
//! which it has no short cut.
#![allow(unsafe_code)] // `gemm` takes pointers and strides.

use std::ops::Range;

use bramble_matrix::{Element, View, ViewMut};

use super::inner::{self, Fused};
use crate::Product;
use crate::parts::{part, part_mut, pieces, scale};
use crate::reference;

/// Depth of a slice of k: the least that `gemm` itself would take, so it never cuts a slice again.
pub(super) const DEPTH: usize = 512;
/// Rows and columns of C per call: bounds the panel that `gemm` packs to 512 × 2048 elements.
const SIDE: usize = 2048;
/// Columns at a time where C is a single row.
const LINE: usize = 512;
/// `gemm` has a summation order of its own for fewer elements of C than this, if both operands are
/// contiguous along k.
const SMALL: usize = 256;

/// The packed panel (8 MiB of f64), the packed tiles of the other operand (one second-level cache, taken
/// as 4 MiB), and our own copies.
pub(super) const SCRATCH_BYTES: usize = (8 + 4 + 1) << 20;

/// Does a product of floats.
pub(super) fn multiply<T: Fused>(product: Product<'_, T>) {
    let Some(mut p) = product.settle() else { return };
    if p.k() <= 2 {
        return reference::multiply(p);
    }
    if p.beta != T::ZERO {
        scale(&mut p.c, p.beta);
        p.beta = T::ONE;
    }
    // One row and one column are the same thing through a mirror.
    let mut p = if p.n() == 1 { p.transposed() } else { p };
    if p.m() == 1 {
        return if along_depth(&p) { inner::multiply(p) } else { line(p) };
    }
    let mut read = p.beta != T::ZERO;
    for depth in slices(p.k()) {
        let a = part(p.a, 0..p.a.rows(), depth.clone());
        let b = part(p.b, depth, 0..p.b.cols());
        if !is_packed(p.alpha, a, b, read, &mut p.c) {
            in_pieces(p.alpha, a, b, read, &mut p.c);
        }
        read = true;
    }
}

/// One slice of k by `packed`, which judges by all of C whether a cache holds it; false where that leaves it to the library.
fn is_packed<T: Fused>(alpha: T, a: View<'_, T>, b: View<'_, T>, read: bool, c: &mut ViewMut<'_, T>) -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::packed::multiply(alpha, a, b, read, c);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (alpha, a, b, read, c);
        false
    }
}

/// One slice of k by the library, in pieces of C that bound the panel that it packs.
fn in_pieces<T: Fused>(alpha: T, a: View<'_, T>, b: View<'_, T>, read: bool, c: &mut ViewMut<'_, T>) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    for rows in pieces_from_2(m, SIDE) {
        for cols in pieces_from_2(n, SIDE) {
            let mut c = part_mut(c, rows.clone(), cols.clone());
            let (a, b) = (part(a, rows.clone(), 0..k), part(b, 0..k, cols.clone()));
            block(alpha, a, b, read, &mut c);
        }
    }
}

/// Whether a product with one row has both operands contiguous along k.
fn along_depth<T: Element>(p: &Product<'_, T>) -> bool {
    p.a.col_stride() == 1 && p.b.row_stride() == 1
}

/// Pieces of `0..len`, each of 2 to `step + 1`, for `len >= 2`: a piece of 1 would take another way.
fn pieces_from_2(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let lonely = len % step == 1;
    pieces(if lonely { len - 1 } else { len }, step).map(move |piece| {
        let end = if lonely && piece.end == len - 1 { len } else { piece.end };
        piece.start..end
    })
}

/// Slices of `0..k` of 3 to 512 for `k >= 3`, a function of k alone. Where a remainder of 1 or 2 would be
/// left, the slice before it is shorter.
pub(super) fn slices(k: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = k - start;
        let len = if rest == DEPTH + 1 || rest == DEPTH + 2 { DEPTH / 2 } else { rest.min(DEPTH) };
        start += len;
        (len > 0).then(|| start - len..start)
    })
}

/// `c (+)= alpha * a * b` for one slice of k, and two rows and columns or more.
fn block<T: Fused>(alpha: T, a: View<'_, T>, b: View<'_, T>, read: bool, c: &mut ViewMut<'_, T>) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    let short_cut = m * n <= SMALL && a.col_stride() == 1 && b.row_stride() == 1;
    if !short_cut {
        return library(alpha, a, b, read, c);
    }
    // A copy of the smaller operand (at most 16 lines, as m * n <= 256), contiguous across k instead.
    let (lines, width) = if m <= n { (a, m) } else { (b.transposed(), n) };
    let mut copy = [T::ZERO; 16 * DEPTH];
    for d in 0..k {
        for i in 0..width {
            copy[d * width + i] = lines.at(i, d);
        }
    }
    let copy = View::new(&copy[..k * width], width, k, 1, width);
    let (a, b) = if m <= n { (copy, b) } else { (a, copy.transposed()) };
    library(alpha, a, b, read, c);
}

/// A product with one row. C passes through a buffer in which every second element is idle, and so does
/// the row of A: `gemm` then treats it as any other product.
fn line<T: Fused>(mut p: Product<'_, T>) {
    let mut row_a = [T::ZERO; 2 * DEPTH];
    let mut row_c = [T::ZERO; 2 * LINE];
    for cols in pieces(p.n(), LINE) {
        let mut read = p.beta != T::ZERO;
        if read {
            cols.clone().for_each(|j| row_c[2 * (j - cols.start)] = *p.c.at_mut(0, j));
        }
        for depth in slices(p.k()) {
            depth.clone().for_each(|d| row_a[2 * (d - depth.start)] = p.a.at(0, d));
            let a = View::new(&row_a, 1, depth.len(), 2 * DEPTH, 2);
            let b = part(p.b, depth, cols.clone());
            let mut c = ViewMut::new(&mut row_c, 1, cols.len(), 2 * LINE, 2);
            library(p.alpha, a, b, read, &mut c);
            read = true;
        }
        cols.clone().for_each(|j| *p.c.at_mut(0, j) = row_c[2 * (j - cols.start)]);
    }
}

/// `c = alpha * a * b`, plus c if `read`, for one slice of k, by the library.
pub(super) fn library<T: Fused>(
    alpha: T,
    a: View<'_, T>,
    b: View<'_, T>,
    read: bool,
    c: &mut ViewMut<'_, T>,
) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    assert!(T::DTYPE.is_float() && b.rows() == k && c.rows() == m && c.cols() == n);
    // The library is faster where the columns of C are contiguous: else it gets the transposed product.
    if c.col_stride() < c.row_stride() {
        return library_by_columns(
            alpha,
            b.transposed(),
            a.transposed(),
            read,
            &mut c.reborrow().transposed(),
        );
    }
    library_by_columns(alpha, a, b, read, c);
}

/// The same for a C whose elements in a column lie as near to each other as those in a row, or nearer.
fn library_by_columns<T: Fused>(
    alpha: T,
    a: View<'_, T>,
    b: View<'_, T>,
    read: bool,
    c: &mut ViewMut<'_, T>,
) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    let (c_cs, c_rs) = (c.col_stride() as isize, c.row_stride() as isize);
    // SAFETY: the views hold m×k, k×n and m×n elements at these strides, as `library` has checked and as the views'
    // own invariants say; c is ours alone. The crate's alpha scales its destination and its beta the product.
    unsafe {
        T::library()(
            m,
            n,
            k,
            c.as_mut_ptr(),
            c_cs,
            c_rs,
            read,
            a.as_ptr(),
            a.col_stride() as isize,
            a.row_stride() as isize,
            b.as_ptr(),
            b.col_stride() as isize,
            b.row_stride() as isize,
            if read { T::ONE } else { T::ZERO },
            alpha,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_k_once_and_none_is_tiny() {
        for k in 3..3000 {
            let mut end = 0;
            for slice in slices(k) {
                assert_eq!(slice.start, end);
                assert!((3..=DEPTH).contains(&slice.len()), "{k}: {slice:?}");
                end = slice.end;
            }
            assert_eq!(end, k);
        }
    }

    #[test]
    fn pieces_cover_the_length_once_and_none_is_single() {
        for len in 2..60 {
            let mut end = 0;
            for piece in pieces_from_2(len, 8) {
                assert_eq!(piece.start, end);
                assert!((2..=9).contains(&piece.len()), "{len}: {piece:?}");
                end = piece.end;
            }
            assert_eq!(end, len);
        }
    }
}
