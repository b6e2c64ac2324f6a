//! How good the plan of `auto` is: simulates each product with the plan that `auto` chooses, with every strategy on
//! the fastest workers (various numbers of them), with and without the primary, and with the primary alone. Also compares
//! predictions with simulated times.
//!
//! `cargo run --release -p bramble-sim --example auto`; `-- --plans` prints every plan, `-- --json` lines for
//! `bench/results/`; `-- --in-order` simulates workers whose threads do not prefer additions of matrices;
//! `-- --unicast` excludes plans in which workers relay panels.

#![allow(clippy::print_stdout)] // It is what it is for.

mod clusters;

use bramble_plan::{Machine, Plan, PlanOptions, Preference, Problem, Relay, Strategy, TileSize, decide};
use bramble_sim::{SimSetting, simulate};
use clusters::{ExampleCluster, cases};

/// One plan, predicted and simulated.
struct Tried {
    name: String,
    predicted_s: f64,
    simulated_s: f64,
    bytes_off: f64,
    jobs: u64,
    by: String,
}

fn main() {
    let asked = |what: &str| std::env::args().any(|a| a == what);
    let (json, plans) = (asked("--json"), asked("--plans"));
    let mut all: Vec<Tried> = Vec::new();
    let mut ratios: Vec<f64> = Vec::new();
    if !json {
        println!(
            "| cluster | product | auto | auto, s | best other | its s | ratio | predicted : simulated |"
        );
        println!("|---|---|---|---|---|---|---|---|");
    }
    for (cluster, shape, problem) in cases() {
        let tried = tries(&cluster, &problem);
        let Some((auto, others)) = tried.split_first() else { continue };
        let best = others.iter().min_by(|a, b| a.simulated_s.total_cmp(&b.simulated_s));
        let Some(best) = best else { continue };
        let ratio = auto.simulated_s / best.simulated_s;
        ratios.push(ratio);
        if json {
            println!("{}", line(&cluster, &problem, auto, best, ratio));
        } else {
            println!("{}", row(&cluster, shape, auto, best, ratio));
        }
        for plan in tried.iter().filter(|_| plans) {
            println!("{}", detail(plan));
        }
        all.extend(tried);
    }
    if !json {
        summary(&all, &mut ratios);
    }
}

/// Workers relay panels if that is predicted to be faster, unless `--unicast` is given.
fn left_to_bramble() -> PlanOptions {
    let unicast = std::env::args().any(|a| a == "--unicast");
    PlanOptions { relay: if unicast { Relay::Off } else { Relay::Auto }, ..PlanOptions::AUTO }
}

/// `auto`'s plan first, then the others.
fn tries(cluster: &ExampleCluster, problem: &Problem) -> Vec<Tried> {
    let mut tried = Vec::new();
    let machines = &cluster.machines;
    tried.extend(attempt(problem, machines, &left_to_bramble()));
    let wish = |strategy: &str| PlanOptions {
        strategy: strategy.parse::<Strategy>().ok(),
        who: Preference::Workers,
        ..left_to_bramble()
    };
    for strategy in ["reuse", "strassen:1", "strassen:2"] {
        tried.extend(attempt(problem, &machines[..1], &wish(strategy)));
    }
    let mut workers = machines[1..].to_vec();
    workers.sort_by(|a, b| b.gflops.total_cmp(&a.gflops));
    let all = workers.len();
    for size in [1, 2, 3, 4, 6, 8, 16, 32, all].into_iter().filter(|s| *s < all).chain([all]) {
        // The primary, computing beside workers, is one of them, without a link.
        let mut with_primary = vec![machines[0].clone(), machines[0].clone()];
        with_primary.extend_from_slice(&workers[..size]);
        let mut without = with_primary.clone();
        without.remove(1);
        for strategy in strategies(size) {
            tried.extend(attempt(problem, &without, &wish(&strategy)));
        }
        for strategy in strategies(size + 1) {
            tried.extend(attempt(problem, &with_primary, &wish(&strategy)));
        }
    }
    tried
}

/// One plan; `None` if it does not exist, or if the primary has no memory for its partial sums.
fn attempt(problem: &Problem, machines: &[Machine], wish: &PlanOptions) -> Option<Tried> {
    let plan = decide(problem, TileSize::default(), &machines[0], &machines[1..], wish).ok()?.plan;
    if plan.predicted.primary_memory_bytes > machines[0].memory_bytes {
        return None;
    }
    let additions_first = std::env::args().all(|a| a != "--in-order");
    let report = simulate(&plan, machines, &SimSetting { additions_first, ..SimSetting::measured() });
    Some(Tried {
        name: named(&plan, machines),
        predicted_s: plan.predicted.seconds,
        simulated_s: report.seconds,
        bytes_off: report.bytes_off(&plan.predicted),
        jobs: report.jobs,
        by: plan.predicted.by.to_string(),
    })
}

