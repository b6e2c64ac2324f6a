//! Sixteen dot products with one vector side by side, on processors with AVX2.
//!
//! Place in the flow: [`super::inner`] calls this for columns that are contiguous along k, such as the rows of W in W x.
//!
//! Invariant: each sum is the chain of `inner`, one multiply-add after the other along k. So a vector register holds the same
//! step of several chains, and lines that are read along k are transposed in registers. That takes three shuffles for eight
//! f32, which still leaves four elements a cycle, where single chains manage one: memory is slower than that.
//!
//! Each pass takes a cache line of all sixteen lines: lines whose distance is a power of 2 share one set of the first-level
//! cache, and would evict each other before a second visit. Sixteen streams are more than the processor fetches ahead by
//! itself, and it stops at borders of pages, so each pass asks for the cache lines `AHEAD_BYTES` further on.
#![allow(unsafe_code)] // Intrinsics, and loads whose bounds were checked for the whole line.

use core::arch::x86_64::{
    __m256, __m256d, _MM_HINT_T0, _mm_prefetch, _mm256_broadcast_sd, _mm256_broadcast_ss, _mm256_fmadd_pd,
    _mm256_fmadd_ps, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_permute2f128_pd, _mm256_permute2f128_ps,
    _mm256_setzero_pd, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

/// Dot products side by side.
pub(super) const WIDE: usize = 16;

/// Distance of the cache lines that are fetched ahead: sixteen passes.
const AHEAD_BYTES: usize = 1024;

/// Fetches the cache lines that a later pass reads. An address behind the end of a line is never read.
#[inline(always)]
fn fetch_ahead<T>(lines: &[&[T]; WIDE], at: usize) {
    for line in lines {
        let later = line.as_ptr().wrapping_add(at).cast::<i8>().wrapping_add(AHEAD_BYTES);
        // SAFETY: the instruction exists on every x86-64, and takes any address: it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(later) };
    }
}

/// The chains of `a` with each line, from zero; all are equally long.
#[target_feature(enable = "avx2,fma")]
pub(super) fn f32s(a: &[f32], lines: [&[f32]; WIDE]) -> [f32; WIDE] {
    let len = a.len();
    assert!(lines.iter().all(|line| line.len() == len), "lines of one length");
    let mut sums = [_mm256_setzero_ps(); 2];
    let whole = len / WIDE * WIDE;
    for at in (0..whole).step_by(WIDE) {
        fetch_ahead(&lines, at);
        for (half, sum) in sums.iter_mut().enumerate() {
            for part in [at, at + 8] {
                // SAFETY: `part + 8 <= whole <= len`, the length of `a` and of every line.
                let columns = unsafe {
                    transposed_f32(core::array::from_fn(|w| {
                        _mm256_loadu_ps(lines[8 * half + w].as_ptr().add(part))
                    }))
                };
                for (column, x) in columns.into_iter().zip(&a[part..part + 8]) {
                    *sum = _mm256_fmadd_ps(column, _mm256_broadcast_ss(x), *sum);
                }
            }
        }
    }
    let mut all = [0.0; WIDE];
    for (sum, to) in sums.into_iter().zip(all.chunks_exact_mut(8)) {
        // SAFETY: `to` has eight elements.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), sum) };
    }
    for (sum, line) in all.iter_mut().zip(lines) {
        *sum = a[whole..].iter().zip(&line[whole..]).fold(*sum, |sum, (x, y)| x.mul_add(*y, sum));
    }
    all
}

/// The same for f64.
#[target_feature(enable = "avx2,fma")]
pub(super) fn f64s(a: &[f64], lines: [&[f64]; WIDE]) -> [f64; WIDE] {
    let len = a.len();
    assert!(lines.iter().all(|line| line.len() == len), "lines of one length");
    let mut sums = [_mm256_setzero_pd(); 4];
    let whole = len / 8 * 8;
    for at in (0..whole).step_by(8) {
        fetch_ahead(&lines, at);
        for (quarter, sum) in sums.iter_mut().enumerate() {
            for part in [at, at + 4] {
                // SAFETY: `part + 4 <= whole <= len`, the length of `a` and of every line.
                let columns = unsafe {
                    transposed_f64(core::array::from_fn(|w| {
                        _mm256_loadu_pd(lines[4 * quarter + w].as_ptr().add(part))
                    }))
                };
                for (column, x) in columns.into_iter().zip(&a[part..part + 4]) {
                    *sum = _mm256_fmadd_pd(column, _mm256_broadcast_sd(x), *sum);
                }
            }
        }
    }
    let mut all = [0.0; WIDE];
    for (sum, to) in sums.into_iter().zip(all.chunks_exact_mut(4)) {
        // SAFETY: `to` has four elements.
        unsafe { _mm256_storeu_pd(to.as_mut_ptr(), sum) };
    }
    for (sum, line) in all.iter_mut().zip(lines) {
        *sum = a[whole..].iter().zip(&line[whole..]).fold(*sum, |sum, (x, y)| x.mul_add(*y, sum));
    }
    all
}

/// Eight rows of eight as eight columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transposed_f32(rows: [__m256; 8]) -> [__m256; 8] {
    let pairs: [[__m256; 2]; 4] = core::array::from_fn(|i| {
        let [one, other] = [rows[2 * i], rows[2 * i + 1]];
        [_mm256_unpacklo_ps(one, other), _mm256_unpackhi_ps(one, other)]
    });
    // Of four rows, the columns c and c + 4, for c from 0 to 3.
    let fours: [[__m256; 4]; 2] = core::array::from_fn(|half| {
        let [[a, b], [c, d]] = [pairs[2 * half], pairs[2 * half + 1]];
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(a, c),
            _mm256_shuffle_ps::<0b11_10_11_10>(a, c),
            _mm256_shuffle_ps::<0b01_00_01_00>(b, d),
            _mm256_shuffle_ps::<0b11_10_11_10>(b, d),
        ]
    });
    core::array::from_fn(|column| {
        let [low, high] = [fours[0][column % 4], fours[1][column % 4]];
        match column < 4 {
            true => _mm256_permute2f128_ps::<0x20>(low, high),
            false => _mm256_permute2f128_ps::<0x31>(low, high),
        }
    })
}

