//! What `bench hpl --mxp` tells: text for a person, one JSON object for a program (docs/json.md).
//!
//! Invariant: both say that the figure is HPL-MxP's; the names of the JSON fields are not those of HPL's object, so that no
//! reader takes one for the other.

use super::Plotted;
use super::point::{HplEstimate, HplPlace, norms};
use super::stamp::Stamp;
use super::text::worker_lines;
use crate::on_workers::merged;
use bramble_lu::hpl::{HplCheck, THRESHOLD, operations};
use bramble_lu::mxp::MxpTimes;
use bramble_report::quantity::{bytes, counted, seconds};
use serde_json::json;

/// The measurement of a case.
pub(super) struct MxpPoint {
    /// N.
    pub(super) order: usize,
    /// Columns of a panel.
    pub(super) block: usize,
    /// With rates in f32.
    pub(super) place: HplPlace,
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
            block: point.block,
            threads: point.place.threads(),
            machines: point.place.machines(),
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
            "nb": self.block,
            "threads": self.place.threads(),
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
            "sgemm_gflops": self.place.product_gflops(),
            "machine": bramble_report::machine::object(&bramble_worker::host_name(), bramble_worker::default_threads()),
        });
        let more = match &self.place {
            HplPlace::Threads { kernel, rates, .. } => json!({
                "kernel": kernel,
                "f32_update_gflops": rates.update_gflops,
                "f32_panel_gflops": rates.panel_gflops,
            }),
            place @ HplPlace::Workers(..) => place.workers_object("sgemm_gflops"),
        };
        format!("{}\n", merged(object, &more))
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

fn result(point: &MxpPoint) -> Vec<String> {
    let MxpTimes { convert, factor, iterate } = point.seconds;
    let (time, gflops, all) = (point.seconds.total(), point.gflops(), point.place.product_gflops());
    let check = &point.check;
    let verdict = if check.is_valid() { "PASSED" } else { "FAILED" };
    let memory = bytes(point.memory_bytes as f64);
    let (who, rounding, lines, place) = match &point.place {
        HplPlace::Threads { threads, kernel, .. } => (
            format!("{} multiply together in f32 ({kernel})", counted(*threads as u64, "thread")),
            format!("{} to round A to f32, ", seconds(convert)),
            vec![format!("memory    {memory}: A in f64 and its factors in f32")],
            "threads",
        ),
        HplPlace::Workers(plan, losses) => (
            format!("{} multiply together in f32", counted(plan.shares.len() as u64, "worker")),
            String::new(),
            worker_lines(plan, losses),
            "workers",
        ),
    };
    let mut out = vec![
        format!("HPL-MxP   N = {}, NB = {}", point.order, point.block),
        format!("rate      {gflops:.1} Gflop/s by HPL-MxP: {:.2} of the {all:.1} that {who}", gflops / all),
        format!(
            "time      {}: {rounding}{} for LU, {} for GMRES",
            seconds(time),
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
    ];
    out.extend(lines);
    out.push(format!(
        "bound     no LU in f32 on these {place} takes less than {} ({}); {} predicted, {} measured",
        seconds(point.estimate.bound_seconds),
        point.estimate.bound_by,
        seconds(point.estimate.seconds),
        seconds(time)
    ));
    out
}
