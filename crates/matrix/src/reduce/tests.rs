//! Tests of reductions: against plain loops, over all types, layouts and cuts.

use super::*;
use crate::Span;
use proptest::prelude::*;

/// All elements of a result.
fn results<T: Reducible>(
    reduction: Reduction,
    data: &[T],
    shape: Shape,
    cuts: &[Rect],
    by_columns: bool,
) -> Vec<ReducedMatrix> {
    let mut reducer = Reducer::<T>::new(reduction, "m", shape).unwrap();
    let (rows, cols) = (shape.rows as usize, shape.cols as usize);
    let mut turned = vec![T::ZERO; data.len()];
    for i in 0..rows {
        (0..cols).for_each(|j| turned[j * rows + i] = data[i * cols + j]);
    }
    for rect in cuts {
        let (i, j) = (rect.rows.start as usize, rect.cols.start as usize);
        let Shape { rows: m, cols: n } = rect.shape();
        let view = match by_columns {
            true => View::new(&turned[(j * rows + i).min(turned.len())..], m as usize, n as usize, 1, rows),
            false => View::new(&data[(i * cols + j).min(data.len())..], m as usize, n as usize, cols, 1),
        };
        let part = RectReduction::of(reduction, *rect, &view);
        // A rectangle with elements may have come as bytes.
        let sent = RectReduction::from_bytes(reduction, *rect, &part.to_bytes());
        assert_eq!(sent.is_some(), m > 0 && n > 0, "{reduction:?} of {rect:?}");
        reducer.merge(sent.unwrap_or(part));
    }
    reducer.finish().unwrap()
}

/// The whole, or up to four rectangles that cut it at that row and column.
fn cuts(shape: Shape, row: u64, col: u64) -> Vec<Rect> {
    let side = |len: u64, at: u64| {
        let at = at.min(len);
        [Span::new(0, at), Span::new(at, len)].into_iter().filter(move |span| !span.is_empty() || len == 0)
    };
    side(shape.rows, row)
        .flat_map(|rows| side(shape.cols, col).map(move |cols| Rect::new(rows, cols)))
        .collect()
}

fn f64s(of: &ReducedMatrix) -> Vec<f64> {
    match of.dtype {
        DType::F32 => of.elements.elements::<f32>().iter().map(|x| f64::from(*x)).collect(),
        DType::F64 => of.elements.elements::<f64>().to_vec(),
        DType::I32 => of.elements.elements::<i32>().iter().map(|x| f64::from(*x)).collect(),
        DType::I64 => of.elements.elements::<i64>().iter().map(|x| *x as f64).collect(),
    }
}

fn close(got: f64, want: f64, size: f64) -> bool {
    got.is_nan() && want.is_nan() || got == want || (got - want).abs() <= 1e-5 * size
}

