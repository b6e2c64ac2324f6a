//! Hello and welcome: the exchange before the first job of a session. The first hello of a connection comes from a stranger.
//!
//! Invariants: an unauthenticated peer is read with the limits for strangers, and within a deadline; work that a hello causes
//! (opening, comparing and measuring kernels) runs beside the event loop, one at a time.

use super::WorkerError;
use super::connection::AdmittedProduct;
use crate::ledger::{Grant, MemoryRequest, SessionLedger, SessionOwner};
use crate::machine::{Config, measures_tasks, pick_kernel, probe, probe_lu, sustained};
use crate::speeds::{ProbeEffort, Speed, Speeds};
use bramble_kernel::{Choice, KernelError, KernelName, Pick, Workload};
use bramble_link::{Body, Frame, FrameLimits, Link, LinkError, NoBodies, Proven, Slot};
use bramble_matrix::DType;
use bramble_wire::ProtocolError;
use bramble_wire::limits::{DIALLED_HELLO_PATIENCE, HANDSHAKE_DEADLINE};
use bramble_wire::message::{Hello, Join, Kind, LuSpeeds, Welcome};
use std::time::Duration;

/// How long a primary waits for memory that other sessions hold, before it is refused.
pub(super) const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// A peer that may stay so far.
pub(super) enum GreetedPeer {
    /// A primary: its hello, and the kernel and memory for it.
    Primary(AdmittedProduct),
    /// Another worker, which a session may be waiting for.
    Neighbour(Join),
}

/// The first message of a connection.
pub(super) enum FirstMessage {
    Hello(Hello),
    Join(Join),
}

/// Reads the first message. For a primary, chooses a kernel and takes memory; until then the link
/// keeps its slot at the door, so that the door bounds the number of sessions being opened.
pub(super) async fn greet(
    link: &mut Link,
    slot: Option<Slot>,
    config: &Config,
    ledger: &SessionLedger,
) -> Result<GreetedPeer, WorkerError> {
    link.receiver.set_limits(FrameLimits::STRANGER);
    let Some(slot) = slot else {
        // This worker has dialled, or the primary is in the same process.
        return match within(DIALLED_HELLO_PATIENCE, first_message(link)).await? {
            FirstMessage::Hello(hello) => {
                let admitted = choose_kernel_and_memory(hello, &link.peer, config, ledger, None).await?;
                Ok(GreetedPeer::Primary(admitted))
            }
            FirstMessage::Join(_) => Err(not_a_hello()),
        };
    };
    match first_message_at_door(&slot, link).await? {
        FirstMessage::Join(join) => Ok(GreetedPeer::Neighbour(join)),
        FirstMessage::Hello(hello) => {
            slot.known();
            let choosing = choose_kernel_and_memory(hello, &link.peer, config, ledger, None);
            Ok(GreetedPeer::Primary(slot.guard(choosing).await?))
        }
    }
}

