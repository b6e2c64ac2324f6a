//! Tests of the cost model's inside; `tests/properties/` has those of whole plans.

use crate::cost as model;
use crate::*;
use alloc::{format, vec};
use bramble_base::DType;

fn problem(m: u64, n: u64, k: u64) -> Problem {
    let (a_source, b_source) = (OperandSource::Sent, OperandSource::Sent);
    Problem { m, n, k, dtype: DType::F64, reads_c: false, a_source, b_source }
}

fn machine(gflops: f64, bytes_per_s: f64) -> Machine {
    Machine {
        name: "w".into(),
        threads: 4,
        gflops,
        peak_gflops: gflops * 1.2,
        memory_bytes: 64 << 30,
        link: Some(LinkRate { bytes_per_s, round_trip_s: 2e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

#[test]
fn the_page_has_the_constants_of_the_code() {
    let has = |text: &str| {
        let page = include_str!("../../../docs/cost-model.md");
        assert!(page.contains(text), "docs/cost-model.md has no line with\n{text}");
    };
    has(&format!("{:.2} ns", model::LOOP_S_PER_BYTE * 1e9));
    has(&format!("{:.1} ns", model::FAR_S_PER_BYTE * 1e9));
    has(&format!("{:.1} ns", model::ADD_S_PER_BYTE * 1e9));
    has(&format!("{:.0} GB/s", model::ADDED_BYTES_PER_S / 1e9));
}

#[test]
fn a_level_of_strassen_saves_an_eighth_of_the_operations() {
    let p = problem(8192, 8192, 8192);
    let worker = machine(10.0, 100e6);
    for levels in 1..=3 {
        let strategy = Some(format!("strassen:{levels}").parse().unwrap());
        let by = PlanOptions { strategy, who: Preference::Workers, relay: Relay::Off, ..PlanOptions::AUTO };
        let team = core::slice::from_ref(&worker);
        let plan = decide(&p, TileSize::default(), &worker, team, &by).unwrap().plan;
        let (region, share) = (plan.regions[0], plan.members[0].shares[0]);
        let load = model::load(&p, &region, &Recipe::new(levels), Sums::Merged, &share);
        let want = p.flops() * (7.0f64 / 8.0).powi(levels as i32);
        assert!((load.flops / want - 1.0).abs() < 1e-12, "{levels}: {}", load.flops / want);
    }
}

#[test]
fn evening_out_leaves_everybody_a_share() {
    // By speed each of the two has one of two rows of tiles; by link, the second would have none.
    let p = problem(300, 300, 5000);
    let near = machine(20.0, 900e6);
    let machines = [near.clone(), near, machine(15.0, 2e6)];
    let regions = [(0, vec![Region::whole(&p, TileSize::default()).unwrap()])];
    // Also if the user has not asked for all workers.
    let search = search::Search::new(&p, &machines, &PlanOptions::AUTO, &regions);
    let plan = search.plan(Strategy::plain(Base::Reuse), &[1, 2], true).unwrap();
    assert_eq!(plan.members.len(), 2);
}
