//! Simulated runs as text: time and lower bound, the activity of each machine, losses and their cost.

use super::SimCase;
use super::runs::{MachineActivity, Runs, busy, parts};
use crate::plan::text::BOUND_SECONDS_MIN;
use crate::quantity::{bytes, seconds};
use crate::table;
use bramble_sim::SimReport;

/// More machines than this are not listed one by one.
const LISTED_MAX: usize = 20;
/// How many machines are listed if there are more than `LISTED_MAX`.
const LISTED_FIRST: usize = 12;
/// Most losses and joins that are listed.
const TOLD_MAX: usize = 12;

/// The whole text.
pub fn text(case: &SimCase, runs: &Runs) -> String {
    let plan = case.plan();
    let problem = &plan.problem;
    let mut out = vec![
        case.decision.sentence.clone(),
        String::new(),
        format!("C         {}x{} {}, k = {}", problem.m, problem.n, problem.dtype, problem.k),
        format!("strategy  {}{}", plan.strategy, if case.decision.alone { ", alone" } else { "" }),
        String::new(),
    ];
    out.extend(run(case, &runs.undisturbed, None));
    if let Some((faults, report)) = &runs.disturbed {
        out.extend([String::new(), format!("with      {faults}"), String::new()]);
        out.extend(run(case, report, Some(&runs.undisturbed)));
        out.extend(cost(report, &runs.undisturbed));
    }
    out.extend(drawn(runs));
    out.join("\n") + "\n"
}

/// The lines of one run; `calm` is the run without faults, if `report` is another run.
fn run(case: &SimCase, report: &SimReport, calm: Option<&SimReport>) -> Vec<String> {
    let plan = case.plan();
    let parts = parts(case, report);
    let mut out = machines(case, &parts, plan.relay);
    out.push(String::new());
    let gflops = plan.problem.flops() / report.seconds.max(1e-12) / 1e9;
    let time = seconds(report.seconds);
    out.push(match (&report.failed, calm) {
        (Some(why), _) => format!("failed    after {time}: {why}"),
        (None, Some(calm)) => {
            let times = report.seconds / calm.seconds;
            format!(
                "time      {time}, {gflops:.1} Gflop/s: {times:.2} times the undisturbed {}",
                seconds(calm.seconds)
            )
        }
        (None, None) => {
            format!("time      {time}, {gflops:.1} Gflop/s; predicted {}", seconds(plan.predicted.seconds))
        }
    });
    if calm.is_none() && plan.bound.seconds >= BOUND_SECONDS_MIN {
        let (least, by) = (seconds(plan.bound.seconds), plan.bound.by.name());
        let ratio = report.seconds / plan.bound.seconds;
        out.push(format!(
            "bound     no plan takes less than {least} ({by}); simulated is {ratio:.2} times that"
        ));
    }
    let share = report.loop_busy_s / report.seconds.max(1e-12);
    let all = busy(case, &parts);
    out.push(format!(
        "busy      {:.1} % of the time of the machines' threads; {:.1} % of the primary's event loop",
        all * 100.0,
        share * 100.0
    ));
    let passed: u64 = report.machines.iter().map(|m| m.bytes_passed).sum();
    let (sent, received) = (bytes(report.bytes_sent() as f64), bytes(report.bytes_received() as f64));
    let relayed =
        if passed > 0 { format!(", {} from worker to worker", bytes(passed as f64)) } else { String::new() };
    out.push(format!("moved     {sent} sent, {received} received{relayed}"));
    out.extend(events(case, report));
    out
}

