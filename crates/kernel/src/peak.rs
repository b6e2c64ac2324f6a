//! The upper limit of one thread: multiply-adds in registers, without memory accesses.
//!
//! Place in the flow: reports compare a kernel's rate with it.
//!
//! Invariant: the loops use the same instructions as the fastest possible kernel here, so no kernel can exceed its
//! peak (except for clock changes between the measurements).
//!
//! Deliberately absent: memory bandwidth and matrix units.
#![allow(unsafe_code)] // Vector instructions need a promise that the machine has them.

use std::hint::black_box;
use std::time::Instant;

use bramble_matrix::{DType, Element};

/// Iterations of a register loop between two readings of the clock: some 50 µs.
const TURNS: u32 = 10_000;

/// A register loop: runs that number of iterations, and returns the number of operations.
type Spin = fn(u32) -> f64;

/// One thread's peak in Gflop/s (Gop/s for integers), measured in about 1 ms.
pub fn peak(dtype: DType) -> f64 {
    let spin = spinner(dtype);
    spin(TURNS / 10); // Wide vector units take some microseconds to wake.
    let best = (0..12)
        .map(|_| {
            let start = Instant::now();
            let operations = spin(TURNS);
            operations / start.elapsed().as_secs_f64().max(1e-9)
        })
        .fold(0.0, f64::max);
    best / 1e9
}

/// The loop for this machine.
fn spinner(dtype: DType) -> Spin {
    #[cfg(target_arch = "x86_64")]
    if let Some(spin) = x86::spinner(dtype) {
        return spin;
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(spin) = arm::spinner(dtype) {
        return spin;
    }
    match dtype {
        DType::F32 => plain::<f32>,
        DType::F64 => plain::<f64>,
        DType::I32 => plain::<i32>,
        DType::I64 => plain::<i64>,
    }
}

/// A multiplication and an addition in each of 32 independent chains; the compiler makes vectors of them.
fn plain<T: Element>(turns: u32) -> f64 {
    let (x, y) = black_box((T::ONE, T::ZERO));
    let mut acc = black_box([T::ONE; 32]);
    for _ in 0..turns {
        for a in &mut acc {
            *a = a.times(x).plus(y);
        }
    }
    black_box(acc);
    f64::from(turns) * 64.0
}

/// A register loop of `$chains` independent chains: enough to cover the latency of all known machines.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! spin {
    ($name:ident, $t:ty, $lanes:expr, $chains:expr, $features:expr, $splat:ident, |$acc:ident, $x:ident, $y:ident| $step:expr) => {
        fn $name(turns: u32) -> f64 {
            #[target_feature(enable = $features)]
            fn run(turns: u32) {
                let ($x, $y) = black_box(($splat(1 as $t), $splat(0 as $t)));
                let mut acc = black_box([$splat(1 as $t); $chains]);
                for _ in 0..turns {
                    for a in &mut acc {
                        let $acc = *a;
                        *a = $step;
                    }
                }
                black_box(acc);
            }
            // SAFETY: `spinner` names this function only if the machine has the instructions.
            unsafe { run(turns) };
            f64::from(turns) * 2.0 * $lanes as f64 * $chains as f64
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{DType, Spin, black_box};
    use core::arch::x86_64::*;

    spin!(f32_512, f32, 16, 24, "avx512f", _mm512_set1_ps, |a, x, y| _mm512_fmadd_ps(a, x, y));
    spin!(f64_512, f64, 8, 24, "avx512f", _mm512_set1_pd, |a, x, y| _mm512_fmadd_pd(a, x, y));
    spin!(i32_512, i32, 16, 24, "avx512f", _mm512_set1_epi32, |a, x, y| _mm512_add_epi32(
        _mm512_mullo_epi32(a, x),
        y
    ));
    spin!(i64_512, i64, 8, 24, "avx512f,avx512dq", _mm512_set1_epi64, |a, x, y| _mm512_add_epi64(
        _mm512_mullo_epi64(a, x),
        y
    ));
    spin!(f32_256, f32, 8, 12, "avx2,fma", _mm256_set1_ps, |a, x, y| _mm256_fmadd_ps(a, x, y));
    spin!(f64_256, f64, 4, 12, "avx2,fma", _mm256_set1_pd, |a, x, y| _mm256_fmadd_pd(a, x, y));
    spin!(i32_256, i32, 8, 12, "avx2", _mm256_set1_epi32, |a, x, y| _mm256_add_epi32(
        _mm256_mullo_epi32(a, x),
        y
    ));

    /// By halves, like the kernel: for 8 columns two products of low halves and two of crossed ones. Four columns
    /// per chain, hence half of each.
    #[target_feature(enable = "avx2")]
    fn halves(a: __m256i, x: __m256i, y: __m256i) -> __m256i {
        let low = _mm256_add_epi64(_mm256_mul_epu32(a, x), y);
        _mm256_add_epi32(_mm256_mullo_epi32(low, x), y)
    }
    spin!(i64_256, i64, 4, 12, "avx2", _mm256_set1_epi64x, |a, x, y| halves(a, x, y));

    pub(super) fn spinner(dtype: DType) -> Option<Spin> {
        let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
        let middle = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let (wide_spin, middle_spin): (Spin, Spin) = match dtype {
            DType::F32 => (f32_512, f32_256),
            DType::F64 => (f64_512, f64_256),
            DType::I32 => (i32_512, i32_256),
            DType::I64 => (i64_512, i64_256),
        };
        if wide { Some(wide_spin) } else { middle.then_some(middle_spin) }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{DType, Spin, black_box};
    use core::arch::aarch64::*;

    spin!(f32_128, f32, 4, 24, "neon", vdupq_n_f32, |a, x, y| vfmaq_f32(y, a, x));
    spin!(f64_128, f64, 2, 24, "neon", vdupq_n_f64, |a, x, y| vfmaq_f64(y, a, x));

    pub(super) fn spinner(dtype: DType) -> Option<Spin> {
        match dtype {
            DType::F32 => Some(f32_128),
            DType::F64 => Some(f64_128),
            DType::I32 | DType::I64 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_finite_peak() {
        for dtype in DType::ALL {
            let peak = peak(dtype);
            assert!(peak.is_finite() && peak > 0.01, "{dtype}: {peak}");
        }
    }
}
