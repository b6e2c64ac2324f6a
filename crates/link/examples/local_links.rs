//! Measures throughput and latency of the links within one machine, beside the limits of the machine itself.
//!
//! `cargo run --release -p bramble-link --example local_links [-- [MIB] [ROUNDS]]`
//!
//! Two threads, each with an event loop, have one link between them, like two processes; `thread`, whose frames are
//! references, has both ends on one thread. Frames of 1 MiB go one way, from memory larger than any cache into
//! memory that fits into one; frames with 8 bytes of head go to and fro, and half of a round trip counts.
//! Baselines: a copy of the same memory by one thread; the same by two dedicated threads, one copying into a ring
//! in memory and one out of it, about the upper bound of a link that copies twice; a writer and a reader of a pipe
//! that block; two threads that wake each other in turn by a futex (`unpark`) or by an eventfd. All of them
//! alternate; figures are medians, and so are the ratios of each round. GB are 10⁹ bytes.
#![allow(clippy::print_stdout)] // A program for people.

mod common;

use std::any::Any;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bramble_link::{
    ArrivedBody, Body, BodyOwner, BodyPlacer, CHUNK_BYTES_MAX, Endpoint, Frame, FrameLimits, Landing, Link,
    LinkError, LocalKind, NoBodies, SharedRegion, local_pair, tcp_connect, tcp_link, thread_pair,
};
use common::noise;

/// Larger than any cache.
const SOURCE_FRAMES: usize = 64;
/// Round trips per measurement.
const TRIPS: usize = 5000;
/// The measured links.
const LINKS: [&str; 4] = ["tcp", "pipe", "shm", "thread"];
/// The baselines for throughput.
const BARE: [&str; 3] = ["copy", "two copies", "pipe, plain"];

fn main() -> Result<(), LinkError> {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let (frames, rounds) = (numbers.next().unwrap_or(512).max(1), numbers.next().unwrap_or(7).max(1));
    let source: BodyOwner = Arc::new(noise(SOURCE_FRAMES * CHUNK_BYTES_MAX));
    let gb = (frames * CHUNK_BYTES_MAX) as f64 / 1e9;
    let (mut rates, mut trips) = (vec![Vec::new(); BARE.len() + LINKS.len()], vec![Vec::new(); 6]);
    for round in 0..=rounds {
        let mut rate =
            vec![copied(frames, &source), copied_twice(frames, &source), plain_pipe(frames, &source)?];
        let mut trip = vec![by_futex(), by_eventfd()?];
        for name in LINKS {
            rate.push(between(name, Task::Carry(frames), &source)?);
            trip.push(between(name, Task::Trips, &source)?);
        }
        // The first round warms up.
        if round > 0 {
            rates.iter_mut().zip(rate).for_each(|(all, s)| all.push(gb / s));
            trips.iter_mut().zip(trip).for_each(|(all, s)| all.push(s / TRIPS as f64 / 2.0 * 1e6));
        }
    }
    println!("{:<12} {:>6} {:>12} {:>12} {:>12}", "1 MiB", "GB/s", "of a copy", "of two", "of a pipe");
    for (name, of) in BARE.iter().chain(&LINKS).zip(&rates) {
        let [copy, two, pipe] = [0, 1, 2].map(|bare| ratio(of, &rates[bare]));
        println!("{name:<12} {:>6.2} {copy:>12.2} {two:>12.2} {pipe:>12.2}", median(of));
    }
    println!("\n{:<12} {:>6} {:>12} {:>12}", "8 bytes", "us", "of a futex", "of eventfd");
    for (name, of) in ["futex", "eventfd"].iter().chain(&LINKS).zip(&trips) {
        println!(
            "{name:<12} {:>6.2} {:>12.2} {:>12.2}",
            median(of),
            ratio(of, &trips[0]),
            ratio(of, &trips[1])
        );
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<f64>>())
}

/// The traffic over a link.
#[derive(Clone, Copy)]
enum Task {
    Carry(usize),
    Trips,
}

