//! Reductions: of arrays that are not there, beyond their parts, of unknown kind, too many, and one that is honest.

use crate::client::Client;
use crate::placed::{part, put, refused, session};
use crate::worker::{BOTH, Worker};
use bramble_matrix::{DType, Shape};
use bramble_wire::message::{Kind, ReduceHead, ReducedFactor, ReducedHead, ResidentView, encode_number};

/// The sum of each row of the part.
fn row_sums() -> ReduceHead {
    let left = ResidentView::of(5, false, part());
    ReduceHead { number: 7, reduction: 1, count: 0, dtype: DType::F64, rect: part(), left, right: None }
}

#[test]
fn reductions_out_of_place_are_refused() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let ask = |head: ReduceHead| move |c: &mut Client| c.send(Kind::Reduce.code(), &head.encode(), &[]);
        let elsewhere = ResidentView { array: 6, ..row_sums().left };
        refused(&worker, "no complete part of array 6", ask(ReduceHead { left: elsewhere, ..row_sums() }));
        let beyond = ResidentView { row: 11, ..row_sums().left };
        refused(&worker, "is not in the part", ask(ReduceHead { left: beyond, ..row_sums() }));
        refused(&worker, "unknown kind or type", ask(ReduceHead { reduction: 9, ..row_sums() }));
        refused(&worker, "unknown kind or type", ask(ReduceHead { reduction: 6, ..row_sums() }));
        refused(&worker, "unknown kind or type", ask(ReduceHead { dtype: DType::F32, ..row_sums() }));
        let factor = ReducedFactor { view: row_sums().left, depth: 1 << 20, alpha: 1.0 };
        refused(&worker, "is not in the part", ask(ReduceHead { right: Some(factor), ..row_sums() }));
        refused(&worker, "no body", |c| c.send(Kind::Reduce.code(), &row_sums().encode(), &[0; 8]));
        refused(&worker, "no body", |c| {
            let head = ReducedHead { number: 7, first: 0, total: 8 };
            c.send(Kind::Reduced.code(), &head.encode(), &[0; 8]);
        });
        refused(&worker, "comes too early", |c| {
            ask(row_sums())(c);
            ask(row_sums())(c);
        });
        worker.is_well();
    }
}

#[test]
fn a_count_without_end_gives_what_there_is_and_an_honest_question_its_answer() {
    let worker = Worker::start(BOTH[0]);
    let mut client = session(&worker);
    put(&mut client);
    client.send(Kind::Reduce.code(), &row_sums().encode(), &[]);
    let answer = client.receive_kind(Kind::Reduced);
    assert_eq!(ReducedHead::decode(&answer.head), Ok(ReducedHead { number: 7, first: 0, total: 32 }));
    let sums: Vec<f64> =
        answer.body.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect();
    assert_eq!(sums, [3.0, 12.0, 21.0, 30.0]);
    // All largest elements that there are: three of each row, the last first.
    let top = ReduceHead { number: 8, reduction: 6, count: u64::MAX, ..row_sums() };
    client.send(Kind::Reduce.code(), &top.encode(), &[]);
    let answer = client.receive_kind(Kind::Reduced);
    assert_eq!(answer.body.len() as u64, Shape::new(4, 3).elements().unwrap() * 16);
    assert_eq!(u64::from_le_bytes(answer.body[..8].try_into().unwrap()), 22);
    client.send(Kind::Free.code(), &encode_number(5), &[]);
    drop(client);
    worker.is_well();
}
