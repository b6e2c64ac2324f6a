//! Every element has its place, cuts lie on the lattice, memory suffices, speed counts.

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn holder(gflops: f64, memory_bytes: u64) -> PartHolder {
    PartHolder { name: format!("pi{gflops}"), gflops, memory_bytes }
}

fn holders(speeds: &[f64]) -> Vec<PartHolder> {
    speeds.iter().map(|gflops| holder(*gflops, u64::MAX)).collect()
}

fn by_speed(axis: ShardAxis) -> Placement {
    Placement::Shard(axis, ShardUnits::BySpeed)
}

fn lengths(layout: &ArrayLayout) -> Vec<u64> {
    layout.parts.iter().map(|part| part.rect.cols.len()).collect()
}

/// Any speed, also an unknown one.
fn speed() -> impl Strategy<Value = f64> {
    prop_oneof![1e-3f64..1e3, Just(0.0), Just(f64::NAN), Just(f64::INFINITY)]
}

proptest! {
    #[test]
    fn each_element_is_in_one_part_cut_on_the_lattice_and_within_the_memory(
        rows in 1u64..5000,
        cols in 1u64..5000,
        by_rows in any::<bool>(),
        all in proptest::collection::vec((speed(), 0u64..40), 1..9),
    ) {
        let shape = Shape::new(rows, cols);
        let axis = if by_rows { ShardAxis::Rows } else { ShardAxis::Cols };
        let holders: Vec<PartHolder> = all.iter().map(|(gflops, mib)| holder(*gflops, *mib * MIB)).collect();
        let (length, across) = if by_rows { (rows, cols) } else { (cols, rows) };
        let piece = charged_bytes(LATTICE.min(length) * across * 8, 0);
        let room: u64 = holders.iter().map(|h| h.memory_bytes / piece).sum();
        let layout = ArrayLayout::new(shape, DType::F64, &by_speed(axis), &holders);
        prop_assert_eq!(layout.is_ok(), room >= length.div_ceil(LATTICE));
        let Ok(layout) = layout else { return Ok(()) };
        let mut reached = 0;
        for part in &layout.parts {
            let (span, other) = match axis {
                ShardAxis::Rows => (part.rect.rows, part.rect.cols),
                ShardAxis::Cols => (part.rect.cols, part.rect.rows),
            };
            prop_assert_eq!(other, Span::new(0, across));
            prop_assert_eq!(span.start, reached);
            prop_assert!(!span.is_empty() && (span.end == length || span.end % LATTICE == 0));
            prop_assert!(layout.part_bytes(part) <= holders[part.machine].memory_bytes);
            reached = span.end;
        }
        prop_assert_eq!(reached, length);
        let machines: Vec<usize> = layout.parts.iter().map(|part| part.machine).collect();
        prop_assert!(machines.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(&layout, &ArrayLayout::new(shape, DType::F64, &by_speed(axis), &holders).unwrap());
    }

    /// No other division of the pieces has a machine that finishes its longest part earlier.
    #[test]
    fn the_longest_part_is_as_short_as_it_can_be(
        pieces in 0u64..9,
        all in proptest::collection::vec((1u32..9, 0u64..6), 1..5),
    ) {
        let weights: Vec<f64> = all.iter().map(|(w, _)| f64::from(*w)).collect();
        let room: Vec<u64> = all.iter().map(|(_, room)| *room).collect();
        let longest = |counts: &[u64]| counts.iter().zip(&weights).map(|(n, w)| *n as f64 / w).fold(0.0, f64::max);
        let mut best = f64::INFINITY;
        let mut other = vec![0; room.len()];
        loop {
            if other.iter().sum::<u64>() == pieces {
                best = best.min(longest(&other));
            }
            let Some(at) = (0..room.len()).find(|at| other[*at] < room[*at]) else { break };
            other[at] += 1;
            other[..at].fill(0);
        }
        let found = apportion(pieces, &weights, &room);
        prop_assert_eq!(found.is_some(), best.is_finite());
        if let Some(found) = found {
            prop_assert_eq!(found.iter().sum::<u64>(), pieces);
            prop_assert!(found.iter().zip(&room).all(|(n, room)| n <= room));
            prop_assert!(longest(&found) <= best * (1.0 + 1e-12), "{found:?} takes longer than {best}");
        }
    }

    #[test]
    fn replicas_are_whole_and_at_every_machine_with_room(mibs in proptest::collection::vec(0u64..9, 1..6)) {
        let shape = Shape::new(1024, 512);
        let holders: Vec<PartHolder> = mibs.iter().map(|mib| holder(1.0, *mib * MIB)).collect();
        let want: Vec<usize> = (0..mibs.len()).filter(|at| mibs[*at] >= 4).collect();
        match ArrayLayout::new(shape, DType::F64, &Placement::Replicate, &holders) {
            Ok(layout) => {
                prop_assert!(layout.parts.iter().all(|part| part.rect == shape.rect()));
                prop_assert_eq!(layout.parts.iter().map(|part| part.machine).collect::<Vec<_>>(), want);
                prop_assert_eq!(layout.axis, None);
            }
            Err(error) => prop_assert!(want.is_empty() && matches!(error, LayoutError::NoRoom(_))),
        }
    }
}

#[test]
fn four_unequal_machines_with_enough_memory_reach_nine_tenths_of_their_summed_speed() {
    let speeds = [4.0, 2.0, 2.0, 1.0];
    for cols in (32 * LATTICE..200 * LATTICE).step_by(1000) {
        let layout =
            ArrayLayout::new(Shape::new(64, cols), DType::F32, &by_speed(ShardAxis::Cols), &holders(&speeds));
        let layout = layout.unwrap();
        let time = |part: &PlacedPart| part.rect.cols.len() as f64 / speeds[part.machine];
        let longest = layout.parts.iter().map(time).fold(0.0, f64::max);
        let speed = cols as f64 / longest;
        assert!(speed >= 0.9 * 9.0, "{cols} columns: {speed}");
    }
}

#[test]
fn a_machine_with_little_memory_gets_what_it_can_hold_and_the_others_the_rest() {
    let shape = Shape::new(1024, 32 * LATTICE);
    // A piece is 256 columns of 1024 rows in f32: 1 MiB.
    let machines = [holder(4.0, 3 * MIB), holder(2.0, u64::MAX), holder(0.0, u64::MAX), holder(1.0, MIB / 2)];
    let layout = ArrayLayout::new(shape, DType::F32, &by_speed(ShardAxis::Cols), &machines).unwrap();
    assert_eq!(lengths(&layout), [3 * LATTICE, 29 * LATTICE]);
    assert_eq!(layout.part_at(1).map(|part| layout.part_bytes(part)), Some(29 * MIB));
    assert_eq!((layout.part_at(2), layout.part_at(3)), (None, None));
}

#[test]
fn stated_units_are_kept_or_refused_with_the_memory_of_each_machine() {
    let place = |units: &[u64], machines: &[PartHolder]| {
        let placement = Placement::Shard(ShardAxis::Cols, ShardUnits::Stated(units.to_vec()));
        ArrayLayout::new(Shape::new(1024, 8 * LATTICE), DType::F32, &placement, machines)
    };
    let machines = [holder(1.0, 5 * MIB), holder(2.0, 5 * MIB), holder(3.0, 5 * MIB)];
    assert_eq!(lengths(&place(&[1, 0, 1], &machines).unwrap()), [4 * LATTICE; 2]);
    assert_eq!(lengths(&place(&[4, 2, 2], &machines).unwrap()), [4 * LATTICE, 2 * LATTICE, 2 * LATTICE]);
    let refused = place(&[6, 1, 1], &machines).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "an array of 1024x2048 takes 8 MiB, in pieces of 1 MiB, and the machines have left: pi1 5 MiB for 6 MiB, \
         pi2 5 MiB for 1 MiB, pi3 5 MiB for 1 MiB; free other arrays, or give the workers more --memory"
    );
    assert_eq!(place(&[1, 1], &machines), Err(LayoutError::Units { units: 2, machines: 3 }));
    assert_eq!(place(&[0, 0, 0], &machines), Err(LayoutError::Units { units: 3, machines: 3 }));
}

