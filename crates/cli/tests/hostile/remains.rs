//! Remains of sessions that end badly, and of peers that never read.

use crate::client::{Client, frame};
use crate::support::{data, elements, generated, how, last_job, store, tile};
use crate::worker::{MEMORY_MIB, Trust, Worker, within};
use bramble_wire::message::{Kind, encode_number};
use std::time::{Duration, Instant};

const STORE: u8 = Kind::Store.code();

/// Memory allowed on top of a worker's limit: pages of the program itself.
const PROGRAM_MIB: u64 = 48;

#[test]
fn leak_after_disconnect() {
    let worker = Worker::start(Trust::Keyed);
    let body = elements(128 << 10);
    for round in 0..100 {
        let mut client = worker.session();
        for id in 0..3 {
            client.send(STORE, &store(&[data(id, 128, 1024, 1)], &[]), &body);
        }
        // Some end in the middle of a frame, others between frames.
        if round % 2 == 0 {
            let bytes = frame(STORE, client.session, &store(&[data(9, 128, 1024, 1)], &[]), &body);
            client.send_raw(&bytes[..bytes.len() / 2]);
        }
    }
    worker.is_well();
}

#[test]
fn memory_of_a_primary_that_has_gone_is_not_granted_while_it_is_computed_with() {
    let worker = Worker::with(Trust::Keyed, &["--threads", "1"]);
    let n = 2200;
    let matrices = [generated(1, n, n, 1), generated(2, n, n, 1), tile(3, n, n)];
    let head = store(&matrices, &[last_job(1, 2, 3, 0)]);
    let body = [how(0, 0), how(0, 0)].concat();
    let (began, mut refused) = (Instant::now(), 0);
    for _ in 0..6 {
        match Client::try_session(Trust::Keyed, worker.address) {
            Ok(mut client) => {
                client.send(STORE, &head, &body);
                // Long enough to generate the elements and start the product.
                std::thread::sleep(Duration::from_millis(400));
            }
            Err(why) => {
                assert!(why.contains("memory"), "{why}");
                refused += 1;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    let most = worker.rss_bytes_max() >> 20;
    println!("{most} MiB, {refused} refused");
    assert!(most < MEMORY_MIB + PROGRAM_MIB, "{most} MiB are in use");
    let idle = || Client::try_session(Trust::Keyed, worker.address).is_ok();
    assert!(within(Duration::from_secs(30), idle));
    worker.is_well();
}

#[test]
fn results_that_are_never_read() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    client.set_patience(Duration::from_secs(40));
    // 24 tiles of 4 MiB exceed the socket buffers.
    for number in 0..24 {
        let [a, b, c] = [3 * number, 3 * number + 1, 3 * number + 2];
        let matrices = [generated(a, 512, 8, 1), generated(b, 8, 1024, 1), tile(c, 512, 1024)];
        let body = [how(0, 0), how(0, 0)].concat();
        client.send(STORE, &store(&matrices, &[last_job(a, b, c, 0)]), &body);
    }
    let began = Instant::now();
    let ended = within(Duration::from_secs(40), || worker.log().contains("nothing came or went"));
    assert!(ended, "{}", worker.log());
    println!("ended after {:?}", began.elapsed());
    assert!(worker.rss_bytes_max() < (MEMORY_MIB + PROGRAM_MIB) << 20);
    drop(client);
    worker.is_well();
}

#[test]
fn pings_whose_answers_are_never_read() {
    for trust in crate::worker::BOTH {
        let worker = Worker::start(trust);
        let mut client = worker.session();
        let ping = frame(Kind::Ping.code(), client.session, &encode_number(5), &[]);
        let many = ping.repeat(4000);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) && client.try_send_raw(&many).is_ok() {
            assert!(worker.rss_bytes() < 64 << 20);
        }
        worker.says("it sends pings, but does not read the pongs");
        drop(client);
        worker.is_well();
    }
}

#[test]
fn pings_with_large_bodies_take_time_and_nothing_else() {
    let worker = Worker::start(Trust::Keyless);
    let mut client = worker.session();
    for nonce in 0..100 {
        client.send(Kind::Ping.code(), &encode_number(nonce), &vec![7; 1 << 20]);
        assert_eq!(client.receive_kind(Kind::Pong).head[..8], encode_number(nonce));
    }
    assert!(worker.rss_bytes_max() < 64 << 20);
    drop(client);
    worker.is_well();
}
