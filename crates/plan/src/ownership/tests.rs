//! Parts of an array become parts of a product; two operands meet where both lie; borders of parts are borders of tiles.

use super::*;
use crate::{LATTICE, OperandSource, PanelOrder, PartHolder, Placement, Problem, ShardUnits, TileSize};
use bramble_base::{DType, Shape};
use proptest::prelude::*;

fn layout(rows: u64, cols: u64, axis: Option<ShardAxis>, units: &[u64]) -> ArrayLayout {
    let holder = |_| PartHolder { name: String::new(), gflops: 1.0, memory_bytes: u64::MAX };
    let holders: Vec<PartHolder> = units.iter().map(holder).collect();
    let placement = match axis {
        Some(axis) => Placement::Shard(axis, ShardUnits::Stated(units.to_vec())),
        None => Placement::Replicate,
    };
    ArrayLayout::new(Shape::new(rows, cols), DType::F32, &placement, &holders).unwrap()
}

/// The primary is machine 0, and the holders are the workers.
fn numbers(worker: usize) -> Option<usize> {
    Some(worker + 1)
}

#[test]
fn a_cut_of_an_operand_is_a_cut_of_the_product() {
    let (rows, cols) = (ShardAxis::Rows, ShardAxis::Cols);
    let cases = [
        (rows, false, ProductSide::Rows, ProductSide::Depth),
        (cols, false, ProductSide::Depth, ProductSide::Cols),
        (rows, true, ProductSide::Depth, ProductSide::Cols),
        (cols, true, ProductSide::Rows, ProductSide::Depth),
    ];
    for (axis, transposed, left, right) in cases {
        let placed = layout(1000, 1000, Some(axis), &[2, 0, 1, 1]);
        let spans = [(1, 0, 512), (3, 512, 768), (4, 768, 1000)];
        let spans: Vec<OwnedSpan> = spans
            .into_iter()
            .map(|(machine, start, end)| OwnedSpan { machine, span: Span::new(start, end) })
            .collect();
        assert_eq!(
            Ownership::of_left(&placed, transposed, &numbers),
            Ok(Ownership::Cut(left, spans.clone()))
        );
        assert_eq!(Ownership::of_right(&placed, transposed, &numbers), Ok(Ownership::Cut(right, spans)));
    }
}

#[test]
fn a_part_of_a_lost_machine_is_missing_but_one_replica_is_enough() {
    let lost = |machine: usize| (machine != 1).then_some(machine + 1);
    let cut = layout(1000, 1000, Some(ShardAxis::Rows), &[1, 1, 1]);
    assert_eq!(Ownership::of_left(&cut, false, &lost), Err(MissingPart { part: 1 }));
    let replicas = layout(100, 100, None, &[1, 1, 1]);
    assert_eq!(Ownership::of_left(&replicas, false, &lost), Ok(Ownership::Replicas(Vec::from([1, 3]))));
    assert_eq!(Ownership::of_left(&replicas, true, &|_| None), Err(MissingPart { part: 0 }));
}

#[test]
fn two_placed_operands_meet_where_both_lie() {
    let left =
        |axis, units: &[u64]| Ownership::of_left(&layout(1024, 1024, axis, units), false, &numbers).unwrap();
    let right =
        |axis, units: &[u64]| Ownership::of_right(&layout(1024, 1024, axis, units), false, &numbers).unwrap();
    let (rows, cols) = (Some(ShardAxis::Rows), Some(ShardAxis::Cols));
    let along_k = left(cols, &[1, 1]).meet(right(rows, &[1, 1]));
    assert_eq!(along_k, Some(left(cols, &[1, 1])));
    assert_eq!(left(cols, &[1, 3]).meet(right(rows, &[1, 1])), None);
    assert_eq!(left(rows, &[1, 1]).meet(right(cols, &[1, 1])), None);
    assert_eq!(left(None, &[1, 1]).meet(right(cols, &[1, 1])), Some(right(cols, &[1, 1])));
    assert_eq!(right(cols, &[1, 1, 1]).meet(left(None, &[1, 1])), None);
    assert_eq!(
        left(None, &[1, 1, 1]).meet(right(None, &[1, 1])),
        Some(Ownership::Replicas(Vec::from([1, 2])))
    );
}

