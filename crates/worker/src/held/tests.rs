//! Parts are visible when they are complete, views have the right elements, and memory comes back.

use super::*;
use crate::ledger::{MemoryRequest, SessionLedger, SessionOwner};
use bramble_link::Body;
use bramble_matrix::{Generator, Layout, Span};
use bramble_wire::limits::CHUNK_BYTES_MAX;
use bramble_wire::message::{Generated, MatrixSource};

const CAPACITY: u64 = 64 << 20;

fn store_in(ledger: &SessionLedger) -> HeldStore {
    let who = SessionOwner { name: "laptop".to_owned(), peer: "10.0.0.5:41234".to_owned() };
    HeldStore::new(ledger.hold_account(&who, CAPACITY))
}

fn part(rows: std::ops::Range<u64>, cols: std::ops::Range<u64>) -> Rect {
    Rect::new(Span::new(rows.start, rows.end), Span::new(cols.start, cols.end))
}

fn put_head(array: u64, part: Rect) -> PutHead {
    PutHead { array, part, first: 0, dtype: DType::F64, source: PartSource::Data }
}

/// Element (i, j) of every array.
fn element(i: u64, j: u64) -> f64 {
    (i * 10_000 + j) as f64
}

fn bytes_of(rect: Rect) -> Vec<u8> {
    let at = |i: u64| rect.cols.iter().flat_map(move |j| element(i, j).to_le_bytes());
    rect.rows.iter().flat_map(at).collect()
}

fn land(store: &mut HeldStore, put: &PutHead, body: &[u8]) -> Result<PutProgress, ProtocolError> {
    let mut landing = store.place(put, body.len())?;
    let mut at = 0;
    while at < body.len() {
        let mut free = Vec::new();
        landing.runs_mut(at, 1, &mut free);
        let count = free[0].len();
        free[0].copy_from_slice(&body[at..at + count]);
        at += count;
    }
    store.landed(put, landing)
}

/// Puts a part in the frames that a primary sends; the answer to the last one.
fn put(store: &mut HeldStore, array: u64, part: Rect) -> PlacedHead {
    let mut placed = None;
    for piece in part_pieces(part, DType::F64) {
        assert!(placed.is_none(), "an answer before the last frame");
        let head = PutHead { first: piece.first, ..put_head(array, part) };
        match land(store, &head, &bytes_of(piece.rect)).unwrap() {
            PutProgress::Done(head) => placed = Some(head),
            PutProgress::Incomplete => {}
            PutProgress::Fill(_) => panic!("data is not generated"),
        }
    }
    placed.unwrap()
}

/// The header of a view, and the view.
fn view_of(array: u64, transposed: bool, rect: Rect) -> (MatrixHeader, ResidentView) {
    let view = ResidentView::of(array, transposed, rect);
    let (rows, cols) = (rect.rows.len() as u32, rect.cols.len() as u32);
    let mut header = MatrixHeader {
        id: 5,
        rows,
        cols,
        first_line: 0,
        lines: 0,
        uses: 1,
        dtype: DType::F64,
        layout: view.layout(),
        source: MatrixSource::Resident,
    };
    header.lines = header.lines_total().0;
    (header, view)
}

fn bytes_held(ledger: &SessionLedger) -> u64 {
    let who = SessionOwner { name: String::new(), peer: String::new() };
    let wish = MemoryRequest { wanted_bytes: CAPACITY, scratch_bytes: 0, capacity_bytes: CAPACITY };
    CAPACITY - ledger.grant(&who, wish).unwrap().bytes()
}

#[test]
fn a_part_is_visible_when_it_is_complete_and_its_digest_is_that_of_its_elements() {
    let (ledger, rect) = (SessionLedger::new(), part(256..300, 512..3600));
    let mut store = store_in(&ledger);
    let pieces: Vec<_> = part_pieces(rect, DType::F64).collect();
    assert!(pieces.len() > 1);
    let first = put_head(1, rect);
    assert!(matches!(land(&mut store, &first, &bytes_of(pieces[0].rect)), Ok(PutProgress::Incomplete)));
    let (header, view) = view_of(1, false, part(256..258, 512..600));
    assert!(store.view(&header, &view).is_err());
    assert!(store.get(&GetHead { array: 1, rect }).is_err());
    let mut last = None;
    for piece in &pieces[1..] {
        let head = PutHead { first: piece.first, ..first };
        last = Some(land(&mut store, &head, &bytes_of(piece.rect)).unwrap());
    }
    let Some(PutProgress::Done(PlacedHead { array: 1, outcome: PutOutcome::Held { bytes, digest } })) = last
    else {
        panic!("it is not held")
    };
    assert_eq!(bytes, rect.shape().bytes(DType::F64).unwrap());
    let all = bytes_of(rect);
    assert_eq!(digest, Digest128::of(rect.shape(), all.chunks(rect.cols.len() as usize * 8)));
    assert!(store.view(&header, &view).is_ok());
}

