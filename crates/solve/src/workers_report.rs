//! The part of the reports of `solve` and `lu` about workers: those that computed, their plan, and losses.
//!
//! Place in the flow: a part of `report.rs`; nothing where this process computed.

use crate::on_workers::{block_line, left_out_lines};
use bramble_primary::{SentColumns, SystemLosses, SystemPlan, SystemShare};
use bramble_report::losses;
use bramble_report::quantity::{counted, seconds};
use serde_json::{Value, json};

/// A run on workers.
#[derive(Clone, Debug)]
pub(crate) struct WorkersReport {
    /// The plan; after a loss that of the last start.
    pub(crate) plan: SystemPlan,
    /// Workers that were lost during the run.
    pub(crate) losses: SystemLosses,
    /// How the columns went to the workers.
    pub(crate) sent: SentColumns,
}

impl WorkersReport {
    /// Compute threads of all workers together.
    pub(crate) fn threads(&self) -> usize {
        self.plan.shares.iter().map(|share| share.threads).sum()
    }

    /// Memory of the parts of all workers together.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.plan.shares.iter().map(|share| share.bytes).sum()
    }

    /// The lines of the text: blocks, workers, losses, the way of the columns, bound and prediction.
    pub(crate) fn lines(&self) -> Vec<String> {
        let SystemPlan { shares, left_out, estimate, .. } = &self.plan;
        let of = |worker: &SystemShare| {
            let (name, columns) = (&worker.name, worker.columns);
            format!("worker    {name}: {columns} columns; {}", speed_text(worker))
        };
        let mut lines = vec![block_line(&self.plan)];
        lines.extend(shares.iter().map(of));
        lines.extend(left_out_lines(left_out));
        lines.extend(losses::lines(&self.losses));
        let panels = counted(self.sent.early_panels as u64, "panel");
        lines.push(format!(
            "sent      in {}, a part of the time; {panels} factored before the end",
            seconds(self.sent.seconds)
        ));
        lines.push(format!(
            "bound     no LU on these workers takes less than {} ({}); {} predicted",
            seconds(estimate.bound_seconds),
            bound_by(&self.plan),
            seconds(estimate.seconds)
        ));
        lines
    }
}

/// A worker's speed, the kernel that has it, and on how many threads.
pub(crate) fn speed_text(worker: &SystemShare) -> String {
    let threads = counted(worker.threads as u64, "thread");
    let with = worker.kernel.as_ref().map_or_else(String::new, |kernel| format!(" with {kernel}"));
    format!("{:.1} Gflop/s{with} by {threads}", worker.gflops)
}

/// What makes the bound of a plan.
pub(crate) fn bound_by(plan: &SystemPlan) -> &'static str {
    if plan.estimate.is_bound_by_links { "links" } else { "compute" }
}

/// The widths of a block that were compared, with their predictions.
pub(crate) fn compared(plan: &SystemPlan) -> Vec<Value> {
    plan.tried.iter().map(|(nb, seconds)| json!({"nb": nb, "seconds": seconds})).collect()
}

/// The fields of a report's object about workers; without them, lists are empty, and the plan is `null`.
pub(crate) fn object(at_workers: Option<&WorkersReport>) -> Value {
    let Some(WorkersReport { plan, losses, sent }) = at_workers else {
        return json!({
            "early_panels": 0, "workers": [], "left_out": [], "lost": losses::object(&SystemLosses::default()),
            "depth": null, "compared": [], "bound": null, "predicted": null,
        });
    };
    let worker = |worker: &SystemShare| {
        json!({
            "name": worker.name,
            "columns": worker.columns,
            "kernel": worker.kernel,
            "threads": worker.threads,
            "dgemm_gflops": worker.gflops,
            "memory_bytes": worker.bytes,
        })
    };
    json!({
        "early_panels": sent.early_panels,
        "workers": plan.shares.iter().map(worker).collect::<Vec<_>>(),
        "left_out": plan.left_out,
        "lost": losses::object(losses),
        "depth": plan.depth,
        "compared": compared(plan),
        "bound": {"seconds": plan.estimate.bound_seconds, "by": bound_by(plan)},
        "predicted": {"seconds": plan.estimate.seconds},
    })
}
