//! Plans with a placed operand: each share at its owner, nothing sent of the placed operand, everything fits.

use super::cost::block_bytes;
use super::form::{assert_covers, assert_fits, chain_ends};
use super::*;
use bramble_base::{Shape, Span};

/// Where the workers, numbered from 1, hold a placed operand.
fn placed(rows: u64, cols: u64, axis: Option<ShardAxis>, workers: &[Machine]) -> ArrayLayout {
    let holder = |m: &Machine| PartHolder { name: m.name.clone(), gflops: m.gflops, memory_bytes: u64::MAX };
    let holders: Vec<PartHolder> = workers.iter().map(holder).collect();
    let placement = match axis {
        Some(axis) => Placement::Shard(axis, ShardUnits::BySpeed),
        None => Placement::Replicate,
    };
    ArrayLayout::new(Shape::new(rows, cols), DType::F64, &placement, &holders).unwrap()
}

fn numbers(worker: usize) -> Option<usize> {
    Some(worker + 1)
}

/// x (m × k) times the placed k × n.
fn x_times(
    [m, n, k]: [u64; 3],
    axis: Option<ShardAxis>,
    workers: &[Machine],
    options: &PlanOptions,
) -> Result<Decision, PlanError> {
    let layout = placed(k, n, axis, workers);
    let ownership = Ownership::of_right(&layout, false, &numbers).unwrap();
    let p = Problem { b_source: OperandSource::Resident, ..problem(m, n, k) };
    decide_resident(
        &p,
        &ownership,
        TileSize::default(),
        &machine("primary", 1.0, 1 << 40, 0.0),
        workers,
        options,
    )
}

fn four(memory_bytes: u64) -> Vec<Machine> {
    [4.0, 2.0, 2.0, 1.0].iter().map(|speed| machine("pi", *speed, memory_bytes, 100.0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_step_of_every_tile_is_at_an_owner_once_and_fits_and_is_costed_byte_by_byte(
        sides in (1u64..1500, 1u64..1500, 1u64..1500),
        which in 0usize..3, axis in 0usize..3, transposed in any::<bool>(),
        workers in machines(), tile in proptest::option::of(20u64..600),
        reads_c in any::<bool>(), reproducible in any::<bool>(),
    ) {
        let (m, n, k) = sides;
        let axis = [None, Some(ShardAxis::Rows), Some(ShardAxis::Cols)][axis];
        let lay = |rows, cols| if transposed { placed(cols, rows, axis, &workers) } else { placed(rows, cols, axis, &workers) };
        let left = || Ownership::of_left(&lay(m, k), transposed, &numbers).unwrap();
        let right = || Ownership::of_right(&lay(k, n), transposed, &numbers).unwrap();
        let (here, sent) = (OperandSource::Resident, OperandSource::Sent);
        let (ownership, a_source, b_source) = match which {
            0 => (Some(left()), here, sent),
            1 => (Some(right()), sent, here),
            _ => (left().meet(right()), here, here),
        };
        let Some(ownership) = ownership else { return Ok(()) };
        let p = Problem { reads_c, a_source, b_source, ..problem(m, n, k) };
        let cut = TileSize { tile, depth: tile };
        let primary = machine("primary", 1.0, 1 << 40, 0.0);
        let options = PlanOptions { reproducible, relay: Relay::Off, ..PlanOptions::AUTO };
        let Ok(decision) = decide_resident(&p, &ownership, cut, &primary, &workers, &options) else { return Ok(()) };
        let plan = decision.plan;
        assert_covers(&plan);
        let machines: Vec<Machine> = [primary].into_iter().chain(workers.iter().cloned()).collect();
        assert_fits(&plan, &machines);
        for member in &plan.members {
            for block in member.blocks() {
                prop_assert!(ownership.may_compute(member.machine, &plan.regions[0], &block));
            }
        }
        prop_assert!(!reproducible || plan.keeps_bits() && chain_ends(&plan));
        prop_assert!(plan.predicted.seconds.is_finite());
        for (member, cost) in plan.members.iter().zip(&plan.predicted.machines) {
            let bytes = member.blocks().map(|b| block_bytes(&plan, &Recipe::new(0), &b).0);
            prop_assert_eq!(cost.bytes_out, bytes.sum::<u64>());
        }
        let named = decision.left_out.len() + plan.members.iter().filter(|m| m.machine > 0).count();
        prop_assert_eq!(named, workers.len());
        prop_assert_eq!(Plan::decode(&plan.encode()).is_ok(), false, "its parts are gone when a journal is read");
    }
}

#[test]
fn x_times_placed_columns_sends_x_once_by_relay_and_nothing_of_the_placed_matrix() {
    let workers = four(1 << 30);
    let plan = x_times([512, 8192, 8192], Some(ShardAxis::Cols), &workers, &PlanOptions::AUTO).unwrap().plan;
    let x = 512.0 * 8192.0 * 8.0;
    assert!(plan.relay);
    let sent = plan.predicted.bytes_sent as f64;
    assert!(sent >= x && sent < 1.05 * x, "{sent} of {x}");
    let c = 512.0 * 8192.0 * 8.0;
    assert!((plan.predicted.bytes_received as f64) < 1.05 * c);
    assert!(plan.keeps_bits());
    // Only x, two steps of it, and C count against the product's memory.
    assert!(plan.predicted.worker_memory_bytes < 64 << 20, "{}", plan.predicted.worker_memory_bytes);
}

#[test]
fn a_placed_matrix_cut_along_k_gives_partial_sums_in_the_order_of_k() {
    let plan =
        x_times([64, 2048, 8192], Some(ShardAxis::Rows), &four(1 << 30), &PlanOptions::AUTO).unwrap().plan;
    assert_eq!(plan.sums, Sums::Merged);
    assert!(!plan.keeps_bits());
    let spans: Vec<Span> = plan.members.iter().map(|m| m.shares[0].steps).collect();
    assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start), "{spans:?}");
    // x once altogether, a part to each; all of C from each.
    let (x, c) = (64.0 * 8192.0 * 8.0, 64.0 * 2048.0 * 8.0);
    assert!((plan.predicted.bytes_sent as f64) < 1.1 * x);
    assert!((plan.predicted.bytes_received as f64) > 4.0 * c);
}

