//! Reports of calls, as JSON for the package.

use bramble_primary::{MakeReport, NodeReport, ProductPlan, PutReport, ReduceReport, Report};
use bramble_report::plan::picture::PictureStyle;
use bramble_report::plan::view::PlanView;
use bramble_report::{placed, plan as plans, product};
use serde_json::json;

/// A matrix that was placed.
pub(crate) fn put(report: &PutReport) -> String {
    let mut value = placed::put_json(report);
    placed::merge(&mut value, json!({"seconds": report.seconds}));
    value.to_string()
}

/// A result that stays at the machines, or came home from them.
pub(crate) fn made(report: &MakeReport) -> String {
    let mut value = placed::made_json(report);
    placed::merge(&mut value, json!({"seconds": report.put.seconds}));
    value.to_string()
}

/// A reduction.
pub(crate) fn reduced(report: &ReduceReport) -> String {
    let mut value = placed::reduction_json(report);
    placed::merge(&mut value, json!({"kind": "reduction", "seconds": report.seconds}));
    value.to_string()
}

/// A product whose result came home.
pub(crate) fn multiplied(report: &Report, total_seconds: f64) -> String {
    let product = product::json(report, total_seconds, "");
    let text = product::text(report, "C", false, total_seconds, None);
    json!({"kind": "product", "seconds": total_seconds, "product": product, "text": text}).to_string()
}

/// A plan, as the command prints it and as `bramble.plan/1`.
pub(crate) fn plan(plan: ProductPlan) -> String {
    let ProductPlan { decision, machines, plan_seconds } = plan;
    let watts = vec![None; machines.len()];
    let view = PlanView { decision, watts, machines, plan_seconds, is_inspected: true };
    let mut value = plans::json::json(&view);
    let text = plans::text::text(&view, PictureStyle { columns: 80, colours: false });
    placed::merge(&mut value, json!({"kind": "plan", "text": text}));
    value.to_string()
}

/// The machines of a cluster.
pub(crate) fn nodes(nodes: &[NodeReport]) -> String {
    let one = |node: &NodeReport| {
        let machine = &node.surveyed.machine;
        json!({
            "name": machine.name,
            "is_primary": node.is_primary,
            "threads": machine.threads,
            "kernel": node.surveyed.kernel,
            "gflops": machine.gflops,
            "held_bytes": node.held_bytes,
            "left_bytes": node.left_bytes,
            "link": node.surveyed.link,
            "encryption": node.surveyed.encryption,
            "bytes_per_s": machine.link.map(|link| link.bytes_per_s),
            "round_trip_s": machine.link.map(|link| link.round_trip_s),
        })
    };
    json!(nodes.iter().map(one).collect::<Vec<_>>()).to_string()
}
