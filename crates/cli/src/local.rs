//! `--local N`: worker processes of this machine, started and stopped with the product.
//!
//! Invariants: no process outlives the product. A worker ends with its link; whoever is still there at the end is killed and
//! waited for. Only processes that were started here are taken as workers, and they take only this one as primary. Over TCP
//! both prove a one-time key, which the workers find in their environment, where other users cannot read it. Over `pipe` and
//! `shm` they are started with their end of the link, which nobody else can have.

use crate::exit::Failure;
use crate::trust;
use bramble_link::{ClusterKey, Door, DoorLimits, Endpoint, Link, LocalKind, local_pair};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;

/// Workers have to have dialled by then.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Workers may take this long to end by themselves.
const END_DEADLINE: Duration = Duration::from_millis(1500);

/// Whoever dials has to have proven the key by then.
const PROOF_DEADLINE: Duration = Duration::from_secs(5);
/// Other users of this machine who may be at the door beside the workers.
const STRANGERS: usize = 64;
/// Where a worker process finds the one-time key.
pub(crate) const KEY_VARIABLE: &str = "BRAMBLE_ONE_TIME_KEY";

/// Worker processes of ours.
#[derive(Debug, Default)]
pub(crate) struct LocalWorkers {
    children: Vec<Child>,
}

/// How they and this process meet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// They dial.
    Loopback,
    /// They are started with their end of a link.
    Inherited(LocalKind),
}

/// Where this process meets those that it has started.
pub(crate) enum Meeting {
    /// They come to this door.
    Door(Door),
    /// It has its end of a link with each.
    Endpoints(Vec<Endpoint>),
}

/// What each of them gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) way: Way,
    pub(crate) workers: u16,
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) cores: usize,
}

/// What is said where the system starts none.
const NOT_STARTED: &str = "cannot start a worker process";

impl Share {
    fn failed(&self, what: &str, e: std::io::Error) -> Failure {
        Failure::failed(format!("--local {}: {what}: {e}", self.workers))
    }

    /// How worker `i` is started, but for how it is met.
    fn command(&self, i: usize) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(|e| self.failed("this program's file is gone", e))?;
        let mut command = Command::new(program);
        command.args(["worker", "--quiet", "--threads", &self.threads.to_string()]);
        command.args(["--memory", &self.memory_bytes.to_string()]);
        // More threads than cores: let the system share them out.
        if usize::from(self.workers) * self.threads <= self.cores {
            command.args(["--pin-from", &(i * self.threads).to_string()]);
        } else {
            command.arg("--no-pin");
        }
        // They have no use for the cluster's.
        command.env_remove(crate::key::TEXT_VARIABLE).env_remove(crate::key::FILE_VARIABLE);
        command.stdout(Stdio::null());
        // Ctrl-C reaches the whole group of a terminal; workers end with their link instead.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }
}

impl LocalWorkers {
    /// Starts the processes; gives them and where they are met.
    pub(crate) async fn start(share: Share) -> Result<(Self, Meeting), Failure> {
        match share.way {
            Way::Loopback => {
                let (workers, door) = Self::start_diallers(share).await?;
                Ok((workers, Meeting::Door(door)))
            }
            Way::Inherited(kind) => {
                let (workers, endpoints) = Self::start_with_links(share, kind)?;
                Ok((workers, Meeting::Endpoints(endpoints)))
            }
        }
    }

    /// Starts processes that dial.
    async fn start_diallers(share: Share) -> Result<(Self, Door), Failure> {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.map_err(|e| share.failed("no loopback port", e))?;
        let address = listener.local_addr().map_err(|e| share.failed("no loopback port", e))?;
        let mut bytes = [0; ClusterKey::BYTES];
        crate::random(&mut bytes).map_err(|e| share.failed("no random numbers", e))?;
        let key = ClusterKey::from_bytes(bytes);
        let mut workers = Self::default();
        for i in 0..usize::from(share.workers) {
            let mut command = share.command(i)?;
            command.args(["--join", &address.to_string()]).env(KEY_VARIABLE, key.to_text());
            command.stdin(Stdio::null());
            workers.children.push(command.spawn().map_err(|e| share.failed(NOT_STARTED, e))?);
        }
        // All workers may come at once, and all from one address.
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

    /// Starts processes that have their link from the beginning.
    fn start_with_links(share: Share, kind: LocalKind) -> Result<(Self, Vec<Endpoint>), Failure> {
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

    /// The links with all of them.
    pub(crate) async fn meet(&mut self, meeting: Meeting) -> Result<Vec<Link>, Failure> {
        match meeting {
            Meeting::Door(door) => self.accept(door).await,
            Meeting::Endpoints(endpoints) => {
                let open = |(i, end): (usize, Endpoint)| end.open(&format!("local {}", i + 1));
                let links = endpoints.into_iter().enumerate().map(open).collect::<Result<_, _>>();
                links.map_err(|e| Failure::failed(format!("a link with a local worker process: {e}")))
            }
        }
    }

    /// Takes the workers' connections.
    async fn accept(&mut self, mut door: Door) -> Result<Vec<Link>, Failure> {
        let mut links = Vec::new();
        let deadline = tokio::time::Instant::now() + START_DEADLINE;
        while links.len() < self.children.len() {
            let soon = tokio::time::Instant::now() + Duration::from_millis(200);
            // Whoever is not ours is gone without a word.
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
            // An error here means that it is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
