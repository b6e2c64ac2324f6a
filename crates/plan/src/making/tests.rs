//! Steps cover their parts, find their pieces, and travel in blocks.

use super::*;
use alloc::string::String;
use proptest::prelude::*;

fn holders(speeds: &[f64]) -> Vec<PartHolder> {
    let one = |gflops: &f64| PartHolder { name: String::from("w"), gflops: *gflops, memory_bytes: 1 << 40 };
    speeds.iter().map(one).collect()
}

/// An operand that is not placed, or placed in one of three ways.
fn operand(shape: Shape, how: usize, holders: &[PartHolder]) -> MadeOperand {
    let shard = |axis| Placement::Shard(axis, ShardUnits::BySpeed);
    let placement = match how {
        0 => None,
        1 => Some(Placement::Replicate),
        2 => Some(shard(ShardAxis::Rows)),
        _ => Some(shard(ShardAxis::Cols)),
    };
    let layout = placement.map(|placement| ArrayLayout::new(shape, DType::F32, &placement, holders).unwrap());
    MadeOperand { shape, parts: layout.map(|layout| layout.parts).unwrap_or_default() }
}

/// Checks the pieces of a step of a machine.
fn check_pieces(making: &Making, step: &MakingStep, machine: usize, linked: Linked<'_>, most: u64) {
    for piece in &step.pieces {
        let operand = &making.operands[piece.operand];
        match piece.source {
            PieceSource::Here(part) => {
                assert_eq!(operand.parts[part].machine, machine);
                assert!(contains(operand.parts[part].rect, piece.rect));
            }
            PieceSource::There(part) => {
                assert!(linked(machine, operand.parts[part].machine));
                assert!(contains(operand.parts[part].rect, piece.rect));
            }
            PieceSource::Primary => assert!(piece.rect.fits(operand.shape)),
        }
        if !matches!(piece.source, PieceSource::Here(_)) {
            let (rows, cols) = (piece.rect.rows.len(), piece.rect.cols.len());
            assert!(rows * cols <= most || rows == 1 || cols == 1, "{rows}x{cols} of at most {most}");
        }
    }
}

/// The number of steps that end with each element, sampled.
fn covers(rect: Rect, steps: &[MakingStep], depth_of: &dyn Fn(&MakingStep) -> Span, depth: u64) {
    let sample =
        |span: Span| [span.start, span.start + span.len() / 3, span.start + span.len() / 2, span.end - 1];
    for row in sample(rect.rows) {
        for col in sample(rect.cols) {
            let mut next = 0;
            for step in
                steps.iter().filter(|step| step.rect.rows.contains(row) && step.rect.cols.contains(col))
            {
                assert_eq!((depth_of(step).start, step.adds), (next, next > 0));
                assert!(next.is_multiple_of(LATTICE));
                next = depth_of(step).end;
            }
            assert_eq!(next, depth, "element {row}, {col}");
        }
    }
}