/// Four rows of four as four columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transposed_f64(rows: [__m256d; 4]) -> [__m256d; 4] {
    let [a, b, c, d] = rows;
    let [low, high] = [_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)];
    let [low_below, high_below] = [_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d)];
    [
        _mm256_permute2f128_pd::<0x20>(low, low_below),
        _mm256_permute2f128_pd::<0x20>(high, high_below),
        _mm256_permute2f128_pd::<0x31>(low, low_below),
        _mm256_permute2f128_pd::<0x31>(high, high_below),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_sums_have_the_bits_of_single_chains() {
        if !super::super::is_fused() {
            return;
        }
        for len in (0..70).chain([511, 512]) {
            let number = |at: usize| ((at * 7919 + 13) % 1009) as f64 / 504.5 - 1.0;
            let a: Vec<f64> = (0..len).map(|d| number(d + 5)).collect();
            let rows: Vec<Vec<f64>> =
                (0..WIDE).map(|w| (0..len).map(|d| number(w * 517 + d)).collect()).collect();
            let chain = |row: &Vec<f64>| a.iter().zip(row).fold(0.0, |sum, (x, y)| f64::mul_add(*x, *y, sum));
            let wanted: Vec<f64> = rows.iter().map(chain).collect();
            // SAFETY: `is_fused` has found both features.
            let got = unsafe { f64s(&a, core::array::from_fn(|w| &rows[w][..])) };
            assert_eq!(got.to_vec(), wanted, "{len}");
            let a: Vec<f32> = a.iter().map(|x| *x as f32).collect();
            let rows: Vec<Vec<f32>> =
                rows.iter().map(|row| row.iter().map(|x| *x as f32).collect()).collect();
            let chain = |row: &Vec<f32>| a.iter().zip(row).fold(0.0, |sum, (x, y)| f32::mul_add(*x, *y, sum));
            let wanted: Vec<f32> = rows.iter().map(chain).collect();
            // SAFETY: as above.
            let got = unsafe { f32s(&a, core::array::from_fn(|w| &rows[w][..])) };
            assert_eq!(got.to_vec(), wanted, "{len}");
        }
    }
}
