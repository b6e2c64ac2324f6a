//! What `bench hpl --mxp` tells: text for a person, one JSON object for a program (docs/json.md).
//!
//! Invariant: both say that the figure is HPL-MxP's; the names of the JSON fields are not those of HPL's object, so that no
//! reader takes one for the other.

use super::Plotted;
use super::point::{HplEstimate, norms};
use super::stamp::Stamp;
use bramble_lu::LuOptions;
use bramble_lu::hpl::{HplCheck, THRESHOLD, operations};
use bramble_lu::mxp::MxpTimes;
use bramble_plan::LuRates;
use bramble_report::quantity::{bytes, counted, seconds};
use serde_json::json;

/// The measurement of a case.
pub(super) struct MxpPoint {
    /// N.
    pub(super) order: usize,
    pub(super) options: LuOptions,
    /// Of the factorisation.
    pub(super) kernel: String,
    /// In f32.
    pub(super) rates: LuRates,
    pub(super) rounds: usize,
    /// Of the run with the median time.
    pub(super) seconds: MxpTimes,
    pub(super) seconds_min: f64,
    pub(super) seconds_max: f64,
    pub(super) start: Stamp,
    pub(super) end: Stamp,
    /// Of GMRES.
    pub(super) iterations: usize,
    /// Of rows.
    pub(super) exchanges: usize,
    /// The worst of all runs.
    pub(super) check: HplCheck,
    pub(super) estimate: HplEstimate,
    pub(super) memory_bytes: u64,
}

impl From<&MxpPoint> for Plotted {
    fn from(point: &MxpPoint) -> Self {
        Self {
            order: point.order,
            block: point.options.block,
            threads: point.options.threads,
            machines: 1,
            gflops: point.gflops(),
        }
    }
}

impl MxpPoint {
    /// The rate by HPL's count of operations, of the median time.
    fn gflops(&self) -> f64 {
        operations(self.order) / self.seconds.total() / 1e9
    }

    /// The object on a line of its own.
    pub(super) fn json_line(&self) -> String {
        let object = json!({
            "schema": "bramble.bench.hpl-mxp/1",
            "n": self.order,
            "nb": self.options.block,
            "threads": self.options.threads,
            "kernel": self.kernel,
            "rounds": self.rounds,
            "mxp_seconds": self.seconds.total(),
            "mxp_seconds_min": self.seconds_min,
            "mxp_seconds_max": self.seconds_max,
            "parts": {
                "convert_seconds": self.seconds.convert,
                "factor_seconds": self.seconds.factor,
                "iterate_seconds": self.seconds.iterate,
            },
            "mxp_gflops": self.gflops(),
            "iterations": self.iterations,
            "exchanges": self.exchanges,
            "mxp_residual": self.check.scaled_residual,
            "passed": self.check.is_valid(),
            "norms": norms(&self.check),
            "memory_bytes": self.memory_bytes,
            "start": self.start.iso(),
            "end": self.end.iso(),
            "bound": {"seconds": self.estimate.bound_seconds, "by": self.estimate.bound_by},
            "predicted": {"seconds": self.estimate.seconds},
            "sgemm_gflops": self.rates.product_gflops,
            "f32_update_gflops": self.rates.update_gflops,
            "f32_panel_gflops": self.rates.panel_gflops,
            "machine": bramble_report::machine::object(&bramble_worker::host_name(), bramble_worker::default_threads()),
        });
        format!("{object}\n")
    }
}

/// The text of all points of one order.
pub(super) fn text(points: &[MxpPoint]) -> String {
    let thick = "=".repeat(80);
    let mut out = vec![
        thick.clone(),
        format!("HPL-MxP: LU in f32, GMRES in f64, by Bramble {}", env!("CARGO_PKG_VERSION")),
        "The system is that of the reference implementation. This is no result of HPL.".to_owned(),
        thick.clone(),
    ];
    for point in points {
        out.extend(result(point));
        out.push(thick.clone());
    }
    out.join("\n") + "\n"
}

fn result(point: &MxpPoint) -> [String; 8] {
    let MxpTimes { convert, factor, iterate } = point.seconds;
    let (time, gflops, all) = (point.seconds.total(), point.gflops(), point.rates.product_gflops);
    let check = &point.check;
    let verdict = if check.is_valid() { "PASSED" } else { "FAILED" };
    [
        format!("HPL-MxP   N = {}, NB = {}", point.order, point.options.block),
        format!(
            "rate      {gflops:.1} Gflop/s by HPL-MxP: {:.2} of the {all:.1} that {} multiply together in f32 ({})",
            gflops / all,
            counted(point.options.threads as u64, "thread"),
            point.kernel
        ),
        format!(
            "time      {}: {} to round A to f32, {} for LU, {} for GMRES",
            seconds(time),
            seconds(convert),
            seconds(factor),
            seconds(iterate)
        ),
        format!(
            "gmres     {}; {} of rows in LU",
            counted(point.iterations as u64, "iteration"),
            counted(point.exchanges as u64, "exchange")
        ),
        format!(
            "residual  ||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {:.8e} ...... {verdict} (valid below {THRESHOLD})",
            check.scaled_residual
        ),
        format!(
            "norms     ||A||_oo {:.6}, ||A||_1 {:.6}, ||x||_oo {:.6e}, ||b||_oo {:.6}",
            check.norms.inf, check.norms.one, check.x_inf, check.b_inf
        ),
        format!("memory    {}: A in f64 and its factors in f32", bytes(point.memory_bytes as f64)),
        format!(
            "bound     no LU in f32 on these threads takes less than {} ({}); {} predicted, {} measured",
            seconds(point.estimate.bound_seconds),
            point.estimate.bound_by,
            seconds(point.estimate.seconds),
            seconds(time)
        ),
    ]
}
