//! `--local N`: worker processes on this machine that start and end with the product.
//!
//! Invariants: no process outlives the product. A worker ends with its link; a process that still runs at the end is
//! killed and reaped. This process accepts only its own children as workers, and the children accept only this
//! process as primary: over TCP both prove a one-time key, which the children read from their environment, hidden
//! from other users; over `pipe` and `shm` a child inherits its end of the link, so no other process can have it.

use crate::trust;
use bramble_link::LocalFuture;
use bramble_link::{ClusterKey, Door, DoorLimits, Endpoint, Link, LocalKind, local_pair};
use bramble_report::exit::Failure;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;

/// Deadline for all workers to connect.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Workers that have not ended after this time are killed.
const END_DEADLINE: Duration = Duration::from_millis(1500);

/// Deadline for a connection to prove the key.
const PROOF_DEADLINE: Duration = Duration::from_secs(5);
/// Connections of other local users that are allowed besides the workers' own.
const STRANGERS: usize = 64;
/// The environment variable with the one-time key.
pub const KEY_VARIABLE: &str = "BRAMBLE_ONE_TIME_KEY";

/// The worker processes that this process started.
#[derive(Debug, Default)]
pub struct LocalWorkers {
    children: Vec<Child>,
}

/// How a local worker gets its link.
#[derive(Clone, Copy, Debug)]
pub enum LocalTransport {
    /// It dials this process over TCP.
    Loopback,
    /// It inherits its end of the link.
    Inherited(LocalKind),
}

/// This process's side of the links that are about to open.
pub enum Meeting {
    /// The listener that the workers dial.
    Door(Door),
    /// This process's end of each inherited link.
    Endpoints(Vec<Endpoint>),
}

/// The options of `--local`: transport, number of workers, and the resources of each.
#[derive(Clone, Copy, Debug)]
pub struct LocalConfig {
    /// How each worker gets its link.
    pub way: LocalTransport,
    /// Number of processes.
    pub workers: u16,
    /// Compute threads of each process.
    pub threads: usize,
    /// Memory limit of each process.
    pub memory_bytes: u64,
    /// Processors that all of them may use.
    pub cores: usize,
}

/// The message if the system cannot start a process.
const NOT_STARTED: &str = "cannot start a worker process";

impl LocalConfig {
    fn failed(&self, what: &str, e: std::io::Error) -> Failure {
        Failure::failed(format!("--local {}: {what}: {e}", self.workers))
    }

    /// The command that starts worker `i`, without the arguments of the transport.
    fn command(&self, i: usize) -> Result<Command, Failure> {
        let gone = |e| self.failed("this program's file is gone", e);
        let mut command = crate::program::command().map_err(gone)?;
        command.args(["worker", "--quiet", "--threads", &self.threads.to_string()]);
        command.args(["--memory", &self.memory_bytes.to_string()]);
        // With more threads than cores, the system schedules the threads.
        if usize::from(self.workers) * self.threads <= self.cores {
            command.args(["--pin-from", &(i * self.threads).to_string()]);
        } else {
            command.arg("--no-pin");
        }
        // Local workers do not need the cluster key.
        command.env_remove(crate::key::TEXT_VARIABLE).env_remove(crate::key::FILE_VARIABLE);
        command.stdout(Stdio::null());
        // Ctrl-C reaches the whole group of a terminal; workers end with their link instead.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }
}

impl LocalWorkers {
    /// Starts the processes; returns them and this process's side of their links.
    pub fn start(share: LocalConfig) -> LocalFuture<'static, Result<(Self, Meeting), Failure>> {
        Box::pin(async move {
            match share.way {
                LocalTransport::Loopback => {
                    let (workers, door) = Self::start_diallers(share).await?;
                    Ok((workers, Meeting::Door(door)))
                }
                LocalTransport::Inherited(kind) => {
                    let (workers, endpoints) = Self::start_with_links(share, kind)?;
                    Ok((workers, Meeting::Endpoints(endpoints)))
                }
            }
        })
    }

