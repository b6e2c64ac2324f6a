//! Properties of cutting: nothing is lost, nothing is doubled, everything fits.

use super::*;
use proptest::prelude::*;

fn problem(m: u64, n: u64, k: u64) -> Problem {
    Problem { m, n, k, dtype: DType::F64, reads_c: false, sends_a: true, sends_b: true }
}

fn machine(name: &str, gflops: f64, memory_bytes: u64, mb_per_s: f64) -> Machine {
    Machine {
        name: name.to_owned(),
        threads: 4,
        gflops,
        peak_gflops: gflops * 1.2,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s: mb_per_s * 1e6, round_trip_s: 2e-4 }),
    }
}

/// How often each tile of C is owned by a block of the plan.
fn coverage(plan: &Plan) -> Vec<u32> {
    let mut seen = vec![0; plan.grid.tiles() as usize];
    for owner in 0..plan.shares.len() {
        for index in 0..plan.shares[owner].blocks() {
            let block = plan.block(owner, index).unwrap();
            for i in block.tile_rows.iter() {
                for j in block.tile_cols.iter() {
                    seen[(i * plan.grid.cols() + j) as usize] += 1;
                }
            }
        }
        assert_eq!(plan.block(owner, plan.shares[owner].blocks()), None);
    }
    seen
}

proptest! {
    #[test]
    fn tiles_and_steps_cover_the_product(m in 0u64..5000, n in 0u64..5000, k in 0u64..5000) {
        let grid = Grid::new(&problem(m, n, k), Cut::default()).unwrap();
        let rows: u64 = (0..grid.rows()).map(|i| grid.row_span(i).len()).sum();
        let cols: u64 = (0..grid.cols()).map(|j| grid.col_span(j).len()).sum();
        let depth: u64 = (0..grid.steps()).map(|s| grid.step_span(s).len()).sum();
        prop_assert_eq!((rows, cols, depth), (m, n, k));
    }

    #[test]
    fn every_tile_has_one_block_and_every_block_fits(
        m in 1u64..6000, n in 1u64..6000, k in 1u64..3000,
        speeds in proptest::collection::vec((1.0f64..100.0, 20u64..400), 1..9),
    ) {
        let p = problem(m, n, k);
        let workers: Vec<Machine> =
            speeds.iter().map(|(s, mib)| machine("w", *s, mib << 20, 100.0)).collect();
        let primary = machine("p", 1.0, 1 << 30, 100.0);
        let decision = decide(&p, Cut::default(), &primary, &workers, Preference::Workers);
        if let Ok(decision) = decision {
            prop_assert!(coverage(&decision.plan).iter().all(|c| *c == 1));
            for share in &decision.plan.shares {
                prop_assert!(cost::share_memory(&p, &decision.plan.grid, share) <= share.memory_bytes);
            }
            prop_assert_eq!(decision.left_out.len() + decision.plan.shares.len(), workers.len());
        }
    }

    #[test]
    fn partitions_are_disjoint_and_cover(rows in 1u64..40, cols in 1u64..40,
        weights in proptest::collection::vec(0.1f64..50.0, 1..20)) {
        let rects = partition(rows, cols, rows as f64, cols as f64, &weights);
        let area: u64 = rects.iter().flatten().map(|r| r.shape().rows * r.shape().cols).sum();
        prop_assert_eq!(area, rows * cols);
        for (i, a) in rects.iter().enumerate() {
            for b in rects.iter().skip(i + 1) {
                if let (Some(a), Some(b)) = (a, b) { prop_assert!(a.disjoint(*b)); }
            }
        }
    }
}