/// Compares all reductions of a matrix, cut and by either layout, with plain loops.
fn check<T: Reducible>(data: &[T], shape: Shape, cut: (u64, u64), k: u64, by_columns: bool) {
    let (rows, cols) = (shape.rows as usize, shape.cols as usize);
    let cuts = cuts(shape, cut.0, cut.1);
    let run = |reduction| results(reduction, data, shape, &cuts, by_columns);
    let at = |i: usize, j: usize| data[i * cols + j];
    let sum = |all: &mut dyn Iterator<Item = T>| {
        let all: Vec<T> = all.collect();
        let exact = all.iter().fold(T::Sum::ZERO, |sum, x| sum.plus(x.summand())).to_f64();
        (exact, all.iter().map(|x| x.to_f64().abs()).sum::<f64>())
    };
    let sums = f64s(&run(Reduction::RowSum)[0]);
    assert_eq!(sums.len(), rows);
    for (i, got) in sums.into_iter().enumerate() {
        let (want, size) = sum(&mut (0..cols).map(|j| at(i, j)));
        assert!(if T::DTYPE.is_float() { close(got, want, size) } else { got == want }, "{got} {want}");
    }
    let sums = f64s(&run(Reduction::ColSum)[0]);
    assert_eq!(sums.len(), cols);
    for (j, got) in sums.into_iter().enumerate() {
        let (want, size) = sum(&mut (0..rows).map(|i| at(i, j)));
        assert!(if T::DTYPE.is_float() { close(got, want, size) } else { got == want }, "{got} {want}");
    }
    let norm = f64s(&run(Reduction::Norm)[0])[0];
    let want = data.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt();
    assert!(close(norm, want, want), "norm {norm} {want}");
    if !data.is_empty() {
        for (reduction, pick) in
            [(Reduction::Max, f64::max as fn(f64, f64) -> f64), (Reduction::Min, f64::min)]
        {
            let all: Vec<f64> = data.iter().map(|x| x.to_f64()).collect();
            let has_nan = all.iter().any(|x| x.is_nan());
            let want = if has_nan { f64::NAN } else { all.iter().copied().reduce(pick).unwrap() };
            assert!(close(f64s(&run(reduction)[0])[0], want, 0.0), "{reduction:?}");
        }
    }
    if (1..=shape.cols).contains(&k) {
        let [indices, values] = &run(Reduction::TopK(k))[..] else { panic!("two results") };
        assert_eq!((indices.shape, values.shape), (Shape::new(shape.rows, k), Shape::new(shape.rows, k)));
        for i in 0..rows {
            let mut order: Vec<usize> = (0..cols).collect();
            // NaN is larger than infinity, and equal elements keep their order.
            let key = |j: &usize| (is_nan(at(i, *j)), if is_nan(at(i, *j)) { T::ZERO } else { at(i, *j) });
            order.sort_by(|x, y| key(y).partial_cmp(&key(x)).unwrap());
            let span = i * k as usize..(i + 1) * k as usize;
            let want: Vec<i64> = order[..k as usize].iter().map(|j| *j as i64).collect();
            assert_eq!(indices.elements.elements::<i64>()[span.clone()], want, "row {i}");
            for (got, j) in values.elements.elements::<T>()[span].iter().zip(&order) {
                assert!(is_nan(*got) && is_nan(at(i, *j)) || *got == at(i, *j));
            }
        }
    }
}

fn float() -> impl Strategy<Value = f64> {
    // Few values, so that there are ties.
    prop_oneof![
        6 => (-3i32..4).prop_map(f64::from),
        3 => -1e3..1e3,
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]),
    ]
}

proptest! {
    #[test]
    fn every_cut_gives_what_plain_loops_give(
        (rows, cols, floats, integers) in (0u64..7, 0u64..140).prop_flat_map(|(rows, cols)| {
            let count = (rows * cols) as usize;
            let (floats, integers) = (prop::collection::vec(float(), count), prop::collection::vec(any::<i64>(), count));
            (Just(rows), Just(cols), floats, integers)
        }),
        cut in (0u64..8, 0u64..141), k in 1u64..140, by_columns in any::<bool>(), finite in any::<bool>(),
    ) {
        let shape = Shape::new(rows, cols);
        let floats: Vec<f64> = floats.into_iter().map(|x| if finite && !x.is_finite() { 1.5 } else { x }).collect();
        check(&floats, shape, cut, k, by_columns);
        let single: Vec<f32> = floats.iter().map(|x| *x as f32).collect();
        check(&single, shape, cut, k, by_columns);
        check(&integers, shape, cut, k, by_columns);
        let narrow: Vec<i32> = integers.iter().map(|x| (*x % 5) as i32).collect();
        check(&narrow, shape, cut, k, by_columns);
    }
}

#[test]
fn norms_do_not_leave_the_range() {
    for (data, want) in [
        (vec![3e300, 4e300], 5e300),
        (vec![3e-310, 4e-310], 5e-310),
        (vec![1e300, 1e-300, 0.0], 1e300),
        (vec![f64::MAX], f64::MAX),
        (vec![f64::INFINITY, 1.0], f64::INFINITY),
        (vec![0.0], 0.0),
    ] {
        for cut in [0, 1] {
            let shape = Shape::new(1, data.len() as u64);
            let got = f64s(&results(Reduction::Norm, &data, shape, &cuts(shape, 1, cut), false)[0])[0];
            assert!(got == want || (got / want - 1.0).abs() < 1e-12, "{data:?}: {got}");
        }
    }
    let shape = Shape::new(2, 1);
    let got =
        f64s(&results(Reduction::Norm, &[f64::INFINITY, f64::NAN], shape, &cuts(shape, 1, 1), false)[0])[0];
    assert!(got.is_nan());
}

