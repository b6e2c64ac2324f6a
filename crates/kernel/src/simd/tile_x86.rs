//! Register tiles for x86-64 with AVX2 and AVX-512.
//!
//! Invariant: tile sizes fill the registers without spilling: 16 of 32 bytes, 32 of 64 bytes, less those
//! for a group of B and one broadcast element of A.

use core::arch::x86_64::*;

use super::RegisterTile;

/// Whether the AVX2 tiles may run.
pub(in crate::simd) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Whether the AVX-512 tiles may run (DQ has the 64-bit multiplication).
pub(in crate::simd) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq")
}

/// A tile whose lanes the machine multiplies as they are: two vectors wide.
macro_rules! direct {
    ($name:ident, $t:ty, $vec:ty, $lanes:expr, $mr:expr, $features:expr,
     $load:ident, $store:ident, $zero:ident, $splat:ident, $mul:ident, $add:ident) => {
        pub(in crate::simd) struct $name;

        impl $name {
            #[target_feature(enable = $features)]
            fn run(k: usize, a: *const $t, b: *const $t, sums: *mut $t) {
                let mut acc = [[$zero(); 2]; $mr];
                for d in 0..k {
                    // SAFETY: the caller of `multiply` promises k groups of two vectors of B.
                    let (b0, b1) = unsafe {
                        let group = b.add(d * 2 * $lanes);
                        ($load(group.cast()), $load(group.add($lanes).cast()))
                    };
                    for (i, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: and k groups of `MR` elements of A.
                        let a = $splat(unsafe { *a.add(d * $mr + i) });
                        acc[0] = $add(acc[0], $mul(a, b0));
                        acc[1] = $add(acc[1], $mul(a, b1));
                    }
                }
                for (i, acc) in acc.iter().enumerate() {
                    // SAFETY: and room for `MR` rows of two vectors.
                    unsafe {
                        let row = sums.add(i * 2 * $lanes);
                        $store(row.cast(), acc[0]);
                        $store(row.add($lanes).cast(), acc[1]);
                    }
                }
            }
        }

        impl RegisterTile for $name {
            type T = $t;
            type Word = $t;
            type Sums = [$t; $mr * 2 * $lanes];
            const WORDS: usize = 1;
            const MR: usize = $mr;
            const NR: usize = 2 * $lanes;

            fn sums() -> Self::Sums {
                [0; $mr * 2 * $lanes]
            }

            #[inline(always)]
            fn put(group: &mut [$t], _: usize, i: usize, x: $t) {
                group[i] = x;
            }

            unsafe fn multiply(k: usize, a: *const $t, b: *const $t, sums: *mut $t) {
                // SAFETY: the caller promises the memory and the instructions.
                unsafe { Self::run(k, a, b, sums) }
            }
        }
    };
}

direct!(
    I32Avx2,
    i32,
    __m256i,
    8,
    6,
    "avx2",
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_setzero_si256,
    _mm256_set1_epi32,
    _mm256_mullo_epi32,
    _mm256_add_epi32
);
direct!(
    I32Avx512,
    i32,
    __m512i,
    16,
    12,
    "avx512f",
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_setzero_si512,
    _mm512_set1_epi32,
    _mm512_mullo_epi32,
    _mm512_add_epi32
);
direct!(
    I64Avx512,
    i64,
    __m512i,
    8,
    12,
    "avx512f,avx512dq",
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_setzero_si512,
    _mm512_set1_epi64,
    _mm512_mullo_epi64,
    _mm512_add_epi64
);

/// `i64` by halves, as [`super::Halves`]: AVX2 has no 64-bit multiplication. Eight columns: the products of
/// the low halves of even and of odd columns in a register each, the crossed products in a third.
pub(in crate::simd) struct I64Avx2;

/// Rows of the tile below: with a fourth, the sums no longer stay in registers.
const ROWS: usize = 3;

impl I64Avx2 {
    #[target_feature(enable = "avx2")]
    fn run(k: usize, a: *const u32, b: *const u32, sums: *mut i64) {
        let mut acc = [[_mm256_setzero_si256(); 3]; ROWS];
        for d in 0..k {
            // SAFETY: the caller of `multiply` promises k groups of 8 low and 8 high halves of B.
            let (low, high) = unsafe {
                let group = b.add(d * 16);
                (_mm256_loadu_si256(group.cast()), _mm256_loadu_si256(group.add(8).cast()))
            };
            let odd = _mm256_srli_epi64::<32>(low);
            for (i, [even_sum, odd_sum, cross_sum]) in acc.iter_mut().enumerate() {
                // SAFETY: and k groups of `ROWS` low and `ROWS` high halves of A.
                let (a_low, a_high) = unsafe {
                    let group = a.add(d * 2 * ROWS + i).cast::<i32>();
                    (_mm256_set1_epi32(*group), _mm256_set1_epi32(*group.add(ROWS)))
                };
                *even_sum = _mm256_add_epi64(*even_sum, _mm256_mul_epu32(a_low, low));
                *odd_sum = _mm256_add_epi64(*odd_sum, _mm256_mul_epu32(a_low, odd));
                *cross_sum = _mm256_add_epi32(*cross_sum, _mm256_mullo_epi32(a_low, high));
                *cross_sum = _mm256_add_epi32(*cross_sum, _mm256_mullo_epi32(a_high, low));
            }
        }
        for (i, &[even, odd, cross]) in acc.iter().enumerate() {
            // Crossed products count 2^32 times: the odd columns' are in the upper halves already.
            let even = _mm256_add_epi64(even, _mm256_slli_epi64::<32>(cross));
            let upper = _mm256_andnot_si256(_mm256_set1_epi64x(0xffff_ffff), cross);
            let odd = _mm256_add_epi64(odd, upper);
            let (first, second) = (_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd));
            // SAFETY: and room for `ROWS` rows of 8 sums.
            unsafe {
                let row = sums.add(i * 8);
                _mm256_storeu_si256(row.cast(), _mm256_permute2x128_si256::<0x20>(first, second));
                _mm256_storeu_si256(row.add(4).cast(), _mm256_permute2x128_si256::<0x31>(first, second));
            }
        }
    }
}

impl RegisterTile for I64Avx2 {
    type T = i64;
    type Word = u32;
    type Sums = [i64; ROWS * 8];
    const WORDS: usize = 2;
    const MR: usize = ROWS;
    const NR: usize = 8;

    fn sums() -> Self::Sums {
        [0; ROWS * 8]
    }

    #[inline(always)]
    fn put(group: &mut [u32], width: usize, i: usize, x: i64) {
        group[i] = x as u32;
        group[width + i] = (x >> 32) as u32;
    }

    unsafe fn multiply(k: usize, a: *const u32, b: *const u32, sums: *mut i64) {
        // SAFETY: the caller promises the memory and the instructions.
        unsafe { Self::run(k, a, b, sums) }
    }
}