#[test]
fn an_array_that_fits_no_memory_is_refused_with_what_each_machine_has_left() {
    let machines = [holder(1.0, 2 * MIB), holder(2.0, MIB)];
    let refused =
        ArrayLayout::new(Shape::new(1024, 4 * LATTICE), DType::F32, &by_speed(ShardAxis::Cols), &machines);
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("takes 4 MiB, in pieces of 1 MiB") && text.contains("pi1 2 MiB, pi2 1 MiB;"),
        "{text}"
    );
}

#[test]
fn shapes_without_elements_or_beyond_all_machines_are_refused() {
    for shape in [Shape::new(0, 5), Shape::new(5, 0), Shape::new(1 << 33, 1), Shape::new(1 << 32, 1 << 32)] {
        for placement in [Placement::Replicate, by_speed(ShardAxis::Rows)] {
            let refused = ArrayLayout::new(shape, DType::F64, &placement, &holders(&[1.0]));
            assert_eq!(refused, Err(LayoutError::Shape(shape)));
        }
    }
}

#[test]
fn small_arrays_are_replicated_and_others_cut_along_their_longer_side() {
    let automatic = |rows, cols, holders: &[PartHolder]| {
        Placement::automatic(Shape::new(rows, cols), DType::F32, holders)
    };
    let four = holders(&[1.0; 4]);
    assert_eq!(automatic(1000, 1000, &four), Placement::Replicate);
    assert_eq!(automatic(8192, 8192, &four), by_speed(ShardAxis::Cols));
    assert_eq!(automatic(30_522, 384, &four), by_speed(ShardAxis::Rows));
    assert_eq!(automatic(384, 30_522, &four), by_speed(ShardAxis::Cols));
    // Six pieces of 256 columns for eight machines.
    assert_eq!(automatic(1536, 1536, &holders(&[1.0; 8])), Placement::Replicate);
    assert_eq!(automatic(1000, 1000, &[holder(1.0, 5 * MIB)]), by_speed(ShardAxis::Cols));
}

