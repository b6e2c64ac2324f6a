//! Workers that connect while a product runs: new workers dial in, and lost workers answer again.
//!
//! Place in the flow: after `ClusterSpec::meet`, concurrent with the product, which takes them in as new machines.
//!
//! Invariants: a lost host is dialled again after half a second and then with exponential back-off, one attempt at a
//! time; a host that was lost three times, or whose link was too slow, is not dialled again. The limits on connecting
//! strangers are those that hold before the product.
//!
//! Deliberately absent: processes of `--local`, which end only by a bug or because they are told to.

use super::dial;
use crate::hosts::Host;
use crate::turned_away::TurnedAway;
use bramble_link::{Door, Security};
use bramble_primary::MachineLink;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A host that was lost this often is not dialled again.
const LOSSES_MAX: u32 = 3;
/// The pause before the first attempt to dial a lost host, and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Accepts and dials workers while the product runs.
pub struct LateWorkers {
    /// Accepts workers that dial in, and counts refused connections.
    pub(super) door: Option<(Door, Rc<RefCell<TurnedAway>>)>,
    pub(super) hosts: Vec<Host>,
    /// Index into `hosts`, by the name of the link.
    pub(super) by_name: BTreeMap<String, usize>,
    /// Hosts that have not answered yet.
    pub(super) absent: Vec<usize>,
    pub(super) security: Security,
}

impl LateWorkers {
    /// Sends each new worker to `to`, until that channel or `lost` is closed; `lost` names broken links. Has to run
    /// inside a `LocalSet`.
    pub async fn serve(mut self, mut lost: mpsc::UnboundedReceiver<String>, to: mpsc::Sender<MachineLink>) {
        let mut dialling = JoinSet::new();
        let mut losses = vec![0u32; self.hosts.len()];
        for host in std::mem::take(&mut self.absent) {
            losses[host] += 1;
            dialling.spawn_local(dial_again(host, self.hosts[host].clone(), self.security.clone()));
        }
        loop {
            let end = tokio::select! {
                name = lost.recv() => {
                    let Some(name) = name else { return };
                    if let Some(host) = self.by_name.remove(&name) {
                        losses[host] += 1;
                        if losses[host] < LOSSES_MAX {
                            dialling.spawn_local(dial_again(host, self.hosts[host].clone(), self.security.clone()));
                        }
                    }
                    continue;
                }
                Some(dialled) = dialling.join_next() => {
                    let Ok((host, end)) = dialled else { continue };
                    self.by_name.insert(end.link.peer.clone(), host);
                    end
                }
                came = next(&mut self.door) => match came {
                    Some(end) => end,
                    None => continue,
                },
            };
            if to.send(end).await.is_err() {
                return;
            }
        }
    }
}

/// The next worker that dials in; `None` for a refused connection.
async fn next(door: &mut Option<(Door, Rc<RefCell<TurnedAway>>)>) -> Option<MachineLink> {
    match door {
        Some((door, turned_away)) => match door.next().await {
            (_, Ok(arrival)) => Some(MachineLink { link: arrival.link, threads_max: 0, was_dialled: false }),
            (peer, Err(e)) => {
                // The final report counts it; a line now would disturb the progress bar.
                turned_away.borrow_mut().add(Instant::now(), peer, &e);
                None
            }
        },
        None => std::future::pending().await,
    }
}

/// Dials a host until it answers.
async fn dial_again(number: usize, host: Host, security: Security) -> (usize, MachineLink) {
    let mut pause = PAUSES.0;
    loop {
        // Random jitter: hosts that were lost together are not dialled together.
        let spread = crate::random::seed().map_or(0, |seed| seed % 400);
        tokio::time::sleep(pause.mul_f64(0.8 + spread as f64 / 1000.0)).await;
        if let Ok(end) = dial(host.clone(), security.clone()).await {
            return (number, end);
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}
