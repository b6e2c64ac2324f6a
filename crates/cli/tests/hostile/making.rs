//! Make messages out of place, about arrays that the worker does not hold, and too many; fetch messages for workers that were not
//! introduced.

use crate::client::Client;
use crate::placed::{part, put, refused, session};
use crate::worker::{BOTH, Worker};
use bramble_matrix::{DType, Digest128, Rect, Span};
use bramble_wire::limits::MAKINGS_MAX;
use bramble_wire::message::{
    FetchHead, GetHead, Kind, MakeHead, MakeStepForm, PartHead, PlacedHead, PutOutcome, ResidentView,
    encode_number,
};

/// Opens array 8, of the same part.
fn opening() -> MakeHead {
    MakeHead {
        number: 7,
        array: 8,
        dtype: DType::F64,
        part: part(),
        rect: part(),
        step: None,
        is_last: false,
    }
}

/// Makes all of it: 2 X + X.
fn sum() -> MakeHead {
    let x = ResidentView::of(5, false, part());
    let step = Some(MakeStepForm::Sum { x, alpha: 2.0, y: x, beta: 1.0 });
    MakeHead { number: 9, step, is_last: true, ..opening() }
}

fn send(client: &mut Client, make: MakeHead) {
    client.send(Kind::Make.code(), &make.encode(), &[]);
}

fn outcome(client: &mut Client) -> PlacedHead {
    PlacedHead::decode(&client.receive_kind(Kind::Placed).head).unwrap()
}

#[test]
fn steps_out_of_place_are_refused() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let opened = |client: &mut Client| {
            send(client, opening());
            outcome(client);
        };
        refused(&worker, "array 8 that is not being made", |c| send(c, sum()));
        refused(&worker, "comes twice, or out of order", |c| send(c, MakeHead { array: 5, ..opening() }));
        refused(&worker, "of another type than the session", |c| {
            send(c, MakeHead { dtype: DType::F32, ..opening() })
        });
        refused(&worker, "no body", |c| c.send(Kind::Make.code(), &opening().encode(), &[0; 8]));
        let elsewhere = ResidentView { array: 6, ..ResidentView::of(5, false, part()) };
        let product =
            MakeStepForm::Product { left: elsewhere, right: elsewhere, depth: 3, alpha: 1.0, adds: false };
        refused(&worker, "no complete part of array 6", |c| {
            opened(c);
            send(c, MakeHead { step: Some(product), ..sum() });
        });
        refused(&worker, "no complete part of array 8", |c| {
            opened(c);
            let own = ResidentView::of(8, false, part());
            send(c, MakeHead { step: Some(MakeStepForm::Scaled { x: own, alpha: 1.0 }), ..sum() });
        });
        refused(&worker, "that is not being made", |c| {
            opened(c);
            let other = Rect::new(Span::new(10, 15), part().cols);
            send(c, MakeHead { part: other, ..sum() });
        });
        refused(&worker, "comes too early", |c| {
            opened(c);
            let deep = MakeHead { is_last: false, ..sum() };
            (0..=MAKINGS_MAX as u64 * 64).for_each(|number| send(c, MakeHead { number, ..deep }));
        });
        worker.is_well();
    }
}

#[test]
fn rectangles_of_strangers_are_refused_and_elements_nobody_asked_for_end_the_session() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let fetch = FetchHead { array: 9, peer: 3, from: 5, dtype: DType::F64, rect: part() };
        let mut client = session(&worker);
        put(&mut client);
        client.send(Kind::Fetch.code(), &fetch.encode(), &[]);
        let PlacedHead { array, outcome } = outcome(&mut client);
        assert!(
            matches!(outcome, PutOutcome::Refused(why) if array == 9 && why.contains("link with worker 3"))
        );
        client.send(Kind::Free.code(), &encode_number(9), &[]);
        drop(client);
        refused(&worker, "no body", |c| c.send(Kind::Fetch.code(), &fetch.encode(), &[0; 8]));
        refused(&worker, "comes twice, or out of order", |c| {
            c.send(Kind::Fetch.code(), &FetchHead { array: 5, ..fetch }.encode(), &[]);
        });
        refused(&worker, "no body", |c| {
            c.send(Kind::Part.code(), &PartHead { array: 5, first: 0 }.encode(), &[0; 8]);
        });
        worker.is_well();
    }
}

#[test]
fn an_honest_primary_gets_its_part_and_one_that_has_no_room_a_reason() {
    let worker = Worker::start(BOTH[0]);
    let mut client = session(&worker);
    put(&mut client);
    send(&mut client, opening());
    let opened = PutOutcome::Held { bytes: 0, digest: Digest128::default() };
    assert_eq!(outcome(&mut client), PlacedHead { array: 7, outcome: opened });
    send(&mut client, sum());
    let PlacedHead { array, outcome: made } = outcome(&mut client);
    assert!(
        matches!(made, PutOutcome::Held { bytes: 96, digest } if array == 9 && digest != Digest128::default())
    );
    client.send(Kind::Get.code(), &GetHead { array: 8, rect: part() }.encode(), &[]);
    let came = client.receive_kind(Kind::Part);
    let elements: Vec<f64> =
        came.body.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect();
    assert_eq!(elements, (0..12).map(|x| 3.0 * f64::from(x)).collect::<Vec<_>>());
    // A part that no machine has room for is refused, its steps are not answered, and it is freed as any other.
    let huge = Rect::new(Span::new(0, 1 << 24), Span::new(0, 1 << 24));
    send(&mut client, MakeHead { number: 20, array: 21, part: huge, rect: huge, ..opening() });
    assert!(matches!(outcome(&mut client), PlacedHead { array: 20, outcome: PutOutcome::Refused(_) }));
    send(&mut client, MakeHead { number: 22, array: 21, part: huge, rect: part(), ..sum() });
    client.send(Kind::Free.code(), &encode_number(21), &[]);
    client.send(Kind::Free.code(), &encode_number(8), &[]);
    client.send(Kind::Get.code(), &GetHead { array: 8, rect: part() }.encode(), &[]);
    assert!(client.last_words().contains("no complete part of array 8"));
    worker.is_well();
}