    /// Starts processes that dial this one.
    async fn start_diallers(share: LocalConfig) -> Result<(Self, Door), Failure> {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.map_err(|e| share.failed("no loopback port", e))?;
        let address = listener.local_addr().map_err(|e| share.failed("no loopback port", e))?;
        let mut bytes = [0; ClusterKey::BYTES];
        crate::random::random(&mut bytes).map_err(|e| share.failed("no random numbers", e))?;
        let key = ClusterKey::from_bytes(bytes);
        let mut workers = Self::default();
        for i in 0..usize::from(share.workers) {
            let mut command = share.command(i)?;
            command.args(["--join", &address.to_string()]).env(KEY_VARIABLE, key.to_text());
            command.stdin(Stdio::null());
            workers.children.push(command.spawn().map_err(|e| share.failed(NOT_STARTED, e))?);
        }
        // All workers may dial at once, and from one address.
        let connections = usize::from(share.workers) + STRANGERS;
        let limits = DoorLimits {
            connections,
            per_address: connections,
            per_second: 1000,
            per_address_per_second: 1000,
            deadline: PROOF_DEADLINE,
            proven_deadline: START_DEADLINE,
        };
        Ok((workers, Door::new(listener, trust::between_processes(key), limits)))
    }

    /// Starts processes that inherit their links.
    fn start_with_links(share: LocalConfig, kind: LocalKind) -> Result<(Self, Vec<Endpoint>), Failure> {
        let (mut workers, mut endpoints) = (Self::default(), Vec::new());
        for i in 0..usize::from(share.workers) {
            let (own, other) = local_pair(kind).map_err(|e| share.failed("no link", e))?;
            let mut command = share.command(i)?;
            command.arg("--inherited").env_remove(KEY_VARIABLE);
            workers.children.push(other.spawn(command).map_err(|e| share.failed(NOT_STARTED, e))?);
            endpoints.push(own);
        }
        Ok((workers, endpoints))
    }

    /// Opens the links to all workers.
    pub fn meet<'f>(&'f mut self, meeting: Meeting) -> LocalFuture<'f, Result<Vec<Link>, Failure>> {
        Box::pin(async move {
            match meeting {
                Meeting::Door(door) => self.accept(door).await,
                Meeting::Endpoints(endpoints) => {
                    let open = |(i, end): (usize, Endpoint)| end.open(&format!("local {}", i + 1));
                    let links = endpoints.into_iter().enumerate().map(open).collect::<Result<_, _>>();
                    links.map_err(|e| Failure::failed(format!("the link to a local worker process: {e}")))
                }
            }
        })
    }

    /// Takes the workers' connections.
    async fn accept(&mut self, mut door: Door) -> Result<Vec<Link>, Failure> {
        let mut links = Vec::new();
        let deadline = tokio::time::Instant::now() + START_DEADLINE;
        while links.len() < self.children.len() {
            let soon = tokio::time::Instant::now() + Duration::from_millis(200);
            // A connection of another process is dropped silently.
            if let Ok((_, Ok(arrival))) = tokio::time::timeout_at(soon, door.next()).await {
                links.push(Link { peer: format!("local {}", links.len() + 1), ..arrival.link });
            }
            self.check_alive(deadline)?;
        }
        Ok(links)
    }

    fn check_alive(&mut self, deadline: tokio::time::Instant) -> Result<(), Failure> {
        for child in &mut self.children {
            if let Ok(Some(status)) = child.try_wait() {
                let text = format!("a local worker process ended at once ({status})");
                return Err(Failure::failed(text));
            }
        }
        if tokio::time::Instant::now() > deadline {
            let seconds = START_DEADLINE.as_secs();
            return Err(Failure::failed(format!("local workers did not start within {seconds} s")));
        }
        Ok(())
    }
}

impl Drop for LocalWorkers {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + END_DEADLINE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            // An error here means that the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
