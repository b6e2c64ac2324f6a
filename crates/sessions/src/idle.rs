//! The connections of a cluster while no product uses them: kept alive, and collected again after each product.
//!
//! Place in the flow: a product takes all connections. It gives a connection back when the session over it has ended in order.
//!
//! Invariants: a connection that may serve again has said both goodbyes. An idle machine hears from the primary every
//! `PING_AFTER`. A connection that breaks meanwhile is reported when the next product begins. Nothing is kept if no other
//! product may follow.
//!
//! Deliberately absent: new connections (the cluster numbers them).

use crate::MachineLink;
use crate::PrimaryError;
use crate::links::CLOSING;
use crate::measure::ping;
use crate::opening::{Connection, LostConnection, Opening, Session, dismiss, end_session, open};
use bramble_wire::limits::{PING_AFTER, SILENCE_MAX};
use std::rc::Rc;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

/// A connection, or why it ended.
type Kept = Result<Connection, LostConnection>;

/// Connections that no product uses, and the source of new ones.
pub struct IdleConnections {
    /// Whether another product may follow.
    keeps: bool,
    /// Machines that join later.
    pub later: Option<mpsc::Receiver<MachineLink>>,
    resting: Vec<Connection>,
    pinged: Vec<PingedConnection>,
    /// Sessions that say goodbye, at most for `GOODBYE`.
    ending: JoinSet<()>,
    /// Sessions that are being opened for a product that is over.
    opening: JoinSet<()>,
    /// Connections whose session has ended beside a product. They are pinged meanwhile: the product may be long.
    ended: mpsc::UnboundedReceiver<Ended>,
    end: mpsc::UnboundedSender<Ended>,
}

/// A connection that is kept alive, in a task that ends on its signal.
struct PingedConnection {
    stop: Rc<Notify>,
    task: JoinHandle<Kept>,
}

/// A connection after its last session; or why it ended.
type Ended = Result<PingedConnection, LostConnection>;

impl IdleConnections {
    /// No connections yet; `later` brings new ones. `keeps`: another product may follow.
    pub fn new(keeps: bool, later: Option<mpsc::Receiver<MachineLink>>) -> Self {
        // Bounded by the number of connections.
        let (end, ended) = mpsc::unbounded_channel();
        let (ending, opening) = (JoinSet::new(), JoinSet::new());
        Self { keeps, later, resting: Vec::new(), pinged: Vec::new(), ending, opening, ended, end }
    }

    /// Whether another product may follow.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Adds a connection that is idle or new.
    pub fn add(&mut self, connection: Connection) {
        // A new machine waits for its first hello. Threads of this process end with it.
        if !self.keeps || connection.link.shares_memory || !connection.known.has_served {
            return self.resting.push(connection);
        }
        self.pinged.push(PingedConnection::of(connection));
    }

    /// Adds a new connection, over which a session is opened and ended at once, beside whatever else happens: the machine does
    /// not wait long for its first hello.
    pub fn greet(&mut self, connection: Connection, opening: Opening, session: u32) {
        let stop = Rc::new(Notify::new());
        let stopped = stop.clone();
        let task = tokio::task::spawn_local(async move {
            let name = connection.link.peer.clone();
            let session = match open(connection, &opening, session).await {
                Ok(session) => session,
                Err(PrimaryError::Unreachable { why, .. }) => return Err(LostConnection { name, why }),
                Err(e) => return Err(LostConnection { name, why: e.to_string() }),
            };
            keep_alive(end_session(session).await?, stopped).await
        });
        self.pinged.push(PingedConnection { stop, task });
    }

    /// Remembers a lost connection for the next product, which names it.
    pub fn add_lost(&self, lost: LostConnection) {
        // The receiver lives as long as the sender.
        let _ = self.end.send(Err(lost));
    }

    /// Ends sessions whose product does not need them, beside the product.
    pub async fn release(&mut self, sessions: Vec<Session>) {
        if !self.keeps {
            return dismiss(sessions).await;
        }
        for session in sessions {
            let end = self.end.clone();
            self.ending.spawn_local(async move {
                let _ = end.send(end_session(session).await.map(PingedConnection::of));
            });
        }
    }

    /// Ends sessions that are still being opened, when they are open.
    pub fn release_later(&mut self, mut opening: JoinSet<Result<Session, PrimaryError>>) {
        if !self.keeps {
            return;
        }
        let end = self.end.clone();
        self.opening.spawn_local(async move {
            while let Some(opened) = opening.join_next().await {
                if let Ok(Ok(session)) = opened {
                    let _ = end.send(end_session(session).await.map(PingedConnection::of));
                }
            }
        });
    }

    /// All connections, in the order of their numbers, and the lost connections.
    pub async fn take(&mut self) -> (Vec<Connection>, Vec<LostConnection>) {
        let (mut connections, mut lost) = (std::mem::take(&mut self.resting), Vec::new());
        while self.ending.join_next().await.is_some() {}
        while self.opening.try_join_next().is_some() {}
        while let Ok(ended) = self.ended.try_recv() {
            match ended {
                Ok(pinged) => self.pinged.push(pinged),
                Err(why) => lost.push(why),
            }
        }
        self.pinged.iter().for_each(|pinged| pinged.stop.notify_one());
        for pinged in self.pinged.drain(..) {
            match pinged.task.await {
                Ok(Ok(connection)) => connections.push(connection),
                Ok(Err(why)) => lost.push(why),
                // A task that panics loses its connection, as at the end of the process.
                Err(_) => {}
            }
        }
        connections.sort_by_key(|connection| connection.known.number);
        (connections, lost)
    }

    /// Closes all connections. Sessions that are being opened are dropped.
    pub async fn close(&mut self) {
        let (connections, _) = self.take().await;
        let mut closing = JoinSet::new();
        for mut connection in connections {
            // An error does not matter here: the connection is over.
            closing.spawn_local(async move { drop(connection.link.sender.close().await) });
        }
        let _ = tokio::time::timeout(CLOSING, async { while closing.join_next().await.is_some() {} }).await;
    }
}

impl PingedConnection {
    fn of(connection: Connection) -> Self {
        let stop = Rc::new(Notify::new());
        let task = tokio::task::spawn_local(keep_alive(connection, stop.clone()));
        Self { stop, task }
    }
}

/// Pings an idle machine regularly, until the signal; or why its connection has ended. Threads of this process need no ping.
async fn keep_alive(mut connection: Connection, stop: Rc<Notify>) -> Kept {
    let ended = |connection: Connection, why| Err(LostConnection { name: connection.link.peer, why });
    loop {
        tokio::select! {
            biased;
            () = stop.notified() => return Ok(connection),
            () = tokio::time::sleep(PING_AFTER), if !connection.link.shares_memory => {}
        }
        match tokio::time::timeout(SILENCE_MAX, ping(&mut connection.link, 0, 0)).await {
            Ok(Ok(_)) => {}
            Ok(Err(why)) => return ended(connection, why),
            Err(_) => {
                return ended(connection, format!("it has been silent for {} s", SILENCE_MAX.as_secs()));
            }
        }
    }
}
