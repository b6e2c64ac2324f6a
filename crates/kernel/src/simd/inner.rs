//! Products of one row with a matrix whose columns are contiguous along k: dot products, and matrix times vector.
//!
//! Place in the flow: called by [`super::float`] where C is a single row (or, through a mirror, a single column).
//!
//! Invariant: the bits that `float` specifies: one chain of multiply-adds from zero for each slice of k, and the
//! slices' sums added to C in order. A single chain waits for the latency of each addition, so several chains run
//! side by side: those of neighbouring columns, or with few columns those of neighbouring slices. This choice
//! changes no bit.
//!
//! On x86-64 sixteen columns at a time go through vector registers (`inner_x86`).
//!
//! Deliberately absent: a vector along one chain, which would change the order of summation.
#![allow(unsafe_code)] // Fused multiply-add is an instruction that the machine must be known to have.

use bramble_matrix::{Element, View};

use super::float::slices;
#[cfg(target_arch = "x86_64")]
use super::inner_x86::WIDE;
#[cfg(target_arch = "x86_64")]
use super::tile_float_x86::{self, FloatTile};
use crate::Product;

/// Chains side by side: two multiply-adds a cycle at a latency of four cycles.
const CHAINS: usize = 8;

/// `gemm_basic` of the crates `gemm-f32` and `gemm-f64`: m, n, k; C and its strides (from column to column, from row to row);
/// whether C is read; A, its strides; B, its strides; the factor of C; the factor of the product; three conjugations; threads.
#[rustfmt::skip]
pub(super) type LibraryProduct<T> = unsafe fn(
    usize, usize, usize, *mut T, isize, isize, bool, *const T, isize, isize, *const T, isize, isize, T, T, bool, bool, bool,
    gemm_common::Parallelism,
);

/// A float that can be multiplied and added with one rounding.
pub(super) trait Fused: Element {
    /// The tile for AVX-512.
    #[cfg(target_arch = "x86_64")]
    type Tile512: FloatTile<T = Self>;
    /// The tile for AVX2.
    #[cfg(target_arch = "x86_64")]
    type Tile256: FloatTile<T = Self>;

    /// `self * by + to`, rounded once.
    fn fused(self, by: Self, to: Self) -> Self;

    /// The library's product for this processor.
    fn library() -> LibraryProduct<Self>;

    /// The chains of `a` with sixteen lines.
    ///
    /// # Safety
    ///
    /// The processor has AVX2 and fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    unsafe fn sixteen(a: &[Self], lines: [&[Self]; WIDE]) -> [Self; WIDE];
}

impl Fused for f32 {
    #[cfg(target_arch = "x86_64")]
    type Tile512 = tile_float_x86::F32Avx512;
    #[cfg(target_arch = "x86_64")]
    type Tile256 = tile_float_x86::F32Avx2;

    #[inline(always)]
    fn fused(self, by: Self, to: Self) -> Self {
        self.mul_add(by, to)
    }

    fn library() -> LibraryProduct<Self> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sixteen(a: &[Self], lines: [&[Self]; WIDE]) -> [Self; WIDE] {
        super::inner_x86::f32s(a, lines)
    }
}

impl Fused for f64 {
    #[cfg(target_arch = "x86_64")]
    type Tile512 = tile_float_x86::F64Avx512;
    #[cfg(target_arch = "x86_64")]
    type Tile256 = tile_float_x86::F64Avx2;

    #[inline(always)]
    fn fused(self, by: Self, to: Self) -> Self {
        self.mul_add(by, to)
    }

    fn library() -> LibraryProduct<Self> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sixteen(a: &[Self], lines: [&[Self]; WIDE]) -> [Self; WIDE] {
        super::inner_x86::f64s(a, lines)
    }
}