#[test]
fn views_have_the_elements_of_the_array_also_transposed() {
    let (ledger, rect) = (SessionLedger::new(), part(256..512, 1024..1100));
    let mut store = store_in(&ledger);
    put(&mut store, 3, rect);
    for (rows, cols) in
        [(256..512, 1024..1100), (300..301, 1030..1099), (256..512, 1099..1100), (511..512, 1024..1025)]
    {
        let rect = part(rows, cols);
        let (header, view) = view_of(3, false, rect);
        let operand = store.view(&header, &view).unwrap();
        let elements = operand.view::<f64>();
        let (header, view) = view_of(3, true, rect.transposed());
        let other = store.view(&header, &view).unwrap();
        let transposed = other.view::<f64>();
        assert_eq!(
            (elements.rows(), transposed.rows()),
            (rect.rows.len() as usize, rect.cols.len() as usize)
        );
        for (a, i) in rect.rows.iter().enumerate() {
            for (b, j) in rect.cols.iter().enumerate() {
                assert_eq!((elements.at(a, b), transposed.at(b, a)), (element(i, j), element(i, j)));
            }
        }
    }
}

#[test]
fn views_outside_the_part_or_of_another_type_or_layout_are_refused() {
    let ledger = SessionLedger::new();
    let mut store = store_in(&ledger);
    put(&mut store, 3, part(256..512, 1024..1100));
    let is_refused = |(header, view): (MatrixHeader, ResidentView)| store.view(&header, &view).is_err();
    for (rows, cols) in
        [(255..257, 1024..1030), (511..513, 1024..1030), (256..257, 1023..1025), (256..257, 1099..1101)]
    {
        assert!(is_refused(view_of(3, false, part(rows.clone(), cols.clone()))), "{rows:?} {cols:?}");
        assert!(is_refused(view_of(3, true, part(rows, cols).transposed())));
    }
    let (header, view) = view_of(3, false, part(256..258, 1024..1026));
    assert!(!is_refused((header, view)));
    assert!(is_refused((header, ResidentView { array: 4, ..view })));
    assert!(is_refused((header, ResidentView { row: u64::MAX, ..view })));
    assert!(is_refused((header, ResidentView { transposed: true, ..view })));
    assert!(is_refused((MatrixHeader { dtype: DType::F32, ..header }, view)));
    assert!(is_refused((MatrixHeader { layout: Layout::ColMajor, ..header }, view)));
}

#[test]
fn frames_out_of_order_numbers_used_again_and_foreign_lines_are_refused() {
    let (ledger, rect) = (SessionLedger::new(), part(0..4, 0..4));
    let mut store = store_in(&ledger);
    let head = put_head(5, rect);
    assert!(land(&mut store, &PutHead { first: 4, ..head }, &[0; 32]).is_err(), "not from the start");
    assert!(matches!(land(&mut store, &head, &[0; 32]), Ok(PutProgress::Incomplete)));
    for other in [
        head,
        PutHead { first: 8, ..head },
        PutHead { first: 4, part: part(0..4, 0..5), ..head },
        PutHead { first: 4, dtype: DType::I64, ..head },
        PutHead { first: 0, source: PartSource::Generated, ..head },
    ] {
        assert!(land(&mut store, &other, &[0; 32]).is_err(), "{other:?}");
    }
    let _under_way = store.place(&PutHead { first: 4, ..head }, 32).unwrap();
    assert!(store.place(&PutHead { first: 4, ..head }, 32).is_err(), "twice at once");
    store.free(5).unwrap();
    assert!(store.free(5).is_err());
    for used in [5, 4] {
        assert!(land(&mut store, &put_head(used, rect), &[0; 32]).is_err(), "number {used} again");
    }
    put(&mut store, 6, rect);
    assert!(land(&mut store, &PutHead { first: 4, ..put_head(6, rect) }, &[0; 32]).is_err(), "after its end");
}

#[test]
fn memory_is_returned_when_a_part_is_freed_and_nobody_reads_it_any_more() {
    let (ledger, rect) = (SessionLedger::new(), part(0..1024, 0..256));
    let mut store = store_in(&ledger);
    for array in 1..50 {
        put(&mut store, array, rect);
        assert_eq!(bytes_held(&ledger), 2 << 20);
        let (header, view) = view_of(array, false, part(0..2, 0..2));
        let operand = store.view(&header, &view).unwrap();
        store.free(array).unwrap();
        assert_eq!(bytes_held(&ledger), 2 << 20, "a job still reads it");
        assert_eq!(operand.view::<f64>().at(1, 1), element(1, 1));
        drop(operand);
        assert_eq!(bytes_held(&ledger), 0);
    }
    put(&mut store, 50, rect);
    drop(store);
    assert_eq!(bytes_held(&ledger), 0, "the connection has ended");
}

