//! Tickets with which other workers reach the sessions of this worker, and the keys that belong to them.
//!
//! Place in the flow: a session that is to wait for a neighbour registers a ticket here; the door brings a connection
//! whose first message is a `Join`, and the link goes to that session.
//!
//! Invariants: a ticket is good for one connection, and expires with the session that registered it. If keys are required,
//! the connection has proven the key of that very pair, and has one try at the ticket. Comparing tickets takes the same
//! time whatever their contents.
//!
//! Deliberately absent: the traffic of links between workers (`session/relay.rs`).

use crate::session::WorkerError;
use bramble_link::{ClusterKey, Introduced, Link, Proven, Security};
use bramble_wire::ProtocolError;
use bramble_wire::message::Neighbour;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// The registered tickets of one worker. Clones share them.
#[derive(Clone)]
pub struct NeighbourTickets {
    security: Security,
    port: u16,
    waiting: Rc<RefCell<Vec<Waiting>>>,
}

/// A session that waits for a neighbour.
struct Waiting {
    ticket: [u8; 16],
    /// Id of the key that the neighbour has to prove, if keys are required.
    key: Option<[u8; 4]>,
    to: oneshot::Sender<Link>,
}

/// A registered ticket; dropping it withdraws the ticket.
pub(crate) struct RegisteredTicket {
    ticket: [u8; 16],
    link: oneshot::Receiver<Link>,
    waiting: Rc<RefCell<Vec<Waiting>>>,
    /// Keeps the key registered for as long.
    _key: Option<Introduced>,
}

impl NeighbourTickets {
    /// For a worker that other workers reach at `port` (0: they cannot). `security` also governs the connections that it makes.
    pub fn new(security: Security, port: u16) -> Self {
        Self { security, port, waiting: Rc::default() }
    }

    /// The port at which other workers reach this one.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How connections become links.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// Registers the ticket of a neighbour.
    pub(crate) fn register(&self, neighbour: &Neighbour) -> RegisteredTicket {
        let (to, link) = oneshot::channel();
        let key = self.security.introduce(ClusterKey::from_bytes(neighbour.key));
        let ticket = neighbour.ticket;
        self.waiting.borrow_mut().push(Waiting { ticket, key: key.as_ref().map(Introduced::id), to });
        RegisteredTicket { ticket, link, waiting: self.waiting.clone(), _key: key }
    }

    /// Passes a link whose `Join` named `ticket` to the session that waits for it.
    pub(crate) fn hand_over(&self, link: Link, ticket: &[u8; 16]) -> Result<(), WorkerError> {
        let key = match link.proven {
            Proven::Nothing => None,
            Proven::Introduced(id) => Some(id),
            Proven::Member => {
                let what = "it joins with the cluster's key, not with that of a pair of workers";
                return Err(ProtocolError::new(what).into());
            }
        };
        let mut waiting = self.waiting.borrow_mut();
        let found = match key {
            Some(_) => waiting.iter().position(|w| w.key == key),
            // All tickets are compared, so that the time reveals nothing.
            None => waiting.iter().enumerate().fold(None, |found, (at, w)| {
                let fits = same(&w.ticket, ticket) && w.key.is_none();
                if fits { Some(at) } else { found }
            }),
        };
        let found = found.map(|at| waiting.swap_remove(at)).filter(|w| same(&w.ticket, ticket));
        let unknown = || ProtocolError::new("it joins with a ticket that this worker does not know");
        let sent = found.ok_or_else(unknown)?.to.send(link);
        sent.map_err(|_| unknown().into())
    }
}

impl RegisteredTicket {
    /// The link, once the neighbour has come; `None` if a connection with its key has failed its one try.
    pub(crate) async fn link(&mut self) -> Option<Link> {
        (&mut self.link).await.ok()
    }
}

impl Drop for RegisteredTicket {
    fn drop(&mut self) {
        self.waiting.borrow_mut().retain(|w| w.ticket != self.ticket);
    }
}

/// Whether two tickets are equal, in a time that does not depend on where they differ.
fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    std::hint::black_box(differing) == 0
}
