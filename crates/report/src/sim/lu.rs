//! A simulated factorisation as text and as the object `bramble.sim.lu/1` of docs/json.md.
//!
//! Place in the flow: `bramble sim lu` plans, simulates, and prints one of the two.
//!
//! Invariant: both depend on the plan and the simulation only, except for the object's `own_seconds` and `own_cpu_seconds`.
//!
//! Deliberately absent: the simulation itself (`bramble_sim::simulate_lu`).

use super::SimulationTime;
use crate::quantity::{bytes, seconds};
use crate::table;
use bramble_plan::{LuMachine, LuPlan, lu_operations};
use bramble_sim::{LuSimMachine, LuSimReport, LuWait};
use serde_json::{Value, json};

/// A plan, its machines and its simulation.
pub struct LuSimCase {
    /// Rows of the system.
    pub order: usize,
    /// All machines of the cluster.
    pub machines: Vec<LuMachine>,
    /// Memory of each machine's part, in the order of the ring.
    pub part_bytes: Vec<u64>,
    /// The plan.
    pub plan: LuPlan,
    /// The simulation.
    pub report: LuSimReport,
}

impl LuSimCase {
    /// Gflop/s by HPL's count of the operations.
    fn gflops(&self, seconds: f64) -> f64 {
        lu_operations(self.order) / seconds.max(1e-12) / 1e9
    }

    /// The rate of all machines that take part, multiplying large matrices.
    fn product_gflops(&self) -> f64 {
        self.plan.deal.machines.iter().map(|at| self.machines[*at].gflops).sum()
    }

    fn busy(&self) -> f64 {
        let sum = |of: &dyn Fn(&LuSimMachine) -> f64| self.report.machines.iter().map(of).sum::<f64>();
        sum(&|one| one.time.update_s + one.time.panel_s) / sum(&|one| one.time.sum_s()).max(1e-12)
    }

    fn bound_by(&self) -> &'static str {
        if self.plan.estimate.is_bound_by_links { "links" } else { "compute" }
    }
}

/// What limits a machine, in words.
fn limit(one: &LuSimMachine) -> &'static str {
    match one.time.longest_wait() {
        None => "computing",
        Some(LuWait::OwnPanel) => "own panels",
        Some(LuWait::Link) => "its link",
        Some(LuWait::Others) => "panels of others",
        Some(LuWait::End) => "the end",
    }
}

/// The text.
pub fn text(case: &LuSimCase) -> String {
    let LuSimCase { order, machines, plan, report, .. } = case;
    let (taking_part, all) = (plan.deal.machines.len(), machines.len());
    let mut out =
        vec![format!("N = {order}, NB = {}, {taking_part} of {all} machines", plan.width), String::new()];
    out.extend(table_of(case));
    for at in &plan.left_out {
        out.push(format!("left out  {}: with it, the run would take longer", machines[*at].name));
    }
    let (gflops, sum) = (case.gflops(report.seconds), case.product_gflops());
    let estimate = &plan.estimate;
    let predicted = case.gflops(estimate.seconds);
    out.extend([
        String::new(),
        format!(
            "time      {}, {gflops:.1} Gflop/s: {:.2} of the {sum:.1} that these machines multiply together",
            seconds(report.seconds),
            gflops / sum
        ),
        format!(
            "predicted {}, {predicted:.1} Gflop/s; simulated is {:.2} times that time",
            seconds(estimate.seconds),
            report.seconds / estimate.seconds
        ),
        format!(
            "bound     no LU on these machines takes less than {} ({}); simulated is {:.2} times that",
            seconds(estimate.bound_seconds),
            case.bound_by(),
            report.seconds / estimate.bound_seconds
        ),
        format!(
            "parts     {} for the elimination (simulated), {} for the back-substitution (predicted)",
            seconds(report.elimination_seconds),
            seconds(report.back_seconds)
        ),
        format!(
            "busy      {:.1} % of the time of the machines' threads in the elimination",
            case.busy() * 100.0
        ),
    ]);
    out.join("\n") + "\n"
}

/// The table of the machines: of their threads' time, the parts in tasks and in waits.
fn table_of(case: &LuSimCase) -> Vec<String> {
    let head = [
        "machine",
        "columns",
        "updates",
        "panels",
        "own panel",
        "link",
        "others",
        "end",
        "in",
        "memory",
        "limit",
    ];
    let row = |(one, memory): (&LuSimMachine, &u64)| {
        let time = one.time;
        let parts = [time.update_s, time.panel_s, time.own_panel_s, time.link_s, time.others_s, time.end_s];
        let mut row = vec![case.machines[one.machine].name.clone(), one.columns.to_string()];
        row.extend(parts.map(|part| format!("{:.1} %", part / time.sum_s().max(1e-12) * 100.0)));
        row.extend([bytes(one.bytes_in as f64), bytes(*memory as f64), limit(one).to_owned()]);
        row
    };
    let rows: Vec<Vec<String>> = case.report.machines.iter().zip(&case.part_bytes).map(row).collect();
    table::lines(&head, &rows)
}

/// The object.
pub fn json(case: &LuSimCase, own: SimulationTime) -> Value {
    let LuSimCase { order, machines, plan, report, part_bytes } = case;
    let estimate = &plan.estimate;
    let machine = |(one, memory): (&LuSimMachine, &u64)| {
        let (known, time) = (&machines[one.machine], one.time);
        json!({
            "name": known.name, "threads": known.threads, "gflops": known.gflops, "columns": one.columns,
            "memory_bytes": memory, "bytes_in": one.bytes_in, "bytes_out": one.bytes_out,
            "busy": time.busy(), "limit": limit(one), "update_s": time.update_s, "panel_s": time.panel_s,
            "wait_own_panel_s": time.own_panel_s, "wait_link_s": time.link_s, "wait_others_s": time.others_s,
            "wait_end_s": time.end_s,
        })
    };
    let left_out: Vec<&str> = plan.left_out.iter().map(|at| machines[*at].name.as_str()).collect();
    json!({
        "schema": "bramble.sim.lu/1",
        "n": order, "nb": plan.width,
        "seconds": report.seconds,
        "gflops": case.gflops(report.seconds),
        "elimination_seconds": report.elimination_seconds,
        "back_seconds": report.back_seconds,
        "predicted": {"seconds": estimate.seconds, "gflops": case.gflops(estimate.seconds)},
        "bound": {"seconds": estimate.bound_seconds, "by": case.bound_by()},
        "product_gflops": case.product_gflops(),
        "busy": case.busy(),
        "machines": report.machines.iter().zip(part_bytes).map(machine).collect::<Vec<_>>(),
        "left_out": left_out,
        "events": report.events,
        "own_seconds": own.seconds,
        "own_cpu_seconds": own.cpu_s,
    })
}
