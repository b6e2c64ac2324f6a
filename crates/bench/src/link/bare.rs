//! The bare counterpart of each link: the same messages by plain system calls, without Bramble, for comparison.
//!
//! Place in the flow: `measure` runs the bare counterpart of a link and function in turns with the link.
//!
//! Invariants: messages, windows and acknowledgements are those of `pairs`, without frames, checksums and event
//! loops; the other side of a stream is a child process, as for the link. It ends when its stream closes, and is
//! killed if it does not.
//!
//! Deliberately absent: functions of more than two ends, which the system does not offer.

use super::function::Function;
use super::mesh::{LinkName, connected, hidden, reap};
use super::pairs::LinkRun;
use bramble_cluster::ranks::Ranks;
use bramble_link::{Exchange, LinkError, PlainMessages, RankOrder};
use bramble_report::exit::{Exit, Failure};
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time limit of a run.
const RUN_DEADLINE: Duration = Duration::from_secs(60);
/// A child that has not ended after this time is killed.
const END_DEADLINE: Duration = Duration::from_millis(1500);
/// Bytes of an order: function, repetitions, message size.
const ORDER_BYTES: usize = 13;

/// A bare counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    /// Two threads that send pointers through the standard library's channels.
    Channel,
    /// One thread that copies from memory to memory.
    Memcpy,
    /// Two processes that read from and write to the sockets of a TCP connection and wait there.
    Tcp,
    /// Two processes that read and write two pipes.
    Pipe,
    /// Two processes that call MPI's functions and nothing else: `MPI_Isend`, `MPI_Irecv`, `MPI_Wait`.
    Mpi,
}

impl Bare {
    /// The counterpart of a link and function, if there is one.
    pub(crate) fn of(link: LinkName, function: Function) -> Option<Self> {
        match (link, function) {
            (LinkName::Thread, Function::Gap | Function::Latency) => Some(Self::Channel),
            (LinkName::Thread, Function::Bandwidth | Function::TwoWay) => Some(Self::Memcpy),
            (LinkName::Tcp, function) => function.is_of_pairs().then_some(Self::Tcp),
            (LinkName::Pipe, function) => function.is_of_pairs().then_some(Self::Pipe),
            (LinkName::Shm, Function::Bandwidth | Function::TwoWay) => Some(Self::Memcpy),
            (LinkName::Mpi, Function::Latency | Function::Bandwidth | Function::TwoWay) => Some(Self::Mpi),
            _ => None,
        }
    }

    /// The name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Channel => "std channel",
            Self::Memcpy => "memcpy",
            Self::Tcp => "std tcp",
            Self::Pipe => "std pipe",
            Self::Mpi => "MPI alone",
        }
    }
}

/// The bare counterparts in use, with their child processes.
#[derive(Default)]
pub(crate) struct Bares {
    streams: Vec<(Bare, Peer)>,
    ranks: Ranks,
}

/// The child process at the other side of a stream.
struct Peer {
    child: Child,
    /// `None` while a run uses it.
    stream: Option<Stream>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stream = None;
        reap(&mut self.child, Instant::now() + END_DEADLINE);
    }
}

impl Bares {
    /// No counterparts yet; `ranks` are the processes of an mpirun.
    pub(crate) fn beside(ranks: Ranks) -> Self {
        Self { streams: Vec::new(), ranks }
    }

    /// Starts the process that a counterpart needs.
    pub(crate) fn prepare(&mut self, bare: Bare) -> Result<(), Failure> {
        let is_stream = !matches!(bare, Bare::Channel | Bare::Memcpy | Bare::Mpi);
        if is_stream && !self.streams.iter().any(|(known, _)| *known == bare) {
            self.streams.push((bare, peer(bare).map_err(|e| failed(bare, &e))?));
        }
        Ok(())
    }

    /// Runs a counterpart; returns the time of one message. Blocking calls run on another thread, so the event loop
    /// continues.
    pub(crate) async fn run(&mut self, bare: Bare, run: LinkRun) -> Result<Duration, Failure> {
        if bare == Bare::Mpi {
            return mpi(&self.ranks, run).map_err(|e| failed(bare, &e));
        }
        let peer = self.streams.iter_mut().find(|(known, _)| *known == bare).map(|(_, peer)| peer);
        let stream = peer.map(|peer| (peer.stream.take(), peer));
        let (stream, peer) = stream.unzip();
        let mut stream = stream.flatten();
        let work = tokio::task::spawn_blocking(move || {
            let time = match (bare, &mut stream) {
                (Bare::Channel, _) => Ok(channel(run)),
                (Bare::Memcpy, _) => Ok(memcpy(run)),
                (_, Some(stream)) => lead(stream, run),
                (_, None) => Err(io::Error::other("its stream is gone")),
            };
            (stream, time)
        });
        let ended = tokio::time::timeout(RUN_DEADLINE, work).await;
        let Ok(Ok((stream, time))) = ended else {
            if let Some(peer) = peer {
                // Killing the child also ends the thread that waits for it.
                let _ = peer.child.kill();
            }
            return Err(failed(bare, &"no end within 60 s"));
        };
        if let Some(peer) = peer {
            peer.stream = stream;
        }
        time.map_err(|e| failed(bare, &e))
    }
}

