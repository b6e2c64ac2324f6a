//! Simulated runs as JSON: the object `bramble.sim/1` of docs/json.md.

use super::runs::{FaultTrial, MachineActivity, Runs, busy, parts};
use super::{SimCase, SimulationTime};
use crate::plan::json::predicted;
use bramble_sim::SimReport;
use serde_json::{Value, json};

/// The object.
pub fn json(case: &SimCase, runs: &Runs, own: SimulationTime) -> Value {
    let (plan, decision) = (case.plan(), &case.decision);
    let problem = &plan.problem;
    let left_out: Vec<Value> =
        decision.left_out.iter().map(|l| json!({"name": l.name, "reason": l.reason})).collect();
    let (simulated_s, events) = runs.simulated();
    json!({
        "schema": "bramble.sim/1",
        "m": problem.m, "n": problem.n, "k": problem.k,
        "dtype": problem.dtype.name(),
        "strategy": plan.strategy.to_string(),
        "alone": decision.alone,
        "decision": decision.sentence,
        "relay": plan.relay,
        "predicted": predicted(&plan.predicted),
        "bound": {"seconds": plan.bound.seconds, "by": plan.bound.by.name()},
        "left_out": left_out,
        "undisturbed": run(case, &runs.undisturbed),
        "disturbed": runs.disturbed.as_ref().map(|(faults, report)| {
            let mut object = run(case, report);
            let calm = &runs.undisturbed;
            object["faults"] = faults.to_string().into();
            object["times"] = (report.seconds / calm.seconds).into();
            object["again_flops"] = (report.flops() - calm.flops()).max(0.0).into();
            object["more_bytes_sent"] = (report.bytes_sent() as f64 - calm.bytes_sent() as f64).into();
            object
        }),
        "drawn": drawn(runs),
        "simulated_seconds": simulated_s,
        "events": events,
        "own_seconds": own.seconds,
        "own_cpu_seconds": own.cpu_s,
    })
}

fn run(case: &SimCase, report: &SimReport) -> Value {
    let parts = parts(case, report);
    let relayed: u64 = report.machines.iter().map(|m| m.bytes_passed).sum();
    let lost = report.losses.iter().map(|loss| {
        let name = &case.machines[loss.machine].name;
        json!({"worker": loss.machine, "name": name, "at_s": loss.at_s, "why": loss.why, "part": loss.part})
    });
    let joined = report.joins.iter().map(|coming| {
        let name = &case.machines[coming.machine].name;
        json!({"worker": coming.machine, "name": name, "at_s": coming.at_s})
    });
    let moved: f64 = report.moved.iter().map(|moved| moved.part).sum();
    json!({
        "seconds": report.seconds,
        "gflops": case.plan().problem.flops() / report.seconds.max(1e-12) / 1e9,
        "failed": report.failed,
        "busy": busy(case, &parts),
        "flops": report.flops(),
        "jobs": report.jobs,
        "moved": moved,
        "primary": {
            "bytes_sent": report.bytes_sent(),
            "bytes_received": report.bytes_received(),
            "loop_busy_s": report.loop_busy_s,
            "sums_bytes_max": report.partial_sum_bytes_max,
        },
        "bytes_relayed": relayed,
        "lost": lost.collect::<Vec<_>>(),
        "joined": joined.collect::<Vec<_>>(),
        "machines": parts.iter().map(|part| machine(case, part)).collect::<Vec<_>>(),
    })
}

fn machine(case: &SimCase, part: &MachineActivity) -> Value {
    json!({
        "worker": part.machine,
        "name": case.machines[part.machine].name,
        "primary": part.machine == 0,
        "share": part.share,
        "busy": part.busy,
        "bytes_out": part.bytes_out,
        "bytes_in": part.bytes_back,
        "bytes_given": part.bytes_passed,
        "memory_bytes": part.held_bytes_max,
        "jobs": part.jobs,
    })
}

fn drawn(runs: &Runs) -> Value {
    let one = |tried: &FaultTrial| {
        json!({
            "seed": tried.seed, "faults": tried.faults.to_string(), "seconds": tried.seconds, "failed": tried.failed,
            "lost": tried.lost,
        })
    };
    let Some(worst) = runs.worst() else { return Value::Null };
    json!({
        "sets": runs.drawn.len(),
        "failed": runs.drawn.iter().filter(|tried| tried.failed.is_some()).count(),
        "seconds": runs.times().map(|t| json!({"least": t.min(), "median": t.median(), "most": t.max()})),
        "worst": one(worst),
        "all": runs.drawn.iter().map(one).collect::<Vec<_>>(),
    })
}
