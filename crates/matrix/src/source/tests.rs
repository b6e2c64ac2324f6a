//! Reading blocks: every store returns the elements that a plain loop returns.

use super::*;
use proptest::prelude::*;

/// A matrix of 16-bit integers 0, 1, 2, … in `layout`, which is foreign, and the same as native i32.
fn pair(shape: Shape, layout: Layout) -> (Matrix, Matrix) {
    let count = u16::try_from(shape.elements().unwrap()).unwrap();
    let foreign: Vec<u8> = (0..count).flat_map(u16::to_be_bytes).collect();
    let native: Vec<u8> = (0..i32::from(count)).flat_map(i32::to_le_bytes).collect();
    let mut buffer = Buffer::zeroed(native.len()).unwrap();
    buffer.bytes_mut().copy_from_slice(&native);
    let found = FoundMatrix {
        owner: Arc::new(foreign),
        start: 0,
        shape,
        is_vector: false,
        layout,
        element: FileElement::U16,
        order: ByteOrder::Big,
    };
    let foreign = Matrix::from_found("foreign", found, Mapped::default()).unwrap();
    (foreign, Matrix::from_shared("native", Arc::new(buffer), 0, shape, DType::I32, layout).unwrap())
}

fn block(matrix: &Matrix, rect: Rect) -> Vec<u8> {
    let mut out = vec![0xAA; rect.shape().bytes(matrix.dtype()).unwrap() as usize];
    matrix.read_block(rect, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn every_store_reads_the_same_block(
        (rows, cols) in (0u64..60, 0u64..60), a in 0u64..60, b in 0u64..60, c in 0u64..60, d in 0u64..60,
        col_major: bool, transposed: bool,
    ) {
        let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
        let (mut foreign, mut native) = pair(Shape::new(rows, cols), layout);
        let mut rect = Rect::new(
            Span::new(a.min(b).min(rows), a.max(b).min(rows)),
            Span::new(c.min(d).min(cols), c.max(d).min(cols)),
        );
        if transposed {
            (foreign, native, rect) = (foreign.transposed(), native.transposed(), rect.transposed());
        }
        let want = block(&native, rect);
        prop_assert_eq!(&block(&foreign, rect), &want);
        let lines = native.lines(rect).unwrap();
        let joined: Vec<u8> = (0..lines.lines).flat_map(|i| lines.line(i).to_vec()).collect();
        prop_assert_eq!(&joined, &want);
        prop_assert!(foreign.lines(rect).is_none());
        // Converted from native lines, from foreign ones, and twice.
        let doubles: Vec<u8> = want.as_chunks().0.iter().flat_map(|b| f64::from(i32::from_le_bytes(*b)).to_le_bytes()).collect();
        prop_assert_eq!(&block(&native.clone().converted(DType::F64).unwrap(), rect), &doubles);
        prop_assert_eq!(&block(&foreign.clone().converted(DType::F64).unwrap(), rect), &doubles);
        let twice = foreign.converted(DType::F32).unwrap().converted(DType::F64).unwrap();
        prop_assert_eq!(&block(&twice, rect), &doubles);
        prop_assert_eq!(&block(&twice.transposed(), rect.transposed()), &doubles);
    }

    #[test]
    fn pieces_cover_a_rectangle_in_memory_order(lines in 1u64..40, within in 1u64..9000, col_major: bool) {
        let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
        let rect = match layout {
            Layout::RowMajor => Shape::new(lines, within).rect(),
            Layout::ColMajor => Shape::new(within, lines).rect(),
        };
        let mut next = 0;
        for piece in pieces(rect, layout) {
            let (some, part) = across(piece, layout);
            prop_assert_eq!(some.start * within + part.start, next);
            prop_assert!(some.len() == 1 || part.len() == within);
            prop_assert!((1..=CONVERT_ELEMENTS).contains(&(some.len() * part.len())));
            next += some.len() * part.len();
        }
        prop_assert_eq!(next, lines * within);
    }
}

#[test]
fn converting_a_long_generated_line_equals_generating_and_rounding() {
    let generator = Generator::random(3);
    let doubles = Matrix::generated("g", generator, Shape::new(3, 5000), DType::F64).unwrap();
    let rect = Rect::new(Span::new(0, 3), Span::new(17, 4999));
    let want: Vec<u8> = block(&doubles, rect)
        .as_chunks()
        .0
        .iter()
        .flat_map(|b| (f64::from_le_bytes(*b) as f32).to_le_bytes())
        .collect();
    let singles = doubles.converted(DType::F32).unwrap();
    assert_eq!(block(&singles, rect), want);
    assert_eq!(singles.generator(), None, "another machine would generate other f32 values");
}

#[test]
fn conversions_that_keep_every_value_stay_generated() {
    let ints = Matrix::open("random:4x4:i32:1").unwrap().converted(DType::I64).unwrap();
    assert!(ints.generator().is_some());
    assert_eq!(
        block(&ints, ints.shape().rect()),
        block(&Matrix::open("random:4x4:i64:1").unwrap(), ints.shape().rect())
    );
    assert!(Matrix::open("identity:4:f64").unwrap().converted(DType::F32).unwrap().generator().is_some());
}

#[test]
fn lossy_conversions_are_refused() {
    let message = |spec: &str, to| Matrix::open(spec).unwrap().converted(to).unwrap_err().to_string();
    assert!(message("random:2x2:f64", DType::I32).contains("converting f64 to i32 would lose fractions"));
    assert!(message("random:2x2:i64", DType::I32).contains("converting i64 to i32 could overflow"));
}

#[test]
fn shared_memory_that_is_short_or_misaligned_is_refused() {
    let mut buffer = Buffer::zeroed(64).unwrap();
    buffer.bytes_mut()[8] = 1;
    let owner: SharedBytes = Arc::new(buffer);
    let make = |start, rows| {
        Matrix::from_shared("m", owner.clone(), start, Shape::new(rows, 1), DType::F64, Layout::RowMajor)
    };
    assert!(make(0, 8).is_ok() && make(8, 7).is_ok());
    assert!(make(8, 8).unwrap_err().to_string().contains("cut short"));
    assert!(make(4, 7).unwrap_err().to_string().contains("multiple of 8"));
    assert!(make(usize::MAX, 1).is_err());
    assert!(make(0, 1 << 61).unwrap_err().to_string().contains("2^63"));
}

proptest! {
    #[test]
    fn a_part_reads_as_the_whole_does(
        (rows, cols) in (1u64..40, 1u64..40), cuts in proptest::array::uniform8(0u64..40), col_major: bool,
        transposed: bool, kind in 0..4,
    ) {
        let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
        let shape = Shape::new(rows, cols);
        let (foreign, native) = pair(shape, layout);
        let whole = match kind {
            0 => foreign,
            1 => native,
            2 => native.converted(DType::I64).unwrap(),
            _ => Matrix::generated("random", Generator::random(9), shape, DType::F64).unwrap(),
        };
        let span = |a: u64, b: u64, end: u64| Span::new(a.min(b).min(end), a.max(b).min(end));
        let outer = Rect::new(span(cuts[0], cuts[1], rows), span(cuts[2], cuts[3], cols));
        let inner = Rect::new(span(cuts[4], cuts[5], outer.rows.len()), span(cuts[6], cuts[7], outer.cols.len()));
        let want = block(&whole, shifted(inner, outer.rows.start, outer.cols.start));
        let part = whole.part(outer);
        prop_assert_eq!(part.shape(), outer.shape());
        prop_assert!(part.generator().is_none(), "its rule is the whole's, from another corner");
        prop_assert_eq!(&block(&part, inner), &want);
        if transposed {
            // The same memory, read in its own order.
            prop_assert_eq!(&block(&part.transposed(), inner.transposed()), &want);
        } else if let Some(lines) = part.lines(inner) {
            let joined: Vec<u8> = (0..lines.lines).flat_map(|i| lines.line(i).to_vec()).collect();
            prop_assert_eq!(&joined, &want);
        }
    }
}
