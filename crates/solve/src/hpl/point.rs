//! A measured case, and its JSON object (docs/json.md).

use super::official::OfficialRun;
use super::stamp::Stamp;
use crate::on_workers::merged;
use crate::workers_report::{bound_by, compared};
use bramble_lu::hpl::{HplCheck, operations};
use bramble_lu::{LuKernels, LuOptions};
use bramble_plan::{ClusterEstimate, LuRates};
use bramble_primary::{SystemLosses, SystemPlan, SystemShare};
use bramble_report::losses;
use bramble_report::times::Times;
use serde_json::{Value, json};

/// Order, panels, threads and kernels of a measurement in this process.
pub(super) struct HplCase {
    /// N.
    pub(super) order: usize,
    pub(super) options: LuOptions,
    pub(super) kernels: LuKernels,
    pub(super) rates: LuRates,
}

/// Where a system was solved.
pub(super) enum HplPlace {
    /// In this process: its threads, the kernel and its rates.
    Threads { threads: usize, kernel: String, rates: LuRates },
    /// On workers, some of which may have been lost.
    Workers(SystemPlan, SystemLosses),
}

impl HplPlace {
    /// The rate of large products on the same threads, or on all workers together.
    pub(super) fn product_gflops(&self) -> f64 {
        match self {
            Self::Threads { rates, .. } => rates.product_gflops,
            Self::Workers(plan, _) => plan.shares.iter().map(|share| share.gflops).sum(),
        }
    }

    /// Compute threads, here or at all workers.
    pub(super) fn threads(&self) -> usize {
        match self {
            Self::Threads { threads, .. } => *threads,
            Self::Workers(plan, _) => plan.shares.iter().map(|share| share.threads).sum(),
        }
    }

    /// Machines that computed.
    pub(super) fn machines(&self) -> usize {
        match self {
            Self::Threads { .. } => 1,
            Self::Workers(plan, _) => plan.shares.len(),
        }
    }

    /// What the JSON object of a measurement says of workers, with the name of the field for their rates; nothing for threads.
    pub(super) fn workers_object(&self, rate: &str) -> Value {
        match self {
            Self::Threads { .. } => json!({}),
            Self::Workers(plan, losses) => json!({
                "workers": plan.shares.iter().map(|share| worker(share, rate)).collect::<Vec<_>>(),
                "left_out": plan.left_out,
                "lost": losses::object(losses),
                "depth": plan.depth,
                "compared": compared(plan),
            }),
        }
    }
}

/// The bound and the prediction.
#[derive(Clone, Copy)]
pub(super) struct HplEstimate {
    pub(super) bound_seconds: f64,
    /// `compute` or `links`.
    pub(super) bound_by: &'static str,
    pub(super) seconds: f64,
}

impl HplEstimate {
    /// Those of a plan for workers.
    pub(super) fn of_workers(plan: &SystemPlan) -> Self {
        let ClusterEstimate { bound_seconds, seconds, .. } = plan.estimate;
        Self { bound_seconds, bound_by: bound_by(plan), seconds }
    }
}

/// The measurement of a case.
pub(super) struct HplPoint {
    /// N.
    pub(super) order: usize,
    /// Columns of a panel.
    pub(super) block: usize,
    pub(super) place: HplPlace,
    pub(super) times: Times,
    pub(super) start: Stamp,
    pub(super) end: Stamp,
    pub(super) check: HplCheck,
    pub(super) estimate: HplEstimate,
    /// The best run of the official program, with `--official`.
    pub(super) official: Option<OfficialRun>,
}

impl HplPoint {
    /// The rate by HPL's count of operations, of the median time.
    pub(super) fn gflops(&self) -> f64 {
        operations(self.order) / self.times.median() / 1e9
    }

    /// The object on a line of its own.
    pub(super) fn json_line(&self) -> String {
        let object = json!({
            "schema": "bramble.bench.hpl/1",
            "n": self.order,
            "nb": self.block,
            "threads": self.place.threads(),
            "rounds": self.times.count(),
            "seconds": self.times.median(),
            "seconds_min": self.times.min(),
            "seconds_max": self.times.max(),
            "gflops": self.gflops(),
            "residual": self.check.scaled_residual,
            "passed": self.check.is_valid(),
            "norms": norms(&self.check),
            "start": self.start.iso(),
            "end": self.end.iso(),
            "bound": {"seconds": self.estimate.bound_seconds, "by": self.estimate.bound_by},
            "predicted": {"seconds": self.estimate.seconds},
            "dgemm_gflops": self.place.product_gflops(),
            "official": self.official.as_ref().map(OfficialRun::json),
            "machine": bramble_report::machine::object(&bramble_worker::host_name(), bramble_worker::default_threads()),
        });
        let more = match &self.place {
            HplPlace::Threads { kernel, rates, .. } => json!({
                "kernel": kernel,
                "update_gflops": rates.update_gflops,
                "panel_gflops": rates.panel_gflops,
            }),
            place @ HplPlace::Workers(..) => place.workers_object("dgemm_gflops"),
        };
        format!("{}\n", merged(object, &more))
    }
}

fn worker(share: &SystemShare, rate: &str) -> Value {
    json!({
        "name": share.name,
        "threads": share.threads,
        "columns": share.columns,
        "kernel": share.kernel,
        rate: share.gflops,
        "memory_bytes": share.bytes,
    })
}

/// The norms of the system and of its solution, as an object.
pub(super) fn norms(check: &HplCheck) -> Value {
    json!({
        "a_inf": check.norms.inf,
        "a_one": check.norms.one,
        "b_inf": check.b_inf,
        "x_inf": check.x_inf,
        "x_one": check.x_one,
    })
}
