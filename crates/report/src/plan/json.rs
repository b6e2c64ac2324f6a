//! A plan as JSON: the object `bramble.plan/1` of docs/json.md.

use super::owners::{OwnedBox, parts};
use super::view::{PlanView, limit};
use bramble_matrix::Span;
use bramble_plan::{Considered, Member, Plan, Prediction, Share, Sums};
use serde_json::{Value, json};

/// Most boxes that are listed for each machine.
const SHARES_MAX: usize = 64;

/// The object.
pub fn json(view: &PlanView) -> Value {
    let (plan, decision) = (view.plan(), &view.decision);
    let problem = &plan.problem;
    let workers: Vec<Value> = (0..plan.members.len()).map(|i| worker(view, i)).collect();
    let left_out: Vec<Value> =
        decision.left_out.iter().map(|l| json!({"name": l.name, "reason": l.reason})).collect();
    let energy = view
        .energy()
        .map(|e| json!({"watts": e.watts, "joules": e.joules, "gflops_per_watt": e.gflops_per_watt}));
    json!({
        "schema": "bramble.plan/1",
        "m": problem.m, "n": problem.n, "k": problem.k,
        "dtype": problem.dtype.name(),
        "strategy": plan.strategy.to_string(),
        "alone": decision.alone,
        "decision": decision.sentence,
        "grid": grid(plan),
        "relay": plan.relay,
        "sums": match plan.sums { Sums::Merged => "merged", Sums::Chained => "chained" },
        "peak_gflops": plan.peak_gflops,
        "predicted": predicted(&plan.predicted),
        "bound": {"seconds": plan.bound.seconds, "by": plan.bound.by.name()},
        "energy": energy,
        "workers": workers,
        "left_out": left_out,
        "considered": decision.considered.iter().map(considered).collect::<Vec<_>>(),
        "plan_seconds": view.plan_seconds,
    })
}

/// The prediction, as `plan` and `multiply` print it.
pub fn predicted(predicted: &Prediction) -> Value {
    let (by, machine) = limit(&predicted.by);
    json!({
        "seconds": predicted.seconds,
        "bytes_sent": predicted.bytes_sent,
        "bytes_received": predicted.bytes_received,
        "bytes_relayed": predicted.bytes_relayed,
        "worker_memory_bytes": predicted.worker_memory_bytes,
        "primary_memory_bytes": predicted.primary_memory_bytes,
        "by": by,
        "machine": machine,
    })
}

fn grid(plan: &Plan) -> Value {
    let [rows, cols, depth] =
        plan.regions.first().map_or([0; 3], |r| [r.grid.tile_rows, r.grid.tile_cols, r.grid.depth]);
    json!({"tile_rows": rows, "tile_cols": cols, "depth": depth})
}

fn considered(c: &Considered) -> Value {
    json!({
        "strategy": c.strategy.to_string(),
        "machines": c.machines,
        "with_primary": c.with_primary,
        "seconds": c.seconds,
        "bytes_sent": c.bytes_sent,
        "bytes_received": c.bytes_received,
        "bytes_relayed": c.bytes_relayed,
    })
}

fn worker(view: &PlanView, index: usize) -> Value {
    let plan = view.plan();
    let (member, cost) = (&plan.members[index], plan.predicted.machines[index]);
    let machine = &view.machines[member.machine];
    let (shares, all) = shares(plan, member);
    json!({
        "name": machine.name,
        "primary": member.machine == 0,
        "gflops": machine.gflops,
        "part": cost.part,
        "flops": cost.flops,
        "bytes_out": cost.bytes_out,
        "bytes_in": cost.bytes_back,
        "bytes_taken": cost.bytes_taken,
        "bytes_given": cost.bytes_given,
        "memory_bytes": cost.memory_bytes,
        "blocks": member.shares.iter().map(Share::blocks).sum::<u64>(),
        "jobs": cost.jobs,
        "compute_s": cost.compute_s,
        "link_s": cost.link_s,
        "watts": view.watts[member.machine],
        "shares": shares,
        "shares_total": all,
    })
}

/// The boxes of C and k that a machine computes: the first `SHARES_MAX` of them, and the number of all.
fn shares(plan: &Plan, member: &Member) -> (Vec<Value>, usize) {
    let boxes = || {
        member.shares.iter().flat_map(|share| {
            let region = &plan.regions[share.region];
            parts(region, share).map(move |part| (share, region.grid, part))
        })
    };
    let pair = |s: Span| json!([s.start, s.end]);
    let one = |(share, grid, part): (&Share, bramble_plan::Grid, OwnedBox)| {
        let rows = (share.block.rows * grid.tile_rows).min(part.rows.len());
        let cols = (share.block.cols * grid.tile_cols).min(part.cols.len());
        json!({
            "rows": pair(part.rows), "cols": pair(part.cols), "k": pair(part.k),
            "block": [rows, cols, share.block.steps],
        })
    };
    (boxes().take(SHARES_MAX).map(one).collect(), boxes().count())
}
