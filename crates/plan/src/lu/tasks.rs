//! How long one task of a factorisation takes at a machine, by measured rates or by constants.
//!
//! Place in the flow: the prediction for a cluster (`cluster.rs`) adds up steps of these tasks; the simulator runs each of them
//! at its time.
//!
//! Invariant: no task is faster than its operations at the machine's rate of large products.
//!
//! Deliberately absent: what a task waits for.

use super::LuMachine;
use bramble_base::number::{nearest_f64, to_u64};

/// How the tasks of a factorisation relate to the products of a machine. By default as on an AVX-512 machine; a machine that has
/// measured its tasks has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuTaskModel {
    /// The rate of updates with infinitely wide panels, relative to that of large products.
    update_rate: f64,
    /// The rate of updates with a panel of `w` columns, relative to that of infinitely wide ones, is w/(w + this): each update
    /// reads and writes all of C, reads the panel, and solves with its triangle.
    update_loss: f64,
    /// The rate of one thread that factors a panel, relative to its rate of large products; at most 1.
    panel_rate: f64,
}

impl Default for LuTaskModel {
    /// The loss is from the rates of `bench hpl --size 8000` with `--nb` 64, 96 and 256: 0.80 and 0.87 of the last.
    fn default() -> Self {
        Self { update_rate: 1.0, update_loss: 24.0, panel_rate: 0.3 }
    }
}

/// A count as a number.
pub(super) fn real(count: usize) -> f64 {
    nearest_f64(to_u64(count))
}

/// Operations of a factorisation and a solution by HPL's count.
pub fn lu_operations(order: usize) -> f64 {
    let n = real(order);
    n * n * (2.0 / 3.0 * n + 1.5)
}

/// Operations of an update of `columns` columns with a panel of `rows` rows and `width` columns.
pub(super) fn update_flops(rows: usize, width: usize, columns: usize) -> f64 {
    let (rows, w) = (real(rows), real(width));
    w * real(columns) * (2.0 * (rows - w) + w)
}

impl LuMachine {
    /// The machine with rates that it has measured: of all threads together in updates with panels of two widths, of which the
    /// first is smaller, and of one thread that factors a panel, Gflop/s. The time of an operation in an update is assumed to be
    /// a + b/w; where the two rates disagree with that, b is that of the default. If updates are faster than its products are
    /// said to be, then so are its products.
    pub fn with_task_rates(self, widths: [usize; 2], update_gflops: [f64; 2], panel_gflops: f64) -> Self {
        let ([narrow, wide], [slow, fast]) = (widths.map(real), update_gflops.map(f64::recip));
        let default = LuTaskModel::default();
        let b = (slow - fast) / (narrow.recip() - wide.recip());
        let a = fast - b / wide;
        let loss = if b >= 0.0 && a > 0.0 { b / a } else { default.update_loss };
        let gflops = self.gflops.max(update_gflops[1]);
        let most = update_gflops[1] * (wide + loss) / wide;
        let tasks = LuTaskModel {
            update_rate: most / gflops,
            update_loss: loss,
            panel_rate: (panel_gflops * real(self.threads) / gflops).min(1.0),
        };
        Self { gflops, tasks, ..self }
    }

    /// Operations a second of one thread that multiplies large matrices.
    pub(super) fn thread_flops_per_s(&self) -> f64 {
        self.gflops / real(self.threads) * 1e9
    }

    /// Operations a second of all threads together in updates with panels of `width` columns.
    pub(super) fn update_flops_per_s(&self, width: usize) -> f64 {
        let part = real(width) / (real(width) + self.tasks.update_loss);
        self.gflops * 1e9 * (self.tasks.update_rate * part).min(1.0)
    }

    /// Seconds that one thread takes to factor a panel.
    pub fn panel_seconds(&self, rows: usize, width: usize) -> f64 {
        let w = real(width);
        w * w * (real(rows) - w / 3.0) / (self.thread_flops_per_s() * self.tasks.panel_rate)
    }

    /// Seconds that one thread takes to update `columns` columns with a panel of `rows` rows and `width` columns.
    pub fn update_seconds(&self, rows: usize, width: usize, columns: usize) -> f64 {
        update_flops(rows, width, columns) / (self.update_flops_per_s(width) / real(self.threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(gflops: f64) -> LuMachine {
        let tasks = LuTaskModel::default();
        let (name, memory_bytes) = ("w".into(), u64::MAX);
        LuMachine { name, threads: 4, gflops, memory_bytes, bytes_per_s: None, round_trip_s: 0.0, tasks }
    }

    #[test]
    fn measured_rates_are_those_of_their_widths() {
        let found = machine(50.0).with_task_rates([64, 256], [30.0, 40.0], 4.0);
        let of = |width| (found.update_flops_per_s(width) / 1e6).round() / 1e3;
        assert_eq!((of(64), of(256)), (30.0, 40.0));
        assert!(of(128) > 30.0 && of(128) < 40.0 && of(4096) < 50.0);
        assert!(
            (found.panel_seconds(10_000, 64) * 4e9 / (64.0 * 64.0 * (10_000.0 - 64.0 / 3.0)) - 1.0).abs()
                < 1e-9
        );
    }

    #[test]
    fn updates_faster_than_products_mean_that_products_are_faster() {
        let found = machine(30.0).with_task_rates([64, 256], [30.0, 40.0], 4.0);
        let of = |width| (found.update_flops_per_s(width) / 1e6).round() / 1e3;
        assert_eq!((found.gflops, of(64), of(256), of(1000)), (40.0, 30.0, 40.0, 40.0));
    }

    proptest! {
        #[test]
        fn no_task_is_faster_than_products(
            gflops in 1e-3..1e9f64, narrow in 1e-3..1e9f64, wide in 1e-3..1e9f64, panel in 1e-3..1e9f64, width in 1..1000usize,
        ) {
            let found = machine(gflops).with_task_rates([64, 256], [narrow, wide], panel);
            let rate = found.update_flops_per_s(width);
            prop_assert!(rate > 0.0 && rate <= found.gflops * 1e9 * (1.0 + 1e-12), "{found:?}");
            let panel_s = found.panel_seconds(4000, width);
            prop_assert!(panel_s.is_finite() && found.tasks.panel_rate <= 1.0 && found.tasks.panel_rate > 0.0);
        }
    }
}