/// Strategies for this number of machines.
fn strategies(machines: usize) -> Vec<String> {
    let mut rows = machines.isqrt();
    while !machines.is_multiple_of(rows) {
        rows -= 1;
    }
    let side = ((machines as f64 / 2.0).cbrt().round() as usize).max(1);
    let names = [
        "naive",
        "row:4",
        "square:4",
        "reuse",
        "cuboid",
        "strassen:1",
        "strassen:2",
        "strassen:1+cuboid",
        "strassen:2+cuboid",
    ];
    let mut all: Vec<String> = names.map(String::from).into();
    all.push(format!("summa:{rows}x{}", machines / rows));
    all.push(format!("cuboid:{side}x{side}x{}", (machines / side / side).max(1)));
    all.push(format!("cuboid:1x1x{machines}"));
    all
}

fn named(plan: &Plan, machines: &[Machine]) -> String {
    let with_primary = plan.members.iter().any(|m| machines[m.machine].link.is_none());
    let workers = plan.members.iter().filter(|m| machines[m.machine].link.is_some()).count();
    let who = match (with_primary, workers) {
        (true, 0) => "alone".to_owned(),
        (true, n) => format!("primary + {n}"),
        (false, 1) => "1 worker".to_owned(),
        (false, n) => format!("{n} workers"),
    };
    format!("{}, {who}", plan.strategy)
}

fn row(cluster: &ExampleCluster, shape: &str, auto: &Tried, best: &Tried, ratio: f64) -> String {
    let mark = if ratio > 1.05 { "!! " } else { "" };
    let off = auto.predicted_s / auto.simulated_s;
    format!(
        "| {} | {shape} | {} | {:.3} | {} | {:.3} | {mark}{ratio:.2} | {off:.2} |",
        cluster.name, auto.name, auto.simulated_s, best.name, best.simulated_s
    )
}

fn detail(plan: &Tried) -> String {
    let Tried { name, predicted_s, simulated_s, bytes_off, jobs, by } = plan;
    let (off, bytes) = (predicted_s / simulated_s, bytes_off * 100.0);
    format!(
        "    {name:36} {predicted_s:10.4} {simulated_s:10.4} {off:6.2} {jobs:7} jobs, bytes {bytes:.2} % off, {by}"
    )
}

fn line(cluster: &ExampleCluster, p: &Problem, auto: &Tried, best: &Tried, ratio: f64) -> String {
    format!(
        "{{\"script\": \"auto\", \"cluster\": \"{}\", \"m\": {}, \"n\": {}, \"k\": {}, \"dtype\": \"{}\", \
         \"auto\": \"{}\", \"auto_s\": {:.6}, \"predicted_s\": {:.6}, \"best\": \"{}\", \"best_s\": {:.6}, \
         \"ratio\": {ratio:.4}}}",
        cluster.name,
        p.m,
        p.n,
        p.k,
        p.dtype,
        auto.name,
        auto.simulated_s,
        auto.predicted_s,
        best.name,
        best.simulated_s
    )
}

fn summary(all: &[Tried], ratios: &mut [f64]) {
    ratios.sort_by(f64::total_cmp);
    let within = ratios.iter().filter(|r| **r <= 1.05).count();
    let (middle, last) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
    println!(
        "\nauto : best other: median {middle:.3}, worst {last:.3}; at most 1.05 in {within} of {}",
        ratios.len()
    );
    let mut off: Vec<f64> = all.iter().map(|t| t.predicted_s / t.simulated_s).collect();
    off.sort_by(f64::total_cmp);
    let near = off.iter().filter(|o| (1.0 / 1.15..=1.15).contains(*o)).count();
    let (middle, first, last) = (off[off.len() / 2], off[0], off[off.len() - 1]);
    println!(
        "predicted : simulated over {} plans: median {middle:.3}, least {first:.3}, most {last:.3}; within 15 % in {near}",
        off.len()
    );
    let bytes = all.iter().map(|t| t.bytes_off).fold(0.0, f64::max) * 100.0;
    let far = all.iter().filter(|t| t.bytes_off > 0.01).count();
    let jobs: u64 = all.iter().map(|t| t.jobs).sum();
    println!("bytes: at most {bytes:.2} % off, more than 1 % in {far} plans; {jobs} jobs");
}
