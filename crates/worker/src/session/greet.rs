//! Hello and welcome: what a session needs to know before its first job.
//!
//! Invariant: a stranger is read with the limits for strangers, and within a deadline; memory is granted to
//! one session at a time.

use super::WorkerError;
use crate::machine::{Config, probe};
use bramble_kernel::{Choice, Pick};
use bramble_link::{Arrived, Body, Frame, Limits, Link, LinkError, NoBodies, Proven, Slot};
use bramble_schedule::ProtocolError;
use bramble_schedule::limits::HANDSHAKE_DEADLINE;
use bramble_schedule::message::{Hello, Kind, Welcome};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a primary waits for memory that another one has, before it is told so.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Takes the hello, chooses a kernel, and takes the memory that is left: (hello, kernel, bytes granted).
pub(super) async fn greet(
    link: &mut Link,
    slot: Option<Slot>,
    config: &Config,
    in_use: &Cell<u64>,
) -> Result<(Hello, Pick, u64), WorkerError> {
    let first = first_frame(link, slot).await?;
    if Kind::from_code(first.kind)? != Kind::Hello {
        return Err(ProtocolError::new("its first message is not a hello").into());
    }
    let hello = Hello::decode(&first.head)?;
    let choice: Choice = match config.kernel {
        Some(choice) => choice,
        None => hello.kernel.parse().map_err(|e| WorkerError::Here(format!("{e}")))?,
    };
    let pick = bramble_kernel::pick(choice, hello.dtype, hello.flops)
        .map_err(|e| WorkerError::Here(e.to_string()))?;
    let free = || config.grant_bytes(&*pick.kernel).saturating_sub(in_use.get());
    // A primary that has just ended, or was killed, is still being cleared away.
    let began = Instant::now();
    while free() == 0 && in_use.get() > 0 && began.elapsed() < MEMORY_PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let grant = free();
    if grant == 0 {
        let mib = config.memory_bytes >> 20;
        return Err(WorkerError::Here(match in_use.get() {
            0 => format!(
                "--memory of {mib} MiB leaves nothing for matrices beside the program and its kernel; give it more"
            ),
            _ => format!(
                "its memory of {mib} MiB is in use by another primary; try again later, or start it with more --memory"
            ),
        }));
    }
    in_use.set(in_use.get() + grant);
    Ok((hello, pick, grant))
}

/// The first frame, with the limits for strangers and in time. A relay's key opens no session.
async fn first_frame(link: &mut Link, slot: Option<Slot>) -> Result<Arrived, WorkerError> {
    if let Proven::Introduced(_) = link.proven {
        return Err(ProtocolError::new("a key that was introduced for relaying opens no session").into());
    }
    link.receiver.set_limits(Limits::STRANGER);
    let mut no_bodies = NoBodies;
    let receiving = link.receiver.receive(&mut no_bodies);
    let first = match slot {
        Some(slot) => slot.guard(receiving).await,
        None => tokio::time::timeout(HANDSHAKE_DEADLINE, receiving).await.unwrap_or_else(|_| {
            let what = format!("it said nothing for {} s", HANDSHAKE_DEADLINE.as_secs());
            Err(LinkError::Untrusted(what))
        }),
    };
    Ok(first?)
}

/// Measures this machine and says what it is.
pub(super) async fn welcome(
    link: &mut Link,
    config: &Config,
    hello: &Hello,
    pick: &Pick,
    grant: u64,
) -> Result<(), WorkerError> {
    let threads = session_threads(config, hello);
    let (gflops, peak_gflops) = probe(pick, hello.dtype, threads, hello.flops);
    let welcome = Welcome {
        threads: threads as u16,
        memory_bytes: grant,
        gflops,
        peak_gflops,
        kernel: pick.kernel.name().to_owned(),
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
