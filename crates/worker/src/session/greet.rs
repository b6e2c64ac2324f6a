//! Hello and welcome: what a session needs to know before its first job.
//!
//! Invariants: a stranger is read with the limits for strangers, and within a deadline; what a hello makes this
//! machine compute (opening, comparing and measuring kernels) is done beside the event loop, one at a time.

use super::WorkerError;
use crate::ledger::{Grant, Ledger, Who, Wish};
use crate::machine::{Config, probe, sustained};
use crate::speeds::{Effort, Speed, Speeds};
use bramble_kernel::{Choice, KernelError, KernelName, Pick};
use bramble_link::{Body, Frame, Limits, Link, LinkError, NoBodies, Proven, Slot};
use bramble_matrix::DType;
use bramble_schedule::ProtocolError;
use bramble_schedule::limits::{DIALLED_HELLO_PATIENCE, HANDSHAKE_DEADLINE};
use bramble_schedule::message::{Hello, Join, Kind, Welcome};
use std::time::Duration;

/// How long a primary waits for memory that another one has, before it is told so.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Who has come, and is welcome so far.
pub(super) enum Guest {
    /// A primary: its hello, the kernel and the memory for it.
    Primary(Hello, Pick, Grant),
    /// Another worker, whom one of the sessions may be waiting for.
    Neighbour(Join),
}

/// What somebody says first.
pub(super) enum First {
    Hello(Hello),
    Join(Join),
}

/// Takes the first message. For a primary, chooses a kernel and takes the memory that is left; the link
/// keeps its place at the door until it has all that, so no more can be on the way to it than fit there.
pub(super) async fn greet(
    link: &mut Link,
    slot: Option<Slot>,
    config: &Config,
    ledger: &Ledger,
) -> Result<Guest, WorkerError> {
    link.receiver.set_limits(Limits::STRANGER);
    let Some(slot) = slot else {
        // This end has dialled, or is in the same process.
        return match within(DIALLED_HELLO_PATIENCE, first(link)).await? {
            First::Hello(hello) => equipped(hello, &link.peer, config, ledger).await,
            First::Join(_) => Err(not_a_hello()),
        };
    };
    match first_at(&slot, link).await? {
        First::Join(join) => Ok(Guest::Neighbour(join)),
        First::Hello(hello) => {
            slot.known();
            slot.guard(equipped(hello, &link.peer, config, ledger)).await
        }
    }
}

/// The first message of somebody at a door.
pub(super) async fn first_at(slot: &Slot, link: &mut Link) -> Result<First, WorkerError> {
    match link.proven {
        // Whoever dials a neighbour knows at once what to say.
        Proven::Introduced(_) => slot.guard(within(HANDSHAKE_DEADLINE, first(link))).await,
        Proven::Nothing | Proven::Member => slot.guard(first(link)).await,
    }
}

async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, WorkerError>>,
) -> Result<T, WorkerError> {
    let done = tokio::time::timeout(patience, work).await;
    done.unwrap_or_else(|_| {
        Err(LinkError::Untrusted(format!("it said nothing for {} s", patience.as_secs())).into())
    })
}

/// The first frame: a hello, or a join. A key that was introduced is good for a join alone.
async fn first(link: &mut Link) -> Result<First, WorkerError> {
    let first = link.receiver.receive(&mut NoBodies).await?;
    match Kind::from_code(first.kind)? {
        Kind::Hello if matches!(link.proven, Proven::Introduced(_)) => {
            Err(ProtocolError::new("a key that was introduced for relaying opens no session").into())
        }
        Kind::Hello => Ok(First::Hello(Hello::decode(&first.head)?)),
        Kind::Join => Ok(First::Join(Join::decode(&first.head)?)),
        _ => Err(not_a_hello()),
    }
}

fn not_a_hello() -> WorkerError {
    ProtocolError::new("its first message is not a hello").into()
}

/// A kernel and memory for what a hello asks for.
async fn equipped(hello: Hello, peer: &str, config: &Config, ledger: &Ledger) -> Result<Guest, WorkerError> {
    let choice: Choice = match config.kernel {
        Some(choice) => choice,
        None => hello.kernel.parse().map_err(|e| WorkerError::Here(format!("{e}")))?,
    };
    let (dtype, flops) = (hello.dtype, hello.flops);
    let (threads, capacity_bytes) = (session_threads(config, &hello), config.capacity_bytes());
    let speeds = ledger.speeds().clone();
    let pick = move || picked(&speeds, choice, dtype, flops, threads, capacity_bytes);
    let picked = ledger.measured(pick).await?;
    let pick = picked.map_err(|e| WorkerError::Here(e.to_string()))?;
    let who = Who { name: hello.name.clone(), peer: peer.to_owned() };
    let wish = Wish {
        wanted_bytes: hello.memory_bytes,
        scratch_bytes: Config::scratch_bytes(&*pick.kernel, threads),
        capacity_bytes,
    };
    let grant = ledger.take_within(MEMORY_PATIENCE, &who, wish, config.memory_bytes).await?;
    Ok(Guest::Primary(hello, pick, grant))
}

/// The kernel that was asked for. `auto` takes the simd kernel instead of a faster one that needs most of the
/// memory for itself, as OpenBLAS does on a small board.
fn picked(
    speeds: &Speeds,
    choice: Choice,
    dtype: DType,
    flops: f64,
    threads: usize,
    capacity_bytes: u64,
) -> Result<Pick, KernelError> {
    let pick = speeds.pick(choice, dtype, flops, bramble_kernel::pick)?;
    let is_greedy = Config::scratch_bytes(&*pick.kernel, threads) > capacity_bytes / 2;
    match choice {
        Choice::Auto if is_greedy => bramble_kernel::pick(Choice::Named(KernelName::Simd), dtype, flops),
        _ => Ok(pick),
    }
}

/// Says what this machine is. What it can do is measured if that is not known yet.
pub(super) async fn welcome(
    link: &mut Link,
    config: &Config,
    ledger: &Ledger,
    hello: &Hello,
    pick: &Pick,
    grant: &Grant,
    port: u16,
) -> Result<(), WorkerError> {
    let threads = session_threads(config, hello);
    let (picked, dtype, effort) = (pick.clone(), hello.dtype, Effort::for_product(hello.flops));
    let (speeds, quiet) = (ledger.speeds().clone(), ledger.is_quiet());
    let measure = move || {
        let what = (picked.kernel.name(), dtype, threads);
        let speed = speeds.speed(what, effort, quiet, || probe(&picked, dtype, threads, effort));
        sustained(speed, threads)
    };
    let Speed { gflops, peak_gflops } = ledger.measured(measure).await?;
    let welcome = Welcome {
        threads: u16::try_from(threads).unwrap_or(u16::MAX),
        memory_bytes: grant.bytes(),
        gflops,
        peak_gflops,
        port,
        kernel: bramble_kernel::bits_class(pick.kernel.name()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: config.name.clone(),
    };
    link.sender.set_session(0);
    link.sender.send(Frame::new(Kind::Welcome.code(), welcome.encode(), Body::Empty)).await?;
    link.sender.set_session(hello.session);
    link.receiver.set_session(hello.session);
    link.receiver.set_limits(Limits::SESSION);
    Ok(())
}

/// Threads of a session: the worker's, or fewer where the primary says so.
pub(super) fn session_threads(config: &Config, hello: &Hello) -> usize {
    match hello.threads_max {
        0 => config.threads,
        most => config.threads.min(usize::from(most)),
    }
}
