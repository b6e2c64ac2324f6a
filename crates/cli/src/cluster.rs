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
use crate::quantity::{counted, seconds};
use crate::turned_away::TurnedAway;
use bramble_link::{Door, DoorLimits, LinkError, Security};
use bramble_primary::End;
use bramble_worker::DOOR;
use bramble_worker::limits::HANDSHAKE_DEADLINE;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Which machines, and how they are met.
pub(crate) struct Cluster {
    /// Those that listen.
    pub(crate) hosts: Vec<Host>,
    /// How many dial in.
    pub(crate) awaited: u16,
    /// How long they may take.
    pub(crate) patience: Duration,
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
    /// Connections at our door that became no worker, where there is a door.
    pub(crate) turned_away: Option<Rc<RefCell<TurnedAway>>>,
}

impl Cluster {
    /// Links with all of them that can be had.
    pub(crate) async fn meet(self) -> Result<Met, Failure> {
        // Those that are dialled wait for a hello, and without a key not for long: so they come last.
        let (mut came, door) = self.wait().await?;
        let mut met = dial_all(self.hosts, self.security).await;
        met.ends.append(&mut came.ends);
        met.missing.append(&mut came.missing);
        if let Some(later) = &mut met.later {
            later.door = door.zip(came.turned_away.clone());
        }
        met.turned_away = came.turned_away;
        Ok(met)
    }

    /// Waits for the workers that dial in, `awaited` of them.
    async fn wait(&self) -> Result<(Met, Option<Door>), Failure> {
        let Self { awaited, listen, patience, ref security, .. } = *self;
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
        let deadline = tokio::time::Instant::now() + patience;
        let mut turned_away = TurnedAway::default();
        while met.ends.len() < usize::from(awaited) {
            match tokio::time::timeout_at(deadline, door.next()).await {
                Ok((_, Ok(arrival))) => {
                    met.ends.push(End { link: arrival.link, threads_max: 0, was_dialled: false })
                }
                Ok((peer, Err(e))) => {
                    turned_away.add(Instant::now(), peer, &e).iter().for_each(|line| crate::say(line));
                }
                Err(_) => {
                    let (came, within) =
                        (counted(met.ends.len() as u64, "worker"), seconds(patience.as_secs_f64()));
                    let refused = turned_away.last().map_or_else(String::new, |last| format!("; {last}"));
                    let text = format!(
                        "--await {awaited}: {came} dialled in within {within}{refused}; start more there, or wait longer with \
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

async fn dial_all(hosts: Vec<Host>, security: Security) -> Met {
    let dialling = |host: &Host| tokio::task::spawn_local(dial(host.clone(), security.clone()));
    let tasks: Vec<_> = hosts.iter().map(dialling).collect();
    let mut met = Met::default();
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
    met.later = Some(Later { door: None, hosts, by_name, absent, security });
    met
}

/// Two names of one worker: both sessions would want all of its memory.
fn same_worker(one: &Host, other: &Host, address: &str) -> Failure {
    Failure::usage(format!(
        "worker {other}: is the same worker as {one}, both are at {address}; name it once"
    ))
}

async fn dial(host: Host, security: Security) -> Result<End, Failure> {
    let name = host.to_string();
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
