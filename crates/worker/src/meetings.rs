//! Where sessions of this worker meet other workers: who may dial it for which session, and with which key.
//!
//! Place in the flow: a session that is told to wait for a neighbour enters a ticket here; the door brings a connection
//! whose first message is a `Join`, and the link goes to that session.
//!
//! Invariants: a ticket is good for one connection, and gone with the session that entered it. Where keys are asked for,
//! the connection has proven the key of that very pair, and it has one try at the ticket. Comparing tickets takes the same
//! time whatever is compared.
//!
//! Deliberately absent: what links between workers carry (`session/relay.rs`).

use crate::session::WorkerError;
use bramble_link::{ClusterKey, Introduced, Link, Proven, Security};
use bramble_schedule::ProtocolError;
use bramble_schedule::message::Neighbour;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Where sessions of one worker meet other workers. Clones are the same.
#[derive(Clone)]
pub struct Meetings {
    security: Security,
    port: u16,
    waiting: Rc<RefCell<Vec<Waiting>>>,
}

/// A session that waits for a neighbour.
struct Waiting {
    ticket: [u8; 16],
    /// The id of the key that has to be proven, where one has to be.
    key: Option<[u8; 4]>,
    to: oneshot::Sender<Link>,
}

/// A place among those who wait; it is given up when this is dropped.
pub(crate) struct Expected {
    ticket: [u8; 16],
    link: oneshot::Receiver<Link>,
    waiting: Rc<RefCell<Vec<Waiting>>>,
    /// The key is taken for as long.
    _key: Option<Introduced>,
}

impl Meetings {
    /// For a worker that other workers reach at that port (0: they cannot), and whose own connections become links in
    /// that way.
    pub fn new(security: Security, port: u16) -> Self {
        Self { security, port, waiting: Rc::default() }
    }

    /// Where other workers reach this one.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How connections become links.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// Waits for a neighbour from now on.
    pub(crate) fn open_to(&self, neighbour: &Neighbour) -> Expected {
        let (to, link) = oneshot::channel();
        let key = self.security.introduce(ClusterKey::from_bytes(neighbour.key));
        let ticket = neighbour.ticket;
        self.waiting.borrow_mut().push(Waiting { ticket, key: key.as_ref().map(Introduced::id), to });
        Expected { ticket, link, waiting: self.waiting.clone(), _key: key }
    }

    /// Gives a connection whose first message named that ticket to the session that waits for it.
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
            // All are looked at, so that the time tells nothing.
            None => waiting.iter().enumerate().fold(None, |found, (at, w)| {
                let fits = same(&w.ticket, ticket) && w.key.is_none();
                if fits { Some(at) } else { found }
            }),
        };
        let found = found.map(|at| waiting.swap_remove(at)).filter(|w| same(&w.ticket, ticket));
        let unknown = || ProtocolError::new("it joins a session that nobody has told this worker of");
        let sent = found.ok_or_else(unknown)?.to.send(link);
        sent.map_err(|_| unknown().into())
    }
}

impl Expected {
    /// The link, once the neighbour has come; `None` where it had its try, or somebody else with its key had.
    pub(crate) async fn link(&mut self) -> Option<Link> {
        (&mut self.link).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.waiting.borrow_mut().retain(|w| w.ticket != self.ticket);
    }
}

/// Whether two tickets are the same, in a time that does not depend on where they differ.
fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    std::hint::black_box(differing) == 0
}
