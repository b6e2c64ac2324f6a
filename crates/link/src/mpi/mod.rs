//! Links between the processes that an `mpirun` has started.
//!
//! Place in the flow: a process that mpirun has started enters MPI before anything else; then it opens links to
//! other processes by their ranks. `table` has the library's functions, `engine` the messages in flight, `send` and
//! `receive` the ends of a link, `drive` the task that polls the library.
//!
//! Invariants: one `World` per process, with all calls on the thread of its one event loop. MPI has neither a close
//! of a connection nor backpressure, so both are messages here: a sender announces its end, a receiver announces
//! that it is gone, and no more than a window is in flight to a peer that does not receive. A world that has been
//! left has nothing in flight.
//!
//! Deliberately absent: MPI at build time; collective operations, except one at the start; continuing without a
//! rank that died: the launcher ends the whole job.

mod deadline;
mod drive;
mod engine;
mod held;
mod library;
mod plain;
mod receive;
mod send;
mod table;
mod timer;

use crate::{Link, LinkError, Proven};
use deadline::DeadlineWatch;
use engine::{Engine, Ticket};
use held::Payload;
pub use library::{Launch, MpiError};
pub use plain::{Exchange, PlainMessages};
use receive::MpiReceiver;
use send::MpiSender;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use table::{Message, MpiFault};

/// Longest first message of a frame, and so the longest frame that is a single message.
const FIRST_BYTES: usize = 8 << 10;
/// Receives for first messages that are posted at a time; the end of a sender is this many messages.
const FIRSTS_AHEAD: usize = 8;
/// A first message of this length announces that the sender ended in the middle of a frame. Shorter than any
/// header.
const CUT_OFF_BYTES: usize = 8;

/// Tag of the orders of rank 0 to all others.
const ORDER_TAG: i32 = 0;
/// Tags of the messages of `PlainMessages`, and of those without bytes.
const PLAIN_TAG: i32 = 1;
const PLAIN_SIGNAL_TAG: i32 = 2;
/// Tag of a rank's message to rank 0 that it leaves.
const LEAVE_TAG: i32 = 3;
/// First tag of the first link between two ranks.
const LINK_TAGS: i32 = 8;
/// Tags per link: first messages, following messages, and the end of a receiver, in each direction.
const TAGS_PER_LINK: i32 = 8;
/// The standard guarantees tags up to this one.
const TAG_MAX: i32 = 32_767;

/// All messages in flight have to be complete within this time.
const LEAVE_DEADLINE: Duration = Duration::from_secs(5);
/// Rank 0 has to learn within this time that all other ranks leave, too.
const ALL_LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// Every rank has announced that it leaves; `MPI_Finalize` of rank 0 has to return within this time.
const FINALIZE_DEADLINE: Duration = Duration::from_secs(20);
/// `MPI_Abort` asks the launcher (mpirun) to end the job; the launcher has to answer within this time.
const ABORT_DEADLINE: Duration = Duration::from_secs(5);
/// Rank 0 reports a missed deadline. The other ranks wait this much longer, and report it only if rank 0 did not.
const OTHERS_LATER: Duration = Duration::from_secs(2);

/// Bytes of the processor mask that ranks exchange.
const CPU_BYTES: usize = 128;
/// Length of the boot id, which identifies a machine.
const MACHINE_BYTES: usize = 36;

/// The tags of one direction of a link.
#[derive(Clone, Copy, Debug)]
struct Channel {
    peer: i32,
    first: i32,
    body: i32,
    gone: i32,
}

/// An order of rank 0 to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// Open a link with rank 0.
    Serve,
    /// Exchange messages with rank 0 by MPI's functions alone (`World::plain`).
    Plain(PlainMessages),
    /// Leave the job.
    Done,
}

impl RankOrder {
    fn encode(self) -> Vec<u8> {
        match self {
            Self::Serve => vec![1],
            Self::Plain(plain) => plain.encode().to_vec(),
            Self::Done => vec![2],
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [1] => Some(Self::Serve),
            [2] => Some(Self::Done),
            _ => PlainMessages::decode(bytes).map(Self::Plain),
        }
    }
}