proptest! {
    /// A border of the parts is a border of the grid, and the box of an owner is its span exactly.
    #[test]
    fn boxes_are_the_spans_of_their_owners(
        length in 1u64..9000, other in 1u64..3000, depth in 1u64..3000,
        units in proptest::collection::vec(0u64..5, 1..7), tile in proptest::option::of(1u64..3000), side in 0usize..3,
    ) {
        prop_assume!(units.iter().any(|n| *n > 0));
        let cut = TileSize { tile, depth: tile };
        let axis = Some(if side == 0 { ShardAxis::Rows } else { ShardAxis::Cols });
        let placed = if side == 0 { layout(length, other, axis, &units) } else { layout(other, length, axis, &units) };
        let (ownership, [m, n, k]) = match side {
            0 => (Ownership::of_left(&placed, false, &numbers), [length, depth, other]),
            1 => (Ownership::of_right(&placed, false, &numbers), [depth, length, other]),
            _ => (Ownership::of_left(&placed, false, &numbers), [other, depth, length]),
        };
        let ownership = ownership.unwrap();
        ownership.assert_covers([m, n, k], units.len() + 1);
        let usual = Grid::of(m, n, k, cut).unwrap();
        let Ok(grid) = ownership.fit(usual) else { return Ok(()) };
        prop_assert!(grid.tile_rows <= usual.tile_rows && grid.tile_cols <= usual.tile_cols && grid.depth <= usual.depth);
        let region = Region { row: 0, col: 0, grid, levels: 0, rim: 0 };
        let Ownership::Cut(side, spans) = &ownership else { panic!("replicas") };
        let machines = ownership.machines();
        let boxes = ownership.boxes(&machines, &region).unwrap();
        for (owned, boxes) in spans.iter().zip(&boxes) {
            prop_assert_eq!(boxes.len(), 1);
            prop_assert_eq!(elements(*side, &grid, boxes[0].cells, boxes[0].steps), owned.span);
            let block = Block { region: 0, cells: boxes[0].cells, steps: boxes[0].steps, order: PanelOrder::Steps };
            for machine in 0..=units.len() {
                prop_assert_eq!(ownership.may_compute(machine, &region, &block), machine == owned.machine);
            }
        }
        // Tiles of the lattice's size, or a divisor of it, need not change.
        if usual.tile_cols.max(usual.tile_rows).max(usual.depth) == LATTICE {
            prop_assert_eq!(grid, usual);
        }
    }
}

#[test]
fn a_machine_with_two_parts_computes_what_lies_in_either() {
    let owned = |machine, start, end| OwnedSpan { machine, span: Span::new(start, end) };
    let ownership = Ownership::Cut(
        ProductSide::Cols,
        Vec::from([owned(2, 0, 256), owned(1, 256, 512), owned(2, 512, 768)]),
    );
    assert_eq!(ownership.machines(), [1, 2]);
    ownership.assert_covers([9, 768, 9], 3);
    let problem = Problem {
        m: 9,
        n: 768,
        k: 9,
        dtype: DType::F32,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Resident,
    };
    let region = Region::whole(&problem, TileSize::default()).unwrap();
    let region = Region { grid: ownership.fit(region.grid).unwrap(), ..region };
    assert_eq!(region.grid.tile_cols, 256);
    let block = |from, to| Block {
        region: 0,
        cells: Rect::new(Span::new(0, 1), Span::new(from, to)),
        steps: Span::new(0, 1),
        order: PanelOrder::Steps,
    };
    for (machine, from, to, may) in [
        (2, 0, 1, true),
        (2, 1, 2, false),
        (2, 2, 3, true),
        (2, 0, 3, false),
        (1, 1, 2, true),
        (1, 1, 3, false),
        (0, 0, 1, false),
    ] {
        assert_eq!(ownership.may_compute(machine, &region, &block(from, to)), may, "{machine}: {from}..{to}");
    }
}
