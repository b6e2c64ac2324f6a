//! Attacks a worker of this machine, for `bench/under_attack.py`: a flood of connections, connections that are held
//! open with half a handshake, and connections that prove another key.
//!
//! `attacker ADDRESS:PORT CONNECTIONS SECONDS [same]` stops after that number of connections or seconds, whichever
//! is first, and prints the number of connections. It uses addresses of its own, 127.0.1.1 to 127.0.1.4, like other
//! machines; with `same`, the address of a local primary.
//!
//! Invariant: it connects only to loopback addresses.

#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program for the command line.

use bramble_link::{ClusterKey, Security};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// Connections held open at a time.
const HELD: usize = 64;
/// Concurrent proofs of another key.
const PROVING: usize = 4;
/// Concurrent connections that are closed at once.
const COMING: usize = 8;
const PATIENCE: Duration = Duration::from_secs(6);
/// The first bytes of a TLS handshake.
const HALF: [u8; 9] = [0x16, 3, 1, 1, 0, 1, 0, 0, 252];

/// The remaining time and connections.
struct Left {
    address: SocketAddr,
    same: bool,
    connections: Cell<u64>,
    until: Instant,
    made: Cell<u64>,
}

impl Left {
    /// The next connection, unless the limits are reached.
    async fn connect(&self) -> Option<std::io::Result<TcpStream>> {
        if self.connections.get() == 0 || Instant::now() >= self.until {
            return None;
        }
        self.connections.set(self.connections.get() - 1);
        let connected = timeout(PATIENCE, self.socket()).await;
        let connected = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        self.made.set(self.made.get() + u64::from(connected.is_ok()));
        if connected.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        Some(connected)
    }

    async fn socket(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if !self.same {
            let last = (self.connections.get() % 4 + 1) as u8;
            socket.bind((Ipv4Addr::new(127, 0, 1, last), 0).into())?;
        }
        socket.connect(self.address).await
    }
}

async fn come_and_go(left: Rc<Left>) {
    while let Some(connected) = left.connect().await {
        drop(connected);
    }
}

async fn hold(left: Rc<Left>) {
    while let Some(connected) = left.connect().await {
        let Ok(mut stream) = connected else { continue };
        let _ = stream.write_all(&HALF).await;
        // Until the other end closes.
        let _ = timeout(PATIENCE.min(left.until - Instant::now()), stream.readable()).await;
    }
}

async fn prove_another_key(left: Rc<Left>, security: Security) {
    while let Some(connected) = left.connect().await {
        if let Ok(stream) = connected {
            let _ = timeout(PATIENCE, security.dial(stream)).await;
        }
    }
}

async fn attack(left: Rc<Left>) {
    let mut tasks = tokio::task::JoinSet::new();
    let Ok(security) = Security::sealed(ClusterKey::from_bytes([1; ClusterKey::BYTES]), 2, "0.1.0") else {
        return eprintln!("TLS cannot be set up here");
    };
    for _ in 0..COMING {
        tasks.spawn_local(come_and_go(left.clone()));
    }
    for _ in 0..HELD {
        tasks.spawn_local(hold(left.clone()));
    }
    for _ in 0..PROVING {
        tasks.spawn_local(prove_another_key(left.clone(), security.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

fn arguments() -> Option<(SocketAddr, u64, u64, bool)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (address, connections, seconds, same) = match &words[..] {
        [address, connections, seconds] => (address, connections, seconds, false),
        [address, connections, seconds, same] if same == "same" => (address, connections, seconds, true),
        _ => return None,
    };
    Some((address.parse().ok()?, connections.parse().ok()?, seconds.parse().ok()?, same))
}

fn main() -> ExitCode {
    let Some((address, connections, seconds, same)) = arguments() else {
        eprintln!("attacker ADDRESS:PORT CONNECTIONS SECONDS [same]");
        return ExitCode::from(2);
    };
    if !matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
        eprintln!("{address} is not an address of 127.0.0.0/8: nothing else is attacked");
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("cannot start: {e}");
            return ExitCode::FAILURE;
        }
    };
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let left = Rc::new(Left {
            address,
            same,
            connections: Cell::new(connections),
            until: Instant::now() + Duration::from_secs(seconds),
            made: Cell::new(0),
        });
        attack(left.clone()).await;
        println!("{} connections", left.made.get());
    });
    ExitCode::SUCCESS
}
