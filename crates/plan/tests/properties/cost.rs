//! The cost model: bytes equal those of the schedule, and seconds depend on the right quantities.

use super::*;
use bramble_base::{Rect, Span};

/// Bytes of the frames of a matrix by rows, with heads.
fn frames(rect: Rect) -> u64 {
    let (lines, line) = (rect.rows.len(), rect.cols.len() * 8);
    let frames = lines.div_ceil(((1 << 20) / line).max(1));
    lines * line + frames * (16 + 4 + 24)
}

/// Bytes of a block's stores and results, panel by panel: (out, back without credits).
pub(super) fn block_bytes(plan: &Plan, recipe: &Recipe, block: &Block) -> (u64, u64) {
    let (p, region) = (&plan.problem, &plan.regions[block.region]);
    let (q, grid) = (region.q(), &region.grid);
    let stored = |rect: Rect, travels: bool| if travels { frames(rect) } else { 16 + 4 + 24 + 32 };
    let (mut out, mut back) = (0, 0);
    let mut entries = 0u64;
    for step in block.steps.iter() {
        let rim = region.is_rim(step);
        let panels: Vec<(u64, u64)> = if rim {
            (0..q).map(|u| (u, 0)).collect()
        } else {
            (0..q * q).map(|at| (at / q, at % q)).collect()
        };
        for (u, w) in &panels {
            out += block
                .cells
                .rows
                .iter()
                .map(|i| stored(region.a_panel(i, step, *u, *w), p.a_source.is_sent()))
                .sum::<u64>();
            // Panel (w, v) of B; of the rim (0, v).
            let b = |j| if rim { region.b_panel(step, j, 0, *u) } else { region.b_panel(step, j, *u, *w) };
            out += block.cells.cols.iter().map(|j| stored(b(j), p.b_source.is_sent())).sum::<u64>();
        }
        let products = if rim { q * q } else { recipe.products() as u64 };
        entries += block.count() * products;
        if !rim {
            // Sums of panels: a matrix and a job each.
            entries += 2 * block.cells.rows.len() * recipe.left.sums.len() as u64;
            entries += 2 * block.cells.cols.len() * recipe.right.sums.len() as u64;
        }
    }
    let joins = block.steps.start < grid.steps() && region.levels > 0;
    if joins {
        // Products are matrices; sums of results are matrices and jobs, and tiles among them.
        entries += block.count() * (recipe.products() + 2 * recipe.results.sums.len()) as u64;
        entries -= block.count() * q * q;
    }
    for (i, j) in block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j))) {
        for at in 0..q * q {
            let tile = region.tile(i, j, at / q, at % q);
            let (lines, line) = (tile.rows.len(), tile.cols.len() * 8);
            back += lines * line + lines.div_ceil(((1 << 20) / line).max(1)) * (16 + 24);
            let has_elements = if block.steps.start == 0 { p.reads_c } else { plan.sums == Sums::Chained };
            if has_elements { out += frames(tile) } else { entries += 1 }
        }
    }
    (out + entries * 24, back)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn bytes_are_those_of_the_schedule(
        m in 1u64..700, n in 1u64..700, k in 1u64..700, tile in 20u64..300, depth in 20u64..300,
        workers in 1usize..6, strategy in any_strategy(), reads_c in any::<bool>(), generated in any::<bool>(),
        reproducible in any::<bool>(),
    ) {
        let p = Problem { reads_c, b_source: OperandSource::generated_if(generated), ..problem(m, n, k) };
        let workers = vec![machine("w", 10.0, 1 << 25, 100.0); workers];
        let reproducible = reproducible && strategy.levels == 0;
        let relay = Relay::Off;
        let who = Preference::Workers;
        let options = PlanOptions { strategy: Some(strategy), who, reproducible, relay, ..PlanOptions::AUTO };
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let Ok(decision) = decide(&p, cut, &workers[0], &workers, &options) else { return Ok(()) };
        let plan = decision.plan;
        let recipes: Vec<Recipe> = plan.regions.iter().map(|r| Recipe::new(r.levels)).collect();
        for (member, cost) in plan.members.iter().zip(&plan.predicted.machines) {
            let bytes = member.blocks().map(|b| block_bytes(&plan, &recipes[b.region], &b));
            let (out, back) = bytes.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            prop_assert_eq!(cost.bytes_out, out);
            // Credits come on top: at most one per matrix.
            prop_assert!(cost.bytes_back >= back && cost.bytes_back <= back + 24 * (cost.jobs * 4 + 4));
        }
        let flops: f64 = plan.predicted.machines.iter().map(|m| m.flops).sum();
        let saved = (7.0f64 / 8.0).powi(strategy.levels as i32);
        prop_assert!(flops >= p.flops() * saved * 0.999, "{flops}");
    }
}