#[test]
fn ids_are_distinct_and_tiles_are_found_again() {
    let grid = Grid::new(&problem(1000, 700, 5000), Cut::default()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for s in 0..grid.steps() {
        assert!((0..grid.rows()).all(|i| seen.insert(grid.a_id(i, s))));
        assert!((0..grid.cols()).all(|j| seen.insert(grid.b_id(s, j))));
    }
    for i in 0..grid.rows() {
        for j in 0..grid.cols() {
            assert!(seen.insert(grid.c_id(i, j)));
            assert_eq!(grid.tile_of(grid.c_id(i, j)), Some((i, j)));
        }
    }
    assert_eq!(grid.tile_of(0), None);
    assert_eq!(grid.tile_of(u32::MAX), None);
}

#[test]
fn the_grid_does_not_depend_on_the_machines() {
    let p = problem(4096, 4096, 4096);
    let primary = machine("p", 50.0, 1 << 32, 100.0);
    let grids: Vec<Grid> = (1..6)
        .map(|w| {
            let workers: Vec<Machine> =
                (0..w).map(|i| machine("w", 10.0 + f64::from(i), 1 << 30, 900.0)).collect();
            decide(&p, Cut::default(), &primary, &workers, Preference::Workers).unwrap().plan.grid
        })
        .collect();
    assert!(grids.windows(2).all(|g| g[0] == g[1]));
}

#[test]
fn area_follows_speed() {
    let rects = partition(64, 64, 64.0, 64.0, &[8.0, 4.0, 4.0]);
    let areas: Vec<u64> = rects.iter().map(|r| r.map_or(0, |r| r.shape().rows * r.shape().cols)).collect();
    assert_eq!(areas, [2048, 1024, 1024]);
}

#[test]
fn slow_links_leave_the_primary_alone_and_fast_ones_do_not() {
    let p = problem(2048, 2048, 2048);
    let primary = machine("laptop", 100.0, 1 << 32, 0.0);
    let slow = vec![machine("pi", 10.0, 1 << 30, 10.0); 4];
    let decision = decide(&p, Cut::default(), &primary, &slow, Preference::Fastest).unwrap();
    assert!(decision.alone && decision.left_out.len() == 4, "{}", decision.sentence);
    let fast = vec![machine("server", 500.0, 1 << 32, 5000.0); 4];
    let decision = decide(&p, Cut::default(), &primary, &fast, Preference::Fastest).unwrap();
    assert!(!decision.alone, "{}", decision.sentence);
}

#[test]
fn memory_use_approaches_maximum_reuse() {
    // One worker with S words moves about 2mnk/sqrt(S) words (Smith et al., arXiv:1702.02017).
    let p = problem(32768, 32768, 32768);
    let memory = 1u64 << 30;
    let workers = [machine("w", 10.0, memory, 100.0)];
    let decision =
        decide(&p, Cut { tile: Some(256), depth: Some(64) }, &workers[0], &workers, Preference::Workers)
            .unwrap();
    let words = decision.plan.predicted.bytes_sent as f64 / 8.0;
    let optimum = 2.0 * (32768f64).powi(3) / (memory as f64 / 8.0).sqrt();
    assert!(words / optimum < 1.15, "{}", words / optimum);
}

#[test]
fn a_tile_that_fits_nowhere_is_refused_with_the_numbers() {
    let p = problem(4096, 4096, 4096);
    let small = [machine("tiny", 1.0, 1 << 20, 100.0)];
    let error = decide(&p, Cut::default(), &small[0], &small, Preference::Workers).unwrap_err();
    assert!(matches!(error, PlanError::NoRoom { .. }), "{error}");
}

#[test]
fn a_worker_without_room_is_left_out_and_does_not_spoil_the_others() {
    let p = problem(4096, 4096, 4096);
    let workers = [machine("tiny", 100.0, 1 << 20, 900.0), machine("roomy", 50.0, 8 << 30, 900.0)];
    let decision = decide(&p, Cut::default(), &workers[1], &workers, Preference::Workers).unwrap();
    assert_eq!(decision.plan.shares.len(), 1);
    assert_eq!(decision.left_out[0].name, "tiny");
    assert!(decision.left_out[0].reason.contains("no room"), "{:?}", decision.left_out);
}

#[test]
fn all_that_is_wanted_is_all_that_can_be_used() {
    for (m, n, k) in [(513, 700, 900), (2000, 10, 3000), (1, 1, 1)] {
        let p = problem(m, n, k);
        let grid = Grid::new(&p, Cut::default()).unwrap();
        let wanted = memory_wanted(&p, &grid);
        let exact = (m * n + 2 * (m * k + k * n)) * 8;
        assert!(wanted >= exact, "{wanted} < {exact}");
        let plan = |memory| {
            let workers = [machine("w", 10.0, memory, 100.0)];
            decide(&p, Cut::default(), &workers[0], &workers, Preference::Workers).unwrap().plan
        };
        let (some, all) = (plan(wanted), plan(1 << 40));
        assert_eq!(some.shares[0].block, all.shares[0].block, "no smaller blocks than with all memory");
        assert_eq!(some.shares[0].blocks(), 1);
    }
    let p = problem(u64::MAX / 4, u64::MAX / 4, u64::MAX / 4);
    let cut = Cut { tile: Some(1 << 16), depth: Some(1 << 16) };
    if let Ok(grid) = Grid::new(&p, cut) {
        assert_eq!(memory_wanted(&p, &grid), u64::MAX);
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
fn options_out_of_range_are_refused() {
    let p = problem(10, 10, 10);
    assert!(Grid::new(&p, Cut { tile: Some(0), depth: None }).is_err());
    assert!(Grid::new(&p, Cut { tile: None, depth: Some(1 << 40) }).is_err());
    let huge = problem(1 << 40, 1 << 40, 1);
    assert!(matches!(Grid::new(&huge, Cut { tile: Some(1), depth: None }), Err(GridError::TooMany { .. })));
}
