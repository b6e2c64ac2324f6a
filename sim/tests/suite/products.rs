//! Whole products under the virtual clock, with every strategy: compared with hand calculations, and reproducible.

use bramble_matrix::DType;
use bramble_plan::{
    LinkRate, Machine, OperandSource, PanelOrder, Plan, PlanOptions, Preference, Problem, Relay, Strategy,
    TileSize, decide,
};
use bramble_sim::{SimReport, SimSetting, simulate};

fn machine(name: &str, threads: u32, gflops: f64, bytes_per_s: Option<f64>) -> Machine {
    Machine {
        name: name.into(),
        threads,
        gflops,
        peak_gflops: gflops,
        memory_bytes: 1 << 30,
        link: bytes_per_s.map(|bytes_per_s| LinkRate { bytes_per_s, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

fn problem(m: u64, n: u64, k: u64) -> Problem {
    Problem {
        m,
        n,
        k,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    }
}

fn planned(p: &Problem, cut: TileSize, machines: &[Machine], strategy: &str, reproducible: bool) -> Plan {
    let strategy = Some(strategy.parse::<Strategy>().unwrap());
    let wish = PlanOptions {
        strategy,
        who: Preference::Workers,
        reproducible,
        relay: Relay::Off,
        ..PlanOptions::AUTO
    };
    decide(p, cut, &machines[0], &machines[1..], &wish).unwrap().plan
}

fn near(is: f64, should: f64, part: f64) {
    assert!((is - should).abs() <= part * should, "{is} instead of {should}");
}

fn busy(report: &SimReport) -> f64 {
    report.machines.iter().map(|m| m.busy_s).sum()
}

const STRATEGIES: [&str; 10] = [
    "naive",
    "row:3",
    "square:2",
    "reuse",
    "cuboid",
    "cuboid:2x1x3",
    "summa:2x2",
    "strassen:1",
    "strassen:2+square:2",
    "strassen:1+cuboid",
];

#[test]
fn every_strategy_ends_and_moves_the_predicted_bytes() {
    let mut machines = vec![machine("primary", 4, 40.0, None)];
    for at in 0..3 {
        machines.push(machine("worker", 1 + at, 5.0 + 3.0 * f64::from(at), Some(1e8 + 3e7 * f64::from(at))));
    }
    let cut = TileSize { tile: Some(96), depth: Some(128) };
    for strategy in STRATEGIES {
        for (reads_c, sends_a, reproducible) in
            [(false, true, false), (true, true, false), (false, false, false), (false, true, true)]
        {
            if reproducible && strategy.starts_with("strassen") {
                continue;
            }
            let p = Problem {
                reads_c,
                a_source: OperandSource::generated_if(!sends_a),
                ..problem(997, 881, 1301)
            };
            let plan = planned(&p, cut, &machines, strategy, reproducible);
            for seed in 0..3 {
                let setting = SimSetting { seed, steals: false, ..SimSetting::measured() };
                let report = simulate(&plan, &machines, &setting);
                let off = report.bytes_off(&plan.predicted);
                assert!(off < 0.01, "{strategy}: bytes are {off} off");
                let jobs: u64 = plan.predicted.machines.iter().map(|m| m.jobs).sum();
                assert_eq!(report.jobs, jobs, "{strategy}");
                assert_eq!(report.tiles, plan.tiles(), "{strategy}");
            }
        }
    }
}

#[test]
fn the_primary_alone_takes_the_time_of_its_operations() {
    let machines = [machine("primary", 4, 40.0, None)];
    let p = problem(2048, 2048, 2048);
    let plan = planned(&p, TileSize::default(), &machines, "reuse", false);
    let report = simulate(&plan, &machines, &SimSetting::measured());
    near(report.seconds, p.flops() / 40e9, 0.001);
    near(busy(&report), 4.0 * p.flops() / 40e9, 0.001);
    assert_eq!((report.bytes_sent(), report.bytes_received()), (0, 0));
}

#[test]
fn a_slow_worker_takes_the_time_of_its_operations() {
    let machines = [machine("primary", 1, 1.0, None), machine("worker", 2, 2.0, Some(1e9))];
    let p = problem(2048, 2048, 2048);
    let plan = planned(&p, TileSize::default(), &machines, "reuse", false);
    let report = simulate(&plan, &machines, &SimSetting::ideal());
    // The ends: the first panels and the last tile are on the link.
    let ends = (2.0 * 256.0 * 1024.0 * 8.0 + 256.0 * 256.0 * 8.0) / 1e9;
    near(report.seconds, p.flops() / 2e9 + ends, 0.01);
}

#[test]
fn a_slow_link_takes_the_time_of_its_bytes() {
    let machines = [machine("primary", 1, 1.0, None), machine("worker", 2, 1e4, Some(1e7))];
    let p = problem(2048, 2048, 2048);
    let plan = planned(&p, TileSize::default(), &machines, "reuse", false);
    let report = simulate(&plan, &machines, &SimSetting::ideal());
    // Both operands once; then the tiles of the last step, most of which return while it is still being sent.
    let (out, back) = (p.operand_bytes() / 1e7, p.result_bytes() / 1e7);
    assert!(report.seconds > out && report.seconds < out + 0.6 * back, "{} {out} {back}", report.seconds);
    near(report.bytes_sent() as f64, p.operand_bytes(), 0.01);
    near(report.bytes_received() as f64, p.result_bytes(), 0.01);
}

#[test]
fn workers_share_the_primarys_network() {
    let p = problem(2048, 2048, 2048);
    let mut machines = vec![machine("primary", 1, 1.0, None)];
    machines.extend((0..4).map(|_| machine("worker", 2, 1e4, Some(1e8))));
    let plan = planned(&p, TileSize::default(), &machines, "summa:2x2", false);
    let shared = simulate(&plan, &machines, &SimSetting::ideal()).seconds;
    let wide = SimSetting { primary_bytes_per_s: Some(4e8), ..SimSetting::ideal() };
    near(shared / simulate(&plan, &machines, &wide).seconds, 4.0, 0.1);
    near(shared, 2.0 * p.operand_bytes() / 1e8, 0.2);
}

#[test]
fn the_primary_sends_operands_once_if_workers_relay() {
    let p = problem(4096, 4096, 4096);
    let mut machines = vec![machine("primary", 1, 1.0, None)];
    machines.extend((0..8).map(|_| machine("worker", 2, 1e4, Some(1e8))));
    for strategy in ["summa:2x4", "summa:4x2", "reuse", "cuboid:2x4x1", "cuboid:1x8x1"] {
        let run = |relay| {
            let strategy = Some(strategy.parse::<Strategy>().unwrap());
            let wish = PlanOptions { strategy, who: Preference::Workers, relay, ..PlanOptions::AUTO };
            let plan = decide(&p, TileSize::default(), &machines[0], &machines[1..], &wish).unwrap().plan;
            assert_eq!(plan.relay, relay == Relay::On, "{strategy:?}");
            (simulate(&plan, &machines, &SimSetting::ideal()), plan.predicted)
        };
        let ((alone, _), (relayed, predicted)) = (run(Relay::Off), run(Relay::On));
        let once = p.operand_bytes();
        assert!(relayed.bytes_sent() as f64 <= 1.01 * once, "{strategy}: {} of {once}", relayed.bytes_sent());
        assert!(alone.bytes_sent() as f64 > 1.5 * once, "{strategy}");
        let passed: u64 = relayed.machines.iter().map(|m| m.bytes_passed).sum();
        assert!(relayed.bytes_off(&predicted) < 0.01, "{strategy}: {}", relayed.bytes_off(&predicted));
        near(passed as f64, predicted.bytes_relayed as f64, 0.01);
        let times = (relayed.seconds, alone.seconds, predicted.seconds, once / 1e8);
        // In the worst case all of C returns after both operands have been sent.
        let worst = 1.02 * (times.3 + p.result_bytes() / 1e8);
        assert!(times.0 < times.1 && times.0 < worst, "{strategy}: {times:?}");
    }
}

#[test]
fn the_event_loop_and_the_threads_share_the_cores() {
    let p = problem(2048, 2048, 2048);
    let mut machines = vec![machine("primary", 2, 20.0, None)];
    machines.extend((0..2).map(|_| Machine { shares_cores: true, ..machine("w", 2, 20.0, Some(2e9)) }));
    let plan = planned(&p, TileSize::default(), &machines, "reuse", false);
    let seconds = simulate(&plan, &machines, &SimSetting::ideal()).seconds;
    // Four threads at 10 Gflop/s each on two cores.
    near(seconds, p.flops() / 20e9, 0.1);
    assert!(simulate(&plan, &machines, &SimSetting::measured()).seconds > seconds);
}

#[test]
fn the_same_arguments_give_the_same_run() {
    let p = problem(1500, 1100, 1900);
    let mut machines = vec![machine("primary", 2, 20.0, None)];
    machines.extend((1..6).map(|at| machine("w", at, 3.0 * f64::from(at), Some(1e8))));
    let plan = planned(&p, TileSize::default(), &machines, "cuboid", false);
    for seed in [0, 7] {
        let setting = SimSetting { seed, ..SimSetting::measured() };
        assert_eq!(simulate(&plan, &machines, &setting), simulate(&plan, &machines, &setting));
    }
}

#[test]
fn predictions_are_near_simulated_times() {
    let mut machines = vec![machine("primary", 4, 40.0, None)];
    machines.extend((0..4).map(|at| machine("worker", 4, 12.0 + 4.0 * f64::from(at), Some(117e6))));
    for (m, n, k) in [(8192, 8192, 8192), (1000, 20_000, 3000), (512, 512, 65_536), (6000, 6000, 200)] {
        for strategy in ["naive", "row:4", "square:4", "reuse", "cuboid", "summa:2x2", "strassen:1"] {
            let plan = planned(&problem(m, n, k), TileSize::default(), &machines, strategy, false);
            let simulated = simulate(&plan, &machines, &SimSetting::measured()).seconds;
            let off = plan.predicted.seconds / simulated;
            assert!((0.8..1.25).contains(&off), "{m} x {n} x {k} by {strategy}: {off} of {simulated} s");
        }
    }
}

/// Workers of which the first is slower than stated: (with stealing, without, ideal seconds).
fn one_slow(speed: f64, workers: usize, k: u64, strategy: &str) -> (SimReport, SimReport, f64) {
    let mut machines = vec![machine("primary", 4, 24.0, None)];
    machines.extend((0..workers).map(|_| machine("worker", 4, 24.0, Some(117e6))));
    machines[0].nic_bytes_per_s = Some(400e6);
    let p = Problem { dtype: DType::F32, ..problem(8192, 8192, k) };
    let cut = TileSize { tile: Some(512), depth: Some(512) };
    let plan = planned(&p, cut, &machines, strategy, false);
    let speeds = vec![1.0, speed];
    let sum = 24e9 * (workers as f64 - 1.0 + speed);
    let run = |steals| {
        let setting = SimSetting { speeds: speeds.clone(), steals, ..SimSetting::measured() };
        simulate(&plan, &machines, &setting)
    };
    let (with, without) = (run(true), run(false));
    assert_eq!(with.jobs, without.jobs, "every (tile, step) once");
    (with, without, p.flops() / sum)
}

#[test]
fn the_work_of_a_slow_machine_is_stolen_and_all_end_together() {
    for (speed, k, off) in [(0.5, 8192, 0.06), (0.25, 8192, 0.06), (0.1, 32_768, 0.06)] {
        let (with, without, ideal) = one_slow(speed, 4, k, "reuse");
        assert!(with.seconds < ideal * (1.0 + off), "{speed}: {} s, ideal {ideal}", with.seconds);
        assert!(without.seconds > ideal * 1.5, "{speed}: {} s without", without.seconds);
        let moved: f64 = with.moved.iter().filter(|m| m.from == 0).map(|m| m.part).sum();
        // The slow machine keeps its part by speed, and a little more.
        let kept = speed / (3.0 + speed);
        assert!((0.25 - moved - kept).abs() < 0.04, "{moved} of all work moved");
        for (at, m) in with.machines.iter().enumerate() {
            let idle = 1.0 - m.busy_s / 4.0 / with.seconds;
            assert!(idle < 0.08, "{speed}: machine {at} was idle for {idle} of the time");
        }
    }
}

#[test]
fn machines_with_their_stated_speed_keep_their_work() {
    let (with, without, _) = one_slow(1.0, 4, 8192, "reuse");
    assert!(with.moved.is_empty());
    assert_eq!(with.seconds, without.seconds);
    // Even shares, and one machine that is slower.
    let (with, without, ideal) = one_slow(0.8, 5, 8192, "reuse");
    assert!(with.seconds < 0.9 * without.seconds, "{} s and {} s", with.seconds, without.seconds);
    assert!(with.seconds < 1.1 * ideal, "{} s, ideal {ideal}", with.seconds);
}

#[test]
fn every_strategy_ends_with_a_slow_machine_and_the_same_jobs() {
    let mut machines = vec![machine("primary", 4, 40.0, None)];
    machines.extend((0..3).map(|_| machine("worker", 2, 8.0, Some(1e8))));
    let cut = TileSize { tile: Some(96), depth: Some(128) };
    let mut moves = 0;
    for strategy in STRATEGIES {
        for (reads_c, sends_a, reproducible) in [(false, true, false), (true, false, true)] {
            if reproducible && strategy.starts_with("strassen") {
                continue;
            }
            let p = Problem {
                reads_c,
                a_source: OperandSource::generated_if(!sends_a),
                ..problem(997, 881, 2601)
            };
            let plan = planned(&p, cut, &machines, strategy, reproducible);
            let jobs: u64 = plan.predicted.machines.iter().map(|m| m.jobs).sum();
            for seed in 0..3 {
                let speeds = vec![1.0, 1.0, 0.1];
                let report =
                    simulate(&plan, &machines, &SimSetting { seed, speeds, ..SimSetting::measured() });
                // With Strassen's method every machine that has a panel computes its sums itself.
                assert!(report.jobs == jobs || strategy.starts_with("strassen"), "{strategy}");
                assert_eq!(report.tiles, plan.tiles(), "{strategy}");
                moves += report.moved.iter().map(|m| m.times).sum::<u64>();
            }
        }
    }
    assert!(moves > 30, "{moves} moves");
}

/// Four equal workers, and a primary whose network card has `bytes_per_s`.
fn four_equal(gflops: f64, bytes_per_s: f64) -> Vec<Machine> {
    let nic = |machine| Machine { nic_bytes_per_s: Some(bytes_per_s), memory_bytes: 4 << 30, ..machine };
    let worker = |_| nic(machine("worker", 1, gflops, Some(bytes_per_s)));
    std::iter::once(nic(machine("primary", 1, gflops, None))).chain((0..4).map(worker)).collect()
}

#[test]
fn other_orders_of_panels_take_the_predicted_time() {
    // (n, Gflop/s, bytes/s, the order, time against the longer of computing and sending)
    let cases = [
        (16_384, 43.0, 119e6, PanelOrder::Ending(8), 1.04),
        (8192, 43.0, 119e6, PanelOrder::Ending(6), 1.07),
        (12_288, 43.0, 119e6, PanelOrder::Ending(6), 1.04),
        (8192, 43.0, 24.4e6, PanelOrder::Corner, 1.05),
    ];
    for (n, gflops, bytes_per_s, order, most) in cases {
        let p = Problem { dtype: DType::F32, ..problem(n, n, n) };
        let machines = four_equal(gflops, bytes_per_s);
        let wish = PlanOptions {
            strategy: Some("reuse".parse().unwrap()),
            who: Preference::Workers,
            ..PlanOptions::AUTO
        };
        let plan = decide(&p, TileSize::default(), &machines[0], &machines[1..], &wish).unwrap().plan;
        assert_eq!(plan.members[0].shares[0].order, order, "{n}, {bytes_per_s}");
        let report = simulate(&plan, &machines, &SimSetting::measured());
        let sends_s = (n * n * 2 * 4) as f64 / bytes_per_s;
        let bound_s = (p.flops() / (4.0 * gflops * 1e9)).max(sends_s);
        assert!(report.seconds < most * bound_s, "{n}, {bytes_per_s}: {} of {bound_s}", report.seconds);
        near(plan.predicted.seconds, report.seconds, 0.06);
        assert_eq!(report.tiles, plan.tiles());
    }
}