/// The prediction for a product on some workers by a strategy.
fn takes(p: &Problem, cut: TileSize, workers: &[Machine], strategy: &str) -> Prediction {
    planned(p, cut, workers, strategy).predicted
}

/// A worker with practically unlimited speed on a link of 100 MB/s.
fn fast(memory_bytes: u64) -> Machine {
    machine("w", 1e6, memory_bytes, 100.0)
}

#[test]
fn c_comes_home_after_the_last_panel() {
    let p = problem(8192, 8192, 16_384);
    // Room for C and two steps, the last ones by columns.
    let by_steps = takes(&p, TileSize::default(), &[fast(720 << 20)], "reuse");
    let (out, back) = (by_steps.bytes_sent as f64 / 1e8, by_steps.bytes_received as f64 / 1e8);
    assert!(by_steps.seconds > out + 0.6 * back && by_steps.seconds < out + 0.9 * back, "{by_steps:?}");
    assert_eq!(by_steps.by, Limit::Ingress);
    // With room for A most of C returns before the last panel is sent.
    let by_columns = takes(&p, TileSize::default(), &[fast(64 << 30)], "reuse");
    assert_eq!((by_columns.bytes_sent as f64 / 1e8, by_columns.bytes_received as f64 / 1e8), (out, back));
    assert!(by_columns.seconds < out + 0.2 * back, "{by_columns:?}");
}

#[test]
fn blocks_without_room_for_two_wait_for_each_other() {
    // The same blocks, with room for one and for two at a time.
    let p = problem(16384, 16384, 2048);
    let cut = TileSize { tile: Some(1024), depth: Some(512) };
    let blocks = |memory| {
        let plan = planned(&p, cut, &[machine("w", 100.0, memory, 100.0)], "square:8");
        (plan.members[0].blocks_at_once, plan.predicted.seconds)
    };
    let one = blocks(1 << 30).1;
    let two = blocks(4 << 30).1;
    assert!(one > two * 1.1, "{one} {two}");
}

#[test]
fn small_blocks_wait_for_round_trips_and_large_ones_do_not() {
    let p = problem(2048, 2048, 2048);
    let cut = TileSize { tile: Some(64), depth: Some(64) };
    let far = |ms: f64| {
        let near = machine("w", 100.0, 1 << 30, 1000.0);
        let link = Some(LinkRate { bytes_per_s: 1e9, round_trip_s: ms * 1e-3 });
        [Machine { link, ..near }]
    };
    let grows =
        |strategy| takes(&p, cut, &far(5.0), strategy).seconds / takes(&p, cut, &far(0.05), strategy).seconds;
    assert!(grows("naive") > 4.0, "{}", grows("naive"));
    assert!(grows("reuse") < 2.0, "{}", grows("reuse"));
}

