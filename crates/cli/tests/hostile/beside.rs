//! An honest product, while all kinds of strangers and bad members attack the same port.

use crate::client::{Client, client_config, seal};
use crate::crowds::{address, client_hello, connect_from};
use crate::support::{Random, data, store};
use crate::worker::{SOON, Trust, Worker, product, within};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(300);
/// Most attacks of each kind; the product ends before.
const ROUNDS: usize = 20_000;

const PRODUCT: [&str; 12] = [
    "multiply",
    "random:1500x1500:f64:1",
    "random:1500x1500:f64:2",
    "--kernel",
    "simd",
    "--tile",
    "300",
    "--panel",
    "100",
    "--threads",
    "1",
    "--json",
];

/// A thread that repeats one kind of attack until told to stop.
fn attack(kind: usize, worker: &Worker, over: &AtomicBool, made: &AtomicUsize) {
    let mut random = Random(kind as u64);
    let mut held = std::collections::VecDeque::new();
    let hello = client_hello();
    for round in 0..ROUNDS {
        if over.load(Ordering::Relaxed) {
            return;
        }
        made.fetch_add(1, Ordering::Relaxed);
        if kind == 3 {
            // With this many strangers, the door may close it before its proof is read.
            let Ok(mut member) = Client::try_connect(Trust::Keyed, worker.address) else { continue };
            member.send(3, &store(&[data(1, 9, 9, 1)], &[]), &random.bytes(648));
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        // Strangers from another address than the primary's.
        let Ok(mut stream) = connect_from(address(round % 4), worker.address, PATIENCE) else { continue };
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match kind {
            // As fast as possible.
            0 => {}
            // Part of a handshake, and then nothing more; the oldest connections are dropped.
            1 => {
                let end = random.below(hello.len() as u64) as usize;
                let _ = stream.write_all(&hello[..end]);
                held.push_back(stream);
                if held.len() > 100 {
                    held.pop_front();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            // A complete TLS handshake, and then no proof.
            _ => {
                if let Ok(mut sealed) = seal(stream, &client_config(true)) {
                    let _ = sealed.write_all(&random.bytes(500));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn a_product_is_the_same_under_attack() {
    let calm = product(Trust::Keyless, &PRODUCT, &[]);
    let worker = Worker::start(Trust::Keyed);
    let (over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    let digest = std::thread::scope(|scope| {
        for kind in 0..4 {
            let (worker, over, made) = (&worker, &over, &made);
            scope.spawn(move || attack(kind, worker, over, made));
        }
        assert!(within(SOON, || made.load(Ordering::Relaxed) > 50));
        let done = std::panic::catch_unwind(|| product(Trust::Keyed, &PRODUCT, &[worker.address]));
        over.store(true, Ordering::Relaxed);
        done
    });
    println!("{} attacks beside the product", made.load(Ordering::Relaxed));
    assert_eq!(digest.unwrap(), calm);
    assert!(within(SOON, || worker.fds_more() == 0));
    worker.is_well();
}
