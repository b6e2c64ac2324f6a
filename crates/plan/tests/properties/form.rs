//! The form of plans: coverage, room, order.

use super::*;
use bramble_base::{Rect, Span};
use std::collections::{BTreeMap, BTreeSet};

/// How often each step of each cell is in a block of the plan.
fn coverage(plan: &Plan) -> BTreeMap<(usize, u64, u64, u64), u32> {
    let mut seen = BTreeMap::new();
    for block in plan.members.iter().flat_map(Member::blocks) {
        assert!(block.count() > 0 && !block.steps.is_empty(), "{block:?}");
        for (i, j) in block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j))) {
            for step in block.steps.iter() {
                *seen.entry((block.region, i, j, step)).or_insert(0) += 1;
            }
        }
    }
    seen
}

/// Every step of every cell is in one block, and no block has others.
pub(super) fn assert_covers(plan: &Plan) {
    let seen = coverage(plan);
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    let work = |r: &Region| r.grid.tiles() * r.steps();
    assert_eq!(seen.len() as u64, plan.regions.iter().map(work).sum::<u64>());
    for (region, i, j, step) in seen.keys() {
        let region = &plan.regions[*region];
        assert!(region.cells().rows.contains(*i) && region.cells().cols.contains(*j));
        assert!(*step < region.steps());
    }
}

/// The tiles of all regions are disjoint and cover C; the panels of a cell cover A and B.
fn assert_regions(plan: &Plan) {
    let p = &plan.problem;
    let mut tiles: Vec<Rect> = Vec::new();
    for region in &plan.regions {
        let (q, cells) = (region.q(), region.cells());
        for (i, j) in cells.rows.iter().flat_map(|i| cells.cols.iter().map(move |j| (i, j))) {
            tiles.extend((0..q * q).map(|at| region.tile(i, j, at / q, at % q)));
        }
        let depth: u64 = (0..region.steps())
            .map(|s| {
                let parts = if region.is_rim(s) { 1 } else { q };
                (0..parts).map(|w| region.a_panel(0, s, 0, w).cols.len()).sum::<u64>()
            })
            .sum();
        assert_eq!(depth, p.k);
        assert_eq!(region.depth_of(Span::new(0, region.steps())), p.k);
    }
    let area: u64 = tiles.iter().map(|r| r.rows.len() * r.cols.len()).sum();
    assert_eq!(area, p.m * p.n);
    assert_eq!(tiles.len() as u64, plan.tiles());
    let mut seen = BTreeSet::new();
    for tile in &tiles {
        assert!(tile.rows.end <= p.m && tile.cols.end <= p.n, "{tile:?}");
        assert!(seen.insert((tile.rows.start, tile.cols.start)), "{tile:?} has the corner of another tile");
    }
    // Equal areas and distinct corners are not enough: check each row in which a tile begins.
    for row in tiles.iter().map(|t| t.rows.start).collect::<BTreeSet<_>>() {
        let mut spans: Vec<Span> = tiles.iter().filter(|t| t.rows.contains(row)).map(|t| t.cols).collect();
        spans.sort_by_key(|s| s.start);
        assert!(spans.windows(2).all(|w| w[0].end == w[1].start), "{spans:?}");
    }
}

/// Blocks fit the memory that the member is given, and that fits the machine.
pub(super) fn assert_fits(plan: &Plan, machines: &[Machine]) {
    for member in &plan.members {
        assert!(member.memory_bytes <= machines[member.machine].memory_bytes);
        assert!(member.blocks_at_once > 0);
        for share in &member.shares {
            let need = memory_needed(share, &plan.regions[share.region], &plan.problem);
            assert!(need <= member.memory_bytes, "{need} > {}: {share:?}", member.memory_bytes);
        }
        for block in member.blocks() {
            assert!(block.count() <= 1 << 20);
            let edge = block.cells.rows.len().max(block.cells.cols.len());
            assert!(uses(&plan.regions[block.region], edge) <= u64::from(u16::MAX));
        }
    }
}

/// The most uses that an operand can have.
fn uses(region: &Region, edge: u64) -> u64 {
    let recipe = Recipe::new(region.levels);
    let of = |side: &OperandRecipe| {
        let panels = (0..recipe.q * recipe.q).map(Term::Panel);
        let terms = panels.chain((0..side.sums.len()).map(Term::Sum));
        terms.map(|t| side.uses_in_sums(t) as u64 + side.uses_in_products(t) as u64 * edge).max()
    };
    let rim = if region.rim > 0 { region.q() * edge } else { 0 };
    rim.max(of(&recipe.left).unwrap_or(0)).max(of(&recipe.right).unwrap_or(0))
}

