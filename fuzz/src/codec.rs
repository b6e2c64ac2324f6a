//! Frame headers and the heads of all messages. The first byte picks which.
//!
//! Promise: any bytes give a message or an error, and a decoded message encodes to the very same bytes: one message,
//! one encoding. A generator that decodes can also fill any part of its endless matrix.

use crate::memory::within;
use bramble_link::{FrameLimits, HEADER_BYTES, Header};
use bramble_matrix::{DType, Digest128, Generator, Layout, Rect, Shape, Span};
use bramble_wire::message::{
    Bye, FetchHead, Forward, Generated, GetHead, Hello, IoReport, Job, Join, Kind, LogHead, LuBegin, LuFill,
    LuPanelHead, LuRows, LuSpeeds, LuStatus, MakeHead, MakeStepForm, MatrixHeader, MatrixSource, Missing,
    Neighbour, Operation, PartHead, PartSource, PieceHead, PlacedHead, Pong, PutHead, PutOutcome, Reached,
    ReduceHead, ReducedFactor, ReducedHead, ResidentView, ResultHead, StoreHead, Then, ThreadReport, Wants,
    Welcome, Work, WorkRecord, decode_error, decode_forwards, decode_number, encode_error, encode_forwards,
    encode_number, part_pieces,
};

/// A head has at most 64 KiB; the decoded message and its encoding have about the same size.
const BOUND_BYTES: usize = 1 << 20;

/// See the head of this file.
pub fn codec(data: &[u8]) {
    let Some((which, head)) = data.split_first() else { return };
    within(BOUND_BYTES, || match which % 32 {
        0 => header(head, FrameLimits::STRANGER),
        1 => header(head, FrameLimits::SESSION),
        2 => same(Hello::decode(head).map(|m| m.encode()), head),
        3 => same(Welcome::decode(head).map(|m| m.encode()), head),
        4 => same(StoreHead::decode(head).map(|m| m.encode()), head),
        5 => same(ResultHead::decode(head).map(|m| m.encode()), head),
        6 => same(decode_number(head).map(encode_number), head),
        7 => same(decode_error(head).map(|text| encode_error(&text)), head),
        8 => same(Bye::decode(head).map(|m| m.encode()), head),
        9 => generated(head),
        10 => same(LogHead::decode(head).map(|m| m.encode()), head),
        11 => same(Pong::decode(head).map(|m| m.encode()), head),
        12 => same(Neighbour::decode(head).map(|m| m.encode()), head),
        13 => same(Reached::decode(head).map(|m| m.encode()), head),
        14 => same(decode_forwards(head).map(|orders| encode_forwards(&orders)), head),
        15 => same(Join::decode(head).map(|m| m.encode()), head),
        16 => same(PieceHead::decode(head).map(|m| m.encode()), head),
        17 => same(Missing::decode(head).map(|m| m.encode()), head),
        18 => put(head),
        19 => same(PlacedHead::decode(head).map(|m| m.encode()), head),
        20 => same(GetHead::decode(head).map(|m| m.encode()), head),
        21 => same(PartHead::decode(head).map(|m| m.encode()), head),
        24 => same(LuBegin::decode(head).map(|m| m.encode()), head),
        25 => same(LuFill::decode(head).map(|m| m.encode()), head),
        26 => same(LuPanelHead::decode(head).map(|m| m.encode()), head),
        27 => same(LuStatus::decode(head).map(|m| m.encode()), head),
        22 => same(ReduceHead::decode(head).map(|m| m.encode()), head),
        23 => same(ReducedHead::decode(head).map(|m| m.encode()), head),
        28 => same(LuRows::decode(head).map(|m| m.encode()), head),
        29 => same(MakeHead::decode(head).map(|m| m.encode()), head),
        30 => same(FetchHead::decode(head).map(|m| m.encode()), head),
        _ => view(head),
    });
}

fn same<E: std::fmt::Display>(encoded: Result<Vec<u8>, E>, head: &[u8]) {
    match encoded {
        Ok(encoded) => assert_eq!(encoded, head, "one message has one encoding"),
        Err(e) => assert!(e.to_string().len() < 1024, "{e}"),
    }
}

fn header(bytes: &[u8], limits: FrameLimits) {
    let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(bytes, limits) else { return };
    assert_eq!(header.encode(), *bytes);
    assert!(usize::from(header.head_bytes) <= limits.head_bytes);
    assert!(header.body_bytes as usize <= limits.body_bytes);
    if let Ok(kind) = Kind::from_code(header.kind) {
        assert_eq!(kind.code(), header.kind);
    }
}