#[test]
fn replicas_are_divided_by_speed_among_the_machines_that_have_one() {
    let workers = four(1 << 30);
    let layout = placed(1024, 1024, None, &workers);
    let ownership =
        Ownership::of_right(&layout, false, &|worker| (worker != 2).then_some(worker + 1)).unwrap();
    let p = Problem { b_source: OperandSource::Resident, ..problem(8192, 1024, 1024) };
    let primary = machine("primary", 100.0, 1 << 40, 0.0);
    let decided =
        decide_resident(&p, &ownership, TileSize::default(), &primary, &workers, &PlanOptions::AUTO);
    let decision = decided.unwrap();
    assert_eq!(decision.plan.members.iter().map(|m| m.machine).collect::<Vec<_>>(), [1, 2, 4]);
    assert!(decision.plan.part_of_work(0) > 2.0 * decision.plan.part_of_work(2));
    assert_eq!(decision.left_out[0].reason, "it holds no part of the operand");
}

#[test]
fn an_owner_without_room_for_a_block_is_named_and_smaller_tiles_are_tried_first() {
    let little = |bytes: u64| {
        let mut workers = four(1 << 30);
        workers[1] = Machine { name: "little".to_owned(), memory_bytes: bytes, ..workers[1].clone() };
        x_times([2048, 8192, 4096], Some(ShardAxis::Cols), &workers, &PlanOptions::AUTO)
    };
    let usual = little(1 << 30).unwrap().plan.regions[0].grid.tile_rows;
    let less = little(600 << 10).unwrap().plan.regions[0].grid.tile_rows;
    assert!(less < usual, "{less} of {usual}");
    match little(4 << 10) {
        Err(PlanError::OwnerWithoutRoom { name, have_bytes: 4096, need_bytes }) => {
            assert!(name == "little" && need_bytes > 4096);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reproducible_bits_need_parts_that_are_cut_between_tiles() {
    let reproducible = PlanOptions { reproducible: true, ..PlanOptions::AUTO };
    let refused = x_times([4096, 16_384, 512], Some(ShardAxis::Cols), &four(1 << 30), &reproducible);
    assert!(matches!(refused, Err(PlanError::CutsBetweenTiles { .. })), "{refused:?}");
    let other = by("summa:2x2");
    let refused = x_times([512, 512, 512], None, &four(1 << 30), &other);
    assert!(matches!(refused, Err(PlanError::Refused { .. })), "{refused:?}");
}

#[test]
fn tiles_of_a_large_product_return_in_bands_that_send_no_byte_more() {
    let workers = four(1 << 30);
    let found =
        x_times([4096, 4096, 4096], Some(ShardAxis::Cols), &workers, &PlanOptions::AUTO).unwrap().plan;
    let Region { grid, .. } = found.regions[0];
    for member in &found.members {
        let share = member.shares[0];
        assert!(share.blocks() > 1 && share.block.cols == share.cells.cols.len(), "{share:?}");
    }
    let x = grid.whole_rows() * grid.whole_depth() * 8;
    let sent = found.predicted.bytes_sent;
    assert!(sent >= x && sent < x * found.members.len() as u64 * 21 / 20, "{sent} of {x}");
}

#[test]
fn the_machines_have_room_for_the_panels_of_a_lost_part() {
    let room = |memory_bytes: u64| -> Vec<u64> {
        let found =
            x_times([2048, 2048, 2048], Some(ShardAxis::Cols), &four(memory_bytes), &PlanOptions::AUTO);
        found.unwrap().plan.members.iter().map(|member| member.memory_bytes).collect()
    };
    let (plenty, none) = (room(1 << 30), room(6 << 20));
    assert!(none.iter().all(|bytes| *bytes <= 6 << 20), "{none:?}");
    assert!(plenty.iter().all(|bytes| *bytes > 12 << 20), "{plenty:?}");
}
