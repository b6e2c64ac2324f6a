//! The primary's end: who is sent what, in which order, and which tiles of C are there.
//!
//! Place in the flow: the primary's shell calls `handle` with what happened and does what comes out; for
//! the lines of a result it asks `expect` first where they belong.
//!
//! Invariants: a worker's credit is spent before anything is sent to it and never below 0; at most
//! `LINK_WINDOW_BYTES` and one frame wait in a link; workers are served in turn; a tile is committed once,
//! by its owner, whole, and with all its steps. The plan is walked lazily: what is in memory is what is in
//! flight.
//!
//! Deliberately absent: bytes of matrices, frames, sockets, clocks.

mod peer;
mod walk;

pub use walk::{Operands, Outgoing, Piece, Which};

use crate::ProtocolError;
use crate::limits::{PING_AFTER, SILENCE_MAX};
use crate::message::ResultHead;
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::Plan;
use peer::Peer;
use std::time::Duration;

/// One machine of the plan, as the shell reaches it.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// What to call it.
    pub name: String,
    /// Bytes of matrices that it may be sent before it gives some back.
    pub credit_bytes: u64,
    /// Whether its link shares memory: operands go by reference, tiles of C are lent.
    pub shares_memory: bool,
}

/// What happened. Peers are indices of the plan's shares.
#[derive(Clone, Debug)]
pub enum Event {
    /// The session is open everywhere: begin.
    Start,
    /// A link has taken a frame whose body and head were that long.
    Sent {
        /// To whom.
        peer: usize,
        /// Bytes.
        bytes: usize,
    },
    /// A worker has freed memory.
    Credit {
        /// Who.
        peer: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Lines of a tile have landed where they belong.
    Landed {
        /// From whom.
        peer: usize,
        /// Which lines.
        head: ResultHead,
    },
    /// A pong, or any other sign of life.
    Alive {
        /// Who.
        peer: usize,
    },
    /// A link has ended.
    Lost {
        /// Which.
        peer: usize,
        /// Why.
        why: String,
    },
    /// Time has passed.
    Tick,
}

/// What the shell has to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Give a link a store message.
    Send(usize, Outgoing),
    /// Ask whether a worker is there.
    Ping(usize, u64),
    /// A tile of C is complete.
    Committed {
        /// Tile row.
        row: u64,
        /// Tile column.
        col: u64,
    },
    /// Every tile of C is there.
    Finished,
    /// The product cannot be finished.
    Fail(String),
}

/// The state of one product.
pub struct Primary {
    plan: Plan,
    operands: Operands,
    peers: Vec<Peer>,
    tiles_left: u64,
    /// What workers have given back, of the `stored_bytes` that all they will have had counts for.
    freed_bytes: u64,
    stored_bytes: u64,
    next_peer: usize,
    over: bool,
}

impl Primary {
    /// The product of a plan whose shares are at `peers`, in the same order.
    pub fn new(plan: Plan, operands: Operands, peers: Vec<PeerInfo>) -> Self {
        assert_eq!(plan.shares.len(), peers.len(), "one peer for each share");
        let tiles_left = plan.grid.tiles();
        let peers = peers.into_iter().enumerate().map(|(i, info)| Peer::new(i, info)).collect();
        let stored_bytes = plan.stored_bytes();
        Self { plan, operands, peers, tiles_left, freed_bytes: 0, stored_bytes, next_peer: 0, over: false }
    }

    /// The plan that is walked.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Tiles of C that are still missing.
    pub fn tiles_left(&self) -> u64 {
        self.tiles_left
    }

    /// How far the product is, 0 to 1: tiles stay at their workers until the last step, so it is the panels
    /// that are used up that tell.
    pub fn progress(&self) -> f64 {
        if self.tiles_left == 0 {
            return 1.0;
        }
        (nearest_f64(self.freed_bytes) / nearest_f64(self.stored_bytes.max(1))).min(1.0)
    }

    /// One event in, actions out. `now` only grows.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        match event {
            Event::Start => {
                self.peers.iter_mut().for_each(|p| p.heard(now));
                if self.tiles_left == 0 {
                    self.finish(&mut actions);
                }
                self.serve(&mut actions);
            }
            Event::Sent { peer, bytes } => {
                self.peers[peer].sent(bytes, now);
                self.serve(&mut actions);
            }
            Event::Credit { peer, bytes } => {
                self.peers[peer].heard(now);
                match self.peers[peer].credit(bytes) {
                    Ok(()) => {
                        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
                        self.serve(&mut actions);
                    }
                    Err(e) => self.fail(peer, &e.0, &mut actions),
                }
            }
            Event::Landed { peer, head } => {
                self.peers[peer].heard(now);
                self.landed(peer, &head, &mut actions);
            }
            Event::Alive { peer } => self.peers[peer].heard(now),
            Event::Lost { peer, why } => self.fail(peer, &why, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    /// Where lines of a result belong: (tile row, tile column). An error where nobody asked for them.
    pub fn expect(&self, peer: usize, head: &ResultHead) -> Result<(u64, u64), ProtocolError> {
        let Some((row, col)) = self.plan.grid.tile_of(head.c) else {
            return Err(ProtocolError::new(format!("it returned matrix {}, which is no tile", head.c)));
        };
        let rows = self.plan.grid.tile(row, col).shape().rows;
        self.peers[peer].expect(head, rows, self.plan.grid.steps())?;
        Ok((row, col))
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, actions: &mut Vec<Action>) {
        let (row, col) = match self.expect(peer, head) {
            Ok(place) => place,
            Err(e) => return self.fail(peer, &e.0, actions),
        };
        if self.peers[peer].landed(&self.plan, head, row, col) {
            self.tiles_left -= 1;
            actions.push(Action::Committed { row, col });
            if self.tiles_left == 0 {
                self.finish(actions);
            } else {
                // A block that is back makes room for the next.
                self.serve(actions);
            }
        }
    }

    /// Gives every peer what its credit and its link have room for, one message at a time in turn.
    fn serve(&mut self, actions: &mut Vec<Action>) {
        let mut idle = 0;
        while idle < self.peers.len() {
            let peer = &mut self.peers[self.next_peer];
            match peer.next(&self.plan, &self.operands) {
                Some(message) => {
                    actions.push(Action::Send(self.next_peer, message));
                    idle = 0;
                }
                None => idle += 1,
            }
            self.next_peer = (self.next_peer + 1) % self.peers.len();
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for i in 0..self.peers.len() {
            let silence = self.peers[i].silence(now);
            if self.peers[i].info.shares_memory {
                continue;
            }
            if silence > SILENCE_MAX {
                let why = format!("it has been silent for {} s", silence.as_secs());
                return self.fail(i, &why, actions);
            }
            if silence > PING_AFTER
                && let Some(nonce) = self.peers[i].ping(now)
            {
                actions.push(Action::Ping(i, nonce));
            }
        }
    }

    fn finish(&mut self, actions: &mut Vec<Action>) {
        self.over = true;
        actions.push(Action::Finished);
    }

    fn fail(&mut self, peer: usize, why: &str, actions: &mut Vec<Action>) {
        self.over = true;
        actions.push(Action::Fail(format!("worker {}: {why}", self.peers[peer].info.name)));
    }

    /// Cross-checks; for tests and the simulator, after each event.
    pub fn validate(&self) {
        let mut owned = std::collections::BTreeSet::new();
        for peer in &self.peers {
            peer.validate(&self.plan);
            for tile in peer.tiles() {
                assert!(owned.insert(tile), "tile {tile} is at two workers");
            }
        }
        assert!(to_u64(owned.len()) <= self.tiles_left);
    }
}
