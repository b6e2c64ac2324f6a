//! Connects to workers over TCP: dials the hosts of `--workers` and `--hostfile`, and accepts the workers of
//! `--await`.
//!
//! Place in the flow: between the command line and the opening of sessions.
//!
//! Invariants: all hosts are dialled concurrently; an unreachable worker is an error that names it. One deadline
//! covers a whole connection attempt, up to the proof of the key.
//!
//! Deliberately absent: continuing without a named machine (`team` does that).

mod later;

pub use later::LateWorkers;

use crate::hosts::Host;
use crate::turned_away::TurnedAway;
use bramble_link::LocalFuture;
use bramble_link::{Door, DoorLimits, LinkError, Security};
use bramble_primary::MachineLink;
use bramble_report::exit::Failure;
use bramble_report::quantity::{counted, seconds};
use bramble_worker::DOOR;
use bramble_worker::limits::HANDSHAKE_DEADLINE;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// The workers of a cluster, and how this process connects to them.
pub struct ClusterSpec {
    /// Workers that listen and are dialled.
    pub hosts: Vec<Host>,
    /// How many workers dial in.
    pub awaited: u16,
    /// How long to wait for workers that dial in.
    pub patience: Duration,
    /// The address that workers dial in to.
    pub listen: SocketAddr,
    /// How connections are secured.
    pub security: Security,
}

/// Links to the connected workers, and the errors of the others.
#[derive(Default)]
pub struct ConnectedWorkers {
    /// Links to the workers that were reached.
    pub ends: Vec<MachineLink>,
    /// The errors of the workers that were not.
    pub missing: Vec<Failure>,
    /// Accepts and dials workers later, while the product runs.
    pub later: Option<LateWorkers>,
    /// Connections at `listen` that were refused; `None` if no worker dials in.
    pub turned_away: Option<Rc<RefCell<TurnedAway>>>,
}

impl ClusterSpec {
    /// Connects to all workers that can be reached.
    pub fn meet(self) -> LocalFuture<'static, Result<ConnectedWorkers, Failure>> {
        Box::pin(async move {
            // Dialled workers expect a hello soon, without a key very soon: so they are dialled after the awaited ones
            // have come.
            let (mut came, door) = self.wait().await?;
            let mut met = dial_all(self.hosts, self.security).await;
            met.ends.append(&mut came.ends);
            met.missing.append(&mut came.missing);
            if let Some(later) = &mut met.later {
                later.door = door.zip(came.turned_away.clone());
            }
            met.turned_away = came.turned_away;
            Ok(met)
        })
    }

    /// Waits until `awaited` workers have dialled in.
    async fn wait(&self) -> Result<(ConnectedWorkers, Option<Door>), Failure> {
        let Self { awaited, listen, patience, ref security, .. } = *self;
        let mut met = ConnectedWorkers::default();
        if awaited == 0 {
            return Ok((met, None));
        }
        if !security.reaches(listen.ip()) {
            return Err(Failure::usage(format!(
                "--listen {listen}: workers of other machines are accepted only with a cluster key, and this machine \
                has none: make one with `bramble key new`, or listen on 127.0.0.1:{}",
                listen.port()
            )));
        }
        let fail = |e| Failure::failed(format!("--listen {listen}: {e}; choose another address or port"));
        let listener = TcpListener::bind(listen).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        bramble_report::say(&format!(
            "waiting on {address} for {awaited} worker{} (bramble worker --join HOST:{})",
            if awaited == 1 { "" } else { "s" },
            address.port()
        ));
        // All awaited workers may come from one address at once.
        let limits = DoorLimits { per_address: DOOR.per_address.max(usize::from(awaited)), ..DOOR };
        let mut door = Door::new(listener, security.clone(), limits);
        let deadline = tokio::time::Instant::now() + patience;
        let mut turned_away = TurnedAway::default();
        while met.ends.len() < usize::from(awaited) {
            match tokio::time::timeout_at(deadline, door.next()).await {
                Ok((_, Ok(arrival))) => {
                    met.ends.push(MachineLink { link: arrival.link, threads_max: 0, was_dialled: false })
                }
                Ok((peer, Err(e))) => {
                    turned_away
                        .add(Instant::now(), peer, &e)
                        .iter()
                        .for_each(|line| bramble_report::say(line));
                }
                Err(_) => {
                    let (came, within) =
                        (counted(met.ends.len() as u64, "worker"), seconds(patience.as_secs_f64()));
                    let refused = turned_away.last().map_or_else(String::new, |last| format!("; {last}"));
                    let text = format!(
                        "--await {awaited}: {came} dialled in within {within}{refused}; start more workers, or wait \
                        longer with \
                     --await-timeout"
                    );
                    met.missing.push(Failure::unreachable(text));
                    break;
                }
            }
        }
        met.turned_away = Some(Rc::new(RefCell::new(turned_away)));
        Ok((met, Some(door)))
    }
}

async fn dial_all(hosts: Vec<Host>, security: Security) -> ConnectedWorkers {
    let dialling = |host: &Host| tokio::task::spawn_local(dial(host.clone(), security.clone()));
    let tasks: Vec<_> = hosts.iter().map(dialling).collect();
    let mut met = ConnectedWorkers::default();
    let (mut by_name, mut absent) = (BTreeMap::new(), Vec::new());
    for (host, task) in tasks.into_iter().enumerate() {
        match task.await {
            Ok(Ok(end)) => match by_name.insert(end.link.peer.clone(), host) {
                None => met.ends.push(end),
                Some(first) => met.missing.push(same_worker(&hosts[first], &hosts[host], &end.link.peer)),
            },
            Ok(Err(e)) => {
                absent.push(host);
                met.missing.push(e);
            }
            Err(e) => met.missing.push(Failure::failed(format!("connecting: {e}"))),
        }
    }
    met.later = Some(LateWorkers { door: None, hosts, by_name, absent, security });
    met
}

/// The error for two names of one worker: two sessions would both claim all of its memory.
fn same_worker(one: &Host, other: &Host, address: &str) -> Failure {
    Failure::usage(format!(
        "worker {other}: is the same worker as {one}, both are at {address}; name it once"
    ))
}

async fn dial(host: Host, security: Security) -> Result<MachineLink, Failure> {
    let name = host.to_string();
    let lookup = tokio::net::lookup_host((host.name.as_str(), host.port)).await;
    let addresses: Vec<SocketAddr> = match lookup {
        Ok(addresses) => addresses.collect(),
        Err(e) => return Err(Failure::unreachable(format!("worker {name}: no such machine: {e}"))),
    };
    if addresses.iter().any(|a| !security.reaches(a.ip())) {
        return Err(Failure::usage(format!(
            "worker {name}: another machine is used only with a cluster key, and this machine has none: make one with \
             `bramble key new` and give it to every machine"
        )));
    }
    let mut last = format!("worker {name}: no address");
    for address in addresses {
        match security.reach(address, HANDSHAKE_DEADLINE).await {
            Ok(link) => return Ok(MachineLink { link, threads_max: host.slots, was_dialled: true }),
            Err(e @ (LinkError::Untrusted(_) | LinkError::Shut)) => last = format!("worker {name}: {e}"),
            Err(e) => {
                last = format!("worker {name}: {e}; start one there with: bramble worker --listen {address}");
            }
        }
    }
    Err(Failure::unreachable(last))
}
