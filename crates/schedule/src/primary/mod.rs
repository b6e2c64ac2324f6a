//! The primary's end: who is sent what, in which order, and which tiles of C are there.
//!
//! Place in the flow: the primary's shell calls `handle` with what happened and does what comes out; for
//! the lines of a result it asks `expect` first where they belong.
//!
//! Tiles that come back with all their steps land in C itself. Where k is cut, a sum of later steps is put aside until
//! those before are in (`Merge`), or its worker was sent the sum so far and goes on from it.
//!
//! Invariants: a worker's credit is spent before anything is sent to it and never below 0; at most
//! `LINK_WINDOW_BYTES` and one frame wait in a link; workers are served in turn; each (tile, step) is added to C
//! once, in the order of the steps. The plan is walked lazily: what is in memory is what is in
//! flight.
//!
//! Deliberately absent: bytes of matrices, frames, sockets, clocks.

mod cell;
mod outgoing;
mod peer;
mod standing;
mod sums;
mod walk;

pub use outgoing::{Operands, Outgoing, Piece, Which};
pub use standing::{Next, Standing};

use crate::ProtocolError;
use crate::limits::{PING_AFTER, SILENCE_MAX};
use crate::message::ResultHead;
use bramble_matrix::Rect;
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::{Plan, Recipe, Sums};
use peer::{Owed, Peer};
use std::time::Duration;
use sums::{Came, PartialSums};
use walk::{Course, recipes};

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

/// Where lines of a result belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The whole tile, in C.
    pub rect: Rect,
    /// Whether they land in C itself; otherwise they are put aside until `Merge` names the peer and the tile.
    pub in_place: bool,
}

/// What happened. Peers are indices of the plan's members.
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
    /// Add a tile that was put aside to C, and forget it.
    Merge {
        /// Who sent it.
        peer: usize,
        /// Under which id.
        tile: u32,
        /// Where it belongs.
        rect: Rect,
    },
    /// A tile of C is complete.
    Committed(Rect),
    /// Every tile of C is there.
    Finished,
    /// The product cannot be finished.
    Fail(String),
}

/// The state of one product.
pub struct Primary {
    plan: Plan,
    operands: Operands,
    /// How cells are multiplied, by region.
    recipes: Vec<Recipe>,
    peers: Vec<Peer>,
    sums: PartialSums,
    tiles_left: u64,
    /// What workers have given back, of the `stored_bytes` that all they will have had counts for.
    freed_bytes: u64,
    stored_bytes: u64,
    next_peer: usize,
    over: bool,
}

impl Primary {
    /// The product of a plan whose members are at `peers`, in the same order.
    pub fn new(plan: Plan, operands: Operands, peers: Vec<PeerInfo>) -> Self {
        assert_eq!(plan.members.len(), peers.len(), "one peer for each member");
        let tiles_left = plan.tiles();
        let peers = peers.into_iter().enumerate().map(|(i, info)| Peer::new(i, info)).collect();
        let stored_bytes = plan.stored_bytes();
        Self {
            recipes: recipes(&plan),
            plan,
            operands,
            peers,
            sums: PartialSums::default(),
            tiles_left,
            freed_bytes: 0,
            stored_bytes,
            next_peer: 0,
            over: false,
        }
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
                self.serve_one(peer, &mut actions);
            }
            Event::Credit { peer, bytes } => {
                self.peers[peer].heard(now);
                match self.peers[peer].credit(bytes) {
                    Ok(()) => {
                        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
                        self.serve_one(peer, &mut actions);
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

    /// Where lines of a result belong. An error where nobody asked for them.
    pub fn expect(&self, peer: usize, head: &ResultHead) -> Result<Destination, ProtocolError> {
        let owed = self.peers[peer].expect(&self.course(), head)?;
        Ok(Destination { rect: owed.rect, in_place: owed.goes_on || owed.steps.start == 0 })
    }

    fn course(&self) -> Course<'_> {
        Course { plan: &self.plan, operands: &self.operands, recipes: &self.recipes, sums: &self.sums }
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, actions: &mut Vec<Action>) {
        let owed = match self.peers[peer].expect(&self.course(), head) {
            Ok(owed) => owed,
            Err(e) => return self.fail(peer, &e.0, actions),
        };
        if self.peers[peer].landed(head, owed.rect.rows.len()) {
            self.returned(Came { peer, id: head.c }, &owed, actions);
            // What is back makes room for more, and others may go on from it.
            match self.plan.sums {
                Sums::Merged => self.serve_one(peer, actions),
                Sums::Chained => self.serve(actions),
            }
        }
    }

    /// A tile, or a sum of some of its steps, has come back whole.
    fn returned(&mut self, came: Came, owed: &Owed, actions: &mut Vec<Action>) {
        let all = self.plan.regions[owed.region].steps();
        let whole = owed.steps.start == 0 && owed.steps.end == all;
        let complete = if whole {
            true
        } else {
            let tile = (owed.region, owed.tile);
            let added = self.sums.came(tile, owed.steps, came, all);
            // What landed in C itself is there.
            let aside = if owed.goes_on || owed.steps.start == 0 { 1 } else { 0 };
            let merge = |c: &Came| Action::Merge { peer: c.peer, tile: c.id, rect: owed.rect };
            actions.extend(added.iter().skip(aside.min(added.len())).map(merge));
            !added.is_empty() && !self.sums.is_begun(tile)
        };
        if complete {
            self.tiles_left -= 1;
            actions.push(Action::Committed(owed.rect));
            if self.tiles_left == 0 {
                self.finish(actions);
            }
        }
    }

    /// Gives every peer what its credit and its link have room for, one message at a time in turn.
    fn serve(&mut self, actions: &mut Vec<Action>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let course = Course { plan, operands, recipes, sums: &self.sums };
        let mut idle = 0;
        while idle < self.peers.len() && !self.over {
            let peer = &mut self.peers[self.next_peer];
            match peer.next(&course) {
                Some(message) => {
                    actions.push(Action::Send(self.next_peer, message));
                    idle = 0;
                }
                None => idle += 1,
            }
            self.next_peer = (self.next_peer + 1) % self.peers.len();
        }
    }

    /// The same for one peer, where nothing has changed for the others.
    fn serve_one(&mut self, peer: usize, actions: &mut Vec<Action>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let course = Course { plan, operands, recipes, sums: &self.sums };
        while !self.over
            && let Some(message) = self.peers[peer].next(&course)
        {
            actions.push(Action::Send(peer, message));
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

    /// How a peer stands.
    pub fn standing(&self, peer: usize) -> Standing {
        self.peers[peer].standing()
    }

    /// Sums that wait for those of earlier steps, and tiles that have some of their steps.
    pub fn sums_under_way(&self) -> (usize, usize) {
        (self.sums.waiting(), self.sums.begun())
    }

    /// Cross-checks; for tests and the simulator, after each event.
    pub fn validate(&self) {
        self.peers.iter().for_each(Peer::validate);
        assert!(to_u64(self.sums.begun()) <= self.tiles_left);
    }
}