proptest! {
    #[test]
    fn steps_of_a_product_cover_each_part_and_the_depth(
        m in 1u64..2000, k in 1u64..2000, n in 1u64..2000, how in 0usize..16, apart in 0usize..6, added in 0usize..5,
        speeds in proptest::collection::vec(0.1f64..9.0, 1..5), block in 1u64..4 << 20,
    ) {
        let all = holders(&speeds);
        let a = operand(Shape::new(m, k), how % 4, &all);
        let b = operand(Shape::new(k, n), how / 4, &all);
        let mut operands = vec![a, b];
        if added < 4 {
            operands.push(operand(Shape::new(m, n), added, &all));
        }
        let making = Making::new(MakingForm::Product, DType::F32, operands);
        let layout = making.layout(None, &all, block).unwrap();
        let linked = |to: usize, from: usize| to != from && to != apart && from != apart;
        let most = (block / 4).max(1);
        let mut elements = 0;
        for part in &layout.parts {
            let mut steps = making.steps(part, &linked, block);
            if making.operands.len() > 2 {
                // The first steps copy C, and all products are added to that.
                let first = steps.iter().position(|step| step.pieces[0].operand == 0).unwrap();
                let product = steps.split_off(first);
                covers(part.rect, &steps, &|_| Span::new(0, 1), 1);
                for step in &steps {
                    prop_assert_eq!((step.pieces[0].operand, step.pieces[0].rect), (2, step.rect));
                    check_pieces(&making, step, part.machine, &linked, most);
                }
                prop_assert!(product.iter().all(|step| step.adds));
                let adds = |step: &MakingStep| step.pieces[0].rect.cols.start > 0;
                steps = product.into_iter().map(|step| MakingStep { adds: adds(&step), ..step }).collect();
            }
            let rect = |step: &MakingStep| step.pieces[0].rect.cols;
            covers(part.rect, &steps, &rect, k);
            for step in &steps {
                prop_assert!(contains(part.rect, step.rect));
                prop_assert_eq!(step.pieces[0].rect, Rect::new(step.rect.rows, step.pieces[1].rect.rows));
                prop_assert_eq!(step.pieces[1].rect.cols, step.rect.cols);
                check_pieces(&making, step, part.machine, &linked, most.max(LATTICE));
            }
            elements += part.rect.shape().elements().unwrap();
        }
        prop_assert_eq!(elements, m * n);
    }

    #[test]
    fn a_making_that_was_cut_short_goes_on(
        m in 1u64..2000, k in 1u64..2000, n in 1u64..2000, how in 0usize..32, apart in 0usize..6, again in 0usize..32,
        speeds in proptest::collection::vec(0.1f64..9.0, 1..5), block in (1u64..4 << 20, 1u64..4 << 20), cut in 0.0f64..1.1,
    ) {
        let all = holders(&speeds);
        // With how = 16 and more, C is added.
        let of = |how: usize| {
            let operands = [Shape::new(m, k), Shape::new(k, n), Shape::new(m, n)];
            let operands = operands.iter().enumerate().map(|(at, shape)| operand(*shape, how >> (2 * at) & 3, &all));
            Making::new(MakingForm::Product, DType::F32, operands.collect())
        };
        let with_c = how >= 16;
        let few = |making: Making| {
            let count = if with_c { 3 } else { 2 };
            Making { operands: making.operands.into_iter().take(count).collect(), ..making }
        };
        let (first, second) = (few(of(how % 16)), few(of(again)));
        let layout = first.layout(None, &all, block.0).unwrap();
        let linked = |to: usize, from: usize| to != from && to != apart && from != apart;
        for part in &layout.parts {
            let mut unmade = UnmadePart::all_of(part.rect);
            let mut steps = first.steps(part, &linked, block.0);
            steps.truncate((steps.len() as f64 * cut) as usize);
            for step in &steps {
                unmade.advance(step, first.depth.end);
            }
            let left = second.steps_left(part.machine, &unmade, &|to, from| to != from, block.1);
            prop_assert_eq!(unmade.is_empty(), left.is_empty());
            prop_assert!(unmade.regions.len() < 6, "{:?}", unmade.regions);
            for step in &left {
                check_pieces(&second, step, part.machine, &|to, from| to != from, (block.1 / 4).max(LATTICE));
            }
            steps.extend(left);
            let (of_c, product): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.depth.is_empty());
            if with_c {
                covers(part.rect, &of_c, &|_| Span::new(0, 1), 1);
            }
            let adds = |step: &MakingStep| if with_c { step.depth.start > 0 } else { step.adds };
            prop_assert!(product.iter().all(|step| step.adds || !with_c));
            let product: Vec<MakingStep> =
                product.into_iter().map(|step| MakingStep { adds: adds(&step), ..step }).collect();
            covers(part.rect, &product, &|step| step.depth, k);
        }
    }

    #[test]
    fn a_pipeline_covers_the_depth_and_the_result(
        m in 1u64..300, k in 1u64..6000, n in 1u64..300, how in 0usize..4, block in 1u64..4 << 20,
        speeds in proptest::collection::vec(0.1f64..9.0, 1..5), cut in 0usize..40,
    ) {
        let all = holders(&speeds);
        let a = operand(Shape::new(m, k), [1, 3, 3, 3][how], &all);
        let b = operand(Shape::new(k, n), [2, 2, 2, 1][how], &all);
        let making = Making::new(MakingForm::Product, DType::F64, vec![a, b]);
        let layout = making.layout(None, &all, block).unwrap();
        let mut unmade: Vec<UnmadePart> = layout.parts.iter().map(|part| UnmadePart::all_of(part.rect)).collect();
        let of = |unmade: &[UnmadePart]| {
            let one = |(part, unmade)| {
                let part: &PlacedPart = part;
                PartOfMaking { machine: part.machine, unmade }
            };
            making.pipeline(&layout.parts.iter().zip(unmade).map(one).collect::<Vec<_>>(), block)
        };
        let Some(first) = of(&unmade) else { return Ok(()) };
        prop_assert!(first.stages.len() > 1);
        prop_assert_eq!((first.stages[0].depth.start, first.stages.last().unwrap().depth.end), (0, k));
        prop_assert!(first.stages.windows(2).all(|two| two[0].depth.end == two[1].depth.start));
        for stage in &first.stages {
            for (operand, lines) in making.operands.iter().zip([|rect: Rect| rect.cols, |rect: Rect| rect.rows]) {
                let own = operand.parts.iter().filter(|part| part.machine == stage.machine);
                let covered: u64 = own.map(|part| lines(part.rect).intersect(stage.depth).len()).sum();
                prop_assert_eq!(covered, stage.depth.len());
            }
        }
        // After some blocks are at home, the others follow.
        let copy = |block: &SumBlock| MakingStep { rect: block.rect, pieces: vec![], depth: Span::new(0, 0), adds: false };
        for block in first.blocks.iter().take(cut) {
            unmade[block.part].advance(&copy(block), 0);
        }
        let left = of(&unmade).map_or(Vec::new(), |second| second.blocks);
        for block in &left {
            prop_assert!(unmade[block.part].within(block.rect).is_within(block.rect));
            unmade[block.part].advance(&copy(block), 0);
        }
        let is_made = |part: &UnmadePart| part.is_empty() || left.is_empty();
        prop_assert!(unmade.iter().all(is_made), "{:?}", unmade);
    }

    #[test]
    fn steps_of_a_sum_cover_each_part(
        m in 1u64..2000, n in 1u64..2000, how in 0usize..16, apart in 0usize..6, to in 0usize..4,
        speeds in proptest::collection::vec(0.1f64..9.0, 1..5), block in 1u64..4 << 20,
    ) {
        let all = holders(&speeds);
        let shape = Shape::new(m, n);
        let operands = vec![operand(shape, how % 4, &all), operand(shape, how / 4, &all)];
        let making = Making::new(MakingForm::Sum, DType::F32, operands);
        let shard = |axis| Placement::Shard(axis, ShardUnits::BySpeed);
        let wanted = [None, Some(Placement::Replicate), Some(shard(ShardAxis::Rows)), Some(shard(ShardAxis::Cols))];
        let layout = making.layout(wanted[to].as_ref(), &all, block).unwrap();
        let linked = |to: usize, from: usize| to != from && to != apart && from != apart;
        for part in &layout.parts {
            let steps = making.steps(part, &linked, block);
            covers(part.rect, &steps, &|_| Span::new(0, 1), 1);
            for step in &steps {
                prop_assert!(step.pieces.iter().all(|piece| piece.rect == step.rect));
                check_pieces(&making, step, part.machine, &linked, (block / 4).max(1));
            }
        }
    }
}

