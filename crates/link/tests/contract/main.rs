//! The contract of every link, tested on each of them: order, whole frames, bodies from strided memory into strided
//! memory, empty frames, backpressure, a closed peer, one closed direction, an end in the middle of a frame.
//!
//! Every case has a deadline on every link: a failure names the case, and the link on which it failed or hung.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)] // A test may panic, and says what it does.

mod mpi;

use bramble_link::*;
use bytes::Bytes;
use std::cell::Cell;
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Lands bodies in lines with gaps between them.
struct Strided {
    memory: Vec<u8>,
    line: usize,
    pitch: usize,
    lines: usize,
}

impl Landing for Strided {
    fn len(&self) -> usize {
        self.line * self.lines
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        let (line, lines) = (self.line, self.lines);
        for (i, run) in self.memory.chunks_mut(self.pitch).enumerate().take(lines) {
            let skip = offset.saturating_sub(i * line).min(line);
            if skip < line && out.len() < max {
                out.push(IoSliceMut::new(&mut run[skip..line]));
            }
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

struct PlaceStrided;

impl BodyPlacer for PlaceStrided {
    fn place(&mut self, _kind: u8, _head: &[u8], bytes: usize) -> Result<Box<dyn Landing>, String> {
        let line = if bytes.is_multiple_of(7) { 7 } else { bytes };
        let lines = bytes / line;
        Ok(Box::new(Strided { memory: vec![0; lines * (line + 3)], line, pitch: line + 3, lines }))
    }
}

fn body_of(arrived: ArrivedBody) -> Vec<u8> {
    match arrived {
        ArrivedBody::Empty => Vec::new(),
        ArrivedBody::Shared(region) => (0..region.runs).flat_map(|i| region.run(i).to_vec()).collect(),
        ArrivedBody::Landed(landing) | ArrivedBody::Leased(landing) => {
            let mut landing = landing;
            let (mut out, total) = (Vec::new(), landing.len());
            while out.len() < total {
                let mut runs = Vec::new();
                landing.runs_mut(out.len(), usize::MAX, &mut runs);
                let some: Vec<u8> = runs.iter().flat_map(|r| r.to_vec()).collect();
                out.extend(some);
            }
            out
        }
    }
}

async fn tcp_pair() -> (Link, Link) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    let (mut a, mut b) = (tcp_link(out.unwrap()).unwrap(), tcp_link(accepted.unwrap().0).unwrap());
    for end in [&mut a, &mut b] {
        end.receiver.set_limits(FrameLimits::SESSION);
        end.receiver.set_session(7);
        end.sender.set_session(7);
    }
    (a, b)
}

/// The same over TLS.
async fn sealed_pair() -> (Link, Link) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    let security = || Security::sealed(ClusterKey::from_bytes([3; 20]), 2, "1").unwrap();
    let (one, other) = (security(), security());
    let (a, b) = tokio::join!(one.dial(out.unwrap()), other.accept(accepted.unwrap().0));
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    for end in [&mut a, &mut b] {
        end.receiver.set_limits(FrameLimits::SESSION);
        end.receiver.set_session(7);
        end.sender.set_session(7);
    }
    (a, b)
}

fn opened((left, right): (Endpoint, Endpoint)) -> (Link, Link) {
    let (mut a, mut b) = (left.open("right").unwrap(), right.open("left").unwrap());
    for end in [&mut a, &mut b] {
        end.receiver.set_limits(FrameLimits::SESSION);
        end.receiver.set_session(7);
        end.sender.set_session(7);
    }
    (a, b)
}

thread_local! {
    /// Whether bodies are in files, so that a link may pass them by reference.
    static IN_FILES: Cell<bool> = const { Cell::new(false) };
}

/// A file without a name, with these bytes.
fn in_a_file(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

/// A body of these bytes.
fn region(bytes: Vec<u8>) -> SharedRegion {
    let file = IN_FILES.get().then(|| in_a_file(&bytes));
    let region = SharedRegion::whole(Arc::new(bytes));
    match file {
        Some(file) => region.of_file(file),
        None => region,
    }
}

/// Runs of a body: first byte, bytes of each, bytes from one to the next, number.
fn part(all: &SharedRegion, [start, run_bytes, pitch_bytes, runs]: [usize; 4]) -> SharedRegion {
    let part = SharedRegion::new(all.owner.clone(), start, run_bytes, pitch_bytes, runs);
    match &all.file {
        Some(file) => part.of_file(file.clone()),
        None => part,
    }
}

/// Whether the link sends the bytes of bodies.
fn carries_bodies(link: &Link) -> bool {
    !(link.shares_memory || link.refers_to_files && IN_FILES.get())
}

/// Longest duration of one case on one link, also on a busy machine.
pub(crate) const CASE_MAX: Duration = Duration::from_secs(100);

/// Runs a check over every link, and again with bodies in files over the links that pass these by reference.
fn each<F: AsyncFn(Link, Link) + Send + 'static>(check: F) {
    let case = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    if std::env::var_os(mpi::ONLY).is_some() {
        return mpi::each(case, check);
    }
    within(CASE_MAX, case, move |begins| on_each(check, begins));
}

/// Runs links of a case on a thread of its own, which may hang: it says which link begins.
fn within(most: Duration, case: &str, links: impl FnOnce(&dyn Fn(&'static str)) + Send + 'static) {
    let (begins, begun) = mpsc::channel();
    let running = std::thread::spawn(move || links(&|link| begins.send(link).unwrap()));
    let mut link = "no link yet";
    loop {
        match begun.recv_timeout(most) {
            Ok(next) => link = next,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{case} on {link}: no end within {most:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = running.join() {
        eprintln!("{case} on {link}: failed");
        std::panic::resume_unwind(panic);
    }
}

fn on_each<F: AsyncFn(Link, Link)>(check: F, begins: &dyn Fn(&'static str)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let on = async |name, pair: Pin<Box<dyn Future<Output = (Link, Link)>>>| {
            begins(name);
            let (a, b) = pair.await;
            check(a, b).await;
        };
        let local = |kind| Box::pin(async move { opened(local_pair(kind).unwrap()) });
        on("thread", Box::pin(async { thread_pair("left", "right") })).await;
        on("tcp", Box::pin(tcp_pair())).await;
        on("tcp with TLS", Box::pin(sealed_pair())).await;
        on("pipe", local(LocalKind::Pipe)).await;
        on("shm", local(LocalKind::Shm)).await;
        IN_FILES.set(true);
        on("pipe, bodies in files", local(LocalKind::Pipe)).await;
        on("shm, bodies in files", local(LocalKind::Shm)).await;
    });
}

#[test]
fn a_case_that_hangs_or_fails_is_named_with_its_link() {
    let hangs = std::panic::catch_unwind(|| {
        within(Duration::from_secs(1), "the case", |begins| {
            begins("a broken link");
            std::thread::park();
        });
    });
    let text = *hangs.unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("the case on a broken link: no end"), "{text}");
    let fails = std::panic::catch_unwind(|| within(CASE_MAX, "the case", |_| panic!("as it should")));
    assert!(fails.is_err());
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

#[test]
fn frames_arrive_whole_and_in_order() {
    each(async |mut a, mut b| {
        let sizes = [0, 1, 7, 4096, 7 * 1000, 65_537, CHUNK_BYTES_MAX, 0, 3];
        let send = async {
            for (i, size) in sizes.iter().enumerate() {
                let body = match size {
                    0 => Body::Empty,
                    _ => Body::Shared(region(pattern(*size, i))),
                };
                a.sender.send(Frame::new(i as u8, vec![i as u8; i * 100], body)).await.unwrap();
            }
        };
        let receive = async {
            for (i, size) in sizes.iter().enumerate() {
                let frame = b.receiver.receive(&mut PlaceStrided).await.unwrap();
                assert_eq!((frame.kind, frame.head), (i as u8, Bytes::from(vec![i as u8; i * 100])));
                assert_eq!(body_of(frame.body), if *size == 0 { vec![] } else { pattern(*size, i) });
            }
        };
        tokio::join!(send, receive);
        assert_eq!(a.sender.bytes_sent(), b.receiver.bytes_received());
    });
}

#[test]
fn strided_regions_arrive_as_their_runs() {
    each(async |mut a, mut b| {
        let all = region(pattern(100_000, 1));
        let region = part(&all, [13, 17, 40, 2000]);
        let frame = Frame::new(3, Bytes::new(), Body::Shared(region.clone()));
        let again = Frame::new(3, vec![9; 5], Body::Shared(region.clone()));
        let sent = async {
            a.sender.send(frame).await.unwrap();
            a.sender.send(again).await.unwrap();
        };
        let received = async {
            for _ in 0..2 {
                let got = b.receiver.receive(&mut PlaceStrided).await.unwrap();
                let want: Vec<u8> = (0..region.runs).flat_map(|i| region.run(i).to_vec()).collect();
                assert_eq!(body_of(got.body), want);
            }
        };
        tokio::join!(sent, received);
    });
}

#[test]
fn a_sender_that_is_ahead_waits() {
    each(async |mut a, mut b| {
        let sent = Rc::new(Cell::new(0));
        let counter = sent.clone();
        let body = region(pattern(CHUNK_BYTES_MAX, 2));
        // Frames whose body is passed by reference are small.
        let all = if carries_bodies(&a) || a.shares_memory { 400 } else { 40_000 };
        let sender = tokio::task::spawn_local(async move {
            for _ in 0..all {
                let frame = Frame::new(1, Bytes::new(), Body::Shared(body.clone()));
                a.sender.send(frame).await.unwrap();
                counter.set(counter.get() + 1);
            }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(sent.get() < all, "no frame was received, yet {} were accepted", sent.get());
        for _ in 0..all {
            b.receiver.receive(&mut PlaceStrided).await.unwrap();
        }
        sender.await.unwrap();
    });
}

#[test]
fn send_progress_counts_what_the_peer_has_taken() {
    each(async |mut a, mut b| {
        let (progress, shares_memory, carries) =
            (a.sender.send_progress(), a.shares_memory, carries_bodies(&a));
        let settled = async || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            progress().acknowledged
        };
        for _ in 0..3 {
            a.sender.send(Frame::new(1, vec![1; 100], Body::Empty)).await.unwrap();
            b.receiver.receive(&mut NoBodies).await.unwrap();
        }
        assert_eq!(settled().await, 0, "frames without a body do not count");
        let sender = tokio::task::spawn_local(async move {
            for i in 0..40 {
                let body = region(pattern(CHUNK_BYTES_MAX, i));
                a.sender.send(Frame::new(2, Bytes::new(), Body::Shared(body))).await.unwrap();
            }
            a
        });
        // No reader: the systems of both ends buffer some bytes, and then the transfer stalls.
        let mut before = settled().await;
        let stands = async {
            while std::mem::replace(&mut before, settled().await) != before {}
            before
        };
        let stood = tokio::time::timeout(Duration::from_secs(20), stands).await.unwrap();
        assert!(stood < 40 * CHUNK_BYTES_MAX as u64);
        assert!(!carries || progress().buffered > 0, "this system buffers some bytes, too");
        for _ in 0..40 {
            b.receiver.receive(&mut PlaceStrided).await.unwrap();
        }
        let a = sender.await.unwrap();
        let all = settled().await;
        if shares_memory {
            assert_eq!((stood, all), (0, 0), "nothing leaves where memory is shared");
        } else if !carries {
            assert!(all > 0 && all < 40 * 1024, "{all} bytes were sent for bodies passed by reference");
        } else {
            assert_eq!(progress().buffered, 0);
            // Bytes in a pipe or a ring do not count as acknowledged.
            assert!(
                (stood > 0 || a.addresses.is_none()) && all >= 40 * CHUNK_BYTES_MAX as u64,
                "{stood}, then {all}"
            );
        }
        // Asking keeps nothing open.
        drop(a);
        assert_eq!(progress(), SendProgress::default());
        assert!(b.receiver.receive(&mut NoBodies).await.is_err());
    });
}

#[test]
fn a_closed_peer_is_an_error_not_a_wait() {
    each(async |mut a, b| {
        drop(b);
        let got = a.receiver.receive(&mut NoBodies).await;
        assert!(matches!(got, Err(LinkError::Closed | LinkError::Broken(_))), "{got:?}");
        let mut failed = false;
        for _ in 0..10 {
            let frame = Frame::new(1, Bytes::new(), Body::Empty);
            failed |= a.sender.send(frame).await.is_err();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(failed);
    });
}

#[test]
fn a_half_closed_link_still_delivers_what_was_sent() {
    each(async |mut a, mut b| {
        a.sender.send(Frame::new(9, vec![1, 2], Body::Empty)).await.unwrap();
        a.sender.close().await.unwrap();
        assert_eq!(b.receiver.receive(&mut NoBodies).await.unwrap().kind, 9);
        assert!(matches!(b.receiver.receive(&mut NoBodies).await, Err(LinkError::Closed)));
        b.sender.send(Frame::new(4, vec![], Body::Empty)).await.unwrap();
        assert_eq!(a.receiver.receive(&mut NoBodies).await.unwrap().kind, 4);
    });
}

#[test]
fn one_direction_goes_on_when_the_other_is_closed() {
    each(async |mut a, mut b| {
        a.sender.close().await.unwrap();
        assert!(matches!(b.receiver.receive(&mut NoBodies).await, Err(LinkError::Closed)));
        let sending = async {
            for i in 0..5 {
                let body = region(pattern(CHUNK_BYTES_MAX, i));
                b.sender.send(Frame::new(2, Bytes::new(), Body::Shared(body))).await.unwrap();
            }
            b.sender.close().await.unwrap();
        };
        let receiving = async {
            for i in 0..5 {
                let got = a.receiver.receive(&mut PlaceStrided).await.unwrap();
                assert_eq!(body_of(got.body), pattern(CHUNK_BYTES_MAX, i));
            }
            assert!(matches!(a.receiver.receive(&mut NoBodies).await, Err(LinkError::Closed)));
        };
        tokio::join!(sending, receiving);
    });
}

#[test]
fn what_was_whole_arrives_and_a_frame_that_is_cut_off_is_an_error() {
    each(async |mut a, mut b| {
        let carries = carries_bodies(&a);
        a.sender.send(Frame::new(1, vec![3; 30], Body::Empty)).await.unwrap();
        let body = region(pattern(CHUNK_BYTES_MAX, 1));
        let dying = async {
            // More than any link buffers, so one frame is interrupted.
            for _ in 0..64 {
                let body = Body::Shared(body.clone());
                a.sender.send(Frame::new(2, vec![4], body)).await.unwrap();
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(100), dying).await.is_err() || !carries);
        drop(a);
        assert_eq!(b.receiver.receive(&mut NoBodies).await.unwrap().head.len(), 30);
        let last = loop {
            match b.receiver.receive(&mut PlaceStrided).await {
                Ok(frame) => assert_eq!(body_of(frame.body), body.run(0)),
                Err(e) => break e,
            }
        };
        assert!(
            if carries { matches!(last, LinkError::Broken(_)) } else { matches!(last, LinkError::Closed) },
            "{last:?}"
        );
    });
}

#[test]
fn a_body_in_a_file_is_read_where_it_lies_and_may_be_longer_than_a_frame() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut a, mut b) = opened(local_pair(LocalKind::Shm).unwrap());
        IN_FILES.set(true);
        let long = region(pattern(3 * CHUNK_BYTES_MAX + 5, 4));
        IN_FILES.set(false);
        let frame = |body: &SharedRegion| Frame::new(2, vec![8; 3], Body::Shared(body.clone()));
        let strided = part(&long, [9, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 2]);
        for body in [&long, &strided] {
            a.sender.send(frame(body)).await.unwrap();
            let ArrivedBody::Shared(got) = b.receiver.receive(&mut NoBodies).await.unwrap().body else {
                panic!("it was copied")
            };
            assert_eq!(
                (got.runs, got.run_bytes, got.pitch_bytes),
                (body.runs, body.run_bytes, body.pitch_bytes)
            );
            assert!((0..body.runs).all(|i| got.run(i) == body.run(i)));
        }
        // The bytes of a body that lies in no file are sent.
        a.sender.send(frame(&SharedRegion::whole(Arc::new(vec![6u8; 10])))).await.unwrap();
        let got = b.receiver.receive(&mut PlaceStrided).await.unwrap();
        assert!(matches!(got.body, ArrivedBody::Landed(_)) && body_of(got.body) == [6; 10]);
        assert_eq!(a.sender.bytes_sent(), b.receiver.bytes_received());
        assert!(a.sender.bytes_sent() > 5 * CHUNK_BYTES_MAX as u64, "bodies passed by reference count");
    });
}

#[test]
fn frames_without_their_bodies_are_refused_where_bodies_go_and_before_a_session() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let file = SharedRegion::whole(Arc::new(pattern(50, 3))).of_file(in_a_file(&pattern(50, 3)));
    runtime.block_on(async {
        let frame = Frame::new(5, vec![1, 2, 3], Body::Shared(file.clone()));
        let mut bytes = frame.header_with(0, &[0; 40]).encode().to_vec();
        bytes.extend([1, 2, 3]);
        bytes.extend([0; 40]);
        let got = raw(bytes, FrameLimits::SESSION).await;
        assert!(matches!(got, Err(LinkError::Foreign(_))), "{got:?}");
        let (a, b) = local_pair(LocalKind::Shm).unwrap();
        let (mut a, mut b) = (a.open("b").unwrap(), b.open("a").unwrap());
        a.sender.send(frame).await.unwrap();
        let got = b.receiver.receive(&mut NoBodies).await;
        assert!(matches!(got, Err(LinkError::Foreign(_))), "a stranger: {got:?}");
    });
}

/// Raw bytes against the receiving end of a TCP link.
async fn raw(bytes: Vec<u8>, limits: FrameLimits) -> Result<Arrived, LinkError> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    let mut link = tcp_link(accepted.unwrap().0).unwrap();
    link.receiver.set_limits(limits);
    let mut stream = out.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
    drop(stream);
    link.receiver.receive(&mut PlaceStrided).await
}

#[test]
fn damaged_foreign_truncated_and_oversized_bytes_are_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let frame = Frame::new(5, vec![1, 2, 3], Body::Shared(SharedRegion::whole(Arc::new(pattern(50, 3)))));
        let mut good = frame.header(0).encode().to_vec();
        good.extend([1, 2, 3]);
        good.extend(pattern(50, 3));
        assert!(raw(good.clone(), FrameLimits::SESSION).await.is_ok());
        for byte in [4, 6, 13, 17, 30] {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            let got = raw(bad, FrameLimits::SESSION).await;
            assert!(matches!(got, Err(LinkError::Damaged { .. } | LinkError::Broken(_))), "{byte}: {got:?}");
        }
        let got = raw(good[..40].to_vec(), FrameLimits::SESSION).await;
        assert!(matches!(got, Err(LinkError::Broken(_))), "{got:?}");
        let got = raw(good.clone(), FrameLimits::STRANGER).await;
        assert!(matches!(got, Err(LinkError::Foreign(_))), "{got:?}");
        let got = raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), FrameLimits::SESSION).await;
        assert!(matches!(got, Err(LinkError::Foreign(_))), "{got:?}");
    });
}