/// Seconds that a task takes over a new link, measured by the receiving (or asking) end.
fn between(name: &str, task: Task, source: &BodyOwner) -> Result<f64, LinkError> {
    let kind = match name {
        "pipe" => LocalKind::Pipe,
        "shm" => LocalKind::Shm,
        "tcp" => return over_tcp(task, source),
        _ => {
            let (mut here, mut there) = thread_pair("here", "there");
            return run(async {
                let (taken, served) = tokio::join!(asks(&mut here, task), serves(&mut there, task, source));
                served.and(taken)
            });
        }
    };
    let (here, there) = local_pair(kind)?;
    let other = source.clone();
    let thread = std::thread::spawn(move || run(async { serves(&mut open(there)?, task, &other).await }));
    let taken = run(async { asks(&mut open(here)?, task).await });
    thread.join().unwrap_or_else(|_| panic!("the other end panicked")).and(taken)
}

fn over_tcp(task: Task, source: &BodyOwner) -> Result<f64, LinkError> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let (address, other) = (listener.local_addr()?, source.clone());
    let thread = std::thread::spawn(move || {
        run(async {
            let stream = tcp_connect(address, Duration::from_secs(5)).await?;
            serves(&mut opened(tcp_link(stream)?), task, &other).await
        })
    });
    let taken = run(async {
        let (stream, _) = tokio::net::TcpListener::from_std(listener)?.accept().await?;
        asks(&mut opened(tcp_link(stream)?), task).await
    });
    thread.join().unwrap_or_else(|_| panic!("the other end panicked")).and(taken)
}

fn open(end: Endpoint) -> Result<Link, LinkError> {
    end.open("the other").map(opened)
}

fn opened(mut link: Link) -> Link {
    link.receiver.set_limits(FrameLimits::SESSION);
    link
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap_or_else(|e| panic!("no event loop: {e}")).block_on(future)
}

/// The end that receives bodies, or asks and waits for answers.
async fn asks(link: &mut Link, task: Task) -> Result<f64, LinkError> {
    let mut place = OnePlace(vec![0; CHUNK_BYTES_MAX]);
    // The first frame shows that both ends are ready.
    link.receiver.receive(&mut NoBodies).await?;
    let began = Instant::now();
    match task {
        Task::Carry(frames) => {
            for _ in 0..frames {
                if let ArrivedBody::Landed(landing) = link.receiver.receive(&mut place).await?.body {
                    let landing: Box<dyn Any> = landing.into_any();
                    place.0 = *landing.downcast::<Vec<u8>>().unwrap_or_else(|_| panic!("another landing"));
                }
            }
        }
        Task::Trips => {
            for _ in 0..TRIPS {
                link.sender.send(Frame::new(1, vec![0; 8], Body::Empty)).await?;
                link.receiver.receive(&mut NoBodies).await?;
            }
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// The end that sends bodies, or answers.
async fn serves(link: &mut Link, task: Task, source: &BodyOwner) -> Result<(), LinkError> {
    link.sender.send(Frame::new(1, Vec::new(), Body::Empty)).await?;
    match task {
        Task::Carry(frames) => {
            for frame in 0..frames {
                let start = frame % SOURCE_FRAMES * CHUNK_BYTES_MAX;
                let region = SharedRegion::new(source.clone(), start, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1);
                link.sender.send(Frame::new(1, vec![0; 32], Body::Shared(region))).await?;
            }
        }
        Task::Trips => {
            for _ in 0..TRIPS {
                link.receiver.receive(&mut NoBodies).await?;
                link.sender.send(Frame::new(1, vec![0; 8], Body::Empty)).await?;
            }
        }
    }
    link.sender.close().await
}

/// One buffer that receives every body.
struct OnePlace(Vec<u8>);

impl BodyPlacer for OnePlace {
    fn place(&mut self, _kind: u8, _head: &[u8], _body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Ok(Box::new(std::mem::take(&mut self.0)))
    }
}

/// One thread copies the same bytes.
fn copied(frames: usize, source: &BodyOwner) -> f64 {
    let (bytes, mut to) = ((**source).as_ref(), vec![0; CHUNK_BYTES_MAX]);
    let began = Instant::now();
    for frame in 0..frames {
        let start = frame % SOURCE_FRAMES * CHUNK_BYTES_MAX;
        std::hint::black_box(&mut to[..]).copy_from_slice(&bytes[start..start + CHUNK_BYTES_MAX]);
    }
    began.elapsed().as_secs_f64()
}

/// One thread copies the same bytes into a ring, and another out of it, each as soon as it can.
fn copied_twice(frames: usize, source: &BodyOwner) -> f64 {
    const PIECE: usize = 64 << 10;
    let bytes = (**source).as_ref();
    let ring: Vec<Mutex<Vec<u8>>> =
        (0..CHUNK_BYTES_MAX / PIECE).map(|_| Mutex::new(vec![0; PIECE])).collect();
    // The counters decide which thread uses a piece, so its lock is always free.
    let piece = |count: usize| ring[count % ring.len()].lock().unwrap_or_else(PoisonError::into_inner);
    let (written, taken, pieces) =
        (AtomicUsize::new(0), AtomicUsize::new(0), frames * CHUNK_BYTES_MAX / PIECE);
    let wait_until = |count: &AtomicUsize, least: usize| {
        while count.load(Ordering::Acquire) < least {
            std::hint::spin_loop();
        }
    };
    let mut to = vec![0; CHUNK_BYTES_MAX];
    let began = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for count in 0..pieces {
                wait_until(&taken, (count + 1).saturating_sub(ring.len()));
                let start = count * PIECE % bytes.len();
                piece(count).copy_from_slice(&bytes[start..start + PIECE]);
                written.store(count + 1, Ordering::Release);
            }
        });
        for count in 0..pieces {
            wait_until(&written, count + 1);
            let start = count * PIECE % to.len();
            std::hint::black_box(&mut to[start..start + PIECE]).copy_from_slice(&piece(count));
            taken.store(count + 1, Ordering::Release);
        }
    });
    began.elapsed().as_secs_f64()
}

