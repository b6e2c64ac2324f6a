//! Time of an LU factorisation with partial pivoting on the threads of one machine: the bound, and the prediction.
//!
//! Place in the flow: `bench hpl` measures the rates, and prints both before and beside the measured time.
//!
//! Invariant: the bound counts the operations at the rate of large products, which no part of a factorisation exceeds; the
//! prediction is never below it.
//!
//! Deliberately absent: several machines.

use super::ClusterEstimate;
use super::tasks::{lu_operations, real};

/// Measured rates of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuRates {
    /// Threads.
    pub threads: usize,
    /// All threads together, each multiplying large square matrices, Gflop/s.
    pub product_gflops: f64,
    /// All threads together, each updating columns with a panel, Gflop/s.
    pub update_gflops: f64,
    /// One thread, factoring a panel, Gflop/s.
    pub panel_gflops: f64,
    /// One thread, reading the factors once, bytes/s.
    pub read_bytes_per_s: f64,
}

/// Time of a factorisation and its back-substitution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuEstimate {
    /// No LU on this machine takes less, seconds.
    pub bound_seconds: f64,
    /// The prediction, seconds.
    pub seconds: f64,
}

/// The estimate for a matrix of order `n` in panels of `block` columns, in `f64`.
pub fn estimate_lu(n: usize, block: usize, rates: &LuRates) -> LuEstimate {
    let bound_seconds = lu_operations(n) / rates.product_gflops / 1e9;
    // The back-substitution reads U once.
    let seconds =
        elimination_seconds(n, block, rates) + real(n) * real(n) / 2.0 * 8.0 / rates.read_bytes_per_s;
    LuEstimate { bound_seconds, seconds: seconds.max(bound_seconds) }
}

/// Iterations of GMRES on the matrix of HPL-MxP, which is well conditioned at every order: each leaves 10⁻⁷ of the residual.
const MXP_ITERATIONS: f64 = 2.0;

/// The estimate for HPL-MxP with a matrix of order `n` in panels of `block` columns, by rates in `f32`, and the rate at which all
/// threads read memory at once. The bound is that of the factorisation.
pub fn estimate_mxp(n: usize, block: usize, rates: &LuRates, read_all_bytes_per_s: f64) -> LuEstimate {
    let bound_seconds = lu_operations(n) / rates.product_gflops / 1e9;
    // A is read in f64 and written in f32, whose cache lines are read first. The first solution and each iteration read the
    // factors; each iteration, the residuals before the first and after the last read A.
    let (solutions, products) = (1.0 + MXP_ITERATIONS, 2.0 + MXP_ITERATIONS);
    let bytes_each = 8.0 + 4.0 + 4.0 + 4.0 * solutions + 8.0 * products;
    let passes = real(n) * real(n) * bytes_each / read_all_bytes_per_s;
    let seconds = elimination_seconds(n, block, rates) + passes;
    LuEstimate { bound_seconds, seconds: seconds.max(bound_seconds) }
}

/// Elements of A that a machine generates and multiplies in the time of one operation of its products in `f32`: roughly, since no
/// machine measures it. The products take some hundredths of the time.
const GENERATED_PER_FLOP: f64 = 1.0 / 64.0;

/// The prediction for HPL-MxP with a matrix of order `n` on machines with `gflops` in `f32` together, from that of LU on them:
/// each iteration solves forward and back, and each product generates the columns of A again. Seconds.
pub fn mxp_seconds(n: usize, lu: &ClusterEstimate, gflops: f64) -> f64 {
    let products = 2.0 + MXP_ITERATIONS;
    let generated = real(n) * real(n) / (gflops * 1e9 * GENERATED_PER_FLOP);
    lu.seconds + 2.0 * MXP_ITERATIONS * lu.back_seconds + products * generated
}

/// In each step the panels hide behind the updates of the step before (look-ahead): a step takes as long as all its work shared
/// by the threads, or as the next panel with the update of its columns, which one thread does after the other.
fn elimination_seconds(n: usize, block: usize, rates: &LuRates) -> f64 {
    let (order, threads) = (n as f64, rates.threads.max(1) as f64);
    let block = block.max(1);
    let panel = |rows: f64, width: f64| width * width * (rows - width / 3.0) / rates.panel_gflops / 1e9;
    let update = |rows: f64, width: f64, cols: f64| width * cols * (2.0 * (rows - width) + width);
    let width_at = |start: usize| (n - start).min(block) as f64;
    let mut seconds = if n > 0 { panel(order, width_at(0)) } else { 0.0 };
    for start in (0..n).step_by(block) {
        let (rows, width) = ((n - start) as f64, width_at(start));
        let rest = rows - width;
        if rest == 0.0 {
            break;
        }
        let next = width_at(start + block);
        let next_panel = panel(rest, next);
        let shared = update(rows, width, rest) / rates.update_gflops / 1e9 + next_panel / threads;
        let chain = update(rows, width, next) / (rates.update_gflops / threads) / 1e9 + next_panel;
        seconds += f64::max(shared, chain);
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATES: LuRates = LuRates {
        threads: 2,
        product_gflops: 100.0,
        update_gflops: 100.0,
        panel_gflops: 1e9,
        read_bytes_per_s: 1e18,
    };

    #[test]
    fn with_panels_that_cost_nothing_the_prediction_is_the_bound() {
        let estimate = estimate_lu(20_000, 100, &RATES);
        assert!((estimate.seconds / estimate.bound_seconds - 1.0).abs() < 0.01, "{estimate:?}");
    }

    #[test]
    fn a_slow_panel_is_hidden_until_the_matrix_is_small() {
        let slow = LuRates { panel_gflops: 15.0, ..RATES };
        let part = |n| estimate_lu(n, 100, &slow).seconds / estimate_lu(n, 100, &RATES).seconds;
        assert!(part(20_000) < 1.05 && part(1_000) > 1.2, "{} {}", part(20_000), part(1_000));
    }

    #[test]
    fn hpl_mxp_adds_its_passes_over_both_copies() {
        // Slow updates keep the prediction away from the bound.
        let rates = LuRates { update_gflops: 50.0, ..RATES };
        let of = |read_all| estimate_mxp(4000, 100, &rates, read_all).seconds;
        let passes = of(1e10) - of(1e18);
        assert!((passes / (4000.0 * 4000.0 * 60.0 / 1e10) - 1.0).abs() < 1e-6, "{passes}");
    }

    #[test]
    fn hpl_mxp_on_machines_adds_its_iterations_to_lu() {
        let lu = ClusterEstimate {
            bound_seconds: 1.0,
            is_bound_by_links: false,
            seconds: 20.0,
            back_seconds: 0.5,
            panel_wait_seconds: 0.0,
            column_wait_seconds: 0.0,
        };
        // Two iterations of two passes of 0.5 s each; four products of 16e6 elements at 1e9 a second.
        assert!((mxp_seconds(4000, &lu, 64.0) - 22.064).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn the_prediction_is_finite_and_not_below_the_bound(
            n in 0..5000usize, block in 1..400usize, threads in 1..9usize, product in 1.0..500.0f64, update in 1.0..500.0f64,
            panel in 0.1..100.0f64,
        ) {
            let rates = LuRates {
                threads, product_gflops: product, update_gflops: update, panel_gflops: panel, read_bytes_per_s: 1e10,
            };
            for estimate in [estimate_lu(n, block, &rates), estimate_mxp(n, block, &rates, 1e10)] {
                prop_assert!(estimate.seconds.is_finite() && estimate.seconds >= estimate.bound_seconds, "{estimate:?}");
            }
        }
    }
}
