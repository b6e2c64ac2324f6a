//! Ways to be a worker: listen for primaries, or dial one.
//!
//! Invariants: a connection that misbehaves ends alone. Until a cluster key exists, only loopback
//! addresses are listened on.

use crate::ledger::Ledger;
use crate::machine::Config;
use crate::session::{WorkerError, serve_link};
use bramble_link::{LinkError, tcp_connect, tcp_link};
use bramble_schedule::limits::HANDSHAKE_DEADLINE;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;

/// Connections that may be open at once; more are closed at once.
const CONNECTIONS_MAX: usize = 64;

/// Listens until the process ends. `ready` is told the address, `ended` how each session went. Has to run
/// inside a `tokio::task::LocalSet`.
pub async fn listen(
    address: SocketAddr,
    config: Config,
    ready: impl FnOnce(SocketAddr),
    ended: impl Fn(SocketAddr, Result<(), WorkerError>) + Clone + 'static,
) -> Result<(), WorkerError> {
    if !address.ip().is_loopback() {
        return Err(WorkerError::Here(format!(
            "--listen {address}: only loopback addresses (127.0.0.1:PORT) are served, since there is no cluster \
             key yet and anyone on the network could use this machine"
        )));
    }
    let fail = |e| WorkerError::Here(format!("--listen {address}: {e}; choose another port"));
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    ready(listener.local_addr().map_err(fail)?);
    let config = Rc::new(config);
    let ledger = Ledger::new();
    let open = Rc::new(Cell::new(0usize));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Out of descriptors, or the caller is already gone: let sessions end, then go on.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        if open.get() >= CONNECTIONS_MAX {
            continue;
        }
        open.set(open.get() + 1);
        let (config, ledger, open, ended) = (config.clone(), ledger.clone(), open.clone(), ended.clone());
        tokio::task::spawn_local(async move {
            let result = match tcp_link(stream) {
                Ok(link) => serve_link(link, &config, &ledger).await,
                Err(e) => Err(e.into()),
            };
            open.set(open.get() - 1);
            ended(peer, result);
        });
    }
}

/// Dials a primary and serves that one session. `token` is what the primary that started this process
/// knows it by.
pub async fn join(address: SocketAddr, token: &[u8], config: &Config) -> Result<(), WorkerError> {
    if !address.ip().is_loopback() {
        return Err(WorkerError::Here(format!(
            "--join {address}: only loopback addresses are dialled, since there is no cluster key yet"
        )));
    }
    let mut stream = tcp_connect(address, HANDSHAKE_DEADLINE).await?;
    tokio::io::AsyncWriteExt::write_all(&mut stream, token).await.map_err(LinkError::from)?;
    serve_link(tcp_link(stream)?, config, &Ledger::new()).await
}