fn failed(bare: Bare, e: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("bench link: bare counterpart {}: {e}", bare.name()))
}

/// Starts the child process of a stream.
fn peer(bare: Bare) -> io::Result<Peer> {
    let mut command = hidden("bare")?;
    if bare == Bare::Pipe {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let stream = ends.map(|(to, from)| Stream {
            reader: File::from(OwnedFd::from(from)),
            writer: File::from(OwnedFd::from(to)),
            buffers: Buffers::default(),
        });
        return Ok(Peer { child, stream });
    }
    let (here, there) = connected()?;
    here.set_nodelay(true)?;
    there.set_nodelay(true)?;
    let there = OwnedFd::from(there);
    command.stdin(Stdio::from(there.try_clone()?)).stdout(Stdio::from(there));
    let child = command.spawn()?;
    let (reader, writer) = (File::from(OwnedFd::from(here.try_clone()?)), File::from(OwnedFd::from(here)));
    Ok(Peer { child, stream: Some(Stream { reader, writer, buffers: Buffers::default() }) })
}

/// A plain byte stream in both directions.
struct Stream {
    reader: File,
    writer: File,
    buffers: Buffers,
}

/// The send and receive buffers.
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    sink: Vec<u8>,
}

impl Buffers {
    /// Sizes both buffers, and touches their memory.
    fn of(&mut self, bytes: usize) {
        if self.source.len() != bytes {
            (self.source, self.sink) = (vec![1; bytes], vec![2; bytes]);
        }
    }
}

/// The measuring side of a run.
fn lead(stream: &mut Stream, run: LinkRun) -> io::Result<Duration> {
    stream.writer.write_all(&encode(run))?;
    stream.buffers.of(run.bytes);
    stream.reader.read_exact(&mut [0; 1])?;
    act(stream, run, true)
}

/// The child process: follows orders until its standard input ends.
pub(crate) fn run_bare() -> Result<Exit, Failure> {
    let failed = |e: io::Error| Failure::failed(format!("bench link: bare child process: {e}"));
    let reader = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let writer = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
    let mut stream = Stream { reader, writer, buffers: Buffers::default() };
    loop {
        let mut order = [0; ORDER_BYTES];
        match stream.reader.read_exact(&mut order) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(Exit::Done),
            other => other.map_err(failed)?,
        }
        let Some(run) = decode(order) else {
            return Err(Failure::failed("bench link: only bench link starts this"));
        };
        stream.buffers.of(run.bytes);
        let done = stream.writer.write_all(&[0]).and_then(|()| act(&mut stream, run, false));
        if done.is_err() {
            // The measuring process has ended.
            return Ok(Exit::Failed);
        }
    }
}

/// One side of a run; returns the time of one message.
fn act(stream: &mut Stream, run: LinkRun, leads: bool) -> io::Result<Duration> {
    let Stream { reader, writer, buffers: Buffers { source, sink } } = stream;
    let window = run.function.window(run.bytes);
    let (began, mut held) = (Instant::now(), Duration::ZERO);
    match run.function {
        Function::TwoWay => {
            let messages = window * usize::try_from(run.repeats).unwrap_or(usize::MAX);
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| (0..messages).try_for_each(|_| writer.write_all(source)));
                let read = (0..messages).try_for_each(|_| reader.read_exact(sink));
                writing.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))).and(read)
            })?;
        }
        Function::Latency => {
            for _ in 0..run.repeats {
                if leads {
                    writer.write_all(source)?;
                    reader.read_exact(sink)?;
                } else {
                    reader.read_exact(sink)?;
                    writer.write_all(source)?;
                }
            }
        }
        _ => {
            for _ in 0..run.repeats {
                if leads {
                    let from = Instant::now();
                    (0..window).try_for_each(|_| writer.write_all(source))?;
                    held += from.elapsed();
                    reader.read_exact(&mut [0; 1])?;
                } else {
                    (0..window).try_for_each(|_| reader.read_exact(sink))?;
                    writer.write_all(&[0])?;
                }
            }
        }
    }
    Ok(of_a_message(run, began.elapsed(), held))
}

/// The time of one message, from the time of a whole run.
fn of_a_message(run: LinkRun, all: Duration, held: Duration) -> Duration {
    let all = if run.function == Function::Gap { held } else { all };
    let each_way = if matches!(run.function, Function::Latency | Function::TwoWay) { 2.0 } else { 1.0 };
    all.div_f64((each_way * f64::from(run.repeats) * run.function.window(run.bytes) as f64).max(1.0))
}

