//! The gain of work stealing: clusters with one machine that is slower than stated, and plans with uneven shares. Prints a
//! table of simulated products with and without stealing.

#![allow(clippy::print_stdout)] // It is what it is for.

use bramble_matrix::DType;
use bramble_plan::{
    LinkRate, Machine, OperandSource, Plan, PlanOptions, Preference, Problem, Strategy, TileSize, decide,
};
use bramble_sim::{SimReport, SimSetting, simulate};

/// One line of the table.
struct Case {
    name: &'static str,
    workers: usize,
    n: u64,
    k: u64,
    strategy: &'static str,
    /// Real speed of the first worker, relative to the stated one.
    speed: f64,
    /// Memory of each machine.
    memory_bytes: u64,
}

fn main() {
    println!(
        "| cluster | product | strategy | stealing | seconds | of ideal | idle: mean | most | moved | sent |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let speeds = [("all as planned", 1.0), ("one at 1/2", 0.5), ("one at 1/4", 0.25), ("one at 1/10", 0.1)];
    for (strategy, k, memory_bytes) in
        [("reuse", 8192, 4 << 30), ("reuse", 32768, 4 << 30), ("reuse", 8192, 100 << 20)]
    {
        for (name, speed) in speeds {
            show(&Case { name, workers: 4, n: 8192, k, strategy, speed, memory_bytes });
        }
    }
    for strategy in ["naive", "row:4", "square:4", "cuboid:2x1x2", "summa:2x2", "strassen:1+square:2"] {
        show(&Case {
            name: "one at 1/4",
            workers: 4,
            n: 8192,
            k: 8192,
            strategy,
            speed: 0.25,
            memory_bytes: 4 << 30,
        });
    }
    for (name, speed) in speeds {
        show(&Case { name, workers: 5, n: 8192, k: 8192, strategy: "reuse", speed, memory_bytes: 4 << 30 });
    }
}

fn machines(case: &Case) -> Vec<Machine> {
    let machine = Machine {
        name: "worker".into(),
        threads: 4,
        gflops: 24.0,
        peak_gflops: 24.0,
        memory_bytes: case.memory_bytes,
        link: Some(LinkRate { bytes_per_s: 117e6, round_trip_s: 3e-4 }),
        shares_cores: false,
        nic_bytes_per_s: Some(300e6),
        memory_rate: None,
    };
    let primary = Machine { link: None, name: "primary".into(), ..machine.clone() };
    std::iter::once(primary).chain((0..case.workers).map(|_| machine.clone())).collect()
}

fn planned(case: &Case, machines: &[Machine]) -> Plan {
    let (n, k) = (case.n, case.k);
    let problem = Problem {
        m: n,
        n,
        k,
        dtype: DType::F32,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    };
    let strategy = case.strategy.parse::<Strategy>().unwrap_or_else(|e| panic!("{e}"));
    let wish = PlanOptions { strategy: Some(strategy), who: Preference::Workers, ..PlanOptions::AUTO };
    let cut = TileSize { tile: Some(512), depth: Some(512) };
    match decide(&problem, cut, &machines[0], &machines[1..], &wish) {
        Ok(decision) => decision.plan,
        Err(e) => panic!("{e}"),
    }
}

fn show(case: &Case) {
    let machines = machines(case);
    let plan = planned(case, &machines);
    let speeds = vec![1.0, case.speed];
    let speed = |at: usize| machines[at].gflops * 1e9 * speeds.get(at).copied().unwrap_or(1.0);
    let sum: f64 = plan.members.iter().map(|m| speed(m.machine)).sum();
    let ideal = plan.predicted.machines.iter().map(|m| m.flops).sum::<f64>() / sum;
    for steals in [false, true] {
        let setting = SimSetting { speeds: speeds.clone(), steals, ..SimSetting::measured() };
        let report = simulate(&plan, &machines, &setting);
        print(case, &report, steals, ideal, machines[1].threads);
    }
}

fn print(case: &Case, report: &SimReport, steals: bool, ideal: f64, threads: u32) {
    let idle: Vec<f64> =
        report.machines.iter().map(|m| 1.0 - m.busy_s / f64::from(threads) / report.seconds).collect();
    let mean = idle.iter().sum::<f64>() / idle.len().max(1) as f64;
    let most = idle.iter().copied().fold(0.0, f64::max);
    let (times, part) = report.moved.iter().fold((0, 0.0), |sum, m| (sum.0 + m.times, sum.1 + m.part));
    let cluster = format!("{} workers, {}", case.workers, case.name);
    let plan = format!("{} ({} MiB)", case.strategy, case.memory_bytes >> 20);
    let took = format!("{:.2} | {:.3}", report.seconds, report.seconds / ideal);
    let idle = format!("{:.1} % | {:.1} %", mean * 100.0, most * 100.0);
    let sent = report.bytes_sent() as f64 / 1e9;
    println!(
        "| {cluster} | {}, k {} | {plan} | {} | {took} | {idle} | {times} times, {:.1} % | {sent:.2} GB |",
        case.n,
        case.k,
        if steals { "yes" } else { "no" },
        part * 100.0,
    );
}
