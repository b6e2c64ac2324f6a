//! Round trips, and arbitrary bytes.

use super::*;
use bramble_base::{DType, Layout};
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
        0usize..5,
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
            wants: Wants { log: true, account: false },
            kernel: "auto".into(),
            version: "1.2".into(),
            name: name.clone(),
        };
        prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        let (kernel, version) = ("simd".into(), "1.2".into());
        let port = threads / 2;
        let welcome = Welcome { threads, memory_bytes, gflops: 3.5, peak_gflops: 4.0, port, kernel, version, name };
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