#[test]
fn a_lost_part_is_placed_anew_on_the_machines_that_are_left_and_no_other_part_moves() {
    let layout = ArrayLayout::new(
        Shape::new(300, 20 * LATTICE + 7),
        DType::F64,
        &by_speed(ShardAxis::Cols),
        &holders(&[2.0, 2.0, 1.0]),
    )
    .unwrap();
    let there = |machine: usize| machine != 1;
    assert_eq!(layout.missing(&there), [1]);
    assert_eq!(layout.missing(&|_| true), [0usize; 0]);
    let left = [holder(2.0, 1 << 40), holder(2.0, 0), holder(1.0, 1 << 40)];
    let pieces = layout.placed_again(1, &left).unwrap();
    let lost = layout.parts[1].rect;
    assert_eq!(pieces.iter().map(|piece| piece.machine).collect::<Vec<_>>(), [0, 2]);
    assert!(pieces.iter().all(|piece| piece.rect.rows == lost.rows));
    assert_eq!((pieces[0].rect.cols.start, pieces[1].rect.cols.end), (lost.cols.start, lost.cols.end));
    assert_eq!(pieces[0].rect.cols.end, pieces[1].rect.cols.start);
    assert!(pieces[0].rect.cols.len() > pieces[1].rect.cols.len());
    let full = [holder(2.0, 100), holder(2.0, 0), holder(1.0, 100)];
    assert!(matches!(layout.placed_again(1, &full), Err(LayoutError::NoRoom(_))));
}

#[test]
fn replicas_are_missing_only_with_the_last_machine() {
    let four = holders(&[1.0; 4]);
    let layout = ArrayLayout::new(Shape::new(9, 9), DType::F32, &Placement::Replicate, &four).unwrap();
    assert_eq!(layout.missing(&|machine| machine == 2), [0usize; 0]);
    assert_eq!(layout.missing(&|_| false), [0]);
    let again = layout.placed_again(0, &four[..2]).unwrap();
    assert_eq!(
        again.iter().map(|part| (part.machine, part.rect)).collect::<Vec<_>>(),
        [0, 1].map(|at| (at, layout.shape.rect()))
    );
}
