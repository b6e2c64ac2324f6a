//! How long one task of a factorisation takes at a machine: the constants of the model.
//!
//! Place in the flow: the prediction for a cluster (`cluster.rs`) adds up steps of these tasks; the simulator runs each of them
//! at its time.
//!
//! Invariant: no task is faster than its operations at the machine's rate of large products.
//!
//! Deliberately absent: what a task waits for.

use super::LuMachine;
use bramble_base::number::{nearest_f64, to_u64};

/// The rate of updates with a panel of `w` columns, relative to that of large products, is w/(w + this): each update reads and
/// writes all of C, reads the panel, and solves with its triangle. From the rates of `bench hpl --size 8000` with `--nb` 64, 96
/// and 256 on an AVX-512 machine: 0.80 and 0.87 of the last.
const UPDATE_LOSS: f64 = 24.0;
/// The rate of one thread that factors a panel, relative to its rate of large products.
const PANEL_RATE: f64 = 0.3;

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
    /// Operations a second of one thread that multiplies large matrices.
    pub(super) fn thread_flops_per_s(&self) -> f64 {
        self.gflops / real(self.threads) * 1e9
    }

    /// Operations a second of all threads together in updates with panels of `width` columns.
    pub(super) fn update_flops_per_s(&self, width: usize) -> f64 {
        self.gflops * 1e9 * (real(width) / (real(width) + UPDATE_LOSS))
    }

    /// Seconds that one thread takes to factor a panel.
    pub fn panel_seconds(&self, rows: usize, width: usize) -> f64 {
        let w = real(width);
        w * w * (real(rows) - w / 3.0) / (self.thread_flops_per_s() * PANEL_RATE)
    }

    /// Seconds that one thread takes to update `columns` columns with a panel of `rows` rows and `width` columns.
    pub fn update_seconds(&self, rows: usize, width: usize, columns: usize) -> f64 {
        update_flops(rows, width, columns) / (self.update_flops_per_s(width) / real(self.threads))
    }
}
