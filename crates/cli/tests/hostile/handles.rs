//! Ids are names within a session, not handles into the worker: ids of other sessions, of nothing, and misused ids.

use crate::client::Client;
use crate::support::{closing_sum, data, elements, generated, hello, how, job, last_job, made, store, tile};
use crate::worker::{Trust, Worker};
use bramble_wire::message::{Hello, Job, Kind, MatrixHeader, MatrixSource, ResultHead};

const STORE: u8 = Kind::Store.code();

/// Sends stores without bodies; the session has to end with a message that contains `why`.
fn refused(worker: &Worker, why: &str, act: impl Fn(&mut Client)) {
    let mut client = worker.session();
    act(&mut client);
    let words = client.last_words();
    assert!(words.contains(why), "expected {why:?}, got {words:?}");
    worker.says(why);
}

/// Sends two 3 x 3 operands with `uses` uses, a tile, and jobs.
fn three(uses: u16, jobs: &[Job]) -> (Vec<u8>, Vec<u8>) {
    let matrices = [data(1, 3, 3, uses), data(2, 3, 3, uses), tile(3, 3, 3)];
    (store(&matrices, jobs), elements(18))
}

fn send_three(client: &mut Client, uses: u16, jobs: &[Job]) {
    let (head, body) = three(uses, jobs);
    client.send(STORE, &head, &body);
}

#[test]
fn a_job_that_names_a_missing_matrix() {
    let worker = Worker::start(Trust::Keyed);
    let absent = "an operand of it is not stored here";
    refused(&worker, absent, |c| c.send(STORE, &store(&[], &[job(1, 2, 3, 0)]), &[]));
    for wrong in [job(9, 2, 3, 0), job(1, 9, 3, 0), job(3, 2, 3, 0)] {
        refused(&worker, absent, |c| send_three(c, 1, &[wrong]));
    }
    refused(&worker, "its target is not stored here", |c| send_three(c, 1, &[job(1, 2, 9, 0)]));
    refused(&worker, "it writes an operand that no job makes", |c| send_three(c, 1, &[job(1, 2, 1, 0)]));
    refused(&worker, "uses one operand twice", |c| send_three(c, 2, &[job(1, 1, 3, 0)]));
    // Operands are released after their last use.
    refused(&worker, absent, |c| {
        send_three(c, 1, &[job(1, 2, 3, 0)]);
        c.receive_kind(Kind::Credit);
        c.send(STORE, &store(&[], &[job(1, 2, 3, 1)]), &[]);
    });
    worker.is_well();
}

#[test]
fn ids_of_another_live_session_are_unknown() {
    let worker = Worker::start(Trust::Keyed);
    let small = Hello { memory_bytes: 16 << 20, ..hello() };
    let mut owner = Client::welcomed(worker.trust, worker.address, &small).unwrap();
    send_three(&mut owner, 1, &[]);
    refused(&worker, "an operand of it is not stored here", |c| {
        c.send(STORE, &store(&[tile(3, 3, 3)], &[job(1, 2, 3, 0)]), &[]);
    });
    let mut thief = worker.session();
    thief.session ^= 1;
    thief.send(STORE, &store(&[], &[last_job(1, 2, 3, 0)]), &[]);
    thief.last_words();
    worker.says("a frame of session");
    owner.send(STORE, &store(&[], &[last_job(1, 2, 3, 0)]), &[]);
    assert_eq!(owner.receive_kind(Kind::Result).body, elements(9));
    drop(owner);
    worker.is_well();
}

#[test]
fn an_id_may_be_any_number_and_names_one_matrix_at_a_time() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    for ids in [[0, 1, 2], [u32::MAX, 0, 1], [7, u32::MAX - 1, u32::MAX]] {
        let [a, b, c] = ids;
        let matrices = [data(a, 2, 2, 1), data(b, 2, 2, 1), tile(c, 2, 2)];
        client.send(STORE, &store(&matrices, &[last_job(a, b, c, 0)]), &elements(8));
        let came = client.receive_kind(Kind::Result);
        assert_eq!(ResultHead::decode(&came.head).unwrap().c, c);
    }
    drop(client);
    let twice = "comes twice, or out of order";
    refused(&worker, twice, |c| c.send(STORE, &store(&[tile(1, 3, 3), tile(1, 3, 3)], &[]), &[]));
    refused(&worker, twice, |c| {
        send_three(c, 1, &[]);
        send_three(c, 1, &[]);
    });
    refused(&worker, "operand 3 is a tile", |c| {
        send_three(c, 1, &[]);
        c.send(STORE, &store(&[data(3, 3, 3, 1)], &[]), &elements(9));
    });
    refused(&worker, "tile 1 is an operand", |c| {
        send_three(c, 1, &[]);
        c.send(STORE, &store(&[tile(1, 3, 3)], &[]), &[]);
    });
    refused(&worker, twice, |c| {
        let made = store(&[generated(1, 2, 2, 1), generated(1, 2, 2, 1)], &[]);
        c.send(STORE, &made, &[how(0, 0), how(0, 0)].concat());
    });
    worker.is_well();
}

#[test]
fn a_matrix_in_parts_stays_the_same_matrix() {
    let worker = Worker::start(Trust::Keyed);
    let whole = data(1, 6, 4, 1);
    let first = MatrixHeader { lines: 3, ..whole };
    let then = MatrixHeader { first_line: 3, lines: 3, ..whole };
    let changed = [
        MatrixHeader { first_line: 2, ..then },
        MatrixHeader { first_line: 4, lines: 2, ..then },
        MatrixHeader { rows: 9, ..then },
        MatrixHeader { cols: 5, ..then },
        MatrixHeader { uses: 2, ..then },
    ];
    for next in changed {
        refused(&worker, "comes twice, or out of order", |c| {
            c.send(STORE, &store(&[first], &[]), &elements(12));
            c.send(STORE, &store(&[next], &[]), &elements((next.lines * next.cols) as usize));
        });
    }
    refused(&worker, "does not start at its first line", |c| {
        c.send(STORE, &store(&[then], &[]), &elements(12))
    });
    refused(&worker, "comes twice in one message", |c| {
        c.send(STORE, &store(&[first, then], &[]), &elements(24));
    });
    worker.is_well();
}

