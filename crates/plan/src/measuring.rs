//! Whether it pays to measure all links together before a product.
//!
//! Place in the flow: a session with each machine is open, and each link has been measured by itself; before the plan.
//!
//! Deliberately absent: the measurement. Without it the plan takes the rate of the fastest link for that of all together.

use crate::Problem;
use bramble_base::Shape;

/// About how long the links are measured together.
const TOGETHER_S: f64 = 0.12;
/// It pays if the product takes at least this many times as long.
const TIMES: f64 = 20.0;

/// Whether a product on machines of `gflops` in all, over links of `bytes_per_s` in all, takes so long that a better plan is
/// worth the measurement: its operations, or the bytes of its matrices, each at those rates.
pub fn pays_to_measure_together(problem: &Problem, gflops: f64, bytes_per_s: f64) -> bool {
    let bytes = |rows: u64, cols: u64| Shape::new(rows, cols).bytes(problem.dtype).unwrap_or(u64::MAX) as f64;
    let Problem { m, n, k, .. } = *problem;
    let moved = bytes(m, k) + bytes(k, n) + bytes(m, n);
    let is_short = |amount: f64, rate: f64| amount <= TIMES * TOGETHER_S * rate;
    !(is_short(problem.flops(), gflops * 1e9) && is_short(moved, bytes_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OperandSource;
    use bramble_base::DType;

    #[test]
    fn short_products_do_not_wait_for_it_and_long_ones_or_unknown_rates_do() {
        let (a_source, b_source) = (OperandSource::Sent, OperandSource::Sent);
        let square =
            |n: u64| Problem { m: n, n, k: n, dtype: DType::F64, reads_c: false, a_source, b_source };
        let pays =
            |n: u64, gflops: f64, mbit: f64| pays_to_measure_together(&square(n), gflops, mbit * 125e3);
        assert!(!pays(256, 100.0, 1000.0) && !pays(3000, 100.0, 4000.0));
        assert!(pays(8192, 100.0, 1e6), "it computes for 11 s");
        assert!(pays(3000, 1e4, 100.0), "it moves 216 MB over 12.5 MB/s");
        assert!(pays(256, 0.0, 1000.0) && pays(256, f64::NAN, 1000.0) && pays(256, 100.0, 0.0));
    }
}
