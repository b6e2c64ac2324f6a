//! A measured case, and its JSON object (docs/json.md).

use super::official::OfficialRun;
use super::stamp::Stamp;
use crate::machine;
use bramble_lu::hpl::{HplCheck, operations};
use bramble_lu::{LuKernels, LuOptions};
use bramble_plan::{LuEstimate, LuRates};
use bramble_report::times::Times;
use serde_json::json;

/// Order, panels, threads and kernels of a measurement.
pub(super) struct HplCase {
    /// N.
    pub(super) order: usize,
    pub(super) options: LuOptions,
    pub(super) kernels: LuKernels,
    pub(super) rates: LuRates,
}

/// The measurement of a case.
pub(super) struct HplPoint {
    pub(super) case: HplCase,
    pub(super) times: Times,
    pub(super) start: Stamp,
    pub(super) end: Stamp,
    pub(super) check: HplCheck,
    pub(super) estimate: LuEstimate,
    /// The best run of the official program, with `--official`.
    pub(super) official: Option<OfficialRun>,
}

impl HplPoint {
    /// The rate by HPL's count of operations, of the median time.
    pub(super) fn gflops(&self) -> f64 {
        operations(self.case.order) / self.times.median() / 1e9
    }

    /// The object on a line of its own.
    pub(super) fn json_line(&self) -> String {
        let HplCase { order, options, kernels, rates } = &self.case;
        let object = json!({
            "schema": "bramble.bench.hpl/1",
            "n": order,
            "nb": options.block,
            "threads": options.threads,
            "kernel": kernels.one.name(),
            "rounds": self.times.count(),
            "seconds": self.times.median(),
            "seconds_min": self.times.min(),
            "seconds_max": self.times.max(),
            "gflops": self.gflops(),
            "residual": self.check.scaled_residual,
            "passed": self.check.is_valid(),
            "norms": {
                "a_inf": self.check.norms.inf,
                "a_one": self.check.norms.one,
                "b_inf": self.check.b_inf,
                "x_inf": self.check.x_inf,
                "x_one": self.check.x_one,
            },
            "start": self.start.iso(),
            "end": self.end.iso(),
            "bound": {"seconds": self.estimate.bound_seconds, "by": "compute"},
            "predicted": {"seconds": self.estimate.seconds},
            "dgemm_gflops": rates.product_gflops,
            "update_gflops": rates.update_gflops,
            "panel_gflops": rates.panel_gflops,
            "official": self.official.as_ref().map(OfficialRun::json),
            "machine": machine::object(),
        });
        format!("{object}\n")
    }
}
