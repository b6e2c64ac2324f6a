//! Ways to be a worker: listen for primaries, or dial one.
//!
//! Place in the flow: the command line says which way and how ends prove themselves; each link that comes
//! about is served as a session.
//!
//! Invariants: a connection that misbehaves ends alone. What strangers can take is bounded by the door.
//!
//! Deliberately absent: reconnecting. Whoever starts this process decides whether it is to be there again.

use crate::ledger::Ledger;
use crate::machine::Config;
use crate::meetings::Meetings;
use crate::session::{Served, WorkerError, serve_arrival, serve_neighbour};
use bramble_link::{Arrival, Door, DoorLimits, Limits, Link, Security};
use bramble_matrix::give_back_free_memory;
use bramble_schedule::limits::{
    ACCEPTS_PER_ADDRESS_PER_S_MAX, ACCEPTS_PER_S_MAX, BYTES_PER_S_MIN, CHUNK_BYTES_MAX, HANDSHAKE_DEADLINE,
    HEAD_BYTES_MAX, HELLO_PATIENCE, NEIGHBOURS_MAX, RATE_WINDOW, STALL_MAX, STRANGER_HEAD_BYTES_MAX,
    STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX,
};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;

// The link knows no other room; its limits are those of the one file all the same.
const _: () = {
    assert!(Limits::STRANGER.head_bytes == STRANGER_HEAD_BYTES_MAX && Limits::STRANGER.body_bytes == 0);
    assert!(Limits::STRANGER.stall.as_secs() == HANDSHAKE_DEADLINE.as_secs());
    assert!(Limits::SESSION.head_bytes == HEAD_BYTES_MAX && Limits::SESSION.body_bytes == CHUNK_BYTES_MAX);
    assert!(Limits::SESSION.stall.as_secs() == STALL_MAX.as_secs());
    assert!(Limits::SESSION.bytes_per_s_min == BYTES_PER_S_MIN);
    assert!(Limits::SESSION.rate_window.as_secs() == RATE_WINDOW.as_secs());
};

/// What strangers may take.
pub const DOOR: DoorLimits = DoorLimits {
    connections: STRANGERS_MAX,
    per_address: STRANGERS_PER_ADDRESS_MAX,
    per_second: ACCEPTS_PER_S_MAX,
    per_address_per_second: ACCEPTS_PER_ADDRESS_PER_S_MAX,
    deadline: HANDSHAKE_DEADLINE,
    proven_deadline: HELLO_PATIENCE,
};

/// Listens until the process ends. `ready` is told the address, `ended` how each session went. Has to run
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
    let meetings = Meetings::new(security.clone(), address.port());
    let mut door = Door::new(listener, security, DOOR);
    let config = Rc::new(config);
    let ledger = Ledger::new();
    loop {
        let (peer, arrival) = door.next().await;
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(e) => {
                ended(peer, Err(e.into()));
                continue;
            }
        };
        let (config, ledger, meetings, ended) =
            (config.clone(), ledger.clone(), meetings.clone(), ended.clone());
        tokio::task::spawn_local(async move {
            let Arrival { link, slot } = arrival;
            match serve_arrival(link, Some(slot), &config, &ledger, Some(&meetings)).await {
                Ok(Served::Neighbour) => return,
                Ok(Served::Session) => ended(peer, Ok(())),
                Err(e) => ended(peer, Err(e)),
            }
            // Its matrices are free; others may have come meanwhile whose own keep the allocator from giving them back.
            give_back_free_memory();
        });
    }
}

/// Dials a primary and serves that one session; calls `connected` as soon as there is a connection with somebody who is trusted.
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
    let meetings = Meetings::new(security.clone(), port);
    let ledger = Ledger::new();
    tokio::select! {
        served = serve_arrival(link, None, config, &ledger, Some(&meetings)) => served.map(drop),
        () = take_neighbours(door, &meetings) => Ok(()),
    }
}

/// A door for other workers of the product, on the address by which this machine reaches the primary. Without one it
/// dials those that listen.
async fn own_door(link: &Link, security: &Security) -> Option<(Door, u16)> {
    let listener = TcpListener::bind((link.addresses?.here.ip(), 0)).await.ok()?;
    let port = listener.local_addr().ok()?.port();
    // All of them may come at once, and from one address.
    let (connections, per_address) = (DOOR.connections + NEIGHBOURS_MAX, DOOR.per_address + NEIGHBOURS_MAX);
    let limits = DoorLimits { connections, per_address, ..DOOR };
    Some((Door::new(listener, security.clone(), limits), port))
}

/// Brings other workers to the session; nobody else gets anything at this door. Never ends.
async fn take_neighbours(door: Option<Door>, meetings: &Meetings) {
    let Some(mut door) = door else { return std::future::pending().await };
    loop {
        let (_, Ok(Arrival { link, slot })) = door.next().await else { continue };
        let meetings = meetings.clone();
        tokio::task::spawn_local(async move {
            // The primary is told by the session whom it could not meet.
            let _ = serve_neighbour(link, slot, &meetings).await;
        });
    }
}
