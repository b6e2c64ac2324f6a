//! Opens sessions: hello and welcome, with every machine concurrently. Also ends sessions that no product needs.
//!
//! Invariants: a machine that does not answer in time is an error that names it; no part of a product is sent here. A
//! connection's measurements (`KnownConnection`) are kept from one session to the next.

use crate::MachineLink;
use crate::PrimaryError;
use crate::links::GOODBYE;
use bramble_link::{Body, Frame, FrameLimits, Link, LinkError, NoBodies, Proven, clock_ns};
use bramble_matrix::DType;
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::{LinkRate, Machine};
use bramble_record::log::{ClockSample, LoggedMachine};
use bramble_wire::limits::WELCOME_DEADLINE;
use bramble_wire::message::{Bye, Hello, Kind, Wants, Welcome, decode_error};
use std::net::SocketAddr;

/// A connection with a machine, between two products.
pub struct Connection {
    /// Its link.
    pub link: Link,
    /// Its number and measurements.
    pub known: KnownConnection,
}

/// What the primary knows of a connection, whichever product uses it.
#[derive(Clone, Copy, Debug)]
pub struct KnownConnection {
    /// Its place in the order of the cluster's connections.
    pub number: u64,
    /// Most threads that products may use there; 0 means no limit.
    pub threads_max: u16,
    /// Whether the primary has dialled the machine.
    pub was_dialled: bool,
    /// Whether a session over it has been opened.
    pub has_served: bool,
    /// Measured rate of the link; `None` before the measurement, and where memory is shared.
    pub rate: Option<LinkRate>,
    /// Offset of the machine's clock, if its link was measured.
    pub clock: Option<ClockSample>,
}

impl Connection {
    /// A new connection, with that number.
    pub fn new(end: MachineLink, number: u64) -> Self {
        let MachineLink { link, threads_max, was_dialled } = end;
        let (rate, clock, has_served) = (None, None, false);
        let known = KnownConnection { number, threads_max, was_dialled, has_served, rate, clock };
        Self { link, known }
    }
}

/// A session with a machine that answered.
pub struct Session {
    /// Its link.
    pub link: Link,
    /// What the machine has said of itself.
    pub welcome: Welcome,
    /// Number and measurements of the connection.
    pub known: KnownConnection,
    /// Whether it is the first session over its connection.
    pub is_first: bool,
    /// The machine's name in messages.
    pub name: String,
    /// The address at which other workers can dial it, as far as the primary knows.
    pub door: Option<SocketAddr>,
}

impl Session {
    /// The machine as the event log names it.
    pub fn logged(&self) -> LoggedMachine {
        let own = self.link.shares_memory.then(|| ClockSample::own(clock_ns()));
        LoggedMachine {
            name: self.name.clone(),
            link: self.link.name,
            threads: self.welcome.threads,
            clocks: [own.or(self.known.clock), None],
            lost_records: 0,
        }
    }

    /// The machine as the planner sees it. `credits` limits the memory that the plan may use there; `shares_cores`: it runs
    /// on the primary's own cores.
    pub fn machine(&self, credits: Option<u64>, shares_cores: bool) -> Machine {
        let memory_bytes = self.welcome.memory_bytes.min(credits.unwrap_or(u64::MAX));
        Machine {
            name: self.name.clone(),
            threads: u32::from(self.welcome.threads),
            gflops: self.welcome.gflops,
            peak_gflops: self.welcome.peak_gflops,
            memory_bytes,
            link: self.known.rate,
            shares_cores,
            nic_bytes_per_s: None,
            memory_rate: None,
        }
    }
}

/// The contents of every hello of a product.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Element type.
    pub dtype: DType,
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// Operations of the product: machines measure their speed the longer, the more there are.
    pub flops: f64,
    /// Most bytes of matrices that the product could use at a worker.
    pub memory_bytes: u64,
    /// Kernel by name, or `auto`.
    pub kernel: String,
    /// Name by which the primary introduces itself.
    pub name: String,
    /// Reports that it asks for.
    pub wants: Wants,
}

/// Opens a session over a connection.
pub async fn open(connection: Connection, opening: &Opening, session: u32) -> Result<Session, PrimaryError> {
    let Connection { link, known } = connection;
    let (peer, shares_memory) = (link.peer.clone(), link.shares_memory);
    let hint = match (known.has_served, link.proven) {
        (true, _) => "",
        (false, Proven::Nothing) => "; is it a bramble worker, and one without a cluster key as this one?",
        (false, _) => "; is it a bramble worker?",
    };
    let greeting = greet(link, known.threads_max, opening, session, hint);
    match tokio::time::timeout(WELCOME_DEADLINE, greeting).await {
        Err(_) => {
            let why = format!("no answer within {} s{hint}", WELCOME_DEADLINE.as_secs());
            Err(PrimaryError::Unreachable { name: peer, why })
        }
        Ok(Err(why)) if shares_memory => Err(PrimaryError::Failed(format!("{peer}: {why}"))),
        Ok(Err(why)) => Err(PrimaryError::Unreachable { name: peer, why }),
        Ok(Ok((link, mut welcome))) => {
            // The plan must not use more than was asked for.
            welcome.memory_bytes = welcome.memory_bytes.min(opening.memory_bytes);
            let name = if link.shares_memory { welcome.name.clone() } else { peer };
            let door = worker_address(&link, welcome.port, known.was_dialled);
            let is_first = !known.has_served;
            let known = KnownConnection { has_served: true, ..known };
            Ok(Session { link, welcome, known, is_first, name, door })
        }
    }
}