/// Does a product whose C is one row, with A's row and B's columns contiguous along k. C has been scaled by beta, which
/// is then 0 or 1.
pub(super) fn multiply<T: Fused>(p: Product<'_, T>) {
    assert!(
        p.m() == 1 && p.b.row_stride() == 1 && p.a.col_stride() == 1,
        "lines that are contiguous along k"
    );
    #[cfg(target_arch = "x86_64")]
    {
        if super::is_fused() {
            // SAFETY: `is_fused` has just found both features.
            return unsafe { fused_x86(p) };
        }
        run::<T, false>(p, 0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    if super::is_fused() { run::<T, true>(p, 0) } else { run::<T, false>(p, 0) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused_x86<T: Fused>(mut p: Product<'_, T>) {
    let (n, k) = (p.n(), p.k());
    let a = &p.a.data()[..k];
    let wide = n / WIDE * WIDE;
    for first in (0..wide).step_by(WIDE) {
        let columns: [&[T]; WIDE] = std::array::from_fn(|w| column(p.b, first + w));
        let mut sums = Sums::<T, true> { alpha: p.alpha, reads: p.beta != T::ZERO };
        for depth in slices(k) {
            // SAFETY: this function has both features.
            let made = unsafe { T::sixteen(&a[depth.clone()], columns.map(|c| &c[depth.clone()])) };
            for (w, sum) in made.into_iter().enumerate() {
                sums.add(sum, p.c.at_mut(0, first + w));
            }
            sums.reads = true;
        }
    }
    run::<T, true>(p, wide);
}

/// The columns from `start` on.
#[inline(always)]
fn run<T: Fused, const FUSED: bool>(mut p: Product<'_, T>, start: usize) {
    let (n, k) = (p.n(), p.k());
    let reads = p.beta != T::ZERO;
    let a = &p.a.data()[..k];
    let alongside = start + (n - start) / CHAINS * CHAINS;
    for first in (start..alongside).step_by(CHAINS) {
        let columns: [&[T]; CHAINS] = std::array::from_fn(|w| column(p.b, first + w));
        let mut sums = Sums::<T, FUSED> { alpha: p.alpha, reads };
        for depth in slices(k) {
            let made = chains::<T, FUSED>([&a[depth.clone()]; CHAINS], columns.map(|c| &c[depth.clone()]));
            for (w, sum) in made.into_iter().enumerate() {
                sums.add(sum, p.c.at_mut(0, first + w));
            }
            sums.reads = true;
        }
    }
    for j in alongside..n {
        let column = column(p.b, j);
        let mut sums = Sums::<T, FUSED> { alpha: p.alpha, reads };
        let mut open = slices(k).peekable();
        while let Some(depth) = open.next() {
            let len = depth.len();
            let mut group: [std::ops::Range<usize>; CHAINS] = std::array::from_fn(|_| 0..0);
            group[0] = depth;
            let mut count = 1;
            // All of one length: the slices at the end of k may be shorter, and are computed one by one.
            while count < CHAINS
                && let Some(next) = open.next_if(|next| next.len() == len)
            {
                group[count] = next;
                count += 1;
            }
            if count == CHAINS {
                let (left, right) = (lines(a, &group), lines(column, &group));
                for sum in chains::<T, FUSED>(left, right) {
                    sums.add(sum, p.c.at_mut(0, j));
                    sums.reads = true;
                }
            } else {
                for depth in group.into_iter().take(count) {
                    let sum = chain::<T, FUSED>(&a[depth.clone()], &column[depth]);
                    sums.add(sum, p.c.at_mut(0, j));
                    sums.reads = true;
                }
            }
        }
    }
}

/// The contiguous elements of column `j`.
#[inline(always)]
fn column<'a, T: Copy>(b: View<'a, T>, j: usize) -> &'a [T] {
    &b.data()[j * b.col_stride()..][..b.rows()]
}

/// How sums are added to C.
struct Sums<T, const FUSED: bool> {
    alpha: T,
    /// Whether C has a value to add to.
    reads: bool,
}

impl<T: Fused, const FUSED: bool> Sums<T, FUSED> {
    #[inline(always)]
    fn add(&self, sum: T, c: &mut T) {
        *c = if self.reads { add::<T, FUSED>(self.alpha, sum, *c) } else { self.alpha.times(sum) };
    }
}

#[inline(always)]
fn add<T: Fused, const FUSED: bool>(a: T, b: T, to: T) -> T {
    if FUSED { a.fused(b, to) } else { a.times(b).plus(to) }
}

/// Parts of a line.
#[inline(always)]
fn lines<'a, T>(line: &'a [T], parts: &[std::ops::Range<usize>; CHAINS]) -> [&'a [T]; CHAINS] {
    std::array::from_fn(|w| &line[parts[w].clone()])
}

/// The sums of products of lines that are equally long, each from zero.
#[inline(always)]
fn chains<T: Fused, const FUSED: bool>(a: [&[T]; CHAINS], b: [&[T]; CHAINS]) -> [T; CHAINS] {
    let len = a[0].len();
    let (a, b) = (a.map(|line| &line[..len]), b.map(|line| &line[..len]));
    let mut sums = [T::ZERO; CHAINS];
    for d in 0..len {
        for w in 0..CHAINS {
            sums[w] = add::<T, FUSED>(a[w][d], b[w][d], sums[w]);
        }
    }
    sums
}

#[inline(always)]
fn chain<T: Fused, const FUSED: bool>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::ZERO, |sum, (a, b)| add::<T, FUSED>(*a, *b, sum))
}
