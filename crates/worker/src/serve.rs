//! Serving as a worker: listen for primaries, or dial one.
//!
//! Place in the flow: the command line chooses the way and the security; each link that
//! results is served as a session.
//!
//! Invariants: a connection that breaks the rules ends alone. The door bounds the resources of strangers.
//!
//! Deliberately absent: reconnecting. Whether to start again is for the caller to decide.

use crate::ledger::SessionLedger;
use crate::machine::Config;
use crate::session::{Served, WorkerError, serve_arrival, serve_neighbour};
use crate::tickets::NeighbourTickets;
use bramble_link::{Arrival, Door, DoorLimits, FrameLimits, Link, Security};
use bramble_matrix::give_back_free_memory;
use bramble_wire::limits::{
    ACCEPTS_PER_ADDRESS_PER_S_MAX, ACCEPTS_PER_S_MAX, BYTES_PER_S_MIN, CHUNK_BYTES_MAX, HANDSHAKE_DEADLINE,
    HEAD_BYTES_MAX, HELLO_PATIENCE, NEIGHBOURS_MAX, RATE_WINDOW, STALL_MAX, STRANGER_HEAD_BYTES_MAX,
    STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX,
};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;

// The link crate depends on no other; its limits must equal those of `wire/src/limits.rs` all the same.
const _: () = {
    assert!(
        FrameLimits::STRANGER.head_bytes == STRANGER_HEAD_BYTES_MAX && FrameLimits::STRANGER.body_bytes == 0
    );
    assert!(FrameLimits::STRANGER.stall.as_secs() == HANDSHAKE_DEADLINE.as_secs());
    assert!(
        FrameLimits::SESSION.head_bytes == HEAD_BYTES_MAX
            && FrameLimits::SESSION.body_bytes == CHUNK_BYTES_MAX
    );
    assert!(FrameLimits::SESSION.stall.as_secs() == STALL_MAX.as_secs());
    assert!(FrameLimits::SESSION.bytes_per_s_min == BYTES_PER_S_MIN);
    assert!(FrameLimits::SESSION.rate_window.as_secs() == RATE_WINDOW.as_secs());
};

/// Limits for connections that have not authenticated.
pub const DOOR: DoorLimits = DoorLimits {
    connections: STRANGERS_MAX,
    per_address: STRANGERS_PER_ADDRESS_MAX,
    per_second: ACCEPTS_PER_S_MAX,
    per_address_per_second: ACCEPTS_PER_ADDRESS_PER_S_MAX,
    deadline: HANDSHAKE_DEADLINE,
    proven_deadline: HELLO_PATIENCE,
};

/// Listens until the process ends. `ready` gets the address, `ended` the result of each session. Must run
/// inside a `tokio::task::LocalSet`.
pub async fn listen(
    address: SocketAddr,
    security: Security,
    config: Config,
    ready: impl FnOnce(SocketAddr),
    ended: impl Fn(SocketAddr, Result<(), WorkerError>) + Clone + 'static,
) -> Result<(), WorkerError> {
    if !security.reaches(address.ip()) {
        return Err(WorkerError::Here(format!(
            "--listen {address}: there is no cluster key here, so anyone on the network could use this machine: make \
             one with `bramble key new` and give it to every machine, or listen on 127.0.0.1:{}",
            address.port()
        )));
    }
    let fail = |e| WorkerError::Here(format!("--listen {address}: {e}; choose another address or port"));
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    ready(address);
    let tickets = NeighbourTickets::new(security.clone(), address.port());
    let mut door = Door::new(listener, security, DOOR);
    let config = Rc::new(config);
    let ledger = SessionLedger::new();
    loop {
        let (peer, arrival) = door.next().await;
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(e) => {
                ended(peer, Err(e.into()));
                continue;
            }
        };
        let (config, ledger, tickets, ended) =
            (config.clone(), ledger.clone(), tickets.clone(), ended.clone());
        tokio::task::spawn_local(async move {
            let Arrival { link, slot } = arrival;
            match serve_arrival(link, Some(slot), &config, &ledger, Some(&tickets)).await {
                Ok(Served::Neighbour) => return,
                Ok(Served::Session) => ended(peer, Ok(())),
                Err(e) => ended(peer, Err(e)),
            }
            // The session's matrices are free; buffers of sessions that began later may have kept the allocator from
            // returning them.
            give_back_free_memory();
        });
    }
}

/// Dials a primary and serves that one session; calls `connected` once the link is authenticated.
pub async fn join(
    address: SocketAddr,
    security: &Security,
    config: &Config,
    connected: impl FnOnce(),
) -> Result<(), WorkerError> {
    if !security.reaches(address.ip()) {
        return Err(WorkerError::Here(format!(
            "--join {address}: there is no cluster key here: make one with `bramble key new` and give it to every machine"
        )));
    }
    let link = security.reach(address, HANDSHAKE_DEADLINE).await?;
    connected();
    let (door, port) = match own_door(&link, security).await {
        Some((door, port)) => (Some(door), port),
        None => (None, 0),
    };
    let tickets = NeighbourTickets::new(security.clone(), port);
    let ledger = SessionLedger::new();
    tokio::select! {
        served = serve_arrival(link, None, config, &ledger, Some(&tickets)) => served.map(drop),
        () = take_neighbours(door, &tickets) => Ok(()),
    }
}

/// A door for other workers of the product, on the address from which this machine reaches the primary. Without it, this worker
/// only dials workers that listen.
async fn own_door(link: &Link, security: &Security) -> Option<(Door, u16)> {
    let listener = TcpListener::bind((link.addresses?.here.ip(), 0)).await.ok()?;
    let port = listener.local_addr().ok()?.port();
    // All other workers may come at once, and from one address.
    let (connections, per_address) = (DOOR.connections + NEIGHBOURS_MAX, DOOR.per_address + NEIGHBOURS_MAX);
    let limits = DoorLimits { connections, per_address, ..DOOR };
    Some((Door::new(listener, security.clone(), limits), port))
}

/// Passes other workers to the session; all other connections are refused. Never ends.
async fn take_neighbours(door: Option<Door>, tickets: &NeighbourTickets) {
    let Some(mut door) = door else { return std::future::pending().await };
    loop {
        let (_, Ok(Arrival { link, slot })) = door.next().await else { continue };
        let tickets = tickets.clone();
        tokio::task::spawn_local(async move {
            // The session tells the primary which workers it could not link with.
            let _ = serve_neighbour(link, slot, &tickets).await;
        });
    }
}
