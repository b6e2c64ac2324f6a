//! Factorisations in modelled time, on clusters of any kind: against the bound and the prediction of the cost model.

use bramble_plan::{LuCluster, LuMachine, LuPlan, LuTaskModel};
use bramble_sim::{LuSimReport, LuSimSystem, LuWait, lu_sim_events, simulate_lu};
use proptest::prelude::*;

fn machine(
    name: usize,
    threads: usize,
    gflops: f64,
    bytes_per_s: Option<f64>,
    round_trip_s: f64,
) -> LuMachine {
    LuMachine {
        name: format!("w{name}"),
        threads,
        gflops,
        memory_bytes: u64::MAX,
        bytes_per_s,
        round_trip_s,
        tasks: LuTaskModel::default(),
    }
}

fn plan(order: usize, width: Option<usize>, machines: &[LuMachine], keeps_all: bool) -> LuPlan {
    LuCluster {
        order,
        extra: 1,
        width,
        depth: None,
        element_bytes: 8,
        machines,
        keeps_all,
        coming: None,
        bytes: &|_| 0,
    }
    .plan()
    .unwrap()
}

fn simulated(order: usize, plan: &LuPlan, machines: &[LuMachine]) -> LuSimReport {
    simulate_lu(LuSimSystem { order, extra: 1 }, plan, machines)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn the_time_is_not_below_the_bound_and_near_the_prediction(
        order in 500..6000usize, width in prop::sample::select(vec![None, Some(64), Some(128), Some(256)]),
        all in prop::collection::vec((1..9usize, 1.0..40.0f64, prop::option::of(2e7..1.2e9f64)), 1..9),
        round_trip_s in 0.0..1e-3f64,
    ) {
        let all: Vec<LuMachine> = all
            .into_iter()
            .enumerate()
            .map(|(at, (threads, gflops, rate))| machine(at, threads, gflops, rate, round_trip_s))
            .collect();
        let plan = plan(order, width, &all, false);
        let found = simulated(order, &plan, &all);
        let (bound, predicted) = (plan.estimate.bound_seconds, plan.estimate.seconds);
        prop_assert!(found.seconds >= bound, "{} s, bound {bound}", found.seconds);
        let ratio = found.seconds / predicted;
        prop_assert!((0.6..2.0).contains(&ratio), "{} s, {predicted} predicted", found.seconds);
        for one in &found.machines {
            let whole = all[one.machine].threads as f64 * found.elimination_seconds;
            prop_assert!((one.time.sum_s() / whole - 1.0).abs() < 1e-6, "{:?} of {whole}", one.time);
        }
        prop_assert_eq!(&found, &simulated(order, &plan, &all));
        let guess = lu_sim_events(LuSimSystem { order, extra: 1 }, &plan);
        prop_assert!(found.events as f64 <= guess, "{} events, {guess} expected", found.events);
    }
}

#[test]
fn every_panel_crosses_every_link_but_the_one_to_its_owner_once() {
    let all: Vec<LuMachine> = (0..4).map(|at| machine(at, 2, 10.0, Some(1e8), 1e-4)).collect();
    let plan = plan(2000, Some(128), &all, true);
    let found = simulated(2000, &plan, &all);
    let bytes = |step: usize| ((2000 - step * 128) * 128.min(2000 - step * 128) * 8) as u64;
    for (at, one) in found.machines.iter().enumerate() {
        let foreign = (0..16).filter(|step| plan.deal.owners[*step] != at).map(bytes).sum::<u64>();
        assert_eq!(one.bytes_in, foreign, "machine {at}");
        assert_eq!(one.bytes_in, found.machines[(at + 3) % 4].bytes_out);
    }
}

#[test]
fn what_binds_a_machine_is_named() {
    let cause = |all: &[LuMachine]| {
        let plan = plan(4000, Some(128), all, true);
        simulated(4000, &plan, all).machines.iter().map(|one| one.time.longest_wait()).collect::<Vec<_>>()
    };
    let alone = [machine(0, 1, 10.0, None, 0.0)];
    assert_eq!(cause(&alone), [None], "one thread always computes");
    let slow_link: Vec<LuMachine> = (0..3).map(|at| machine(at, 1, 50.0, Some(1e7), 1e-4)).collect();
    assert!(cause(&slow_link).contains(&Some(LuWait::Link)), "{:?}", cause(&slow_link));
    let many_threads = [machine(0, 64, 1000.0, None, 0.0)];
    assert_eq!(cause(&many_threads), [Some(LuWait::OwnPanel)], "one thread factors a panel");
}
