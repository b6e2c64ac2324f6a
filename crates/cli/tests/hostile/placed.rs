//! A part of an array at a worker, for tests of messages about arrays.

use crate::client::Client;
use crate::support::hello;
use crate::worker::Worker;
use bramble_matrix::{DType, Rect, Span};
use bramble_wire::message::{Hello, Kind, PartSource, PutHead};

/// A part of 4 × 3 elements, f64, at row 10 and column 20 of array 5.
pub(crate) fn part() -> Rect {
    Rect::new(Span::new(10, 14), Span::new(20, 23))
}

/// Puts the part: its elements are 0, 1, 2 and so on.
pub(crate) fn put(client: &mut Client) {
    let head = PutHead { array: 5, part: part(), first: 0, dtype: DType::F64, source: PartSource::Data };
    let body: Vec<u8> = (0..12).flat_map(|x| f64::from(x).to_le_bytes()).collect();
    client.send(Kind::Put.code(), &head.encode(), &body);
    client.receive_kind(Kind::Placed);
}

/// A session that leaves memory for parts.
pub(crate) fn session(worker: &Worker) -> Client {
    let small = Hello { memory_bytes: 1 << 20, ..hello() };
    Client::welcomed(worker.trust, worker.address, &small).unwrap()
}

/// The session has to end with a message that contains `why`.
pub(crate) fn refused(worker: &Worker, why: &str, act: impl Fn(&mut Client)) {
    let mut client = session(worker);
    put(&mut client);
    act(&mut client);
    let words = client.last_words();
    assert!(words.contains(why), "expected {why:?}, got {words:?}");
    worker.says(&words);
}