#[test]
fn a_part_without_memory_is_refused_once_and_its_frames_are_discarded() {
    let ledger = SessionLedger::new();
    let mut store = store_in(&ledger);
    // 40 MiB twice do not fit 56 MiB.
    let rect = part(0..5 << 20, 0..1);
    put(&mut store, 1, rect);
    let mut answers = Vec::new();
    for piece in part_pieces(rect, DType::F64).take(3) {
        let head = PutHead { first: piece.first, ..put_head(2, rect) };
        match land(&mut store, &head, &vec![0; CHUNK_BYTES_MAX]).unwrap() {
            PutProgress::Done(PlacedHead { array: 2, outcome: PutOutcome::Refused(why) }) => {
                answers.push(why)
            }
            PutProgress::Incomplete => {}
            PutProgress::Done(_) | PutProgress::Fill(_) => panic!("there is no memory"),
        }
    }
    let [why] = &answers[..] else { panic!("{answers:?}") };
    assert!(
        why.starts_with("a part of 40 MiB does not fit: 16 MiB are left, the rest is in use by laptop ("),
        "{why}"
    );
    assert!(why.contains("40 MiB of placed matrices for"), "{why}");
    let (header, view) = view_of(2, false, part(0..2, 0..1));
    assert!(store.view(&header, &view).is_err());
    store.free(2).unwrap();
    store.free(1).unwrap();
    put(&mut store, 3, rect);
}

#[test]
fn a_generated_part_is_filled_elsewhere_and_may_be_freed_meanwhile() {
    let (ledger, rect) = (SessionLedger::new(), part(2..6, 3..8));
    let mut store = store_in(&ledger);
    let head = |array| PutHead { source: PartSource::Generated, ..put_head(array, rect) };
    let description = Generated { generator: Generator::random(7).to_bytes(), row: 2, col: 3 }.encode();
    let begin = |store: &mut HeldStore, array| match land(store, &head(array), &description).unwrap() {
        PutProgress::Fill(fill) => fill,
        PutProgress::Done(_) | PutProgress::Incomplete => panic!("it is not to be generated"),
    };
    let fill = begin(&mut store, 1);
    let (header, view) = view_of(1, false, rect);
    assert!(store.view(&header, &view).is_err());
    let placed = store.filled(fill.run()).unwrap();
    let mut want = vec![0; 4 * 5 * 8];
    Generator::random(7).fill(rect, DType::F64, Layout::RowMajor, &mut want);
    let PutOutcome::Held { digest, .. } = placed.outcome else { panic!("it is not held") };
    assert_eq!(digest, Digest128::of(rect.shape(), want.chunks(40)));
    assert!(store.view(&header, &view).is_ok());
    let fill = begin(&mut store, 2);
    store.free(2).unwrap();
    assert_eq!(store.filled(fill.run()), None);
    store.free(1).unwrap();
    assert_eq!(bytes_held(&ledger), 0);
}

#[test]
fn a_rectangle_is_fetched_in_frames_of_rows_or_of_parts_of_a_long_row() {
    let ledger = SessionLedger::new();
    let mut store = store_in(&ledger);
    for (array, rect, wanted) in [
        (1, part(256..600, 0..1000), part(300..599, 7..900)),
        (2, part(0..3, 0..200_000), part(1..3, 1..200_000)),
    ] {
        put(&mut store, array, rect);
        let frames = store.get(&GetHead { array, rect: wanted }).unwrap();
        assert!(frames.len() > 1);
        let mut bytes: Vec<u8> = Vec::new();
        for frame in frames {
            assert_eq!(frame.kind, Kind::Part.code());
            let head = PartHead::decode(&frame.head).unwrap();
            assert_eq!((head.array, head.first * 8), (array, bytes.len() as u64));
            let Body::Shared(region) = &frame.body else { panic!("its elements are not shared") };
            assert!(region.len() <= CHUNK_BYTES_MAX);
            (0..region.runs).for_each(|i| bytes.extend(region.run(i)));
        }
        assert!(bytes == bytes_of(wanted));
        let beyond = Rect::new(wanted.rows, Span::new(0, rect.cols.end + 1));
        assert!(store.get(&GetHead { array, rect: beyond }).is_err());
    }
}

#[test]
fn a_part_that_a_link_refers_to_is_copied() {
    let (ledger, rect) = (SessionLedger::new(), part(0..3, 0..2));
    let mut store = store_in(&ledger);
    let wider = Arc::new(bytes_of(part(0..3, 0..5)));
    let region = SharedRegion::new(wider, 0, 16, 40, 3);
    let progress = store.referred(&put_head(1, rect), &region).unwrap();
    assert!(matches!(progress, PutProgress::Done(_)));
    let (header, view) = view_of(1, false, rect);
    assert_eq!(store.view(&header, &view).unwrap().view::<f64>().at(2, 1), element(2, 1));
}