fn generated(body: &[u8]) {
    let Ok(generated) = Generated::decode(body) else { return };
    assert_eq!(generated.encode(), body);
    let Some(generator) = Generator::from_bytes(&generated.generator) else { return };
    assert_eq!(generator.to_bytes(), generated.generator);
    let span = |from: u64| from.checked_add(2).map(|end| Span::new(from, end));
    let (Some(rows), Some(cols)) = (span(generated.row), span(generated.col)) else { return };
    for dtype in DType::ALL {
        let mut by_rows = [0; 32];
        let mut by_cols = [0; 32];
        let size = dtype.size_bytes();
        let rect = Rect::new(rows, cols);
        generator.fill(rect, dtype, Layout::RowMajor, &mut by_rows[..4 * size]);
        generator.fill(rect, dtype, Layout::ColMajor, &mut by_cols[..4 * size]);
        let element = |out: &[u8; 32], i: usize| out[i * size..][..size].to_vec();
        assert_eq!(element(&by_rows, 1), element(&by_cols, 2), "{dtype} in both layouts");
    }
}

fn put(head: &[u8]) {
    let put = PutHead::decode(head);
    if let Ok(put) = &put {
        for body_bytes in [0, 1, 8, 32, 1 << 20] {
            assert!(
                put.next(body_bytes).is_ok_and(|next| next > put.first && next <= put.elements())
                    || put.next(body_bytes).is_err()
            );
        }
        let pieces = part_pieces(put.part, put.dtype);
        for piece in pieces.take(3) {
            assert!(piece.rect.fits(Shape::new(put.part.rows.end, put.part.cols.end)));
        }
    }
    same(put.map(|m| m.encode()), head);
}

fn view(body: &[u8]) {
    let view = ResidentView::decode(body);
    if let Ok(view) = &view
        && let Some(rect) = view.rect(Shape::new(3, 5))
    {
        assert_eq!(rect.shape(), if view.transposed { Shape::new(5, 3) } else { Shape::new(3, 5) });
    }
    same(view.map(|m| m.encode()), body);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = |t: &str| t.to_owned();
    let hello = Hello {
        session: 7,
        dtype: DType::F32,
        alpha: 1.0,
        beta: 0.5,
        flops: 1e9,
        threads_max: 4,
        memory_bytes: 1 << 30,
        wants: Wants { log: true, account: true, task_rates: true },
        kernel: text("auto"),
        version: text("0.1.0"),
        name: text("laptop"),
    };
    let welcome = Welcome {
        threads: 4,
        memory_bytes: 1 << 30,
        hold_bytes: 1 << 29,
        gflops: 50.0,
        peak_gflops: 80.0,
        lu: Some(LuSpeeds { update_gflops: [40.0, 48.0], panel_gflops: 4.0 }),
        port: 7400,
        kernel: text("simd"),
        version: text("0.1.0"),
        name: text("pi"),
    };
    let mut seeds =
        vec![(2, hello.encode()), (3, welcome.encode()), (6, encode_number(77)), (7, encode_error("no"))];
    let header =
        Header { body_bytes: 0, head_bytes: 55, kind: 1, is_reference: false, session: 0, checksum: 9 };
    seeds.push((0, header.encode().to_vec()));
    seeds.push((1, Header { body_bytes: 1 << 20, kind: 3, session: 7, ..header }.encode().to_vec()));
    seeds.push((4, store().encode()));
    let result = ResultHead { c: 3, epoch: 0, step_start: 0, step_end: 2, first_line: 0, lines: 4 };
    seeds.push((5, result.encode()));
    let report = ThreadReport { jobs: 5, busy_us: 1000, idle_us: 7, cpu_us: 900 };
    let io = IoReport { sending_us: 1, receiving_us: 2, encoding_us: 3, scheduling_us: 4, cpu_us: 50 };
    seeds.push((8, Bye { threads: vec![report; 2], held_bytes_max: 1 << 20, io, ..Bye::default() }.encode()));
    let job = WorkRecord {
        work: Work::Job(Operation::Multiply),
        returns: true,
        thread: 1,
        matrix: 3,
        step: 2,
        start_ns: 1 << 40,
        took_ns: 5_000_000,
    };
    let made = WorkRecord { work: Work::Generate, returns: false, ..job };
    seeds.push((10, LogHead { dropped: 0, records: vec![job, made] }.encode()));
    seeds.push((11, Pong { nonce: 4, clock_ns: 1 << 40 }.encode()));
    seeds.extend(relaying());
    seeds.extend(placing());
    for generator in [Generator::random(3), Generator::identity().transposed()] {
        seeds.push((9, Generated { generator: generator.to_bytes(), row: 5, col: 6 }.encode()));
    }
    seeds.into_iter().map(|(which, head)| [vec![which], head].concat()).collect()
}

