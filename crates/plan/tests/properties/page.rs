//! The worked example of docs/cost-model.md: its numbers are those of the code.

use super::*;

const PAGE: &str = include_str!("../../../../docs/cost-model.md");

fn laptop() -> Machine {
    Machine { peak_gflops: 60.0, link: None, ..machine("laptop", 40.0, 8 << 30, 0.0) }
}

fn board(memory_bytes: u64) -> Machine {
    let link = Some(LinkRate { bytes_per_s: 117e6, round_trip_s: 3e-4 });
    Machine { peak_gflops: 38.0, link, ..machine("pi", 20.0, memory_bytes, 0.0) }
}

/// The page contains this text.
fn has(line: &str) {
    assert!(PAGE.contains(line), "docs/cost-model.md has no line with\n{line}");
}

/// The example contains this text.
fn shows(line: &str) {
    let example = PAGE.split("\n## Example\n").nth(1).unwrap();
    assert!(example.contains(line), "the example of docs/cost-model.md has no line with\n{line}");
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[test]
fn the_page_has_the_numbers_of_the_code() {
    let p = problem(4096, 4096, 4096);
    let workers = vec![board(1 << 30); 4];
    for strategy in [
        "naive",
        "row:8",
        "square:4",
        "reuse",
        "cuboid",
        "cuboid:1x1x4",
        "summa:2x2",
        "strassen:1",
        "strassen:2",
    ] {
        let plan = decide(&p, TileSize::default(), &laptop(), &workers, &by(strategy)).unwrap().plan;
        let t = &plan.predicted;
        let (sent, back, memory) = (mb(t.bytes_sent), mb(t.bytes_received), mb(t.worker_memory_bytes));
        shows(&format!("| `{strategy}` | {sent} | {back} | {memory} | {:.2} |", t.seconds));
    }
}

#[test]
fn the_page_has_what_relaying_is_worth() {
    let p = problem(4096, 4096, 4096);
    for strategy in ["reuse", "cuboid", "cuboid:1x1x4", "summa:2x2", "strassen:1"] {
        let options = PlanOptions { relay: Relay::On, ..by(strategy) };
        let plan =
            decide(&p, TileSize::default(), &laptop(), &vec![board(1 << 30); 4], &options).unwrap().plan;
        let t = &plan.predicted;
        let (sent, relayed, back) = (mb(t.bytes_sent), mb(t.bytes_relayed), mb(t.bytes_received));
        shows(&format!("| `{strategy}` | {sent} | {relayed} | {back} | {:.2} |", t.seconds));
    }
    for (strategy, relay) in
        [("summa:2x4", Relay::Off), ("cuboid:2x2x2", Relay::Off), ("summa:2x4", Relay::On)]
    {
        let how = if relay == Relay::On { "relayed" } else { "not relayed" };
        let at = |gflops| relay::balanced(strategy, relay, gflops) / 1e3;
        has(&format!("| `{strategy}`, {how} | {:.1} | {:.1} |", at(30.2), at(35.2)));
    }
}

#[test]
fn the_page_follows_one_plan_through_the_formulas() {
    let p = problem(4096, 4096, 4096);
    let grid = Grid::new(&p, TileSize::default()).unwrap();
    assert_eq!(
        (grid.tile_rows, grid.tile_cols, grid.depth, grid.tiles(), grid.steps()),
        (512, 512, 512, 64, 8)
    );
    let plan = |memory: u64| {
        let workers = vec![board(memory); 2];
        decide(&p, TileSize::default(), &laptop(), &workers, &by("reuse")).unwrap().plan
    };
    let two = plan(1 << 30);
    let (cost, t) = (two.predicted.machines[0], &two.predicted);
    has(&format!("out = {} MB, back = {} MB each", mb(cost.bytes_out), mb(cost.bytes_back)));
    has(&format!("computing {:.3} s", cost.compute_s));
    has(&format!("**{:.2} s**, by {}", t.seconds, t.by));
    has(&format!("The bound of the two is {:.2} s, by {}", two.bound.seconds, two.bound.by.name()));
    let small = plan(100 << 20);
    assert_eq!(small.members[0].shares[0].blocks(), 2);
    has(&format!("{} MB are sent, **{:.2} s**", mb(small.predicted.bytes_sent), small.predicted.seconds));
}

#[test]
fn the_page_has_the_decision() {
    let p = problem(4096, 4096, 4096);
    let said = |options: PlanOptions| {
        let decision =
            decide(&p, TileSize::default(), &laptop(), &vec![board(1 << 30); 4], &options).unwrap();
        has(&format!("\"{}\"", decision.sentence));
        decision
    };
    let unicast = PlanOptions { relay: Relay::Off, ..PlanOptions::AUTO };
    said(PlanOptions::AUTO);
    said(PlanOptions { elementwise: true, ..PlanOptions::AUTO });
    has(&said(unicast).left_out[0].reason);
    said(PlanOptions { elementwise: true, ..unicast });
}