#[test]
fn types_are_numpys_and_integers_wrap() {
    let shape = Shape::new(1, 2);
    let of = |reduction| results(reduction, &[i32::MAX, 1], shape, &[shape.rect()], false);
    assert_eq!(
        (of(Reduction::RowSum)[0].dtype, f64s(&of(Reduction::RowSum)[0])),
        (DType::I64, vec![2_147_483_648.0])
    );
    assert_eq!(of(Reduction::Norm)[0].dtype, DType::F64);
    assert_eq!(of(Reduction::Max)[0].dtype, DType::I32);
    let wrapped = results(Reduction::RowSum, &[i64::MAX, 1], shape, &[shape.rect()], false);
    assert_eq!(wrapped[0].elements.elements::<i64>(), [i64::MIN]);
    let single = results(Reduction::RowSum, &[1f32, 2.0], shape, &[shape.rect()], false);
    assert_eq!(single[0].dtype, DType::F32);
}

#[test]
fn reductions_that_do_not_exist_are_refused() {
    for (reduction, shape, why) in [
        (Reduction::Max, Shape::new(0, 3), "no extreme"),
        (Reduction::Min, Shape::new(3, 0), "no extreme"),
        (Reduction::TopK(0), Shape::new(3, 3), "at least 1"),
        (Reduction::TopK(4), Shape::new(3, 3), "at most 3"),
    ] {
        let refused = Reducer::<f32>::new(reduction, "m", shape).err().unwrap().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

/// The largest elements and the extremes of a rectangle that was reduced in pieces are those of the whole, wherever it lies.
#[test]
fn rectangles_join_their_pieces() {
    let data: Vec<i32> = (0..35).map(|i| i * 11 % 17 - 8).collect();
    let view = View::new(&data, 5, 7, 7, 1);
    let rect = Rect::new(Span::new(100, 105), Span::new(40, 47));
    for reduction in [
        Reduction::RowSum,
        Reduction::ColSum,
        Reduction::Max,
        Reduction::Min,
        Reduction::TopK(3),
        Reduction::TopK(9),
    ] {
        let pieces = (0..5usize).map(|i| {
            let rows = Span::new(100 + i as u64, 101 + i as u64);
            let row = View::new(&data[7 * i..], 1, 7, 7, 1);
            RectReduction::of(reduction, Rect::new(rows, rect.cols), &row)
        });
        let joined = RectReduction::joined(reduction, rect, pieces).unwrap();
        let whole = RectReduction::of(reduction, rect, &view);
        assert_eq!(joined.to_bytes(), whole.to_bytes(), "{reduction:?}");
        assert_eq!(whole.to_bytes().len() as u64, reduction.bytes_of(rect, DType::I32));
    }
}

#[test]
fn bytes_of_a_reduction_that_cannot_be_are_refused() {
    let rect = Rect::new(Span::new(0, 2), Span::new(10, 14));
    let top = Reduction::TopK(2);
    let mut bytes = vec![0; top.bytes_of(rect, DType::F32) as usize];
    let read = |bytes: &[u8]| RectReduction::<f32>::from_bytes(top, rect, bytes).is_some();
    assert!(!read(&bytes), "column 0 is outside");
    for column in bytes[..32].chunks_mut(8) {
        column.copy_from_slice(&11u64.to_le_bytes());
    }
    assert!(read(&bytes) && !read(&bytes[1..]) && !read(&[]));
    let far = [2000i64.to_le_bytes(), [0; 8]].concat();
    assert!(RectReduction::<f64>::from_bytes(Reduction::Norm, rect, &far).is_none());
    for (code, count) in [(0, 0), (7, 0), (6, 0), (1, 1)] {
        assert!(Reduction::from_code(code, count).is_none());
    }
}
