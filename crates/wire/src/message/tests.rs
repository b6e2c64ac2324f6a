//! Round trips, and arbitrary bytes.

use super::*;
use bramble_base::{DType, Digest128, Layout, Rect, Shape, Span};
use proptest::prelude::*;

fn dtype() -> impl Strategy<Value = DType> {
    (0u8..4).prop_map(|c| DType::from_code(c).unwrap())
}

fn matrix() -> impl Strategy<Value = MatrixHeader> {
    (
        any::<u32>(),
        1u32..1000,
        1u32..1000,
        any::<u16>(),
        dtype(),
        any::<bool>(),
        0usize..6,
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(|(id, rows, cols, uses, dtype, col_major, source, x, y)| {
            let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
            let sources = [
                MatrixSource::Data,
                MatrixSource::Vacant,
                MatrixSource::Generated,
                MatrixSource::Partial,
                MatrixSource::Relayed,
                MatrixSource::Resident,
            ];
            let source = sources[source];
            let total = if col_major { cols } else { rows };
            let (first_line, lines) = match source {
                MatrixSource::Relayed => (x, total),
                _ => (x % total, 1 + y % (total - x % total)),
            };
            MatrixHeader { id, rows, cols, first_line, lines, uses, dtype, layout, source }
        })
}

fn job() -> impl Strategy<Value = Job> {
    (any::<[u32; 5]>(), 0usize..3, 0usize..3).prop_map(|([a, b, c, step, epoch], operation, then)| Job {
        operation: [Operation::Multiply, Operation::Add, Operation::Subtract][operation],
        a,
        b,
        c,
        step,
        epoch,
        then: [Then::Continue, Then::Return, Then::Close][then],
    })
}

proptest! {
    #[test]
    fn stores_round_trip(matrices in proptest::collection::vec(matrix(), 0..8), jobs in proptest::collection::vec(job(), 0..8)) {
        let store = StoreHead { matrices, jobs };
        let bytes = store.encode();
        prop_assert_eq!(bytes.len(), 4 + 24 * (store.matrices.len() + store.jobs.len()));
        prop_assert_eq!(StoreHead::decode(&bytes).unwrap(), store);
    }

    #[test]
    fn openings_round_trip(
        session in 1u32..,
        dtype in dtype(),
        alpha in -1e9f64..1e9,
        threads in 1u16..,
        memory_bytes in 1u64..,
        name in "[a-z0-9.:é]{0,60}",
    ) {
        let hello = Hello {
            session,
            dtype,
            alpha,
            beta: 0.5,
            flops: 1e9,
            threads_max: threads,
            memory_bytes,
            wants: Wants { log: true, account: false, task_rates: threads % 2 == 0 },
            kernel: "auto".into(),
            version: "1.2".into(),
            name: name.clone(),
        };
        prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        let (kernel, version) = ("simd".into(), "1.2".into());
        let port = threads / 2;
        let hold_bytes = memory_bytes / 3;
        let lu = (threads % 3 > 0).then_some(LuSpeeds { update_gflops: [2.5, 3.0], panel_gflops: 0.5 });
        let welcome =
            Welcome { threads, memory_bytes, hold_bytes, gflops: 3.5, peak_gflops: 4.0, lu, port, kernel, version, name };
        prop_assert_eq!(Welcome::decode(&welcome.encode()).unwrap(), welcome);
    }

    #[test]
    fn results_and_goodbyes_round_trip(x in any::<[u32; 6]>(), held_bytes_max in any::<u64>(), threads in proptest::collection::vec(any::<[u64; 4]>(), 0..9), us in any::<[u64; 5]>()) {
        let [c, epoch, step_start, step_end, first_line, lines] = x;
        let head = ResultHead { c, epoch, step_start, step_end, first_line, lines };
        prop_assert_eq!(ResultHead::decode(&head.encode()).unwrap(), head);
        let thread = |[jobs, busy_us, idle_us, cpu_us]: [u64; 4]| ThreadReport { jobs, busy_us, idle_us, cpu_us };
        let threads = threads.into_iter().map(thread).collect();
        let [sending_us, receiving_us, encoding_us, scheduling_us, cpu_us] = us;
        let io = IoReport { sending_us, receiving_us, encoding_us, scheduling_us, cpu_us };
        let (relayed_bytes_in, relayed_bytes_out) = (held_bytes_max / 2, held_bytes_max / 3);
        let bye = Bye { threads, held_bytes_max, io, relayed_bytes_in, relayed_bytes_out };
        prop_assert_eq!(Bye::decode(&bye.encode()).unwrap(), bye);
    }

    #[test]
    fn relaying_round_trips(x in any::<[u32; 3]>(), ids in proptest::collection::vec(any::<[u32; 3]>(), 0..9), key in any::<[u8; 20]>(), ticket in any::<[u8; 16]>(), yes in any::<bool>(), text in "[a-f0-9.:]{0,60}") {
        let forwards: Vec<_> = ids.into_iter().map(|[id, to, id_there]| Forward { id, to, id_there }).collect();
        prop_assert_eq!(decode_forwards(&encode_forwards(&forwards)).unwrap(), forwards);
        let neighbour = Neighbour { peer: x[0] / 2, me: x[0] / 2 + 1, dials: yes, key, ticket, address: text.clone() };
        let shown = format!("{neighbour:?}");
        prop_assert!(!shown.contains("key"));
        prop_assert_eq!(Neighbour::decode(&neighbour.encode()).unwrap(), neighbour);
        let reached = Reached { peer: x[0], is_there: yes, why: text };
        prop_assert_eq!(Reached::decode(&reached.encode()).unwrap(), reached);
        prop_assert_eq!(Join::decode(&Join { ticket }.encode()).unwrap(), Join { ticket });
        let piece = PieceHead { id: x[0], first_line: x[1], lines: x[2] };
        prop_assert_eq!(PieceHead::decode(&piece.encode()).unwrap(), piece);
        let missing = Missing { id: x[0], lines: x[1] };
        prop_assert_eq!(Missing::decode(&missing.encode()).unwrap(), missing);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_decode_to_a_message_that_encodes_to_them(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(store) = StoreHead::decode(&bytes) { prop_assert_eq!(store.encode(), bytes.clone()); }
        if let Ok(result) = ResultHead::decode(&bytes) { prop_assert_eq!(result.encode(), bytes.clone()); }
        if let Ok(bye) = Bye::decode(&bytes) { prop_assert_eq!(bye.encode(), bytes.clone()); }
        if let Ok(forwards) = decode_forwards(&bytes) { prop_assert_eq!(encode_forwards(&forwards), bytes.clone()); }
        if let Ok(reached) = Reached::decode(&bytes) { prop_assert_eq!(reached.encode(), bytes.clone()); }
        if let Ok(reduce) = ReduceHead::decode(&bytes) { prop_assert_eq!(reduce.encode(), bytes.clone()); }
        if let Ok(reduced) = ReducedHead::decode(&bytes) { prop_assert_eq!(reduced.encode(), bytes.clone()); }
        if let Ok(make) = MakeHead::decode(&bytes) { prop_assert_eq!(make.encode(), bytes.clone()); }
        if let Ok(fetch) = FetchHead::decode(&bytes) { prop_assert_eq!(fetch.encode(), bytes.clone()); }
        if let Ok(neighbour) = Neighbour::decode(&bytes) { prop_assert_eq!(neighbour.encode(), bytes.clone()); }
        let _ = (Hello::decode(&bytes), Welcome::decode(&bytes), decode_error(&bytes), decode_number(&bytes));
    }

    #[test]
    fn mutated_stores_never_panic(matrices in proptest::collection::vec(matrix(), 1..4), jobs in proptest::collection::vec(job(), 0..4), at in any::<usize>(), bit in 0..8) {
        let mut bytes = StoreHead { matrices, jobs }.encode();
        let at = at % bytes.len();
        bytes[at] ^= 1u8 << bit;
        if let Ok(store) = StoreHead::decode(&bytes) { prop_assert_eq!(store.encode(), bytes); }
    }
}

fn hello() -> Hello {
    Hello {
        session: 1,
        dtype: DType::F64,
        alpha: 1.0,
        beta: 0.0,
        flops: 1.0,
        threads_max: 0,
        memory_bytes: 1 << 30,
        wants: Wants::default(),
        kernel: "auto".into(),
        version: "9.9".into(),
        name: "p".into(),
    }
}

/// The hello of docs/wire-format.md.
#[test]
fn the_hello_of_the_page_is_this() {
    let hello = Hello {
        session: 0x1234_5677,
        dtype: DType::F32,
        flops: 16.0,
        memory_bytes: 2688,
        version: "0.1.0".into(),
        name: "laptop".into(),
        ..hello()
    };
    let want = b"BRMB\x06\x00\x050.1.0\x77\x56\x34\x12\x00\
        \x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\x00\
        \x00\x00\x00\x00\x00\x00\x30\x40\x00\x00\x80\x0a\x00\x00\x00\x00\x00\x00\x00\x04auto\x06laptop";
    assert_eq!(hello.encode(), want);
}

#[test]
fn a_hello_of_no_sensible_size_is_refused() {
    assert!(Hello::decode(&hello().encode()).is_ok());
    for flops in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        assert!(Hello::decode(&Hello { flops, ..hello() }.encode()).is_err(), "{flops}");
    }
    assert!(Hello::decode(&Hello { memory_bytes: 0, ..hello() }.encode()).is_err());
    assert!(Hello::decode(&Hello { session: 0, ..hello() }.encode()).is_err());
}

#[test]
fn a_matrix_whose_lines_fit_no_frame_is_refused() {
    let wide = |cols, layout| MatrixHeader {
        id: 1,
        rows: 1,
        cols,
        first_line: 0,
        lines: if layout == Layout::RowMajor { 1 } else { cols },
        uses: 0,
        dtype: DType::F64,
        layout,
        source: MatrixSource::Vacant,
    };
    let decode =
        |m: MatrixHeader| StoreHead::decode(&StoreHead { matrices: vec![m], jobs: Vec::new() }.encode());
    assert!(decode(wide(1 << 17, Layout::RowMajor)).is_ok());
    let error = decode(wide((1 << 17) + 1, Layout::RowMajor)).unwrap_err().to_string();
    assert!(error.contains("fit no frame"), "{error}");
    assert!(decode(wide((1 << 17) + 1, Layout::ColMajor)).is_ok());
}

#[test]
fn sizes_that_no_number_holds_exceed_every_grant() {
    let huge = MatrixHeader {
        id: 1,
        rows: u32::MAX,
        cols: u32::MAX,
        first_line: 0,
        lines: 1,
        uses: 9,
        dtype: DType::F64,
        layout: Layout::RowMajor,
        source: MatrixSource::Data,
    };
    assert_eq!((huge.bytes(), huge.charged_bytes()), (u64::MAX, u64::MAX));
}

#[test]
fn a_goodbye_never_has_more_threads_than_a_frame_can_carry() {
    let threads = vec![ThreadReport::default(); 70_000];
    let bye = Bye { threads, held_bytes_max: 1, ..Bye::default() };
    let head = bye.encode();
    assert!(head.len() <= crate::limits::HEAD_BYTES_MAX);
    assert!(Bye::decode(&head).is_ok());
    let mut more = head.clone();
    more[48..50].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(Bye::decode(&more).is_err());
}

#[test]
fn another_protocol_version_is_named() {
    let mut bytes = hello().encode();
    bytes[4] = 77;
    let error = Hello::decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("bramble 9.9 with protocol 77"), "{error}");
    bytes[4] = 5;
    let error = Hello::decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("9.9 with protocol 5") && error.contains("with protocol 6"), "{error}");
    bytes[0] = b'X';
    assert!(Hello::decode(&bytes).unwrap_err().to_string().contains("does not speak"));
}