#[test]
fn steps_rise_and_nothing_follows_the_last() {
    let worker = Worker::start(Trust::Keyed);
    let order = "its step is not after the one before";
    refused(&worker, order, |c| send_three(c, 9, &[job(1, 2, 3, 1), job(1, 2, 3, 0)]));
    refused(&worker, order, |c| send_three(c, 9, &[job(1, 2, 3, 4), job(1, 2, 3, 4)]));
    refused(&worker, "it comes after the job that sent it back, or closed it", |c| {
        send_three(c, 9, &[last_job(1, 2, 3, 0), job(1, 2, 3, 1)]);
    });
    refused(&worker, "its target is not stored here", |c| {
        send_three(c, 9, &[last_job(1, 2, 3, 0)]);
        c.receive_kind(Kind::Credit);
        c.send(STORE, &store(&[], &[job(1, 2, 3, 1)]), &[]);
    });
    worker.is_well();
}

#[test]
fn the_last_step_that_there_can_be_ends_the_session_or_is_computed() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    send_three(&mut client, 1, &[last_job(1, 2, 3, u32::MAX)]);
    let words = client.last_words();
    assert!(words.contains("step"), "{words:?}");
    worker.is_well();
}

#[test]
fn an_operand_is_used_as_often_as_it_was_announced() {
    let worker = Worker::start(Trust::Keyed);
    refused(&worker, "an operand of it was announced for fewer jobs", |c| {
        send_three(c, 1, &[job(1, 2, 3, 0), job(1, 2, 3, 1)]);
    });
    // A matrix with 0 uses is a tile, and no operand.
    refused(&worker, "an operand of it is not stored here", |c| {
        c.send(STORE, &store(&[data(1, 3, 3, 0)], &[job(1, 2, 3, 0)]), &elements(9));
    });
    worker.is_well();
}

/// Sends 3 x 3 operands: 1 and 2 with elements, and 3, which jobs compute.
fn send_made(client: &mut Client, jobs: &[Job]) {
    let matrices = [data(1, 3, 3, 9), data(2, 3, 3, 9), made(3, 3, 3, 1), tile(4, 3, 3)];
    client.send(STORE, &store(&matrices, jobs), &elements(18));
}

#[test]
fn an_operand_that_jobs_make_is_made_once_and_only_read_after() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    // The reading job comes first, and waits.
    send_made(&mut client, &[last_job(1, 3, 4, 0), closing_sum(1, 2, 3, 0)]);
    assert_eq!(client.receive_kind(Kind::Result).body, elements(9));
    drop(client);
    let ended = "it comes after the job that sent it back, or closed it";
    refused(&worker, ended, |c| send_made(c, &[closing_sum(1, 2, 3, 0), job(1, 2, 3, 1)]));
    refused(&worker, ended, |c| {
        send_made(c, &[closing_sum(1, 2, 3, 0), last_job(1, 2, 4, 0)]);
        // The tile comes when both are done, or nearly.
        c.receive_kind(Kind::Result);
        std::thread::sleep(std::time::Duration::from_millis(200));
        c.send(STORE, &store(&[], &[job(1, 2, 3, 1)]), &[]);
    });
    refused(&worker, "it sends back an operand", |c| send_made(c, &[last_job(1, 2, 3, 0)]));
    refused(&worker, "it closes a tile", |c| send_made(c, &[closing_sum(1, 2, 4, 0)]));
    refused(&worker, "or reads its target", |c| send_made(c, &[closing_sum(3, 2, 3, 0)]));
    refused(&worker, "was announced for fewer jobs", |c| {
        send_made(c, &[job(1, 3, 4, 0), last_job(2, 3, 4, 1)]);
    });
    refused(&worker, "comes twice, or out of order", |c| {
        send_made(c, &[]);
        c.send(STORE, &store(&[made(3, 3, 3, 1)], &[]), &[]);
    });
    refused(&worker, "came with 144", |c| {
        c.send(STORE, &store(&[data(1, 3, 3, 1), made(3, 3, 3, 1)], &[]), &elements(18));
    });
    worker.is_well();
}

#[test]
fn a_sum_of_earlier_steps_is_a_tiles_and_comes_with_its_elements() {
    let worker = Worker::start(Trust::Keyed);
    let partial = |m: MatrixHeader| MatrixHeader { source: MatrixSource::Partial, ..m };
    refused(&worker, "is a tile, or the sum of one", |c| {
        c.send(STORE, &store(&[partial(data(1, 3, 3, 1))], &[]), &elements(9));
    });
    refused(&worker, "without its bytes", |c| c.send(STORE, &store(&[partial(tile(1, 3, 3))], &[]), &[]));
    let mut client = worker.session();
    let matrices = [partial(tile(4, 3, 3)), data(1, 3, 3, 1), data(2, 3, 3, 1)];
    let body = [vec![1; 9 * 8], elements(18)].concat();
    client.send(STORE, &store(&matrices, &[last_job(1, 2, 4, 7)]), &body);
    let came = client.receive_kind(Kind::Result);
    assert_eq!(ResultHead::decode(&came.head).unwrap().step_start, 7);
    assert_eq!(came.body, vec![1; 9 * 8], "the hello's beta is 0, and does not scale it");
    drop(client);
    worker.is_well();
}