/// The table of the machines.
fn machines(case: &SimCase, parts: &[MachineActivity], relays: bool) -> Vec<String> {
    let mut head = vec!["machine", "part", "busy", "jobs", "out", "in"];
    head.extend(relays.then_some("relayed"));
    head.push("memory");
    let listed = if parts.len() > LISTED_MAX { LISTED_FIRST } else { parts.len() };
    let mut rows: Vec<Vec<String>> = parts[..listed]
        .iter()
        .map(|part| row(case.machines[part.machine].name.clone(), part, relays))
        .collect();
    let rest = &parts[listed..];
    if let Some((first, others)) = rest.split_first() {
        let sum = others.iter().fold(first.clone(), |all, one| MachineActivity {
            machine: all.machine,
            share: all.share + one.share,
            busy: all.busy + one.busy,
            bytes_out: all.bytes_out + one.bytes_out,
            bytes_back: all.bytes_back + one.bytes_back,
            bytes_passed: all.bytes_passed + one.bytes_passed,
            held_bytes_max: all.held_bytes_max.max(one.held_bytes_max),
            jobs: all.jobs + one.jobs,
        });
        let mean = MachineActivity { busy: sum.busy / rest.len() as f64, ..sum };
        rows.push(row(format!("{} more", rest.len()), &mean, relays));
    }
    table::lines(&head, &rows)
}

fn row(name: String, part: &MachineActivity, relays: bool) -> Vec<String> {
    let mut row = vec![
        name,
        format!("{:.1} %", part.share * 100.0),
        format!("{:.1} %", part.busy * 100.0),
        part.jobs.to_string(),
        bytes(part.bytes_out as f64),
        bytes(part.bytes_back as f64),
    ];
    row.extend(relays.then(|| bytes(part.bytes_passed as f64)));
    row.push(bytes(part.held_bytes_max as f64));
    row
}

/// The losses and joins, by time.
fn events(case: &SimCase, report: &SimReport) -> Vec<String> {
    let mut all: Vec<(f64, String)> = Vec::new();
    for loss in &report.losses {
        let (name, at, part) = (case.name(loss.machine), seconds(loss.at_s), loss.part * 100.0);
        let left = format!("{part:.1} % of the work was reassigned");
        all.push((loss.at_s, format!("lost      {name} at {at}: {}; {left}", loss.why)));
    }
    for coming in &report.joins {
        let (name, at) = (case.name(coming.machine), seconds(coming.at_s));
        all.push((coming.at_s, format!("joined    {name} at {at}")));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let more = all.len().saturating_sub(TOLD_MAX);
    let mut lines: Vec<String> = all.into_iter().take(TOLD_MAX).map(|(_, line)| line).collect();
    lines.extend((more > 0).then(|| format!("          … and {more} more")));
    lines
}

/// What the faults cost.
fn cost(report: &SimReport, calm: &SimReport) -> Option<String> {
    if report.failed.is_some() {
        return None;
    }
    let again = (report.flops() - calm.flops()).max(0.0) / calm.flops().max(1.0);
    let later = report.seconds - calm.seconds;
    let sign = if later < 0.0 { "-" } else { "+" };
    let sent = report.bytes_sent() as f64 - calm.bytes_sent() as f64;
    let more = if sent < 0.0 { "less" } else { "more" };
    Some(format!(
        "cost      {sign}{}; {:.1} % of the operations were repeated; {} {more} sent",
        seconds(later.abs()),
        again * 100.0,
        bytes(sent.abs())
    ))
}

/// The results of the random sets of faults.
fn drawn(runs: &Runs) -> Vec<String> {
    let (Some(worst), Some(first), Some(last)) = (runs.worst(), runs.drawn.first(), runs.drawn.last()) else {
        return Vec::new();
    };
    let failed = runs.drawn.iter().filter(|tried| tried.failed.is_some()).count();
    let end = if failed == 0 { "all complete".to_owned() } else { format!("{failed} fail") };
    let (sets, from, to) = (runs.drawn.len(), first.seed, last.seed);
    let mut out =
        vec![String::new(), format!("random    {sets} sets of faults, seeds {from} to {to}: {end}")];
    if let Some(all) = runs.times() {
        let calm = runs.undisturbed.seconds;
        let times = |t: f64| format!("{} ({:.2} times)", seconds(t), t / calm);
        out.push(format!(
            "time      least {}, median {}, most {}",
            times(all.min()),
            times(all.median()),
            times(all.max())
        ));
    }
    let end = worst.failed.as_ref().map_or_else(|| seconds(worst.seconds), |why| format!("failed: {why}"));
    out.push(format!("worst     seed {}, {end}: --faults '{}'", worst.seed, worst.faults));
    out
}