#[test]
fn texts_are_cut_and_cleaned() {
    let long = "é\n".repeat(300);
    let text = decode_error(&encode_error(&long)).unwrap();
    assert!(text.len() <= 255 && !text.contains('\n'));
}

fn part_of(rows: u64, cols: u64) -> Rect {
    Rect::new(Span::new(5, 5 + rows), Span::new(7, 7 + cols))
}

proptest! {
    #[test]
    fn messages_about_arrays_round_trip(
        array in any::<u64>(), rows in 1u64..5000, cols in 1u64..5000, at in any::<u64>(), dtype in dtype(),
        yes in any::<bool>(), bytes in any::<u64>(), digest in any::<[u8; 16]>(), why in "[a-z ]{0,80}",
    ) {
        let part = part_of(rows, cols);
        let source = if yes { PartSource::Generated } else { PartSource::Data };
        let first = if yes { 0 } else { at % (rows * cols) };
        let put = PutHead { array, part, first, dtype, source };
        prop_assert_eq!(put.encode().len(), PutHead::BYTES);
        prop_assert_eq!(PutHead::decode(&put.encode()).unwrap(), put);
        let outcome = if yes { PutOutcome::Held { bytes, digest: Digest128(digest) } } else { PutOutcome::Refused(why) };
        let placed = PlacedHead { array, outcome };
        prop_assert_eq!(PlacedHead::decode(&placed.encode()).unwrap(), placed);
        let get = GetHead { array, rect: part };
        prop_assert_eq!(GetHead::decode(&get.encode()).unwrap(), get);
        let head = PartHead { array, first };
        prop_assert_eq!(PartHead::decode(&head.encode()).unwrap(), head);
        let view = ResidentView::of(array, yes, part);
        prop_assert_eq!(ResidentView::decode(&view.encode()).unwrap(), view);
        let right = yes.then_some(ReducedFactor { view, depth: rows, alpha: -0.5 });
        let reduce = ReduceHead { number: at, reduction: 6, count: bytes, dtype, rect: part, left: view, right };
        prop_assert_eq!(ReduceHead::decode(&reduce.encode()).unwrap(), reduce);
        // Its last element: the last row of a left operand, the last column of a right one.
        let last = Rect::new(Span::new(part.rows.end - 1, part.rows.end), Span::new(part.cols.end - 1, part.cols.end));
        let (left, other) = reduce.operands(last);
        let (down, across) = (rows - 1, cols - 1);
        match other {
            Some((of_right, shape)) => {
                // Both views are transposed.
                prop_assert_eq!((left.0.row - view.row, left.0.col - view.col), (0, down));
                prop_assert_eq!((of_right.row - view.row, of_right.col - view.col), (across, 0));
                prop_assert_eq!((left.1, shape), (Shape::new(1, rows), Shape::new(rows, 1)));
            }
            None => {
                prop_assert_eq!((left.0.row - view.row, left.0.col - view.col), (down, across));
                prop_assert_eq!(left.1, Shape::new(1, 1));
            }
        }
        let stored = view.rect(part.shape()).unwrap();
        prop_assert_eq!(if yes { stored.transposed() } else { stored }, part);
    }

    /// The pieces are all elements in order, each fits a frame, and the receiver counts them alike.
    #[test]
    fn the_pieces_of_a_part_are_its_elements_in_order(rows in 1u64..4000, cols in 1u64..600_000, dtype in dtype()) {
        let part = part_of(rows.min(1 + 3_000_000 / cols), cols);
        let mut reached = 0;
        for piece in part_pieces(part, dtype) {
            let put = PutHead { array: 1, part, first: piece.first, dtype, source: PartSource::Data };
            prop_assert_eq!(piece.first, reached);
            let shape = piece.rect.shape();
            prop_assert!(piece.rect.rows.start >= part.rows.start && piece.rect.rows.end <= part.rows.end);
            prop_assert!(shape.cols == cols || shape.rows == 1);
            let at = (piece.rect.rows.start - part.rows.start) * cols + piece.rect.cols.start - part.cols.start;
            prop_assert_eq!(at, piece.first);
            let bytes = shape.bytes(dtype).unwrap() as usize;
            prop_assert!(bytes <= crate::limits::CHUNK_BYTES_MAX);
            reached = put.next(bytes).unwrap();
        }
        prop_assert_eq!(reached, part.shape().elements().unwrap());
    }
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let put =
        PutHead { array: 1, part: part_of(4, 6), first: 23, dtype: DType::F64, source: PartSource::Data };
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = put.encode();
        change(&mut bytes);
        PutHead::decode(&bytes).is_ok()
    };
    assert!(with(&|_| {}));
    assert!(!with(&|b| b.push(0)), "a byte too many");
    assert!(!with(&|b| b.truncate(49)), "a byte too few");
    assert!(!with(&|b| b[40] = 24), "the element after the last");
    assert!(!with(&|b| b[16..24].fill(0)), "no rows");
    assert!(!with(&|b| b[16..24].fill(0xff)), "rows that wrap");
    assert!(!with(&|b| b[22] = 1), "too many rows");
    assert!(!with(&|b| b[48] = 9), "an unknown type");
    assert!(!with(&|b| b[49] = 2), "an unknown source");
    assert!(!with(&|b| b[49] = 1), "a generated part from its middle on");
    assert_eq!(put.next(8), Ok(24));
    for bytes in [0, 4, 12, 16] {
        assert!(put.next(bytes).is_err(), "{bytes} bytes");
    }
    let made = PutHead { first: 0, source: PartSource::Generated, ..put };
    assert_eq!((made.next(32), made.next(31).is_err()), (Ok(24), true));
    let mut view = ResidentView::of(3, false, part_of(2, 2)).encode();
    view[8] = 2;
    assert!(ResidentView::decode(&view).is_err());
    view[8..10].copy_from_slice(&[1, 1]);
    assert!(ResidentView::decode(&view).is_err());
    let far = ResidentView { array: 3, transposed: false, row: u64::MAX, col: 0 };
    assert_eq!(far.rect(Shape::new(1, 1)), None);
}

