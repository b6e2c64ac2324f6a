//! `--local N`: worker processes of this machine, started and stopped with the product.
//!
//! Invariants: no process outlives the product. A worker dials this process and ends with that connection;
//! whoever is still there at the end is killed and waited for. Only processes that were started here are
//! taken as workers, and they take only this one as primary: both prove a one-time key, which the workers find
//! in their environment, where other users cannot read it.

use crate::exit::Failure;
use crate::trust;
use bramble_link::{ClusterKey, Door, DoorLimits, Link};
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

/// What each of them gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) workers: u16,
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) cores: usize,
}

impl LocalWorkers {
    /// Starts the processes; gives them and the door that they come to.
    pub(crate) async fn start(share: Share) -> Result<(Self, Door), Failure> {
        let failed = |what: &str, e: std::io::Error| {
            Failure::failed(format!("--local {}: {what}: {e}", share.workers))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| failed("no loopback port", e))?;
        let address = listener.local_addr().map_err(|e| failed("no loopback port", e))?;
        let program = std::env::current_exe().map_err(|e| failed("this program's file is gone", e))?;
        let mut bytes = [0; ClusterKey::BYTES];
        crate::random(&mut bytes).map_err(|e| failed("no random numbers", e))?;
        let key = ClusterKey::from_bytes(bytes);
        let mut workers = Self { children: Vec::new() };
        for i in 0..usize::from(share.workers) {
            let mut command = Command::new(&program);
            command.args(["worker", "--quiet", "--join", &address.to_string()]);
            command.args(["--threads", &share.threads.to_string()]);
            command.args(["--memory", &share.memory_bytes.to_string()]);
            // More threads than cores: let the system share them out.
            if usize::from(share.workers) * share.threads <= share.cores {
                command.args(["--pin-from", &(i * share.threads).to_string()]);
            } else {
                command.arg("--no-pin");
            }
            command.env(KEY_VARIABLE, key.to_text());
            // They have no use for the cluster's.
            command.env_remove(crate::key::TEXT_VARIABLE).env_remove(crate::key::FILE_VARIABLE);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            // Ctrl-C reaches the whole group of a terminal; workers end with their link instead.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let child = command.spawn().map_err(|e| failed("cannot start a worker process", e))?;
            workers.children.push(child);
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

    /// Takes the workers' connections.
    pub(crate) async fn accept(&mut self, mut door: Door) -> Result<Vec<Link>, Failure> {
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