/// Executes a chained plan: a block begins when the steps before it are complete in all its cells. True if all
/// blocks complete.
pub(super) fn chain_ends(plan: &Plan) -> bool {
    let mut done: BTreeMap<(usize, u64, u64), u64> = BTreeMap::new();
    let mut queues: Vec<_> = plan.members.iter().map(|m| m.blocks().peekable()).collect();
    loop {
        let mut moved = false;
        for queue in &mut queues {
            while let Some(block) = queue.peek() {
                let cells =
                    || block.cells.rows.iter().flat_map(|i| block.cells.cols.iter().map(move |j| (i, j)));
                let key = |(i, j)| (block.region, i, j);
                if !cells().all(|c| done.get(&key(c)).copied().unwrap_or(0) == block.steps.start) {
                    break;
                }
                cells().for_each(|c| {
                    done.insert(key(c), block.steps.end);
                });
                queue.next();
                moved = true;
            }
        }
        if !moved {
            return queues.iter_mut().all(|q| q.peek().is_none());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_plan_covers_the_product_once_and_fits(
        m in side(), n in side(), k in side(), cut in cut(), workers in machines(),
        strategy in any_strategy(), reads_c in any::<bool>(), generated in any::<bool>(),
    ) {
        let p = Problem { reads_c, a_source: OperandSource::generated_if(generated), ..problem(m, n, k) };
        let jobs = Grid::new(&p, cut).unwrap().tiles() * Grid::new(&p, cut).unwrap().steps();
        prop_assume!(jobs < 200_000);
        let primary = machine("primary", 10.0, 1 << 32, 0.0);
        let options = PlanOptions { strategy: Some(strategy), who: Preference::Workers, ..PlanOptions::AUTO };
        let Ok(decision) = decide(&p, cut, &primary, &workers, &options) else { return Ok(()) };
        let mut machines = vec![primary];
        machines.extend(workers.iter().cloned());
        assert_covers(&decision.plan);
        assert_regions(&decision.plan);
        assert_fits(&decision.plan, &machines);
        let named: BTreeSet<&str> = decision.left_out.iter().map(|l| l.name.as_str()).collect();
        let used: BTreeSet<&str> =
            decision.plan.members.iter().map(|m| machines[m.machine].name.as_str()).collect();
        prop_assert!(named.is_disjoint(&used));
        prop_assert_eq!(named.len() + used.len(), workers.len());
        prop_assert!(decision.left_out.iter().all(|l| !l.reason.is_empty()));
        prop_assert_eq!(decision.plan.strategy, strategy);
        let seconds = decision.plan.predicted.seconds;
        prop_assert!(seconds.is_finite() && seconds >= decision.plan.bound.seconds, "{decision:?}");
    }

    #[test]
    fn whatever_is_left_to_bramble_is_a_plan(
        m in side(), n in side(), k in side(), cut in cut(), workers in machines(), reproducible in any::<bool>(),
    ) {
        let p = problem(m, n, k);
        let jobs = Grid::new(&p, cut).unwrap().tiles() * Grid::new(&p, cut).unwrap().steps();
        prop_assume!(jobs < 20_000);
        let primary = machine("primary", 10.0, 1 << 34, 0.0);
        let options = PlanOptions { reproducible, ..PlanOptions::AUTO };
        let decision = decide(&p, cut, &primary, &workers, &options).unwrap();
        let mut machines = vec![primary];
        machines.extend(workers.iter().cloned());
        assert_covers(&decision.plan);
        assert_fits(&decision.plan, &machines);
        if reproducible {
            prop_assert!(chain_ends(&decision.plan));
        }
        prop_assert!(decision.plan.bound.seconds <= decision.plan.predicted.seconds);
        let workers_used = decision.plan.members.iter().filter(|m| m.machine > 0).count();
        prop_assert_eq!(decision.left_out.len() + workers_used, workers.len());
    }

    #[test]
    fn chained_sums_never_wait_for_each_other(
        m in 1u64..200, n in 1u64..200, k in 1u64..400, tile in 1u64..40, depth in 1u64..40,
        workers in machines(), strategy in any_strategy(),
    ) {
        let p = problem(m, n, k);
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let grid = Grid::new(&p, cut).unwrap();
        prop_assume!(grid.tiles() * grid.steps() < 20_000);
        let primary = machine("primary", 10.0, 1 << 32, 0.0);
        let strategy = Strategy { levels: 0, ..strategy };
        let options =
            PlanOptions { strategy: Some(strategy), who: Preference::Workers, reproducible: true, ..PlanOptions::AUTO };
        let Ok(decision) = decide(&p, cut, &primary, &workers, &options) else { return Ok(()) };
        prop_assert_eq!(decision.plan.sums, Sums::Chained);
        prop_assert!(chain_ends(&decision.plan));
        prop_assert_eq!(decision.plan.predicted.primary_memory_bytes, 0);
    }

    #[test]
    fn partitions_are_disjoint_and_cover(rows in 1u64..40, cols in 1u64..40,
        weights in proptest::collection::vec(0.1f64..50.0, 1..20)) {
        let rects = partition(rows, cols, rows as f64, cols as f64, &weights, false);
        let area: u64 = rects.iter().flatten().map(|r| r.shape().rows * r.shape().cols).sum();
        prop_assert_eq!(area, rows * cols);
        for (i, a) in rects.iter().enumerate() {
            for b in rects.iter().skip(i + 1) {
                if let (Some(a), Some(b)) = (a, b) { prop_assert!(a.disjoint(*b)); }
            }
        }
    }

    #[test]
    fn tiles_and_steps_cover_the_product(m in 0u64..5000, n in 0u64..5000, k in 0u64..5000) {
        let grid = Grid::new(&problem(m, n, k), TileSize::default()).unwrap();
        let rows: u64 = (0..grid.rows()).map(|i| grid.row_span(i).len()).sum();
        let cols: u64 = (0..grid.cols()).map(|j| grid.col_span(j).len()).sum();
        let depth: u64 = (0..grid.steps()).map(|s| grid.step_span(s).len()).sum();
        prop_assert_eq!((rows, cols, depth), (m, n, k));
    }

    #[test]
    fn sizes_of_any_magnitude_are_planned_or_refused(
        m in any::<u64>(), n in any::<u64>(), k in any::<u64>(), shift in 0u32..64,
        workers in machines(), strategy in any_strategy(),
    ) {
        let p = problem(m >> shift, n >> (shift / 2), k >> (63 - shift));
        let primary = machine("primary", 10.0, u64::MAX, 0.0);
        let options = PlanOptions { strategy: Some(strategy), ..PlanOptions::AUTO };
        if let Ok(decision) = decide(&p, TileSize::default(), &primary, &workers, &options) {
            prop_assert!(!decision.plan.predicted.seconds.is_nan());
        }
        if let Ok(decision) = decide(&p, TileSize::default(), &primary, &[], &PlanOptions::AUTO) {
            prop_assert!(decision.alone);
        }
    }
}

#[test]
fn the_grid_does_not_depend_on_the_machines() {
    let p = problem(4096, 4096, 4096);
    let plan = |workers: u32| {
        let workers: Vec<Machine> =
            (0..workers).map(|i| machine("w", 10.0 + f64::from(i), 1 << 30, 900.0)).collect();
        planned(&p, TileSize::default(), &workers, "reuse").regions
    };
    assert!((2..6).all(|workers| plan(workers) == plan(1)));
}

#[test]
fn area_follows_speed() {
    let rects = partition(64, 64, 64.0, 64.0, &[8.0, 4.0, 4.0], false);
    let areas: Vec<u64> = rects.iter().map(|r| r.map_or(0, |r| r.shape().rows * r.shape().cols)).collect();
    assert_eq!(areas, [2048, 1024, 1024]);
}

#[test]
fn machines_without_a_weight_get_nothing_and_nobody_waits_for_ever() {
    let rects = partition(1 << 40, 1 << 40, 1.0, 1.0, &[0.0, f64::NAN, 1.0, f64::INFINITY], false);
    assert_eq!(rects.iter().filter(|r| r.is_some()).count(), 1);
    assert!(partition(5, 5, 5.0, 5.0, &[0.0], false).iter().all(Option::is_none));
}

#[test]
fn who_is_asked_to_help_has_a_share_however_slow_it_is() {
    let slow = |gflops, rate| machine("slow", gflops, 1 << 30, rate);
    for (m, n) in [(300, 300), (300, 2000), (2000, 2000)] {
        let p = problem(m, n, 200);
        for (gflops, rate) in [(20.0, 900.0), (1.0, 900.0), (1e-3, 900.0), (20.0, 0.1)] {
            let workers = [machine("fast", 20.0, 1 << 30, 900.0), slow(gflops, rate)];
            let local = PlanOptions { who: Preference::Workers, ..PlanOptions::AUTO };
            for options in [by("reuse"), by("cuboid"), by("summa:1x2"), by("row:4"), local] {
                let decision = decide(&p, TileSize::default(), &workers[0], &workers, &options).unwrap();
                assert_eq!(decision.plan.members.len(), 2, "{m} x {n}, {gflops}, {rate}, {options:?}");
                assert!(decision.left_out.is_empty());
            }
        }
    }
}

#[test]
fn more_steps_than_a_message_can_number_are_refused() {
    let p = problem(2, 2, (1 << 32) + 5);
    let error = Grid::new(&p, TileSize { tile: None, depth: Some(1) }).unwrap_err();
    assert!(matches!(error, GridError::TooManySteps { depth: 1, .. }));
    let text = error.to_string();
    assert!(text.contains("k = 4294967301") && text.contains("larger --panel"), "{text}");
    assert!(Grid::new(&p, TileSize { tile: None, depth: Some(2) }).is_ok());
    // The rim is one step more.
    let p = problem(2, 2, (u64::from(u32::MAX) - 2) * 2 + 1);
    let region = Region::peeled(&p, TileSize { tile: None, depth: Some(1) }, 1).unwrap().unwrap()[0];
    assert!(region.steps() < u64::from(u32::MAX));
    let p = problem(2, 2, u64::from(u32::MAX) - 1);
    assert!(Grid::new(&p, TileSize { tile: None, depth: Some(1) }).is_err());
}

#[test]
fn options_out_of_range_are_refused() {
    let p = problem(10, 10, 10);
    assert!(Grid::new(&p, TileSize { tile: Some(0), depth: None }).is_err());
    assert!(Grid::new(&p, TileSize { tile: None, depth: Some(1 << 40) }).is_err());
    let huge = problem(1 << 25, 1 << 25, 1);
    let one = TileSize { tile: Some(1), depth: None };
    assert!(matches!(Grid::new(&huge, one), Err(GridError::TooMany { .. })));
    assert!(Grid::new(&huge, TileSize::default()).is_ok());
    let p = problem(u64::MAX, 1, 1);
    assert!(matches!(Grid::new(&p, TileSize::default()), Err(GridError::TooLarge { .. })));
}

#[test]
fn a_tile_that_fits_nowhere_is_refused_with_the_numbers() {
    let p = problem(4096, 4096, 4096);
    let small = [machine("tiny", 1.0, 1 << 20, 100.0)];
    for strategy in ["reuse", "naive", "row:4", "square:2", "cuboid", "summa:2x2", "strassen:1"] {
        // A tile size of the user is kept.
        let asked = TileSize { tile: Some(512), depth: None };
        let error = decide(&p, asked, &small[0], &small, &by(strategy)).unwrap_err();
        let PlanError::NoRoom { need_bytes, have_bytes, .. } = error else { panic!("{error}") };
        assert!(need_bytes > have_bytes && have_bytes == 1 << 20, "{strategy}: {need_bytes}");
    }
}

#[test]
fn smaller_tiles_are_taken_where_the_usual_ones_fit_nowhere() {
    let p = problem(3000, 3000, 3000);
    let usual = Grid::new(&p, TileSize::default()).unwrap();
    for mib in [2, 3, 6] {
        let small = [machine("w", 10.0, mib << 20, 100.0)];
        for (workers, options) in [(&small[..], by("reuse")), (&[], PlanOptions::AUTO)] {
            let decision = decide(&p, TileSize::default(), &small[0], workers, &options).unwrap();
            let grid = decision.plan.regions[0].grid;
            assert!(grid.tile_rows < usual.tile_rows && grid.depth == usual.depth, "{grid:?}");
            assert!(decision.sentence.contains("do not fit the memory"), "{}", decision.sentence);
            assert_fits(&decision.plan, &[&small[..], workers].concat());
            // Twice the edge does not fit.
            let larger = TileSize { tile: Some(grid.tile_rows * 2), depth: Some(grid.depth) };
            assert!(matches!(
                decide(&p, larger, &small[0], workers, &options),
                Err(PlanError::NoRoom { .. })
            ));
        }
    }
    // Bits that must not depend on the machines do not depend on their memory.
    let same_bits = PlanOptions { reproducible: true, ..PlanOptions::AUTO };
    let small = machine("w", 10.0, 2 << 20, 100.0);
    assert!(matches!(
        decide(&p, TileSize::default(), &small, &[], &same_bits),
        Err(PlanError::NoRoom { .. })
    ));
}

/// Only thin products have deep steps, and if these do not fit the memory, the steps of other products do.
#[test]
fn deeper_steps_change_no_square_grid_and_refuse_no_small_memory() {
    let depth =
        |m, n, tile| Grid::new(&problem(m, n, 1 << 24), TileSize { tile, depth: None }).unwrap().depth;
    assert_eq!(depth(1, 1, None), 1 << 16);
    assert_eq!(depth(8, 8, None), 1 << 15);
    for (m, n, tile, same) in [(256, 256, None, 1024), (4096, 4096, Some(64), 1024), (8192, 8192, None, 512)]
    {
        assert_eq!(depth(m, n, tile), same, "{m} x {n}");
    }
    for (m, n, tile, mib) in [(1, 1, None, 2), (8, 8, None, 2), (8, 8, Some(256), 2), (64, 64, None, 3)] {
        let (p, cut) = (problem(m, n, 2_000_000), TileSize { tile, depth: None });
        let small = machine("w", 10.0, mib << 20, 100.0);
        let decision = decide(&p, cut, &small, &[], &PlanOptions::AUTO).unwrap();
        assert_eq!(decision.plan.regions[0].grid.depth, 1024, "{m} x {n}");
        assert!(decision.sentence.contains("steps of 1024 along k"), "{}", decision.sentence);
        assert_fits(&decision.plan, std::slice::from_ref(&small));
    }
}

#[test]
fn a_worker_without_room_is_left_out_and_does_not_spoil_the_others() {
    let p = problem(4096, 4096, 4096);
    let workers = [machine("tiny", 100.0, 1 << 20, 900.0), machine("roomy", 50.0, 8 << 30, 900.0)];
    let decision = decide(&p, TileSize::default(), &workers[1], &workers, &by("reuse")).unwrap();
    assert_eq!(decision.plan.members.len(), 1);
    assert_eq!(decision.left_out[0].name, "tiny");
    assert!(decision.left_out[0].reason.contains("no room"), "{:?}", decision.left_out);
}

#[test]
fn all_that_is_wanted_is_all_that_can_be_used() {
    for (m, n, k) in [(513, 700, 900), (2000, 10, 3000), (1, 1, 1)] {
        let p = problem(m, n, k);
        let regions = [Region::whole(&p, TileSize::default()).unwrap()];
        let wanted = memory_wanted(&regions, &p);
        let exact = (m * n + 2 * (m * k + k * n)) * 8;
        assert!(wanted >= exact, "{wanted} < {exact}");
        let plan = |memory| planned(&p, TileSize::default(), &[machine("w", 10.0, memory, 100.0)], "reuse");
        let (some, all) = (plan(wanted), plan(1 << 40));
        assert_eq!(some.members, all.members, "no smaller blocks than with all memory");
        assert_eq!(some.members[0].blocks().count(), 1);
    }
}

#[test]
fn tiny_matrices_and_many_jobs_count_for_what_they_really_cost() {
    assert_eq!(charged_bytes(1, 0), MATRIX_BYTES_MIN);
    assert_eq!(charged_bytes(1000, 0), 1024);
    assert_eq!(charged_bytes(1 << 20, 3), (1 << 20) + 3 * USE_BYTES);
    assert_eq!(charged_bytes(u64::MAX, 0), u64::MAX);
    assert_eq!(charged_bytes(1, u64::MAX), u64::MAX);
}

#[test]
fn a_plan_of_a_hundred_million_blocks_costs_no_more_than_its_first() {
    // 100,000 × 100,000 in tiles of 10: 10^8 blocks per step.
    let p = problem(100_000, 100_000, 10);
    let cut = TileSize { tile: Some(10), depth: None };
    let workers = vec![machine("w", 10.0, 1 << 30, 100.0); 3];
    let plan = planned(&p, cut, &workers, "naive");
    let blocks: u64 = plan.members.iter().flat_map(|m| &m.shares).map(Share::blocks).sum();
    assert_eq!(blocks, 100_000_000);
    assert!(plan.members.iter().all(|m| m.shares.len() <= 1), "a plan stores boxes, not blocks");
    let firsts: Vec<Block> = plan.members[0].blocks().take(3).collect();
    assert_eq!(firsts[1].cells.cols.start, firsts[0].cells.cols.end);
    let share = plan.members[0].shares[0];
    assert!(share.block(share.blocks() - 1).is_some() && share.block(share.blocks()).is_none());
}