#[test]
fn a_view_is_charged_for_its_entry_and_its_jobs_only() {
    let header = MatrixHeader {
        id: 1,
        rows: 512,
        cols: 512,
        first_line: 0,
        lines: 512,
        uses: 3,
        dtype: DType::F64,
        layout: Layout::RowMajor,
        source: MatrixSource::Resident,
    };
    assert_eq!(header.charged_bytes(), bramble_plan::charged_bytes(0, 3));
    assert_eq!(header.body_bytes(), 32);
    assert_eq!(
        MatrixHeader { source: MatrixSource::Generated, ..header }.charged_bytes(),
        (512 * 512 * 8) + 96
    );
}

proptest! {
    #[test]
    fn messages_that_make_arrays_round_trip(
        number in any::<u64>(), array in any::<u64>(), rows in 1u64..5000, cols in 1u64..5000, form in 0usize..5, peer in any::<u32>(),
        dtype in dtype(), is_last in any::<bool>(), alpha in -9.0f64..9.0, turned in any::<bool>(), outside in 0usize..4,
    ) {
        let part = part_of(rows, cols);
        let [left, right] = [ResidentView::of(array, turned, part), ResidentView::of(number, !turned, part)];
        let product = |adds| MakeStepForm::Product { left, right, depth: cols, alpha, adds };
        let step = [
            None,
            Some(product(false)),
            Some(product(true)),
            Some(MakeStepForm::Scaled { x: left, alpha }),
            Some(MakeStepForm::Sum { x: left, alpha, y: right, beta: -alpha }),
        ][form];
        let rect = if step.is_none() { part } else { part_of(rows.div_ceil(2), cols) };
        let make = MakeHead { number, array, dtype, part, rect, step, is_last: is_last && step.is_some() };
        prop_assert_eq!(make.encode().len(), 170);
        prop_assert_eq!(MakeHead::decode(&make.encode()).unwrap(), make);
        let mut beyond = make;
        match outside {
            0 => beyond.rect.rows.end += rows + 1,
            1 => beyond.rect.cols.end += 1,
            2 => beyond.rect.rows.start = 4,
            _ => beyond.step = Some(MakeStepForm::Scaled { x: left, alpha: f64::NAN }),
        }
        prop_assert!(MakeHead::decode(&beyond.encode()).is_err());
        let fetch = FetchHead { array, peer, from: number, dtype, rect: part };
        prop_assert_eq!(fetch.encode().len(), 53);
        prop_assert_eq!(FetchHead::decode(&fetch.encode()).unwrap(), fetch);
    }
}
