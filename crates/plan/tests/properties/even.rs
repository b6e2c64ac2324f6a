//! How even parts are when cells are few.

use super::*;

/// The largest ratio of a machine's part of the work to the part for its speed.
fn unevenness(plan: &Plan, speeds: &[f64]) -> f64 {
    let sum: f64 = speeds.iter().sum();
    let over = |at: usize| plan.part_of_work(at) * sum / speeds[plan.members[at].machine - 1];
    (0..plan.members.len()).map(over).fold(0.0, f64::max)
}

#[test]
fn parts_are_even_where_cells_are_few() {
    let teams = [vec![20.0; 2], vec![20.0; 3], vec![20.0; 4], vec![20.0; 5], vec![40.0, 20.0, 20.0, 10.0]];
    for (n, at_most) in [(8192u64, 1.02), (16384, 1.02), (4096, 22.0 / (64.0 / 3.0) + 1e-9)] {
        let p = problem(n, n, n);
        for speeds in &teams {
            // Links that are never the limit.
            let workers: Vec<Machine> = speeds.iter().map(|s| machine("w", *s, 8 << 30, 1e5)).collect();
            for relay in [Relay::Off, Relay::On] {
                let primary = machine("primary", 1.0, 1 << 40, 0.0);
                let options = PlanOptions { relay, ..by("reuse") };
                let plan = decide(&p, TileSize::default(), &primary, &workers, &options).unwrap().plan;
                let over = unevenness(&plan, speeds);
                println!("{n}, {speeds:?}: {over:.4}");
                assert!(plan.members.len() == speeds.len() && over <= at_most, "{n}, {speeds:?}: {over}");
            }
        }
    }
}

#[test]
fn cells_are_not_moved_where_links_are_what_is_short() {
    // Five machines on 8 × 8 cells: the panels for a strip of cells would be sent again.
    let p = problem(4096, 4096, 4096);
    let plan = |rate| planned(&p, TileSize::default(), &vec![machine("w", 20.0, 8 << 30, rate); 5], "reuse");
    let shares = |plan: &Plan| plan.members.iter().map(|m| m.shares.len()).max().unwrap();
    assert_eq!(shares(&plan(20.0)), 1);
    assert!(shares(&plan(1e5)) > 1);
}

#[test]
fn machines_of_one_kind_have_equal_parts_whatever_was_in_the_way_of_their_measurement() {
    let p = problem(8192, 8192, 8192);
    let kind = |gflops, peak_gflops| Machine { peak_gflops, ..machine("w", gflops, 8 << 30, 1e4) };
    let parts = |workers: &[Machine]| -> Vec<f64> {
        let plan = planned(&p, TileSize::default(), workers, "reuse");
        (0..plan.members.len()).map(|at| plan.part_of_work(at)).collect()
    };
    assert_eq!(parts(&[kind(46.0, 60.0), kind(52.0, 60.8), kind(50.0, 59.2), kind(47.0, 60.0)]), [0.25; 4]);
    // Measurements of four equal machines while another program ran beside the last.
    assert_eq!(parts(&[kind(47.3, 60.0), kind(47.0, 60.0), kind(48.7, 60.0), kind(24.6, 60.0)]), [0.25; 4]);
    // A machine of another kind, and one with other work.
    assert!(parts(&[kind(46.0, 60.0), kind(52.0, 70.0)]) != [0.5; 2]);
    assert!(parts(&[kind(20.0, 60.0), kind(52.0, 60.0)]) != [0.5; 2]);
}

#[test]
fn machines_of_one_kind_are_planned_with_the_speed_of_the_middle() {
    let p = problem(8192, 8192, 8192);
    let seconds = |speeds: &[f64]| {
        let kind = |gflops| Machine { peak_gflops: 60.0, ..machine("w", gflops, 8 << 30, 1e4) };
        let workers: Vec<Machine> = speeds.iter().map(|s| kind(*s)).collect();
        planned(&p, TileSize::default(), &workers, "reuse").predicted.seconds
    };
    assert_eq!(seconds(&[48.0, 24.0, 47.0]), seconds(&[47.0; 3]));
    assert_eq!(seconds(&[46.0, 24.0, 50.0, 48.0]), seconds(&[47.0; 4]));
    // Of two, nothing tells which was disturbed.
    assert_eq!(seconds(&[24.0, 48.0]), seconds(&[36.0; 2]));
}

#[test]
fn links_of_one_kind_are_as_fast_as_each_other_only_where_they_nearly_are() {
    let p = problem(8192, 8192, 8192);
    let parts = |rates: [f64; 2]| {
        let workers = rates.map(|rate| machine("w", 40.0, 8 << 30, rate));
        let plan = planned(&p, TileSize::default(), &workers, "reuse");
        [plan.part_of_work(0), plan.part_of_work(1)]
    };
    assert_eq!(parts([30.0, 50.0]), [0.5; 2]);
    assert!(parts([10.0, 50.0]) != [0.5; 2]);
}
