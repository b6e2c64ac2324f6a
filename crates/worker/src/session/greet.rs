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
use bramble_schedule::limits::HELLO_PATIENCE;
use bramble_schedule::message::{Hello, Kind, Welcome};
use std::time::Duration;

/// How long a primary waits for memory that another one has, before it is told so.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Takes the hello, chooses a kernel, and takes the memory that is left: (hello, kernel, bytes granted). The link
/// keeps its place at the door until it has all that, so no more can be on the way to it than fit there.
pub(super) async fn greet(
    link: &mut Link,
    slot: Option<Slot>,
    config: &Config,
    ledger: &Ledger,
) -> Result<(Hello, Pick, Grant), WorkerError> {
    if let Proven::Introduced(_) = link.proven {
        return Err(ProtocolError::new("a key that was introduced for relaying opens no session").into());
    }
    link.receiver.set_limits(Limits::STRANGER);
    let Some(slot) = slot else {
        // This end has dialled, or is in the same process.
        let first = tokio::time::timeout(HELLO_PATIENCE, hello(link)).await;
        let first = first.unwrap_or_else(|_| {
            let what = format!("it said nothing for {} s", HELLO_PATIENCE.as_secs());
            Err(LinkError::Untrusted(what).into())
        })?;
        return equipped(first, &link.peer, config, ledger).await;
    };
    let first = slot.guard(hello(link)).await?;
    slot.known();
    slot.guard(equipped(first, &link.peer, config, ledger)).await
}

/// The first frame, which has to be a hello.
async fn hello(link: &mut Link) -> Result<Hello, WorkerError> {
    let first = link.receiver.receive(&mut NoBodies).await?;
    if Kind::from_code(first.kind)? != Kind::Hello {
        return Err(ProtocolError::new("its first message is not a hello").into());
    }
    Ok(Hello::decode(&first.head)?)
}

/// A kernel and memory for what a hello asks for.
async fn equipped(
    hello: Hello,
    peer: &str,
    config: &Config,
    ledger: &Ledger,
) -> Result<(Hello, Pick, Grant), WorkerError> {
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
    Ok((hello, pick, grant))
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
        Choice::Auto | Choice::Named(_) => Ok(pick),
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
) -> Result<(), WorkerError> {
    let threads = session_threads(config, hello);
    let (picked, dtype, effort) = (pick.clone(), hello.dtype, Effort::for_product(hello.flops));
    let (speeds, quiet) = (ledger.speeds().clone(), ledger.is_quiet());
    let what = (pick.kernel.name(), dtype, threads);
    let measure = move || {
        let speed = speeds.speed(what, effort, quiet, || probe(&picked, dtype, threads, effort));
        sustained(speed, threads)
    };
    let Speed { gflops, peak_gflops } = ledger.measured(measure).await?;
    let welcome = Welcome {
        threads: u16::try_from(threads).unwrap_or(u16::MAX),
        memory_bytes: grant.bytes(),
        gflops,
        peak_gflops,
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
