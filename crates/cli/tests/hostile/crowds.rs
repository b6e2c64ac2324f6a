//! Many strangers at once: some hold connections open, others connect as fast as they can.

use crate::client::{client_config, connection};
use crate::worker::{SOON, Trust, Worker, honest_digest, within};
use bramble_wire::limits::{STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Descriptors besides the strangers' connections: an honest session, and one connection that is being accepted or
/// closed.
const OTHER_FDS: usize = 8;

/// A connection from another address of this machine.
pub(crate) fn connect_from(from: Ipv4Addr, to: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        match tokio::time::timeout(patience, socket.connect(to)).await {
            Ok(stream) => stream?.into_std(),
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The `n`-th loopback address besides 127.0.0.1.
pub(crate) fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, 1 + (n % 250) as u8)
}

pub(crate) fn client_hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    connection(&client_config(true)).write_tls(&mut bytes).unwrap();
    bytes
}

/// Whether the other end has closed.
fn is_gone(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    !matches!(stream.read(&mut [0; 2000]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn idle_connections_are_closed_after_five_seconds_and_block_no_other() {
    let worker = Worker::start(Trust::Keyed);
    let hello = client_hello();
    let mut crowd: Vec<TcpStream> = Vec::new();
    for n in 0..200 {
        let from = address(n / STRANGERS_PER_ADDRESS_MAX);
        crowd.push(connect_from(from, worker.address, SOON).unwrap());
    }
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| honest_digest(Trust::Keyed, &[worker.address]));
        let began = Instant::now();
        // Every second one sends a byte a second, the rest nothing.
        for second in 0..8 {
            for stream in crowd.iter_mut().step_by(2) {
                let _ = stream.write_all(&hello[second..=second]);
            }
            assert!(worker.fds_more() <= STRANGERS_MAX + OTHER_FDS, "{} descriptors", worker.fds_more());
            std::thread::sleep(Duration::from_secs(1));
        }
        let still = crowd.iter_mut().map(is_gone).filter(|gone| !gone).count();
        assert_eq!(still, 0, "strangers are still there after {:?}", began.elapsed());
        honest.join().unwrap();
    });
    worker.says("it did not prove its key in time");
    worker.is_well();
}

#[test]
fn a_flood_of_connections_takes_no_more_than_its_share() {
    const CONNECTIONS: usize = 10_000;
    const SECONDS: Duration = Duration::from_secs(12);
    let worker = Worker::start(Trust::Keyed);
    let (made, began) = (AtomicUsize::new(0), Instant::now());
    let hello = client_hello();
    let goes_on = || made.fetch_add(1, Ordering::Relaxed) < CONNECTIONS && began.elapsed() < SECONDS;
    let (mut fds, mut rss) = (0, 0);
    std::thread::scope(|scope| {
        let floods: Vec<_> = (0..3)
            .map(|thread| {
                let (hello, goes_on, address) = (&hello, &goes_on, worker.address);
                scope.spawn(move || {
                    let mut held = VecDeque::new();
                    while goes_on() {
                        // A third are held open and send something, as many as the machine allows.
                        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300))
                        else {
                            continue;
                        };
                        if thread == 0 {
                            let _ = stream.write_all(hello);
                            held.push_back(stream);
                            if held.len() > 100 {
                                held.pop_front();
                            }
                        }
                    }
                })
            })
            .collect();
        while floods.iter().any(|flood| !flood.is_finished()) {
            (fds, rss) = (fds.max(worker.fds_more()), rss.max(worker.rss_bytes()));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    println!("{} connections tried, {fds} descriptors, {} MiB", made.load(Ordering::Relaxed), rss >> 20);
    assert!(fds <= STRANGERS_MAX + OTHER_FDS, "{fds} descriptors");
    assert!(rss < 64 << 20, "{} MiB", rss >> 20);
    // Waiting connections are accepted, and found to be closed.
    assert!(within(SOON, || worker.fds_more() == 0));
    assert!(worker.log().lines().count() < 130, "a flood fills the log:\n{}", worker.log());
    worker.is_well();
}