/// The part of its machine that a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Ranks on this machine.
    pub ranks: usize,
    /// Ranks, including this one, that may run on a processor on which this one may.
    pub sharers: usize,
    /// This rank's index among the sharers, from 0.
    pub place: usize,
}

/// A call that waits for other processes and missed its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// `MPI_Init`, after this time: some process has not entered.
    Entering(Duration),
    /// `MPI_Finalize`, in a process that was to exit with that code: another process has not called it.
    Leaving(u8),
    /// `MPI_Abort` with that exit code: the launcher did not answer.
    Aborting(u8),
}

/// Handles a missed deadline, on a thread of its own. It has to end the process, since the calling thread cannot return.
pub type WhenLate = fn(Late);

/// All processes of the job.
pub struct World {
    engine: Rc<Engine>,
    rank: usize,
    size: usize,
    library: String,
    portion: Portion,
    /// Number of links that were opened with each rank.
    links: RefCell<Vec<i32>>,
    /// The pending receive of the next order.
    order: RefCell<Option<Ticket>>,
    when_late: WhenLate,
}

impl World {
    /// Opens a library and enters MPI; waits for all ranks, at most that long. Once per process, on the thread of
    /// its event loop.
    pub fn enter(launch: Launch, patience: Duration, when_late: WhenLate) -> Result<Self, MpiError> {
        let failed = |fault: MpiFault| MpiError::Failed(fault.0);
        let (abi, calls) = library::open(launch)?;
        let is_first = launch.rank.is_none_or(|rank| rank == 0);
        let more = if is_first { Duration::ZERO } else { OTHERS_LATER };
        let watch =
            DeadlineWatch::start(patience.saturating_add(more), move || when_late(Late::Entering(patience)));
        calls.init().map_err(failed)?;
        let (rank, size) = calls.rank_and_size().map_err(failed)?;
        let number =
            |n: i32| usize::try_from(n).map_err(|_| MpiError::Failed(format!("a rank or size of {n}")));
        let (rank, size) = (number(rank)?, number(size)?);
        let library = format!("{} by {abi}", calls.version());
        if let Some(told) = launch.size.filter(|told| *told != size) {
            return Err(MpiError::Mismatch { told, seen: size, library });
        }
        let own = here();
        let all = calls.gather_all(&own, size).map_err(failed)?;
        drop(watch);
        let portion = portion(&all, own.len(), rank);
        let engine = Rc::new(Engine::new(calls));
        let world = Self {
            engine,
            rank,
            size,
            library,
            portion,
            links: RefCell::new(vec![0; size]),
            order: RefCell::default(),
            when_late,
        };
        Ok(world)
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The library's name and interface.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The part of the machine that this process has.
    pub fn portion(&self) -> Portion {
        self.portion
    }

    /// The task that moves messages; without it nothing moves. `has_cores`: there are at least as many cores as
    /// processes and compute threads, so polling takes a core from no thread.
    pub fn drive(&self, has_cores: bool) -> io::Result<impl Future<Output = ()> + use<>> {
        drive::drive(Rc::downgrade(&self.engine), has_cores)
    }

    /// A link with another rank, which has to open its end, too: the first links that both open with each other
    /// form a pair, and so on. It starts with the limits for strangers.
    pub fn link(&self, rank: usize, peer: &str) -> Result<Link, LinkError> {
        self.end(rank, self.rank > rank, peer)
    }

    /// Polls the library; whether nothing is in flight: then the process may leave, or use its links with itself again.
    pub fn is_quiet(&self) -> bool {
        self.engine.poll();
        self.engine.is_quiet()
    }

    /// Both ends of a link of this process with itself.
    pub fn own_links(&self) -> Result<(Link, Link), LinkError> {
        let left = self.end(self.rank, false, "right")?;
        self.links.borrow_mut()[self.rank] -= 1;
        Ok((left, self.end(self.rank, true, "left")?))
    }

    fn end(&self, rank: usize, is_right: bool, name: &str) -> Result<Link, LinkError> {
        let mut links = self.links.borrow_mut();
        let number = links[rank];
        let base = LINK_TAGS + number * TAGS_PER_LINK;
        if base + TAGS_PER_LINK > TAG_MAX {
            return Err(LinkError::Refused(format!("more than {number} links with one rank")));
        }
        links[rank] += 1;
        let peer = i32::try_from(rank).unwrap_or(i32::MAX);
        let channel = |base| Channel { peer, first: base, body: base + 1, gone: base + 2 };
        let channels = [channel(base), channel(base + TAGS_PER_LINK / 2)];
        let [out, from] = if is_right { [channels[1], channels[0]] } else { channels };
        Ok(Link {
            sender: Box::new(MpiSender::new(self.engine.clone(), out).map_err(failed)?),
            receiver: Box::new(MpiReceiver::new(self.engine.clone(), from).map_err(failed)?),
            peer: name.to_owned(),
            addresses: None,
            name: "mpi",
            shares_memory: false,
            refers_to_files: false,
            cipher: None,
            // The user who starts processes on all machines vouches for them.
            proven: Proven::Member,
        })
    }

    /// Sends an order to every other rank.
    pub fn tell(&self, order: RankOrder) -> Result<(), LinkError> {
        (0..self.size).filter(|rank| *rank != self.rank).try_for_each(|rank| self.tell_one(rank, order))
    }

    /// Sends an order to one rank. It is delivered without being awaited.
    pub fn tell_one(&self, rank: usize, order: RankOrder) -> Result<(), LinkError> {
        let peer = i32::try_from(rank).unwrap_or(i32::MAX);
        let order = order.encode();
        let message = Message { bytes: order.len(), peer, tag: ORDER_TAG };
        self.engine.send(Payload::Buffer(order.into()), message, false, None).map(drop).map_err(failed)
    }

    /// Exchanges messages with a rank that does the same, by MPI's functions alone, and blocks meanwhile; the rank
    /// that `leads` waits until the other is ready. Returns the total time. For measurements.
    pub fn plain(&self, rank: usize, plain: PlainMessages, leads: bool) -> Result<Duration, LinkError> {
        let peer = i32::try_from(rank).unwrap_or(i32::MAX);
        // Messages of the exchange may be in flight for ever, and the engine does not know them.
        let done =
            plain.perform(self.engine.calls(), peer, leads).inspect_err(|fault| self.engine.fail(fault));
        done.map_err(failed)
    }

    /// The next order from rank 0. Cancel-safe.
    pub async fn told(&self) -> Result<RankOrder, LinkError> {
        if self.order.borrow().is_none() {
            let message = Message { bytes: plain::ORDER_BYTES, peer: 0, tag: ORDER_TAG };
            let buffer = Payload::Buffer(Box::new([0; plain::ORDER_BYTES]));
            let expected = self.engine.receive(buffer, message).map_err(failed)?;
            self.order.replace(Some(expected));
        }
        let is_there =
            |context: &mut Context<'_>| self.order.borrow().as_ref().is_none_or(|order| order.watch(context));
        poll_fn(|context| if is_there(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        let Some(order) = self.order.take() else { unreachable!("one task waits for orders") };
        let (bytes, payload) = order.await.map_err(failed)?;
        let order = match payload {
            Payload::Buffer(buffer) => buffer.get(..bytes).and_then(RankOrder::decode),
            Payload::SharedRegion(_) | Payload::Landing(_) => None,
        };
        order.ok_or_else(|| LinkError::Foreign("an unknown order".to_owned()))
    }

    /// Ends MPI, once the messages in flight are complete; it needs no event loop, and nothing of MPI may be used
    /// after it. All links have to be dropped before, and every rank has to leave. If a rank does not, all
    /// processes are ended with that exit code, because `MPI_Finalize` waits for every rank, for ever for one that
    /// is stopped.
    pub fn leave(&self, code: u8) -> Result<(), MpiError> {
        self.leave_within(if self.rank == 0 { ALL_LEAVE_DEADLINE } else { LEAVE_DEADLINE }, code)
    }

    fn leave_within(&self, patience: Duration, code: u8) -> Result<(), MpiError> {
        let deadline = Instant::now() + patience;
        // If the library has failed, this fails too, and the engine has the error.
        let _ = self.take_leave();
        let mut pause = Duration::from_micros(10);
        while !self.engine.is_quiet() && self.engine.fault().is_none() && Instant::now() < deadline {
            if self.engine.poll() > 0 {
                pause = Duration::from_micros(10);
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
        }
        // A failed rank may wait for others from which it can no longer receive.
        let when_late = self.when_late;
        if self.engine.is_quiet() && self.engine.fault().is_none() {
            // The other ranks wait for rank 0, which may still have files to save.
            let watch = || DeadlineWatch::start(FINALIZE_DEADLINE, move || when_late(Late::Leaving(code)));
            let _watch = (self.rank == 0).then(watch);
            return self.engine.calls().finalize().map_err(|fault| MpiError::Failed(fault.0));
        }
        let _watch = DeadlineWatch::start(ABORT_DEADLINE, move || when_late(Late::Aborting(code)));
        self.engine.calls().abort(i32::from(code));
        Err(MpiError::Failed("other processes of the job did not come to an end".to_owned()))
    }

    /// Announces to rank 0 that this rank leaves; rank 0 posts the receives for these messages of all others.
    fn take_leave(&self) -> Result<(), MpiFault> {
        let word =
            |rank: usize| Message { bytes: 1, peer: i32::try_from(rank).unwrap_or(i32::MAX), tag: LEAVE_TAG };
        let paper = || Payload::Buffer(Box::new([0]));
        if self.rank > 0 {
            return self.engine.send(paper(), word(0), false, None).map(drop);
        }
        (1..self.size).try_for_each(|rank| self.engine.receive(paper(), word(rank)).map(drop))
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(rank {} of {}, {})", self.rank, self.size, self.library)
    }
}

/// The link error for an error of the library.
fn failed(fault: MpiFault) -> LinkError {
    LinkError::Broken(io::Error::other(fault.0))
}

/// The identity of this machine, and the processors on which this process may run.
fn here() -> Vec<u8> {
    let machine = std::fs::read("/proc/sys/kernel/random/boot_id");
    let mut own = machine.unwrap_or_else(|_| rustix::system::uname().nodename().to_bytes().to_vec());
    own.resize(MACHINE_BYTES, 0);
    own.extend(allowed_processors());
    own
}

/// One bit per processor on which this process may run.
#[cfg(target_os = "linux")]
fn allowed_processors() -> [u8; CPU_BYTES] {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let mut processors = [0; CPU_BYTES];
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    for cpu in (0..CpuSet::MAX_CPU.min(8 * CPU_BYTES)).filter(|cpu| allowed.is_set(*cpu)) {
        processors[cpu / 8] |= 1 << (cpu % 8);
    }
    processors
}

/// Without Linux: every process may run on any processor.
#[cfg(not(target_os = "linux"))]
fn allowed_processors() -> [u8; CPU_BYTES] {
    [0xff; CPU_BYTES]
}

/// The part of the machine that a rank has, from the data of all ranks.
fn portion(all: &[u8], each: usize, rank: usize) -> Portion {
    let ranks: Vec<_> = all.chunks_exact(each).map(|one| one.split_at(MACHINE_BYTES)).collect();
    let (machine, processors) = ranks[rank];
    let on_machine = ranks.iter().enumerate().filter(|(_, one)| one.0 == machine);
    let meets = |others: &[u8]| others.iter().zip(processors).any(|(a, b)| a & b != 0);
    let sharing = on_machine.clone().filter(|(other, one)| *other == rank || meets(one.1));
    Portion {
        ranks: on_machine.count(),
        sharers: sharing.clone().count(),
        place: sharing.filter(|(other, _)| *other < rank).count(),
    }
}

#[cfg(test)]
mod tests;
