//! `--local N`: worker processes of this machine, started and stopped with the product.
//!
//! Invariants: no process outlives the product. A worker dials this process and ends with that connection;
//! whoever is still there at the end is killed and waited for. Only processes that were started here are
//! taken as workers: each proves it with a secret from its environment, which other users cannot read.

use crate::exit::Failure;
use bramble_link::{Link, tcp_link};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Workers have to have dialled by then.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Workers may take this long to end by themselves.
const END_DEADLINE: Duration = Duration::from_millis(1500);

/// Whoever dials has to have shown its token by then.
const TOKEN_DEADLINE: Duration = Duration::from_secs(1);
/// Where a worker process finds its token.
pub(crate) const TOKEN_VARIABLE: &str = "BRAMBLE_JOIN_TOKEN";

/// Worker processes of ours.
#[derive(Debug, Default)]
pub(crate) struct LocalWorkers {
    children: Vec<Child>,
    token: String,
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
    /// Starts the processes; gives them and the listener that they dial.
    pub(crate) async fn start(share: Share) -> Result<(Self, TcpListener), Failure> {
        let failed = |what: &str, e: std::io::Error| {
            Failure::failed(format!("--local {}: {what}: {e}", share.workers))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| failed("no loopback port", e))?;
        let address = listener.local_addr().map_err(|e| failed("no loopback port", e))?;
        let program = std::env::current_exe().map_err(|e| failed("this program's file is gone", e))?;
        let token = token().map_err(|e| failed("no random numbers", e))?;
        let mut workers = Self { children: Vec::new(), token };
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
            command.env(TOKEN_VARIABLE, &workers.token);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            // Ctrl-C reaches the whole group of a terminal; workers end with their link instead.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let child = command.spawn().map_err(|e| failed("cannot start a worker process", e))?;
            workers.children.push(child);
        }
        Ok((workers, listener))
    }

    /// Takes the workers' connections.
    pub(crate) async fn accept(&mut self, listener: TcpListener) -> Result<Vec<Link>, Failure> {
        let mut links = Vec::new();
        let deadline = tokio::time::Instant::now() + START_DEADLINE;
        while links.len() < self.children.len() {
            let soon = tokio::time::Instant::now() + Duration::from_millis(200);
            match tokio::time::timeout_at(soon, listener.accept()).await {
                Ok(Ok((mut stream, _))) => {
                    if !self.is_ours(&mut stream).await {
                        self.check_alive(deadline)?;
                        continue;
                    }
                    let link =
                        tcp_link(stream).map_err(|e| Failure::failed(format!("a local worker: {e}")))?;
                    links.push(Link { peer: format!("local {}", links.len() + 1), ..link });
                }
                Ok(Err(e)) => return Err(Failure::failed(format!("local workers: {e}"))),
                Err(_) => {}
            }
            self.check_alive(deadline)?;
        }
        Ok(links)
    }

    /// Whether who dialled knows the token.
    async fn is_ours(&self, stream: &mut TcpStream) -> bool {
        let mut shown = vec![0; self.token.len()];
        let reading = tokio::io::AsyncReadExt::read_exact(stream, &mut shown);
        let read = tokio::time::timeout(TOKEN_DEADLINE, reading).await;
        // A stranger who tries costs a connection each; 128 bits need no constant time beyond that.
        matches!(read, Ok(Ok(_))) && shown == self.token.as_bytes()
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

/// 128 random bits in hexadecimal.
fn token() -> std::io::Result<String> {
    let mut bytes = [0u8; 16];
    crate::random(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
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
