//! Workers of other machines: those that are dialled, and those that dial in.
//!
//! Place in the flow: between the command line and the opening of sessions.
//!
//! Invariants: all are connected to at the same time; one that cannot be had is an error that names it. Each
//! connection has one deadline for everything up to the proof of the key.
//!
//! Deliberately absent: going on without a machine that was named (`team`).

mod later;

pub(crate) use later::Later;

use crate::exit::Failure;
use crate::hosts::Host;
use crate::quantity::counted;
use bramble_link::{Door, DoorLimits, LinkError, Security};
use bramble_primary::End;
use bramble_worker::DOOR;
use bramble_worker::limits::{AWAIT_DEADLINE, HANDSHAKE_DEADLINE};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Which machines, and how they are met.
pub(crate) struct Cluster {
    /// Those that listen.
    pub(crate) hosts: Vec<Host>,
    /// How many dial in.
    pub(crate) awaited: u16,
    /// Where they do.
    pub(crate) listen: SocketAddr,
    pub(crate) security: Security,
}

/// Links with those who could be had, and why others could not.
#[derive(Default)]
pub(crate) struct Met {
    pub(crate) ends: Vec<End>,
    pub(crate) missing: Vec<Failure>,
    /// Where more may come from.
    pub(crate) later: Option<Later>,
}

impl Cluster {
    /// Links with all of them that can be had.
    pub(crate) async fn meet(self) -> Result<Met, Failure> {
        // Those that are dialled wait for a hello, and without a key not for long: so they come last.
        let (mut came, door) = wait_for(self.awaited, self.listen, &self.security).await?;
        let mut met = dial_all(self.hosts, self.security).await;
        met.ends.append(&mut came.ends);
        met.missing.append(&mut came.missing);
        if let Some(later) = &mut met.later {
            later.door = door;
        }
        Ok(met)
    }
}

async fn dial_all(hosts: Vec<Host>, security: Security) -> Met {
    let dialling = |host: &Host| tokio::task::spawn_local(dial(host.clone(), security.clone()));
    let tasks: Vec<_> = hosts.iter().map(dialling).collect();
    let mut met = Met::default();
    let (mut by_name, mut absent) = (BTreeMap::new(), Vec::new());
    for (host, task) in tasks.into_iter().enumerate() {
        match task.await {
            Ok(Ok(end)) => {
                by_name.insert(end.link.peer.clone(), host);
                met.ends.push(end);
            }
            Ok(Err(e)) => {
                absent.push(host);
                met.missing.push(e);
            }
            Err(e) => met.missing.push(Failure::failed(format!("connecting: {e}"))),
        }
    }
    met.later = Some(Later { door: None, hosts, by_name, absent, security });
    met
}

async fn dial(host: Host, security: Security) -> Result<End, Failure> {
    let name = format!("{}:{}", host.name, host.port);
    let lookup = tokio::net::lookup_host((host.name.as_str(), host.port)).await;
    let addresses: Vec<SocketAddr> = match lookup {
        Ok(addresses) => addresses.collect(),
        Err(e) => return Err(Failure::unreachable(format!("worker {name}: no such machine: {e}"))),
    };
    if addresses.iter().any(|a| !security.reaches(a.ip())) {
        return Err(Failure::usage(format!(
            "worker {name}: another machine is used only with a cluster key, and there is none here: make one with \
             `bramble key new` and give it to every machine"
        )));
    }
    let mut last = format!("worker {name}: no address");
    for address in addresses {
        match security.reach(address, HANDSHAKE_DEADLINE).await {
            Ok(link) => return Ok(End { link, threads_max: host.slots, was_dialled: true }),
            Err(e @ (LinkError::Untrusted(_) | LinkError::Shut)) => last = format!("worker {name}: {e}"),
            Err(e) => {
                last = format!("worker {name}: {e}; start one there with: bramble worker --listen {address}");
            }
        }
    }
    Err(Failure::unreachable(last))
}

/// Takes so many workers that dial in.
async fn wait_for(
    awaited: u16,
    listen: SocketAddr,
    security: &Security,
) -> Result<(Met, Option<Door>), Failure> {
    let mut met = Met::default();
    if awaited == 0 {
        return Ok((met, None));
    }
    if !security.reaches(listen.ip()) {
        return Err(Failure::usage(format!(
            "--listen {listen}: workers of other machines are taken only with a cluster key, and there is none here: \
             make one with `bramble key new`, or listen on 127.0.0.1:{}",
            listen.port()
        )));
    }
    let fail = |e| Failure::failed(format!("--listen {listen}: {e}; choose another address or port"));
    let listener = TcpListener::bind(listen).await.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    crate::say(&format!(
        "waiting on {address} for {awaited} worker{} (bramble worker --join HOST:{})",
        if awaited == 1 { "" } else { "s" },
        address.port()
    ));
    // Several workers of one machine may come at once.
    let limits = DoorLimits { per_address: DOOR.per_address.max(usize::from(awaited)), ..DOOR };
    let mut door = Door::new(listener, security.clone(), limits);
    let deadline = tokio::time::Instant::now() + AWAIT_DEADLINE;
    let mut refused = String::new();
    while met.ends.len() < usize::from(awaited) {
        match tokio::time::timeout_at(deadline, door.next()).await {
            Ok((_, Ok(arrival))) => {
                met.ends.push(End { link: arrival.link, threads_max: 0, was_dialled: false })
            }
            Ok((peer, Err(e))) => refused = format!("; last came {peer}, but {e}"),
            Err(_) => {
                let (came, seconds) = (counted(met.ends.len() as u64, "worker"), AWAIT_DEADLINE.as_secs());
                let text = format!("--await {awaited}: {came} dialled in within {seconds} s{refused}");
                met.missing.push(Failure::unreachable(text));
                break;
            }
        }
    }
    Ok((met, Some(door)))
}
