//! Register tiles of floats for x86-64 with AVX2 or AVX-512, both with fused multiply-add.
//!
//! Place in the flow: [`super::packed`] packs blocks of A and B into panels and calls a tile for each pair.
//!
//! Invariants: each sum is one chain of fused multiply-adds along k, from zero. The sums fill the registers without
//! spilling: 12 of 16, or 24 of 32; two more hold a group of B, one a broadcast element of A.
//!
//! A tile asks for its part of C before it needs it: the rows of C are far apart, so no processor predicts them, and without
//! that it waits for each of them at the end. With AVX2 it asks for all rows before its first sum. With AVX-512 that would keep
//! the operands waiting behind C: it asks for a row at a time, between sums, and for its operands some groups ahead, because a
//! panel of A and one of B do not fit a first-level cache together.
//!
//! Deliberately absent: edges; `packed` pads them with zeros and gives a small C of its own.
#![allow(unsafe_code)] // Panels and C are reached through pointers, and vector instructions need a promise.

use core::arch::x86_64::*;

use bramble_matrix::Element;

use crate::lu::SMALL_TRIANGLE;

/// Groups of B that a tile with AVX-512 asks for ahead of the sums; and twice as many of A, whose groups are smaller.
const AHEAD: usize = 12;

/// A register tile of `MR` rows and `NR` columns.
pub(super) trait FloatTile {
    /// Element of the product.
    type T: Element;
    /// Rows.
    const MR: usize;
    /// Columns: two vectors.
    const NR: usize;

    /// Whether this machine has the instructions.
    fn is_here() -> bool;

    /// Writes `c[i][j] = alpha * Σ a[p][i] * b[p][j]`, plus the old `c[i][j]` if `read`, over k groups.
    ///
    /// # Safety
    /// `a` holds k groups of `MR` elements, `b` k groups of `NR`; `c` has `MR` rows of `NR` consecutive elements at this
    /// distance; and `is_here`.
    unsafe fn multiply(
        k: usize,
        panels: (*const Self::T, *const Self::T),
        alpha: Self::T,
        read: bool,
        c: (*mut Self::T, usize),
    );

    /// Solves with a unit lower triangle of [`SMALL_TRIANGLE`] rows, by columns, for `NR` columns of which `x` has the rows.
    /// Products are rounded before they are subtracted.
    ///
    /// # Safety
    /// `t` has `SMALL_TRIANGLE * SMALL_TRIANGLE` elements, `x` `SMALL_TRIANGLE * NR`; and `is_here`.
    unsafe fn substitute(t: *const Self::T, x: *mut Self::T);
}

/// f32 with AVX2.
pub(super) struct F32Avx2;
/// f64 with AVX2.
pub(super) struct F64Avx2;
/// f32 with AVX-512.
pub(super) struct F32Avx512;
/// f64 with AVX-512.
pub(super) struct F64Avx512;

/// Subtracts from each line the multiples of these lines before it, whose factors are columns of a triangle. Written out, since
/// the compiler keeps lines in registers only if it knows every index.
macro_rules! eliminate {
    (($splat:ident, $mul:ident, $sub:ident), $t:ident, $lines:ident: $($j:literal)*) => {
        $(for i in $j + 1..SMALL_TRIANGLE {
            // SAFETY: the caller promises SMALL_TRIANGLE columns of SMALL_TRIANGLE elements.
            let factor = $splat(unsafe { *$t.add($j * SMALL_TRIANGLE + i) });
            $lines[i] = $sub($lines[i], $mul(factor, $lines[$j]));
        })*
    };
}

