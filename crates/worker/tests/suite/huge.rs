//! Messages of the largest sizes that decode, for arrays that are not there, refused, open, or held: each is answered at once,
//! and takes no memory for what it states.
#![allow(unsafe_code)] // An allocator is unsafe by nature: it hands every call on to the system's.

use crate::client::{Client, config, hello, run};
use bramble_link::{Body, SharedRegion};
use bramble_matrix::{DType, Generator, Rect, Shape, Span};
use bramble_wire::message::{
    FetchHead, Generated, GetHead, Kind, LuBegin, LuFill, LuOrigin, LuRing, MakeHead, MakeStepForm,
    PartSource, PlacedHead, PutHead, PutOutcome, ReduceHead, ReducedFactor, ResidentView, encode_number,
};
use bramble_worker::SessionLedger;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

thread_local! {
    /// Bytes that this thread has asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get().saturating_add(layout.size())));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What a hostile message may make the event loop ask for: its own frames, and the text of an error.
const BOUND_BYTES: usize = 1 << 20;
/// How long it may keep the event loop busy, beside other tests.
const BOUND: Duration = Duration::from_secs(2);

/// Arrays of the hostile session: held, open for making, refused, and unknown.
const HELD: u64 = 1;
const OPEN: u64 = 2;
const REFUSED: u64 = 3;
const UNKNOWN: u64 = 4;

fn rect(rows: u64, cols: u64) -> Rect {
    Rect::new(Span::new(0, rows), Span::new(0, cols))
}

/// The largest rectangles that a message may state.
fn largest() -> [Rect; 3] {
    [rect(Shape::SIDE_MAX, 1 << 20), rect(1 << 20, Shape::SIDE_MAX), rect(Shape::SIDE_MAX, 1)]
}

fn view(array: u64) -> ResidentView {
    ResidentView::of(array, false, rect(1, 1))
}

fn forms(array: u64) -> [Option<MakeStepForm>; 5] {
    let (left, right, alpha) = (view(array), view(HELD), 1.0);
    let product = |depth, adds| Some(MakeStepForm::Product { left, right, depth, alpha, adds });
    [
        product(1, false),
        product(Shape::SIDE_MAX, true),
        Some(MakeStepForm::Scaled { x: left, alpha }),
        Some(MakeStepForm::Sum { x: left, alpha, y: right, beta: 1.0 }),
        None,
    ]
}

/// Messages about arrays: kind and head.
fn messages() -> Vec<(Kind, Vec<u8>)> {
    let (dtype, mut all) = (DType::F64, Vec::new());
    for array in [HELD, OPEN, REFUSED, UNKNOWN] {
        for part in largest() {
            for (at, step) in forms(array).into_iter().enumerate() {
                for rect in [part, rect(1, 1)] {
                    let rect = if step.is_none() { part } else { rect };
                    let head = MakeHead {
                        number: at as u64 + 10,
                        array,
                        dtype,
                        part,
                        rect,
                        step,
                        is_last: step.is_some(),
                    };
                    all.push((Kind::Make, head.encode()));
                }
            }
            for right in [None, Some(ReducedFactor { view: view(HELD), depth: 1, alpha: 1.0 })] {
                for reduction in 0..8 {
                    let head = ReduceHead {
                        number: 5,
                        reduction,
                        count: 64,
                        dtype,
                        rect: part,
                        left: view(array),
                        right,
                    };
                    all.push((Kind::Reduce, head.encode()));
                }
            }
            all.push((Kind::Get, GetHead { array, rect: part }.encode()));
            all.push((
                Kind::Fetch,
                FetchHead { array: array + 10, peer: 1, from: array, dtype, rect: part }.encode(),
            ));
        }
        all.push((Kind::Free, encode_number(array)));
    }
    all
}

/// Messages about systems of equations.
fn systems() -> Vec<(Kind, Vec<u8>)> {
    let mut all = Vec::new();
    for (order, width) in [(1 << 20, 1 << 10), (1 << 24, 1 << 13), (4096, 1)] {
        for origin in [LuOrigin::Sent, LuOrigin::Hpl, LuOrigin::HplMxp] {
            let owners = vec![0; order_blocks(order, width)];
            let ring = LuRing { owners, machines: 1, me: 0 };
            let begin = LuBegin { order, width, extra: width, dtype: DType::F64, live_max: 2, origin, ring };
            all.push((Kind::LuBegin, begin.encode()));
        }
    }
    let fill = LuFill { block: usize::MAX >> 1, first: usize::MAX >> 1, rows: usize::MAX >> 1 };
    all.extend([Kind::LuFill, Kind::LuFetch, Kind::LuRows].map(|kind| (kind, fill.encode())));
    all.extend([Kind::LuGo, Kind::LuCheck].map(|kind| (kind, Vec::new())));
    all
}

fn order_blocks(order: usize, width: usize) -> usize {
    order.div_ceil(width) + 1
}

/// A session that holds one array, makes another, and was refused a third.
async fn hostile(config: &bramble_worker::Config, ledger: &SessionLedger) -> Client {
    let mut client = Client::connect(config, ledger).await;
    client.greet(&hello("hostile", 1 << 20)).await.unwrap();
    let (part, dtype) = (rect(2, 2), DType::F64);
    let put = PutHead { array: HELD, part, first: 0, dtype, source: PartSource::Generated };
    let generated = Generated { generator: Generator::identity().to_bytes(), row: 0, col: 0 }.encode();
    client.send(Kind::Put, put.encode(), Body::Shared(SharedRegion::whole(Arc::new(generated)))).await;
    let placed = |arrived: &[u8]| PlacedHead::decode(arrived).unwrap();
    assert!(matches!(placed(&client.receive().await.1.head).outcome, PutOutcome::Held { .. }));
    for (array, part) in [(OPEN, rect(2, 2)), (REFUSED, rect(1 << 20, 1 << 20))] {
        let open = MakeHead { number: array, array, dtype, part, rect: part, step: None, is_last: false };
        client.send(Kind::Make, open.encode(), Body::Empty).await;
        let outcome = placed(&client.receive().await.1.head).outcome;
        assert_eq!(matches!(outcome, PutOutcome::Refused(_)), array == REFUSED, "{outcome:?}");
    }
    client
}

#[test]
fn messages_of_the_largest_sizes_take_no_memory_and_no_time() {
    crate::client::run_within(Duration::from_secs(120), async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut honest = Client::connect(&config, &ledger).await;
        honest.greet(&hello("honest", 1 << 20)).await.unwrap();
        for (kind, head) in messages().into_iter().chain(systems()) {
            let mut client = hostile(&config, &ledger).await;
            let (before, begun) = (ASKED.get(), Instant::now());
            client.send(kind, head.clone(), Body::Empty).await;
            // The pings are answered in order, so the message has been handled then, or has ended its session.
            for session in [&mut client, &mut honest] {
                let ping = session.link.sender.send(bramble_link::Frame::new(
                    Kind::Ping.code(),
                    encode_number(7),
                    Body::Empty,
                ));
                let _ = ping.await;
                while let Ok(arrived) = session.link.receiver.receive(&mut crate::client::Anywhere).await {
                    if [Kind::Pong.code(), Kind::Error.code()].contains(&arrived.kind) {
                        break;
                    }
                }
            }
            let (asked, took) = (ASKED.get() - before, begun.elapsed());
            assert!(asked < BOUND_BYTES, "{kind:?} {head:?}: {asked} bytes");
            assert!(took < BOUND, "{kind:?} {head:?}: {took:?}");
        }
        honest.send(Kind::Ping, encode_number(8), Body::Empty).await;
        assert_eq!(honest.receive().await.0, Kind::Pong);
    });
}

#[test]
fn steps_into_a_part_that_was_refused_are_passed_over() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = hostile(&config, &ledger).await;
        let before = ASKED.get();
        for number in 20..120 {
            let part = rect(1 << 20, 1 << 20);
            let step = Some(MakeStepForm::Scaled { x: view(UNKNOWN), alpha: 1.0 });
            let head = MakeHead {
                number,
                array: REFUSED,
                dtype: DType::F64,
                part,
                rect: part,
                step,
                is_last: false,
            };
            client.send(Kind::Make, head.encode(), Body::Empty).await;
        }
        client.send(Kind::Ping, encode_number(7), Body::Empty).await;
        assert_eq!(client.receive().await.0, Kind::Pong);
        assert!(ASKED.get() - before < 4 * BOUND_BYTES, "{}", ASKED.get() - before);
    });
}