/// The address at which other workers can dial a worker, if it takes links from workers at all. An address that the primary has
/// dialled itself is preferred to the worker's port: a forwarded port may lie before it.
fn worker_address(link: &Link, port: u16, was_dialled: bool) -> Option<SocketAddr> {
    let there = link.addresses.filter(|_| port != 0)?.there;
    Some(if was_dialled { there } else { SocketAddr::new(there.ip(), port) })
}

/// Sends goodbye without waiting for an answer.
pub async fn dismiss(sessions: Vec<Session>) {
    for mut session in sessions {
        let frame = Frame::new(Kind::Bye.code(), Bye::default().encode(), Body::Empty);
        let _ = session.link.sender.send(frame).await;
        let _ = session.link.sender.close().await;
    }
}

/// Says goodbye and waits, at most `GOODBYE`, for the machine's goodbye: then the connection is free for the next session.
pub async fn end_session(session: Session) -> Result<Connection, LostConnection> {
    let Session { mut link, known, name, .. } = session;
    let why = match tokio::time::timeout(GOODBYE, goodbyes(&mut link)).await {
        Ok(Ok(())) => return Ok(idle(link, known)),
        Ok(Err(why)) => why,
        Err(_) => no_goodbye(),
    };
    Err(LostConnection { name, why })
}

/// A connection that broke, or whose machine does not answer, while no product ran.
pub struct LostConnection {
    /// The machine.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Why a connection is not used again.
pub fn no_goodbye() -> String {
    format!("it did not say goodbye within {} s", GOODBYE.as_secs())
}

/// A connection after both goodbyes.
pub fn idle(mut link: Link, known: KnownConnection) -> Connection {
    link.sender.set_session(0);
    link.receiver.set_session(0);
    Connection { link, known }
}

/// Both goodbyes of a session without work. What the machine sent before its goodbye does not matter.
async fn goodbyes(link: &mut Link) -> Result<(), String> {
    let bye = Frame::new(Kind::Bye.code(), Bye::default().encode(), Body::Empty);
    link.sender.send(bye).await.map_err(|e| e.to_string())?;
    loop {
        let arrived = link.receiver.receive(&mut NoBodies).await.map_err(|e| e.to_string())?;
        match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
            Kind::Bye => return Ok(()),
            Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
            _ => {}
        }
    }
}

/// Gives machines that are known to be alike the mean of their speeds: they disturb each other's short measurements.
pub fn even_speeds(machines: Vec<&mut Machine>) {
    let count = nearest_f64(to_u64(machines.len().max(1)));
    let mean = machines.iter().map(|m| m.gflops).sum::<f64>() / count;
    machines.into_iter().for_each(|m| m.gflops = mean);
}

/// Refuses a worker whose kernel does not give the same bits as `kernel`.
pub fn same_kernel(kernel: &str, worker: &Session) -> Result<(), PrimaryError> {
    if worker.welcome.kernel == kernel {
        return Ok(());
    }
    Err(PrimaryError::Failed(format!(
        "--reproducible: worker {} computes with the kernel {}, this machine with {kernel}; start it without --kernel, \
         or leave it out",
        worker.name, worker.welcome.kernel
    )))
}

/// Refuses workers whose kernels do not give the same bits as this machine's.
pub fn one_kernel(local: &Session, workers: &[Session]) -> Result<(), PrimaryError> {
    workers.iter().try_for_each(|worker| same_kernel(&local.welcome.kernel, worker))
}

async fn greet(
    mut link: Link,
    threads_max: u16,
    opening: &Opening,
    session: u32,
    hint: &str,
) -> Result<(Link, Welcome), String> {
    let hello = Hello {
        session,
        dtype: opening.dtype,
        alpha: opening.alpha,
        beta: opening.beta,
        flops: opening.flops,
        threads_max,
        memory_bytes: opening.memory_bytes,
        wants: opening.wants,
        kernel: opening.kernel.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: opening.name.clone(),
    };
    let explain = |e: LinkError| match e {
        LinkError::Foreign(_) => "it does not speak this protocol; is it a bramble worker?".to_owned(),
        other => format!("{other}{hint}"),
    };
    let frame = Frame::new(Kind::Hello.code(), hello.encode(), Body::Empty);
    link.sender.send(frame).await.map_err(explain)?;
    link.receiver.set_limits(FrameLimits::STRANGER);
    let answer = link.receiver.receive(&mut NoBodies).await.map_err(explain)?;
    let welcome = match Kind::from_code(answer.kind).map_err(|e| e.0)? {
        Kind::Welcome => Welcome::decode(&answer.head).map_err(|e| e.0)?,
        Kind::Error => return Err(decode_error(&answer.head).map_err(|e| e.0)?),
        other => return Err(format!("it answered with {other:?} instead of a welcome")),
    };
    link.sender.set_session(session);
    link.receiver.set_session(session);
    link.receiver.set_limits(FrameLimits::SESSION);
    Ok((link, welcome))
}