macro_rules! float_tile {
    ($name:ident, $t:ty, $lanes:expr, $mr:expr, $ahead:expr, $features:expr, $is_here:expr,
     $load:ident, $store:ident, $zero:ident, $splat:ident, $mul:ident, $sub:ident, $fma:ident) => {
        impl $name {
            #[target_feature(enable = $features)]
            fn run(
                k: usize,
                (a, b): (*const $t, *const $t),
                alpha: $t,
                read: bool,
                (c, stride): (*mut $t, usize),
            ) {
                let mut acc = [[$zero(); 2]; $mr];
                // Groups of k for each row of C: three quarters of them all, or none.
                let part = if $ahead > 0 { k / ($mr + $mr / 3) } else { 0 };
                let mut d = 0;
                for row in 0..=$mr {
                    let mut end = k;
                    if row < $mr {
                        let row_of_c = c.wrapping_add(row * stride);
                        _mm_prefetch::<_MM_HINT_T0>(row_of_c.cast());
                        _mm_prefetch::<_MM_HINT_T0>(row_of_c.wrapping_add($lanes).cast());
                        _mm_prefetch::<_MM_HINT_T0>(row_of_c.wrapping_add(2 * $lanes - 1).cast());
                        end = (row + 1) * part;
                    }
                    while d < end {
                        if $ahead > 0 {
                            let group = b.wrapping_add((d + $ahead) * 2 * $lanes);
                            _mm_prefetch::<_MM_HINT_T0>(group.cast());
                            _mm_prefetch::<_MM_HINT_T0>(group.wrapping_add($lanes).cast());
                            _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add((d + 2 * $ahead) * $mr).cast());
                        }
                        // SAFETY: the caller of `multiply` promises k groups of two vectors of B.
                        let (b0, b1) = unsafe {
                            let group = b.add(d * 2 * $lanes);
                            ($load(group), $load(group.add($lanes)))
                        };
                        for (i, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: and k groups of `MR` elements of A.
                            let a = $splat(unsafe { *a.add(d * $mr + i) });
                            acc[0] = $fma(a, b0, acc[0]);
                            acc[1] = $fma(a, b1, acc[1]);
                        }
                        d += 1;
                    }
                }
                let alpha = $splat(alpha);
                for (i, acc) in acc.iter().enumerate() {
                    // SAFETY: and `MR` rows of two vectors of C.
                    unsafe {
                        let row = c.add(i * stride);
                        for (half, &sum) in acc.iter().enumerate() {
                            let to = row.add(half * $lanes);
                            $store(to, if read { $fma(alpha, sum, $load(to)) } else { $mul(alpha, sum) });
                        }
                    }
                }
            }
        }

        impl $name {
            #[target_feature(enable = $features)]
            fn solve(t: *const $t, x: *mut $t) {
                for half in 0..2 {
                    // SAFETY: the caller of `substitute` promises SMALL_TRIANGLE rows of two vectors.
                    let row = |i: usize| unsafe { x.add((2 * i + half) * $lanes) };
                    let mut lines = [$zero(); SMALL_TRIANGLE];
                    for i in 0..SMALL_TRIANGLE {
                        // SAFETY: as above.
                        lines[i] = unsafe { $load(row(i)) };
                    }
                    eliminate!(($splat, $mul, $sub), t, lines: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
                    for (i, line) in lines.iter().enumerate() {
                        // SAFETY: as above.
                        unsafe { $store(row(i), *line) };
                    }
                }
            }
        }

        impl FloatTile for $name {
            type T = $t;
            const MR: usize = $mr;
            const NR: usize = 2 * $lanes;

            fn is_here() -> bool {
                $is_here
            }

            unsafe fn multiply(
                k: usize,
                panels: (*const $t, *const $t),
                alpha: $t,
                read: bool,
                c: (*mut $t, usize),
            ) {
                // SAFETY: the caller promises the memory and the instructions.
                unsafe { Self::run(k, panels, alpha, read, c) }
            }

            unsafe fn substitute(t: *const $t, x: *mut $t) {
                // SAFETY: the caller promises the memory and the instructions.
                unsafe { Self::solve(t, x) }
            }
        }
    };
}

float_tile!(
    F32Avx2,
    f32,
    8,
    6,
    0,
    "avx2,fma",
    super::is_fused(),
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_mul_ps,
    _mm256_sub_ps,
    _mm256_fmadd_ps
);
float_tile!(
    F64Avx2,
    f64,
    4,
    6,
    0,
    "avx2,fma",
    super::is_fused(),
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_mul_pd,
    _mm256_sub_pd,
    _mm256_fmadd_pd
);
float_tile!(
    F32Avx512,
    f32,
    16,
    12,
    AHEAD,
    "avx512f",
    is_x86_feature_detected!("avx512f"),
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_mul_ps,
    _mm512_sub_ps,
    _mm512_fmadd_ps
);
float_tile!(
    F64Avx512,
    f64,
    8,
    12,
    AHEAD,
    "avx512f",
    is_x86_feature_detected!("avx512f"),
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_mul_pd,
    _mm512_sub_pd,
    _mm512_fmadd_pd
);
