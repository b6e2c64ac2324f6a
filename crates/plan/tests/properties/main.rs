//! Properties of plans: no work is lost or doubled, everything fits, and the traffic is what theory predicts.
#![allow(clippy::unwrap_used)] // A test may panic.

mod auto;
mod bytes;
mod cost;
mod early;
mod even;
mod finer;
mod form;
mod neighbours;
mod page;
mod relay;
mod resident;
mod traffic;

use bramble_base::DType;
use bramble_plan::*;
use proptest::prelude::{
    Just, ProptestConfig, any, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest,
};
use proptest::strategy::Strategy as Values;

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

fn machine(name: &str, gflops: f64, memory_bytes: u64, mb_per_s: f64) -> Machine {
    Machine {
        name: name.to_owned(),
        threads: 4,
        gflops,
        peak_gflops: gflops * 1.2,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s: mb_per_s * 1e6, round_trip_s: 2e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

/// All workers, by that strategy, without relaying.
fn by(strategy: &str) -> PlanOptions {
    let strategy = Some(strategy.parse().unwrap());
    PlanOptions { strategy, who: Preference::Workers, relay: Relay::Off, ..PlanOptions::AUTO }
}

/// A plan for those workers by a strategy.
fn planned(p: &Problem, cut: TileSize, workers: &[Machine], strategy: &str) -> Plan {
    let primary = machine("primary", 1.0, 1 << 40, 0.0);
    decide(p, cut, &primary, workers, &by(strategy)).unwrap().plan
}

/// Critical sizes: none, one, around a tile and its multiples, primes, long ones.
fn side() -> impl Values<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(1),
        Just(2),
        2u64..20,
        prop_oneof![Just(31u64), Just(32), Just(33), Just(97), Just(127), Just(128)],
        100u64..1000,
    ]
}

fn cut() -> impl Values<Value = TileSize> {
    let some = prop_oneof![Just(None), (1u64..70).prop_map(Some)];
    (some.clone(), some).prop_map(|(tile, depth)| TileSize { tile, depth })
}

/// Speed (including 0 and infinity), memory, threads.
fn machines() -> impl Values<Value = Vec<Machine>> {
    let speed = prop_oneof![Just(0.0), Just(f64::INFINITY), Just(1.0), 1e-3f64..1e3];
    let one = (speed, 14u32..34, 1u32..17, 1.0f64..2000.0);
    proptest::collection::vec(one, 1..14).prop_map(|all| {
        let one = |(at, (gflops, bits, threads, rate)): (usize, (f64, u32, u32, f64))| Machine {
            threads,
            ..machine(&format!("w{at}"), gflops, 1 << bits, rate)
        };
        all.into_iter().enumerate().map(one).collect()
    })
}

/// Any strategy.
fn any_strategy() -> impl Values<Value = Strategy> {
    let base = proptest::array::uniform3(1u32..7)
        .prop_flat_map(|sizes| proptest::sample::select(Base::one_of_each(sizes).collect::<Vec<_>>()));
    (base, 0u32..=3).prop_map(|(base, levels)| Strategy { base, levels })
}
