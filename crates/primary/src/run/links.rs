//! The links of a run's machines: lent to their tasks, and collected at the end.
//!
//! Place in the flow: `Tasks::add_peer` splits a link between its writer and its reader; each gives its half back when it ends in
//! order. `collect` rejoins the halves.
//!
//! Invariants: a link may serve another product only if both its halves came back, which they do after both goodbyes. All other
//! links are closed.

use super::Core;
use super::joins::Tasks;
use crate::product::ProductObserver;
use bramble_link::{LinkFacts, Receiver, Sender};
use bramble_sessions::{CLOSING, Connection, KnownConnection, PrimaryError, idle, no_goodbye};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::task::JoinSet;

/// A link whose halves are with its tasks, or have come back.
pub(super) struct LentLink {
    facts: LinkFacts,
    known: KnownConnection,
    pub(super) sender: Option<Box<dyn Sender>>,
    pub(super) receiver: Option<Box<dyn Receiver>>,
}

impl LentLink {
    pub(super) fn new(facts: LinkFacts, known: KnownConnection) -> Self {
        Self { facts, known, sender: None, receiver: None }
    }

    /// The connection, if both halves are back; else the sender, if that is.
    fn collect(self) -> Result<Connection, Option<Box<dyn Sender>>> {
        match (self.sender, self.receiver) {
            (Some(sender), Some(receiver)) => Ok(idle(self.facts.rejoin(sender, receiver), self.known)),
            (sender, _) => Err(sender),
        }
    }
}

/// Waits until no task holds the state any more, and gives it back, with the connections that can serve again. The other
/// links are closed. With `keeps_links`, machines whose links are closed are reported to `watch`.
pub(super) async fn collect(
    core: Rc<RefCell<Core>>,
    tasks: Tasks,
    watch: &dyn ProductObserver,
    keeps_links: bool,
) -> Result<(Core, Vec<Connection>), PrimaryError> {
    core.borrow_mut().peers.iter_mut().for_each(|p| p.to = None);
    let Tasks { mut writers, mut readers } = tasks;
    let _ = tokio::time::timeout(CLOSING, async { while writers.join_next().await.is_some() {} }).await;
    writers.shutdown().await;
    readers.shutdown().await;
    let core = Rc::into_inner(core).map(RefCell::into_inner);
    let mut core = core.ok_or_else(|| PrimaryError::Failed("a task outlived its product".to_owned()))?;
    let (mut connections, mut closing) = (Vec::new(), JoinSet::new());
    for (at, peer) in core.peers.iter_mut().enumerate() {
        match peer.lent.take().map(LentLink::collect) {
            Some(Ok(connection)) => connections.push(connection),
            other => {
                // Closing the link tells the worker that the session is over. An error does not matter: the product is over.
                if let Some(Err(Some(mut sender))) = other {
                    closing.spawn_local(async move { drop(sender.close().await) });
                }
                if keeps_links && core.state.losses().iter().all(|lost| lost.peer != at) {
                    watch.lost(&peer.name, &peer.why.take().unwrap_or_else(no_goodbye), true);
                }
            }
        }
    }
    let _ = tokio::time::timeout(CLOSING, async { while closing.join_next().await.is_some() {} }).await;
    Ok((core, connections))
}