#[test]
fn threads_without_a_tile_of_their_own_are_idle_unless_k_is_cut() {
    let p = problem(100, 100, 1_000_000);
    let worker = [Machine { threads: 8, ..machine("w", 80.0, 8 << 30, 1e6) }];
    let (one, eight) =
        (takes(&p, TileSize::default(), &worker, "reuse"), takes(&p, TileSize::default(), &worker, "cuboid"));
    let ratio = one.machines[0].compute_s / eight.machines[0].compute_s;
    assert!((7.9..8.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_slow_link_has_less_and_what_does_not_help_is_named_with_numbers() {
    let p = problem(8192, 8192, 8192);
    let slow = |rate| Machine { name: "slow".to_owned(), ..machine("w", 50.0, 8 << 30, rate) };
    let workers = |rate| [machine("a", 50.0, 8 << 30, 117.0), slow(rate), machine("b", 50.0, 8 << 30, 117.0)];
    let plan = planned(&p, TileSize::default(), &workers(30.0), "reuse");
    let costs = &plan.predicted.machines;
    assert!(costs.len() == 3 && costs[1].part < costs[0].part * 0.8, "{costs:?}");
    let primary = machine("primary", 50.0, 8 << 30, 0.0);
    for rate in [0.1, 5.0] {
        let decision = decide(&p, TileSize::default(), &primary, &workers(rate), &PlanOptions::AUTO).unwrap();
        let left = decision.left_out.iter().find(|l| l.name == "slow").unwrap();
        let numbers = ["with it", "50.0 Gflop/s and"].iter().any(|n| left.reason.contains(n));
        assert!(numbers, "{}", left.reason);
    }
}

#[test]
fn unequal_machines_finish_together() {
    let p = problem(20_000, 20_000, 20_000);
    let speeds = [10.0, 20.0, 40.0, 80.0];
    let workers: Vec<Machine> = speeds.iter().map(|s| machine("w", *s, 8 << 30, 2000.0)).collect();
    let plan = planned(&p, TileSize { tile: Some(256), depth: None }, &workers, "reuse");
    let together = p.flops() / 1e9 / speeds.iter().sum::<f64>();
    assert!(plan.predicted.seconds < together * 1.05, "{} {together}", plan.predicted.seconds);
}

#[test]
fn chained_sums_cost_time_where_k_is_cut_and_nothing_where_it_is_not() {
    let p = problem(4096, 4096, 65536);
    let workers = vec![machine("w", 20.0, 8 << 30, 1000.0); 4];
    let seconds = |strategy: &str, reproducible| {
        let options = PlanOptions { reproducible, ..by(strategy) };
        decide(&p, TileSize::default(), &workers[0], &workers, &options).unwrap().plan.predicted.seconds
    };
    assert!(seconds("cuboid:1x1x4", true) > 2.0 * seconds("cuboid:1x1x4", false));
    assert_eq!(seconds("reuse", true), seconds("reuse", false));
}

#[test]
fn workers_on_the_primarys_cores_take_turns_with_it() {
    let p = problem(8192, 8192, 8192);
    let here = |shares_cores| {
        let worker = Machine { threads: 1, shares_cores, ..machine("w", 10.0, 8 << 30, 1e5) };
        let primary = Machine { threads: 4, ..machine("primary", 40.0, 8 << 30, 0.0) };
        let workers = vec![worker; 8];
        decide(&p, TileSize::default(), &primary, &workers, &by("reuse")).unwrap().plan.predicted.seconds
    };
    // Eight threads on four cores take twice as long.
    assert!((1.7..2.6).contains(&(here(true) / here(false))), "{} {}", here(true), here(false));
}

#[test]
fn a_bound_says_what_binds() {
    let p = problem(8192, 8192, 8192);
    let bound = |worker: Machine, p: &Problem| {
        let plan =
            planned(p, TileSize { tile: Some(128), depth: Some(64) }, std::slice::from_ref(&worker), "reuse");
        assert!(plan.bound.seconds <= plan.predicted.seconds);
        let machines = [machine("primary", 1.0, 0, 0.0), worker];
        (plan.bound.by, plan.bound.by.sentence(&machines))
    };
    assert_eq!(bound(machine("w", 1.0, 1 << 30, 1e4), &p).0, Binding::Compute);
    assert_eq!(bound(fast(64 << 30), &p).0, Binding::Egress);
    assert_eq!(bound(fast(64 << 30), &problem(8192, 8192, 64)).0, Binding::Ingress);
    let (by, sentence) = bound(Machine { name: "small".to_owned(), ..fast(4 << 20) }, &p);
    assert_eq!(by, Binding::Worker(1));
    assert!(sentence.contains("small") && sentence.contains("4194304"), "{sentence}");
}

#[test]
fn spans_of_partial_cells_add_up() {
    let region = Region::peeled(&problem(103, 57, 91), TileSize { tile: Some(7), depth: Some(5) }, 2)
        .unwrap()
        .unwrap()[0];
    let all = Rect::new(Span::new(0, region.grid.rows()), Span::new(0, region.grid.cols()));
    assert_eq!(region.elements(all), 100 * 56);
    let halves = [Span::new(0, 2), Span::new(2, region.steps())].map(|s| region.depth_of(s));
    assert_eq!(halves.iter().sum::<u64>(), 91);
}

/// A product of a row and a column has little work per byte: memory is the limit, in the prediction and in the
/// bound.
#[test]
fn memory_binds_thin_products_and_no_square_ones() {
    let alone = |bytes_per_s: f64, p: &Problem| {
        let memory_rate = Some(MemoryRate { bytes_per_s, most_bytes_per_s: 2.0 * bytes_per_s });
        let own = Machine { link: None, memory_rate, ..machine("w", 100.0, 8 << 30, 1e8) };
        decide(p, TileSize::default(), &own, &[], &PlanOptions::AUTO).unwrap().plan
    };
    let dot = problem(1, 1, 20_000_000);
    let plan = alone(1e10, &dot);
    let bytes = 2.0 * 20e6 * dot.element_bytes() as f64;
    assert!((plan.predicted.seconds / (bytes / 0.75e10) - 1.0).abs() < 0.05, "{:?}", plan.predicted);
    assert_eq!((plan.predicted.by, plan.bound.by), (Limit::Memory("w".into()), Binding::Memory));
    assert!(plan.bound.seconds <= plan.predicted.seconds);
    let square = alone(1e10, &problem(4096, 4096, 4096));
    assert_eq!((square.predicted.by, square.bound.by), (Limit::Compute("w".into()), Binding::Compute));
}

/// The parts of k that one machine's threads share depend on the shape alone, and with `--reproducible` there are
/// none.
#[test]
fn threads_share_k_where_c_is_small_and_their_number_changes_no_part() {
    let shares = |threads, reproducible, (m, n, k)| {
        let own = Machine { link: None, threads, ..machine("w", 100.0, 8 << 30, 1e8) };
        let options = PlanOptions { reproducible, ..PlanOptions::AUTO };
        let plan = decide(&problem(m, n, k), TileSize::default(), &own, &[], &options).unwrap().plan;
        let blocks = plan.members[0].shares[0].blocks_each_way().2;
        (plan.members[0].shares.clone(), blocks, plan.keeps_bits())
    };
    for shape in [(1, 1, 20_000_000), (8, 8, 2_000_000), (64, 64, 1_000_000)] {
        let one = shares(1, false, shape);
        assert!((32..=64).contains(&one.1) && one.2, "{shape:?}: {one:?}");
        [2, 3, 16].into_iter().for_each(|threads| assert_eq!(shares(threads, false, shape), one));
        assert!(shares(1, true, shape).2);
    }
    // Enough tiles, or too shallow a k: not cut.
    for shape in [(4096, 4096, 4096), (8000, 1, 8000), (512, 512, 1024)] {
        assert_eq!(shares(2, false, shape).1, 1, "{shape:?}");
    }
}
