//! A plan as text: the decision, the machines and their shares, predicted figures and the lower bound, the strategies
//! compared, and the picture.

use super::picture::{self, PictureStyle};
use super::view::PlanView;
use crate::quantity::{bytes, seconds};
use crate::table;
use bramble_plan::{Considered, MachineCost};

/// More machines than this are not listed one by one.
const LISTED_MAX: usize = 20;
/// How many machines are listed if there are more than `LISTED_MAX`.
const LISTED_FIRST: usize = 12;
/// Most strategies in the comparison.
const CONSIDERED_MAX: usize = 16;

/// Bounds below a millisecond are not printed: other costs dominate such a product, so its time would be thousands of
/// times the bound.
pub const BOUND_SECONDS_MIN: f64 = 1e-3;

/// The whole text.
pub fn text(view: &PlanView, look: PictureStyle) -> String {
    let (plan, decision) = (view.plan(), &view.decision);
    let problem = &plan.problem;
    let region = plan.regions.first();
    let mut out = vec![
        decision.sentence.clone(),
        String::new(),
        format!("C         {}x{} {}, k = {}", problem.m, problem.n, problem.dtype, problem.k),
        format!("strategy  {}{}", plan.strategy, if decision.alone { ", alone" } else { "" }),
    ];
    if plan.strategy.levels > 0 && problem.dtype.is_float() && !view.is_inspected {
        let looks = "multiply inspects the elements first";
        out.push(format!(
            "          {looks}, and drops Strassen's method if small elements would lose accuracy"
        ));
    }
    if let Some(region) = region {
        let (grid, parts) = (&region.grid, if region.levels > 0 { " of each part" } else { "" });
        let (tiles, steps) = (grid.tiles(), grid.steps());
        out.push(format!(
            "grid      {tiles} tile{} of {}x{}{parts}, {steps} step{} of {}",
            plural(tiles),
            grid.tile_rows,
            grid.tile_cols,
            plural(steps),
            grid.depth
        ));
    }
    out.push(String::new());
    out.extend(machines(view));
    out.extend(left_out(view));
    out.push(String::new());
    out.extend(figures(view));
    out.push(String::new());
    out.extend(considered(&decision.considered));
    out.push(String::new());
    out.extend(picture::lines(plan, &view.names(), look));
    out.join("\n") + "\n"
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The table of the machines that compute.
fn machines(view: &PlanView) -> Vec<String> {
    let mut head = vec!["machine", "part", "blocks", "jobs", "out", "in"];
    let relays = view.plan().relay;
    head.extend(relays.then_some("relayed"));
    head.extend(["memory", "compute", "link"]);
    let names = view.names();
    let blocks: Vec<u64> =
        view.plan().members.iter().map(|m| m.shares.iter().map(|s| s.blocks()).sum()).collect();
    let costs = &view.plan().predicted.machines;
    let listed = if costs.len() > LISTED_MAX { LISTED_FIRST } else { costs.len() };
    let mut rows: Vec<Vec<String>> =
        (0..listed).map(|i| row(names[i].to_owned(), blocks[i], &costs[i], relays)).collect();
    if let Some(rest) = summary(&costs[listed..]) {
        let name = format!("{} more", costs.len() - listed);
        rows.push(row(name, blocks[listed..].iter().sum(), &rest, relays));
    }
    table::lines(&head, &rows)
}

fn row(name: String, blocks: u64, cost: &MachineCost, relays: bool) -> Vec<String> {
    let mut row = vec![
        name,
        format!("{:.1} %", cost.part * 100.0),
        blocks.to_string(),
        cost.jobs.to_string(),
        bytes(cost.bytes_out as f64),
        bytes(cost.bytes_back as f64),
    ];
    row.extend(relays.then(|| bytes(cost.bytes_given as f64)));
    row.extend([bytes(cost.memory_bytes as f64), seconds(cost.compute_s), seconds(cost.link_s)]);
    row
}

/// Several machines in one row: sums of their work and bytes, and maxima of memory and times.
fn summary(costs: &[MachineCost]) -> Option<MachineCost> {
    let (first, rest) = costs.split_first()?;
    Some(rest.iter().fold(*first, |all, one| MachineCost {
        flops: all.flops + one.flops,
        bytes_out: all.bytes_out + one.bytes_out,
        bytes_back: all.bytes_back + one.bytes_back,
        bytes_taken: all.bytes_taken + one.bytes_taken,
        bytes_given: all.bytes_given + one.bytes_given,
        jobs: all.jobs + one.jobs,
        memory_bytes: all.memory_bytes.max(one.memory_bytes),
        compute_s: all.compute_s.max(one.compute_s),
        link_s: all.link_s.max(one.link_s),
        seconds: all.seconds.max(one.seconds),
        part: all.part + one.part,
    }))
}

/// The machines without a share, grouped by reason.
fn left_out(view: &PlanView) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for left in &view.decision.left_out {
        match reasons.iter_mut().find(|(reason, _)| *reason == left.reason) {
            Some((_, names)) => names.push(&left.name),
            None => reasons.push((&left.reason, vec![&left.name])),
        }
    }
    let line = |(reason, names): &(&str, Vec<&str>)| {
        let listed = if names.len() > LISTED_MAX { LISTED_FIRST } else { names.len() };
        let more = match names.len() - listed {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("not used: {}{more}: {reason}", names[..listed].join(", "))
    };
    reasons.iter().map(line).collect()
}

/// The predicted figures and the lower bound.
fn figures(view: &PlanView) -> Vec<String> {
    let plan = view.plan();
    let predicted = &plan.predicted;
    let speed = plan.problem.flops() / predicted.seconds.max(f64::MIN_POSITIVE) / 1e9;
    let mut out = vec![format!(
        "predicted {}, {speed:.1} Gflop/s; limited by {}",
        seconds(predicted.seconds),
        predicted.by
    )];
    if predicted.bytes_sent + predicted.bytes_received > 0 {
        let (sent, received) = (bytes(predicted.bytes_sent as f64), bytes(predicted.bytes_received as f64));
        let passed = match predicted.bytes_relayed {
            0 => String::new(),
            relayed => format!(", {} from worker to worker", bytes(relayed as f64)),
        };
        out.push(format!("moved     {sent} sent, {received} received{passed}"));
    }
    out.push(format!("memory    {}", memory(predicted.worker_memory_bytes, predicted.primary_memory_bytes)));
    if let Some(ratio) = view.ratio().filter(|_| plan.bound.seconds >= BOUND_SECONDS_MIN) {
        let (least, by) = (seconds(plan.bound.seconds), plan.bound.by.name());
        if plan.bound.seconds >= BOUND_SECONDS_MIN {
            out.push(format!(
                "bound     no plan takes less than {least} ({by}); the prediction is {ratio:.2} times \
            that"
            ));
        }
    }
    if let Some(energy) = view.energy() {
        out.push(format!(
            "energy    {} at {:.1} W, {:.2} Gflop/s/W",
            joules(energy.joules),
            energy.watts,
            energy.gflops_per_watt
        ));
    }
    out.push(format!("planned   in {}", seconds(view.plan_seconds)));
    out
}

/// The memory of workers and primary, for a line of a report.
pub fn memory(worker_bytes: u64, primary_bytes: u64) -> String {
    let worker = match worker_bytes {
        0 => "none besides A, B and C themselves".to_owned(),
        held => format!("at most {} of matrices per machine", bytes(held as f64)),
    };
    match primary_bytes {
        0 if worker_bytes == 0 => worker,
        0 => format!("{worker}; the primary only maps A, B and C"),
        held => format!("{worker}; {} of partial sums at the primary", bytes(held as f64)),
    }
}

fn joules(joules: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)];
    for (unit, size) in UNITS {
        if joules >= size {
            return format!("{:.2} {unit}", joules / size);
        }
    }
    format!("{joules:.1} J")
}

/// The table of the strategies compared, fastest first.
fn considered(all: &[Considered]) -> Vec<String> {
    let row = |c: &Considered| {
        let team = match (c.machines, c.with_primary) {
            (1, true) => "alone".to_owned(),
            (machines, true) => format!("{} + primary", machines - 1),
            (machines, false) => machines.to_string(),
        };
        vec![
            c.strategy.to_string(),
            team,
            seconds(c.seconds),
            bytes(c.bytes_sent as f64),
            bytes(c.bytes_received as f64),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().take(CONSIDERED_MAX).map(row).collect();
    let mut out = table::lines(&["compared", "workers", "time", "out", "in"], &rows);
    if all.len() > rows.len() {
        out.push(format!("  … and {} more", all.len() - rows.len()));
    }
    out
}