/// The bytes that travel for a product of these operands, all machines linked.
fn travels(shapes: [Shape; 2], how: [usize; 2], count: usize) -> (ArrayLayout, u64) {
    let all = holders(&vec![1.0; count]);
    let operands = vec![operand(shapes[0], how[0], &all), operand(shapes[1], how[1], &all)];
    let making = Making::new(MakingForm::Product, DType::F32, operands);
    let layout = making.layout(None, &all, 32 << 20).unwrap();
    let bytes =
        layout.parts.iter().map(|part| travel_bytes(&making.steps(part, &|_, _| true, 32 << 20), DType::F32));
    let bytes = bytes.sum();
    (layout, bytes)
}

#[test]
fn the_operand_that_costs_least_travels() {
    let (square, few) = (Shape::new(2048, 2048), Shape::new(256, 2048));
    // Both cut between rows: the right one goes round, and each machine needs three quarters of it.
    let (layout, bytes) = travels([square, square], [2, 2], 4);
    assert_eq!((layout.axis, bytes), (Some(ShardAxis::Rows), 3 * 2048 * 2048 * 4));
    // Few rows from the primary: each machine needs all of them, and the result is cut as the right operand.
    let (layout, bytes) = travels([few, square], [0, 3], 4);
    assert_eq!((layout.axis, bytes), (Some(ShardAxis::Cols), 4 * 256 * 2048 * 4));
    // A chain: the result of such a product, cut between columns, goes round instead of the large operand.
    let (layout, bytes) = travels([few, square], [3, 3], 4);
    assert_eq!((layout.axis, bytes), (Some(ShardAxis::Cols), 3 * 256 * 2048 * 4));
    // A replicated operand costs nothing.
    assert_eq!(travels([few, square], [1, 3], 4).1, 0);
}