/// A writer and a reader that block in the system.
fn plain_pipe(frames: usize, source: &BodyOwner) -> Result<f64, LinkError> {
    let (read, write) = rustix::pipe::pipe().map_err(std::io::Error::from)?;
    let _ = rustix::pipe::fcntl_setpipe_size(&write, CHUNK_BYTES_MAX);
    let (mut read, mut write, source) = (File::from(read), File::from(write), source.clone());
    let began = Instant::now();
    let writer = std::thread::spawn(move || {
        for frame in 0..frames {
            let start = frame % SOURCE_FRAMES * CHUNK_BYTES_MAX;
            write.write_all(&(*source).as_ref()[start..start + CHUNK_BYTES_MAX])?;
        }
        Ok::<(), std::io::Error>(())
    });
    let mut to = vec![0; CHUNK_BYTES_MAX];
    for _ in 0..frames {
        read.read_exact(&mut to)?;
    }
    let taken = began.elapsed().as_secs_f64();
    writer.join().unwrap_or_else(|_| panic!("the writer panicked"))?;
    Ok(taken)
}

/// Two threads that sleep and wake each other in turn.
fn by_futex() -> f64 {
    let (turn, asker) = (Arc::new(AtomicUsize::new(0)), std::thread::current());
    let shared = turn.clone();
    let wait = |turn: &AtomicUsize, until: usize| {
        while turn.load(Ordering::Acquire) != until {
            std::thread::park();
        }
    };
    let other = std::thread::spawn(move || {
        for trip in 0..TRIPS {
            wait(&shared, 2 * trip + 1);
            shared.store(2 * trip + 2, Ordering::Release);
            asker.unpark();
        }
    });
    let began = Instant::now();
    for trip in 0..TRIPS {
        turn.store(2 * trip + 1, Ordering::Release);
        other.thread().unpark();
        wait(&turn, 2 * trip + 2);
    }
    let taken = began.elapsed().as_secs_f64();
    other.join().unwrap_or_else(|_| panic!("the other thread panicked"));
    taken
}

/// The same, with an eventfd each.
fn by_eventfd() -> Result<f64, LinkError> {
    use rustix::event::{EventfdFlags, eventfd};
    let event = || eventfd(0, EventfdFlags::CLOEXEC).map(File::from).map_err(std::io::Error::from);
    let (mut to, mut from) = (event()?, event()?);
    let (mut heard, mut answer) = (to.try_clone()?, from.try_clone()?);
    let (one, mut word) = (1u64.to_ne_bytes(), [0; 8]);
    let other = std::thread::spawn(move || {
        let mut word = [0; 8];
        for _ in 0..TRIPS {
            heard.read_exact(&mut word)?;
            answer.write_all(&one)?;
        }
        Ok::<(), std::io::Error>(())
    });
    let began = Instant::now();
    for _ in 0..TRIPS {
        to.write_all(&one)?;
        from.read_exact(&mut word)?;
    }
    let taken = began.elapsed().as_secs_f64();
    other.join().unwrap_or_else(|_| panic!("the other thread panicked"))?;
    Ok(taken)
}
