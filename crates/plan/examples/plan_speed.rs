//! Measures the time to plan for many machines, and to take the first blocks of a plan: `cargo run --release -p
//! bramble-plan --example plan_speed`.

#![allow(clippy::print_stdout)] // It is what the example is for.

use bramble_base::DType;
use bramble_plan::{LinkRate, Machine, OperandSource, PlanOptions, Preference, Problem, TileSize, decide};
use std::time::Instant;

fn machines(count: usize, alike: bool) -> Vec<Machine> {
    let one = |at: usize| {
        // Small boards of all kinds, spread by a multiplicative hash.
        let kind = if alike { 7 } else { at.wrapping_mul(2_654_435_761) % 97 };
        let gflops = 8.0 + kind as f64 * 0.9;
        Machine {
            name: format!("node{at}"),
            threads: 4,
            gflops,
            peak_gflops: gflops * 1.4,
            memory_bytes: (1 + kind as u64 % 8) << 30,
            link: Some(LinkRate {
                bytes_per_s: if kind % 11 == 0 { 11.5e6 } else { 117e6 },
                round_trip_s: 3e-4,
            }),
            shares_cores: false,
            nic_bytes_per_s: None,
            memory_rate: None,
        }
    };
    (0..count).map(one).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let primary = Machine {
        name: "laptop".to_owned(),
        threads: 8,
        gflops: 200.0,
        peak_gflops: 300.0,
        memory_bytes: 16 << 30,
        link: None,
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    for (side, count, alike) in [
        (20_000u64, 4, true),
        (20_000, 64, false),
        (100_000, 256, false),
        (100_000, 1000, true),
        (100_000, 1000, false),
        (400_000, 1000, false),
    ] {
        let p = Problem {
            m: side,
            n: side,
            k: side,
            dtype: DType::F64,
            reads_c: false,
            a_source: OperandSource::Sent,
            b_source: OperandSource::Sent,
        };
        let workers = machines(count, alike);
        let mut wishes = vec![
            ("auto", PlanOptions::AUTO),
            ("all workers", PlanOptions { who: Preference::Workers, ..PlanOptions::AUTO }),
        ];
        for strategy in ["reuse", "cuboid", "naive"] {
            let options = PlanOptions {
                strategy: Some(strategy.parse()?),
                who: Preference::Workers,
                ..PlanOptions::AUTO
            };
            wishes.push((strategy, options));
        }
        for (name, options) in wishes {
            let began = Instant::now();
            let decision = decide(&p, TileSize::default(), &primary, &workers, &options)?;
            let planned_ms = began.elapsed().as_secs_f64() * 1e3;
            let began = Instant::now();
            let first = decision.plan.members.iter().map(|m| m.blocks().take(1).count()).sum::<usize>();
            let first_us = began.elapsed().as_secs_f64() * 1e6;
            println!(
                "{side}^3 on {count} {} machines, {name}: {planned_ms:.1} ms; {first} first blocks: {first_us:.1} us; {}",
                if alike { "equal" } else { "mixed" },
                decision.sentence
            );
        }
    }
    Ok(())
}