/// The messages of workers that relay panels, both ways.
fn relaying() -> Vec<(u8, Vec<u8>)> {
    let (key, ticket, address) = ([5; 20], [6; 16], "10.0.0.7:7400".to_owned());
    let neighbour = Neighbour { peer: 2, me: 1, dials: true, key, ticket, address };
    let order = Forward { id: 4, to: 2, id_there: 9 };
    let last = Forward { to: Forward::NO_MEMBER, ..order };
    vec![
        (12, neighbour.encode()),
        (13, Reached { peer: 2, is_there: false, why: "refused".to_owned() }.encode()),
        (14, encode_forwards(&[order, last])),
        (15, Join { ticket }.encode()),
        (16, PieceHead { id: 4, first_line: 8, lines: 2 }.encode()),
        (17, Missing { id: 4, lines: 3 }.encode()),
    ]
}

/// The messages that place, fetch and name parts of arrays.
fn placing() -> Vec<(u8, Vec<u8>)> {
    let part = Rect::new(Span::new(0, 4), Span::new(256, 512));
    let put = PutHead { array: 7, part, first: 256, dtype: DType::F32, source: PartSource::Data };
    let made = PutHead { first: 0, source: PartSource::Generated, ..put };
    let held = PutOutcome::Held { bytes: 4096, digest: Digest128([3; 16]) };
    let refused = PutOutcome::Refused("its memory is in use".to_owned());
    let view = ResidentView::of(7, true, part);
    let right = ReducedFactor { view, depth: 384, alpha: 1.0 };
    let reduce = ReduceHead {
        number: 9,
        reduction: 6,
        count: 10,
        dtype: DType::F32,
        rect: part,
        left: view,
        right: None,
    };
    let (number, array, dtype) = (10, 8, DType::F32);
    let make = MakeHead { number, array, dtype, part, rect: part, step: None, is_last: false };
    let product = MakeStepForm::Product { left: view, right: view, depth: 384, alpha: -1.0, adds: true };
    let sum = MakeStepForm::Sum { x: view, alpha: 2.0, y: view, beta: 0.5 };
    vec![
        (18, put.encode()),
        (18, made.encode()),
        (19, PlacedHead { array: 7, outcome: held }.encode()),
        (19, PlacedHead { array: 7, outcome: refused }.encode()),
        (20, GetHead { array: 7, rect: part }.encode()),
        (21, PartHead { array: 7, first: 256 }.encode()),
        (31, view.encode()),
        (22, reduce.encode()),
        (22, ReduceHead { right: Some(right), ..reduce }.encode()),
        (23, ReducedHead { number: 9, first: 0, total: 1 << 20 }.encode()),
        (29, make.encode()),
        (29, MakeHead { step: Some(product), is_last: true, ..make }.encode()),
        (29, MakeHead { step: Some(sum), ..make }.encode()),
        (30, FetchHead { array: 8, peer: 2, from: 7, dtype: DType::F32, rect: part }.encode()),
    ]
}

fn store() -> StoreHead {
    let a = MatrixHeader {
        id: 1,
        rows: 4,
        cols: 5,
        first_line: 0,
        lines: 4,
        uses: 1,
        dtype: DType::F32,
        layout: Layout::RowMajor,
        source: MatrixSource::Data,
    };
    let b = MatrixHeader {
        id: 2,
        rows: 5,
        cols: 6,
        lines: 6,
        layout: Layout::ColMajor,
        source: MatrixSource::Generated,
        ..a
    };
    let c = MatrixHeader { id: 3, cols: 6, uses: 0, source: MatrixSource::Vacant, ..a };
    let sum = MatrixHeader { id: 7, source: MatrixSource::Partial, ..c };
    let made = MatrixHeader { id: 6, uses: 9, ..c };
    StoreHead {
        matrices: vec![a, b, c, sum, made],
        jobs: vec![
            Job { operation: Operation::Multiply, a: 1, b: 2, c: 3, step: 0, epoch: 0, then: Then::Continue },
            Job { operation: Operation::Add, a: 4, b: 5, c: 3, step: 1, epoch: 0, then: Then::Return },
            Job { operation: Operation::Subtract, a: 4, b: 5, c: 6, step: 0, epoch: 0, then: Then::Close },
        ],
    }
}