/// The first message of a connection that came through a door.
pub(super) async fn first_message_at_door(slot: &Slot, link: &mut Link) -> Result<FirstMessage, WorkerError> {
    match link.proven {
        // A worker that dials a neighbour can send its join at once.
        Proven::Introduced(_) => slot.guard(within(HANDSHAKE_DEADLINE, first_message(link))).await,
        Proven::Nothing | Proven::Member => slot.guard(first_message(link)).await,
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

/// The first frame: a hello, or a join. A key that was introduced for a pair is good for a join only.
async fn first_message(link: &mut Link) -> Result<FirstMessage, WorkerError> {
    let first = link.receiver.receive(&mut NoBodies).await?;
    match Kind::from_code(first.kind)? {
        Kind::Hello if matches!(link.proven, Proven::Introduced(_)) => {
            Err(ProtocolError::new("a key that was introduced for relaying opens no session").into())
        }
        Kind::Hello => Ok(FirstMessage::Hello(Hello::decode(&first.head)?)),
        Kind::Join => Ok(FirstMessage::Join(Join::decode(&first.head)?)),
        _ => Err(not_a_hello()),
    }
}

fn not_a_hello() -> WorkerError {
    ProtocolError::new("its first message is not a hello").into()
}

/// The kernel and memory for a hello. `idle` is the place that the connection has had since its last product.
pub(super) async fn choose_kernel_and_memory(
    hello: Hello,
    peer: &str,
    config: &Config,
    ledger: &SessionLedger,
    idle: Option<Grant>,
) -> Result<AdmittedProduct, WorkerError> {
    let choice: Choice = match config.kernel {
        Some(choice) => choice,
        None => hello.kernel.parse().map_err(|e| WorkerError::Here(format!("{e}")))?,
    };
    let (dtype, flops) = (hello.dtype, hello.flops);
    let (threads, capacity_bytes) = (session_threads(config, &hello), config.capacity_bytes());
    let work = if hello.wants.task_rates { Workload::Factorisation } else { Workload::Products };
    let speeds = ledger.speeds().clone();
    let pick = move || choose_kernel(&speeds, (work, choice), (dtype, flops), threads, capacity_bytes);
    // A thread takes longer to start than an answer that is known.
    let is_known = ledger.speeds().knows_pick(work, choice, dtype, flops);
    let picked = if is_known { pick() } else { ledger.measured(pick).await? };
    let pick = picked.map_err(|e| WorkerError::Here(e.to_string()))?;
    let who = SessionOwner { name: hello.name.clone(), peer: peer.to_owned() };
    // Compute threads that stay keep the scratch memory of earlier kernels.
    let kept_bytes = idle.as_ref().map_or(0, Grant::scratch_bytes);
    let scratch_bytes = Config::scratch_bytes(&*pick.kernel, threads).max(kept_bytes);
    let wish = MemoryRequest { wanted_bytes: hello.memory_bytes, scratch_bytes, capacity_bytes };
    drop(idle);
    let grant = ledger.grant_within(MEMORY_PATIENCE, &who, wish, config.memory_bytes).await?;
    Ok((hello, pick, grant))
}

/// The kernel that was asked for. `auto` avoids a faster kernel that needs more than half of the
/// memory for itself, as OpenBLAS does on a small board, and takes simd.
fn choose_kernel(
    speeds: &Speeds,
    (work, choice): (Workload, Choice),
    (dtype, flops): (DType, f64),
    threads: usize,
    capacity_bytes: u64,
) -> Result<Pick, KernelError> {
    let pick_now = |choice, dtype, flops| pick_kernel((work, threads), choice, dtype, flops);
    let pick = speeds.pick(work, choice, dtype, flops, pick_now)?;
    let is_greedy = Config::scratch_bytes(&*pick.kernel, threads) > capacity_bytes / 2;
    match choice {
        Choice::Auto if is_greedy => bramble_kernel::pick(Choice::Named(KernelName::Simd), dtype, flops),
        _ => Ok(pick),
    }
}

/// The rates of this machine's tasks in a factorisation, within the session's memory.
async fn task_rates(
    ledger: &SessionLedger,
    pick: &Pick,
    hello: &Hello,
    threads: usize,
    grant: &Grant,
) -> Result<Option<LuSpeeds>, WorkerError> {
    let (picked, size, bytes) = (pick.clone(), (hello.dtype, hello.flops), grant.bytes());
    ledger.measured(move || probe_lu(&picked, size, threads, bytes)).await
}

/// Sends the welcome, after measuring this machine's speed if it is not known yet.
pub(super) async fn welcome(
    link: &mut Link,
    config: &Config,
    ledger: &SessionLedger,
    hello: &Hello,
    pick: &Pick,
    grant: &Grant,
    port: u16,
) -> Result<(), WorkerError> {
    let threads = session_threads(config, hello);
    let (picked, dtype, effort) = (pick.clone(), hello.dtype, ProbeEffort::for_product(hello.flops));
    let (speeds, quiet) = (ledger.speeds().clone(), ledger.is_quiet());
    let known = speeds.known_speed((pick.kernel.name(), dtype, threads), effort, quiet);
    let measure = move || {
        let what = (picked.kernel.name(), dtype, threads);
        let speed = speeds.speed(what, effort, quiet, || probe(&picked, dtype, threads, effort));
        sustained(speed, threads)
    };
    let Speed { gflops, peak_gflops } = match known {
        Some(speed) => sustained(speed, threads),
        None => ledger.measured(measure).await?,
    };
    let lu = match hello.wants.task_rates && measures_tasks(hello.flops, gflops, threads) {
        true => task_rates(ledger, pick, hello, threads, grant).await?,
        false => None,
    };
    let welcome = Welcome {
        threads: u16::try_from(threads).unwrap_or(u16::MAX),
        memory_bytes: grant.bytes(),
        hold_bytes: ledger.left_to_hold(config.capacity_bytes()),
        gflops,
        peak_gflops,
        lu,
        port,
        kernel: bramble_kernel::bits_class(pick.kernel.name()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: config.name.clone(),
    };
    link.sender.set_session(0);
    link.sender.send(Frame::new(Kind::Welcome.code(), welcome.encode(), Body::Empty)).await?;
    link.sender.set_session(hello.session);
    link.receiver.set_session(hello.session);
    link.receiver.set_limits(FrameLimits::SESSION);
    Ok(())
}

/// Threads of a session: the worker's, or fewer if the primary asks for fewer.
pub(super) fn session_threads(config: &Config, hello: &Hello) -> usize {
    match hello.threads_max {
        0 => config.threads,
        most => config.threads.min(usize::from(most)),
    }
}