/// Messages between ranks 0 and 1. This blocks the event loop, and with it the links.
fn mpi(ranks: &Ranks, run: LinkRun) -> Result<Duration, LinkError> {
    let Some(world) = ranks.others() else { return Err(LinkError::Closed) };
    let exchange = match run.function {
        Function::Latency => Exchange::PingPong,
        Function::TwoWay => Exchange::BothWays,
        _ => Exchange::OneWay,
    };
    let window = run.function.window(run.bytes);
    let plain = PlainMessages { exchange, bytes: run.bytes, window, repeats: run.repeats };
    world.tell_one(1, RankOrder::Plain(plain))?;
    Ok(of_a_message(run, world.plain(1, plain, true)?, Duration::ZERO))
}

/// Two threads that send pointers to each other.
fn channel(run: LinkRun) -> Duration {
    let message = Arc::new(vec![1u8; run.bytes]);
    let window = run.function.window(run.bytes);
    let (to, from_here) = mpsc::channel::<Arc<Vec<u8>>>();
    let (back, from_there) = mpsc::channel();
    std::thread::scope(|scope| {
        let other = message.clone();
        scope.spawn(move || {
            // Ready.
            let _ = back.send(other.clone());
            let each = if run.function == Function::Latency { 1 } else { window };
            while from_here.iter().take(each).count() == each && back.send(other.clone()).is_ok() {}
        });
        let _ = from_there.recv();
        let (began, mut held) = (Instant::now(), Duration::ZERO);
        for _ in 0..run.repeats {
            let from = Instant::now();
            for _ in 0..window {
                let _ = to.send(message.clone());
            }
            held += from.elapsed();
            let _ = from_there.recv();
        }
        let time = of_a_message(run, began.elapsed(), held);
        drop(to);
        time
    })
}

/// Copies as many messages as a link would send.
fn memcpy(run: LinkRun) -> Duration {
    let mut buffers = Buffers::default();
    buffers.of(run.bytes);
    let copies = run.function.window(run.bytes) as f64 * f64::from(run.repeats);
    let began = Instant::now();
    for _ in 0..copies as u64 {
        black_box(&mut buffers.sink).copy_from_slice(black_box(&buffers.source));
    }
    began.elapsed().div_f64(copies.max(1.0))
}

fn encode(run: LinkRun) -> [u8; ORDER_BYTES] {
    let mut out = [run.function.code(); ORDER_BYTES];
    out[1..5].copy_from_slice(&run.repeats.to_le_bytes());
    out[5..].copy_from_slice(&u64::try_from(run.bytes).unwrap_or(u64::MAX).to_le_bytes());
    out
}

fn decode(order: [u8; ORDER_BYTES]) -> Option<LinkRun> {
    let [function, r0, r1, r2, r3, bytes @ ..] = order;
    let bytes = usize::try_from(u64::from_le_bytes(bytes)).ok().filter(|bytes| *bytes > 0)?;
    let repeats = u32::from_le_bytes([r0, r1, r2, r3]);
    Some(LinkRun { function: Function::from_code(function)?, bytes, ends: 2, repeats })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    fn run(function: Function, bytes: usize) -> LinkRun {
        LinkRun { function, bytes, ends: 2, repeats: 3 }
    }

    #[test]
    fn both_sides_of_a_stream_do_their_part() {
        let (one, other) = connected().unwrap();
        let stream = |tcp: std::net::TcpStream| Stream {
            reader: File::from(OwnedFd::from(tcp.try_clone().unwrap())),
            writer: File::from(OwnedFd::from(tcp)),
            buffers: Buffers::default(),
        };
        let (mut one, mut other) = (stream(one), stream(other));
        for function in [Function::Gap, Function::Latency, Function::Bandwidth, Function::TwoWay] {
            for bytes in [1, 100_000] {
                let run = run(function, bytes);
                let follower = std::thread::spawn(move || {
                    let mut order = [0; ORDER_BYTES];
                    other.reader.read_exact(&mut order).unwrap();
                    let run = decode(order).unwrap();
                    other.buffers.of(run.bytes);
                    other.writer.write_all(&[0]).unwrap();
                    act(&mut other, run, false).unwrap();
                    (other, run)
                });
                assert!(lead(&mut one, run).unwrap() > Duration::ZERO);
                let (back, told) = follower.join().unwrap();
                assert_eq!(told, run);
                other = back;
            }
        }
    }

    #[test]
    fn threads_and_memory_are_measured() {
        for function in [Function::Gap, Function::Latency] {
            assert!(channel(run(function, 1000)) > Duration::ZERO);
        }
        assert!(memcpy(run(Function::Bandwidth, 1 << 20)) > Duration::from_nanos(100));
    }
}
