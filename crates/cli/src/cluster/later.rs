//! Workers that come while a product runs: those that dial in, and those that were lost and answer again.
//!
//! Place in the flow: behind `Cluster::meet`, beside the product, which takes them as new machines.
//!
//! Invariants: who was lost is dialled again after half a second, and then ever less often, never twice at a time; who was lost
//! three times, or has too slow a link, is left alone. Strangers at the door are held to the same limits as before the product.
//!
//! Deliberately absent: processes of this machine (`--local`), whose end is a bug or an order.

use super::dial;
use crate::hosts::Host;
use crate::turned_away::TurnedAway;
use bramble_link::{Door, Security};
use bramble_primary::End;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A machine that was lost so often is left alone.
const LOSSES_MAX: u32 = 3;
/// How long nobody dials before the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Where workers may still come from.
pub(crate) struct Later {
    /// The door for workers that dial in, and the account of those that it turned away.
    pub(super) door: Option<(Door, Rc<RefCell<TurnedAway>>)>,
    pub(super) hosts: Vec<Host>,
    /// The hosts by the name of their link.
    pub(super) by_name: BTreeMap<String, usize>,
    /// Hosts that have not answered at all.
    pub(super) absent: Vec<usize>,
    pub(super) security: Security,
}

impl Later {
    /// Sends whoever comes, until nobody takes them any more; `lost` names links that are none any more. Has to run inside a
    /// `LocalSet`.
    pub(crate) async fn serve(mut self, mut lost: mpsc::UnboundedReceiver<String>, to: mpsc::Sender<End>) {
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

/// The next that dials in, if it may.
async fn next(door: &mut Option<(Door, Rc<RefCell<TurnedAway>>)>) -> Option<End> {
    match door {
        Some((door, turned_away)) => match door.next().await {
            (_, Ok(arrival)) => Some(End { link: arrival.link, threads_max: 0, was_dialled: false }),
            (peer, Err(e)) => {
                // The report says it: a line now would be in the way of the progress.
                turned_away.borrow_mut().add(Instant::now(), peer, &e);
                None
            }
        },
        None => std::future::pending().await,
    }
}

/// Dials a host until it answers.
async fn dial_again(number: usize, host: Host, security: Security) -> (usize, End) {
    let mut pause = PAUSES.0;
    loop {
        // Many that were lost at the same time need not be dialled at the same time.
        let spread = crate::seed().map_or(0, |seed| seed % 400);
        tokio::time::sleep(pause.mul_f64(0.8 + spread as f64 / 1000.0)).await;
        if let Ok(end) = dial(host.clone(), security.clone()).await {
            return (number, end);
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}
