//! The traffic of plans, compared with lower bounds from theory.

use super::*;

/// A product of that many whole tiles of that edge in each direction.
fn tiled(tile: u64, rows: u64, cols: u64, steps: u64) -> (Problem, TileSize) {
    (problem(tile * rows, tile * cols, tile * steps), TileSize { tile: Some(tile), depth: Some(tile) })
}

/// Bytes to the workers per byte back.
fn out_to_in(plan: &Plan) -> f64 {
    plan.predicted.bytes_sent as f64 / plan.predicted.bytes_received as f64
}

#[test]
fn rows_and_squares_of_tiles_move_what_their_names_say() {
    let worker = [machine("w", 10.0, 64 << 30, 100.0)];
    for tile in [128, 256, 512] {
        for (rows, cols, steps) in [(24, 24, 24), (24, 40, 48), (64, 24, 24)] {
            let (p, cut) = tiled(tile, rows, cols, steps);
            for (strategy, want) in [("row:4", 4.0), ("row:8", 8.0), ("square:4", 2.0), ("square:8", 2.0)] {
                let ratio = out_to_in(&planned(&p, cut, &worker, strategy));
                assert!((ratio / want - 1.0).abs() < 0.05, "{strategy} at {tile}: {ratio}:1, not {want}:1");
            }
            // Nothing is sent twice: a product of two tiles is 2 tiles out and one back.
            assert!((out_to_in(&planned(&p, cut, &worker, "naive")) / 2.0 - 1.0).abs() < 0.05);
        }
    }
}

#[test]
fn one_worker_with_reuse_moves_what_its_memory_asks_for() {
    // 2mnk/√S words to a worker with S words, asymptotically the least (Smith, Lowery, Langou, van de Geijn,
    // arXiv:1702.02017); with C, mn more.
    for (memory_mib, tile, depth) in [(64u64, 64, 32), (256, 128, 64), (1024, 256, 64), (4096, 256, 128)] {
        let words = ((memory_mib << 20) / 8) as f64;
        let side = words.sqrt() as u64;
        for (m, n, k) in [
            (40 * side, 40 * side, 10 * side),
            (100 * side, 21 * side, 8 * side),
            (25 * side, 33 * side, 40 * side),
            (64 * side, 64 * side, 2 * side),
        ] {
            let p = problem(m, n, k);
            let worker = [machine("w", 1e6, memory_mib << 20, 100.0)];
            let plan = planned(&p, TileSize { tile: Some(tile), depth: Some(depth) }, &worker, "reuse");
            let least = 2.0 * m as f64 * n as f64 * k as f64 / words.sqrt();
            let ratio = plan.predicted.bytes_sent as f64 / 8.0 / least;
            println!("{memory_mib} MiB {m} {n} {k}: {ratio:.3}");
            assert!((0.98..1.10).contains(&ratio), "{memory_mib} MiB, {m} x {n} x {k}: {ratio}");
        }
    }
}

#[test]
fn the_default_cut_reuses_well_too() {
    for memory_gib in [1u64, 2, 4, 8] {
        let words = ((memory_gib << 30) / 8) as f64;
        let p = problem(200_000, 200_000, 100_000);
        let worker = [machine("w", 1e6, memory_gib << 30, 100.0)];
        let plan = planned(&p, TileSize::default(), &worker, "reuse");
        let ratio = plan.predicted.bytes_sent as f64 / 8.0 / (2e5 * 2e5 * 1e5 * 2.0 / words.sqrt());
        println!("{memory_gib} GiB: {ratio:.3}");
        assert!(ratio < 1.2, "{memory_gib} GiB: {ratio}");
    }
}

/// Mean number of words that a member of a cuboid plan moves, in both directions.
fn words(p: &Problem, cut: TileSize, machines: usize, memory_bytes: u64) -> f64 {
    let workers = vec![machine("w", 1e6, memory_bytes, 100.0); machines];
    let plan = planned(p, cut, &workers, "cuboid");
    assert_eq!(plan.members.len(), machines);
    let moved = plan.predicted.bytes_sent + plan.predicted.bytes_received;
    moved as f64 / 8.0 / machines as f64
}

#[test]
fn boxes_move_what_is_optimal_with_plenty_of_memory() {
    let cut = TileSize { tile: Some(256), depth: Some(256) };
    for (m, n, k) in
        [(16384u64, 16384, 16384), (4096, 4096, 65536), (8192, 8192, 131_072), (32768, 32768, 2048)]
    {
        let p = problem(m, n, k);
        for machines in [4usize, 8, 16, 64] {
            let (m, n, k, each) = (m as f64, n as f64, k as f64, machines as f64);
            let moved = words(&p, cut, machines, 1 << 40);
            let least = words_flat(m, n, k, each);
            let cube = words_each(m, n, k, each, 1e15);
            println!("{m} {n} {k} on {machines}: {:.3}, of the cube {:.3}", moved / least, moved / cube);
            assert!(
                (0.99..1.10).contains(&(moved / least)),
                "{m} x {n} x {k} on {machines}: {}",
                moved / least
            );
            if least == cube {
                assert!((0.99..1.10).contains(&(moved / cube)));
            }
        }
    }
}

#[test]
fn boxes_move_what_is_optimal_with_little_memory() {
    // Boxes come from halving, so the optimum is reached if the memory has room for a box of C, and not much more.
    let cut = TileSize { tile: Some(256), depth: Some(16) };
    for (m, n, k) in [(16384u64, 16384, 16384), (4096, 4096, 65536), (32768, 32768, 8192)] {
        let p = problem(m, n, k);
        for machines in [4usize, 8, 16, 64] {
            let (mf, nf, kf, each) = (m as f64, n as f64, k as f64, machines as f64);
            let face = (mf * nf * kf / each).powf(2.0 / 3.0);
            let halvings = (0..=machines.ilog2()).map(|i| mf * nf / f64::from(1u32 << i));
            // At most the face of the cube, large enough that k need not be longer than it, and of some tiles.
            for c in halvings.filter(|c| *c < face && *c * each >= mf * nf && *c > 4e6) {
                // A box of C, and the panels of two steps.
                let memory = ((c * 1.01 + 6.0 * 16.0 * c.sqrt()) * 8.0) as u64;
                let ratio =
                    words(&p, cut, machines, memory) / words_each(mf, nf, kf, each, memory as f64 / 8.0);
                println!("{m} {n} {k} on {machines} with {:.2} of the face: {ratio:.3}", c / face);
                assert!(
                    (0.99..1.10).contains(&ratio),
                    "{m} x {n} x {k} on {machines}, {memory} bytes: {ratio}"
                );
            }
        }
    }
}
