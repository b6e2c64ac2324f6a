//! The check's random vectors and samples, from one seed.
//!
//! Invariants: the same seed gives the same vectors on every machine. The seed must be unknown to the
//! machines that compute the product until it is finished; this module draws no seed.

use std::collections::BTreeSet;

/// SplitMix64 (Steele, Lea, Flood 2014): each state gives one well-mixed word.
pub(super) struct Random(u64);

impl Random {
    /// An independent sequence for each (seed, stream).
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Self(mixed.next())
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The largest element of `reals`.
pub(super) const LARGEST_REAL: f64 = 1.25;

/// Fills `out` with real vector number `vector`: each element has a random sign and a size uniform in 3/4..5/4, in steps of
/// 2^-17 (so that a product with an f32 is exact in f64). A fault of one element therefore changes the sum by at least 3/4
/// of the fault, and equal faults do not cancel as they can with random signs alone.
pub(super) fn reals(seed: u64, vector: u64, out: &mut [f64]) {
    const STEP: f64 = 1.0 / (1u64 << 17) as f64;
    let mut random = Random::new(seed, vector);
    for group in out.chunks_mut(3) {
        let mut bits = random.next();
        for x in group {
            let size = 0.75 + (bits & 0xffff) as f64 * STEP;
            *x = if bits >> 16 & 1 == 0 { size } else { -size };
            bits >>= 17;
        }
    }
}

/// Fills `out` with integers for vector number `vector`: uniform mod 2^64, and odd for vector 0, which
/// therefore detects every fault of a single element.
pub(super) fn integers(seed: u64, vector: u64, out: &mut [i64]) {
    let mut random = Random::new(seed, vector);
    for x in out {
        *x = random.next() as i64 | i64::from(vector == 0);
    }
}

/// `want` distinct numbers below `count` (all of them if `count` <= `want`), ascending.
pub(super) fn sample(seed: u64, stream: u64, count: u64, want: u64) -> Vec<u64> {
    if count <= want {
        return (0..count).collect();
    }
    // Floyd's algorithm: always `want` draws, however large `count` is.
    let mut random = Random::new(seed, stream);
    let mut chosen = BTreeSet::new();
    for last in count - want..count {
        // The modulo's bias is below count / 2^64.
        let draw = random.next() % (last + 1);
        if !chosen.insert(draw) {
            chosen.insert(last);
        }
    }
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_inside() {
        for seed in 0..100 {
            let drawn = sample(seed, 0, 20, 7);
            assert_eq!(drawn.len(), 7);
            assert!(drawn.windows(2).all(|w| w[0] < w[1]) && drawn[6] < 20);
        }
        assert_eq!(sample(1, 0, 3, 16), [0, 1, 2]);
    }

    #[test]
    fn reals_are_balanced_within_their_range_and_differ_by_vector() {
        let (mut a, mut b) = (vec![0.0; 10_000], vec![0.0; 10_000]);
        reals(1, 0, &mut a);
        reals(1, 1, &mut b);
        let sum: f64 = a.iter().sum();
        let dot: f64 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
        assert!(sum.abs() < 500.0 && dot.abs() < 500.0);
        assert!(a.iter().all(|x| (0.75..LARGEST_REAL).contains(&x.abs())));
        let mean: f64 = a.iter().map(|x| x.abs()).sum::<f64>() / 10_000.0;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        // Neighbours come from one random word: their signs and sizes must be uncorrelated.
        let next: f64 = a.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let sizes: f64 = a.windows(2).map(|pair| (pair[0].abs() - 1.0) * (pair[1].abs() - 1.0)).sum();
        assert!(next.abs() < 500.0 && sizes.abs() < 15.0, "{next} {sizes}");
        a.iter_mut().for_each(|x| *x = x.abs());
        a.sort_by(f64::total_cmp);
        a.dedup();
        assert!(a.len() > 9_000, "{} sizes of 10,000 differ", a.len());
    }
}
