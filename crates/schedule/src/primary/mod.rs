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

mod again;
mod cell;
mod events;
mod life;
mod offer;
mod outgoing;
mod pace;
mod peer;
mod relay;
mod resume;
mod slow;
mod spots;
mod standing;
mod steal;
mod sums;
mod walk;
mod work;

pub use events::{Action, Destination, Event, PeerInfo, Place, Referred};
pub use life::Lost;
pub use outgoing::{Operands, Outgoing, Piece, Which};
pub use standing::{Next, Standing};
pub use steal::Moved;

use crate::ProtocolError;
use crate::limits::{FORWARDS_MAX, SILENCE_MAX};
use crate::message::ResultHead;
use bramble_matrix::Span;
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::{Plan, Recipe, Sums};
use peer::{Owed, Peer};
use relay::Board;
use spots::Spots;
use std::collections::BTreeMap;
use std::time::Duration;
use steal::Stealing;
use sums::{Came, PartialSums};
use walk::{Course, recipes};

/// The state of one product.
pub struct Primary {
    plan: Plan,
    operands: Operands,
    /// How cells are multiplied, by region.
    recipes: Vec<Recipe>,
    peers: Vec<Peer>,
    sums: PartialSums,
    /// Panels that several members need.
    board: Board,
    stealing: Stealing,
    spots: Spots,
    tiles_left: u64,
    /// What workers have given back, of the `stored_bytes` that all they will have had counts for.
    freed_bytes: u64,
    stored_bytes: u64,
    next_peer: usize,
    /// Whether others do what a machine that is lost has not given back; otherwise its loss ends the product.
    recovers: bool,
    losses: Vec<Lost>,
    /// Whether C is looked at before the product is over.
    is_inspected: bool,
    /// Nothing more is sent.
    stops: bool,
    over: bool,
}

impl Primary {
    /// The product of a plan whose members are at `peers`, in the same order; those after them have no part in it yet.
    pub fn new(plan: Plan, operands: Operands, peers: Vec<PeerInfo>) -> Self {
        assert!(plan.members.len() <= peers.len(), "a peer for each member");
        Self::of(plan, operands, peers, 0)
    }

    /// The same, where the first peer has that number among the members.
    fn of(plan: Plan, operands: Operands, peers: Vec<PeerInfo>, first: usize) -> Self {
        let tiles_left = plan.tiles();
        let board = Board::new(peers.iter().map(|p| p.neighbours.iter().copied().collect()).collect());
        let peers = peers.into_iter().zip(first..).map(|(info, at)| Peer::new(&plan, at, info)).collect();
        let stored_bytes = plan.stored_bytes();
        Self {
            recipes: recipes(&plan),
            plan,
            operands,
            peers,
            sums: PartialSums::default(),
            board,
            stealing: Stealing::default(),
            spots: Spots::default(),
            tiles_left,
            freed_bytes: 0,
            stored_bytes,
            next_peer: 0,
            recovers: false,
            losses: Vec::new(),
            is_inspected: false,
            stops: false,
            over: false,
        }
    }

    /// The same, where every machine does what the plan gave it, however long that takes.
    pub fn without_stealing(mut self) -> Self {
        self.stealing.is_off = true;
        self
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
        // What lost machines had given back is given back again.
        let most = if self.recovers { 0.999 } else { 1.0 };
        (nearest_f64(self.freed_bytes) / nearest_f64(self.stored_bytes.max(1))).min(most)
    }

    /// One event in, actions out. `now` only grows.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            self.enlist_late(event);
            return actions;
        }
        if self.is_stale(&event) {
            return actions;
        }
        match event {
            Event::Start => {
                self.peers.iter_mut().for_each(|p| p.heard(now));
                if self.tiles_left == 0 {
                    self.finish(&mut actions);
                }
                self.serve(now, &mut actions);
            }
            Event::Sent { peer, bytes } => {
                self.peers[peer].sent(bytes, now);
                self.serve_one(peer, now, &mut actions);
            }
            Event::Credit { peer, bytes } => {
                self.peers[peer].heard(now);
                match self.peers[peer].credit(bytes, now) {
                    Ok(()) => {
                        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
                        self.serve_one(peer, now, &mut actions);
                        self.balance(now, &mut actions);
                    }
                    Err(e) => self.cut(peer, &e.0, &mut actions),
                }
            }
            Event::Landed { peer, head } => {
                self.peers[peer].heard(now);
                self.landed(peer, &head, now, &mut actions);
                self.balance(now, &mut actions);
            }
            Event::Alive { peer } => self.peers[peer].heard(now),
            Event::Flow { peer, came, gone, held } => {
                self.peers[peer].heard(now);
                self.peers[peer].flow.moved(came, gone, held);
            }
            Event::Missing { peer, missing } => match self.peers[peer].missing(&missing) {
                Ok(()) => self.serve_one(peer, now, &mut actions),
                Err(e) => self.cut(peer, &e.0, &mut actions),
            },
            Event::Parted { peer, other } => self.parted(peer, other, &mut actions),
            Event::Joined(info) => self.join(info, now, &mut actions),
            Event::Lost { peer, why } => self.lose(peer, why, now, &mut actions),
            Event::Stop => self.stops = true,
            Event::Wrong { tiles, makers } => self.reopen(&tiles, &makers, now, &mut actions),
            Event::Looked(is_wrong) => self.looked(is_wrong, now, &mut actions),
            Event::Accepted => self.over = true,
            Event::Tick => {
                self.tick(now, &mut actions);
                self.look_at_links(now, &mut actions);
                self.balance(now, &mut actions);
            }
        }
        actions
    }

    /// Where lines of a result belong. An error where nobody asked for them.
    pub fn expect(&self, peer: usize, head: &ResultHead) -> Result<Destination, ProtocolError> {
        let owed = self.peers[peer].expect(&self.course(Duration::ZERO), head)?;
        Ok(Destination { rect: owed.rect, place: owed.place })
    }

    fn course(&self, now: Duration) -> Course<'_> {
        Course { plan: &self.plan, operands: &self.operands, recipes: &self.recipes, sums: &self.sums, now }
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, now: Duration, actions: &mut Vec<Action>) {
        let owed = match self.peers[peer].expect(&self.course(now), head) {
            Ok(owed) => owed,
            Err(e) => return self.cut(peer, &e.0, actions),
        };
        if self.peers[peer].landed(head, owed.rect, self.plan.problem.element_bytes()) {
            if owed.place == Place::Staged {
                actions.push(Action::Put { peer, tile: head.c, rect: owed.rect });
            }
            if owed.place != Place::Nowhere {
                self.returned(Came { peer, id: head.c }, &owed, now, actions);
            }
            // What is back makes room for more, and others may go on from it.
            if self.plan.sums == Sums::Chained || self.stealing.has_moved() {
                self.serve(now, actions);
            } else {
                self.serve_one(peer, now, actions);
            }
        }
    }

    /// A tile, or a sum of some of its steps, has come back whole.
    fn returned(&mut self, came: Came, owed: &Owed, now: Duration, actions: &mut Vec<Action>) {
        let all = self.plan.regions[owed.region].steps();
        let whole = owed.steps.start == 0 && owed.steps.end == all;
        let complete = if whole {
            true
        } else {
            let tile = (owed.region, owed.tile);
            let added = self.sums.came(tile, owed.steps, came, all);
            // Unless it was put aside it is in C.
            let there = usize::from(owed.place != Place::Aside);
            let merge = |c: &Came| Action::Merge { peer: c.peer, tile: c.id, rect: owed.rect };
            actions.extend(added.iter().skip(there.min(added.len())).map(merge));
            !added.is_empty() && !self.sums.is_begun(tile)
        };
        if complete {
            self.spot(came.peer, owed, now, actions);
            self.tiles_left -= 1;
            actions.push(Action::Committed(owed.rect));
            if self.tiles_left == 0 {
                self.finish(actions);
            }
        }
    }

    /// Gives every peer what its credit and its link have room for, one message at a time in turn.
    fn serve(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let course = Course { plan, operands, recipes, sums: &self.sums, now };
        let mut idle = 0;
        while idle < self.peers.len() && !self.over && !self.stops {
            let peer = &mut self.peers[self.next_peer];
            match peer.next(&course, &mut self.board) {
                Some(message) => {
                    actions.push(Action::Send(self.next_peer, message));
                    send_orders(&mut self.board, &mut self.peers, self.next_peer, actions);
                    idle = 0;
                }
                None => idle += 1,
            }
            self.next_peer = (self.next_peer + 1) % self.peers.len();
        }
    }

    /// The same for one peer, where nothing has changed for the others.
    fn serve_one(&mut self, peer: usize, now: Duration, actions: &mut Vec<Action>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let course = Course { plan, operands, recipes, sums: &self.sums, now };
        while !self.over
            && !self.stops
            && let Some(message) = self.peers[peer].next(&course, &mut self.board)
        {
            actions.push(Action::Send(peer, message));
            send_orders(&mut self.board, &mut self.peers, peer, actions);
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        // While something is on its way to anybody it is the network that is waited for.
        let quiet = self.peers.iter().all(Peer::link_is_empty);
        for i in 0..self.peers.len() {
            let silence = self.peers[i].silence(now);
            let kept_bytes = self.board.kept_bytes(i);
            let is_held_up = kept_bytes > 0 && quiet && self.peers[i].is_held_up(kept_bytes, now);
            if is_held_up && self.board.relieve(i) {
                send_orders(&mut self.board, &mut self.peers, i, actions);
            }
            if self.peers[i].info.shares_memory || !self.peers[i].life.is_heard() {
                continue;
            }
            if silence > SILENCE_MAX {
                let why = format!("it has been silent for {} s", silence.as_secs());
                self.cut(i, &why, actions);
                if self.over {
                    return;
                }
                continue;
            }
            if let Some(nonce) = self.peers[i].ping(now) {
                actions.push(Action::Ping(i, nonce));
            }
        }
    }

    /// Two workers have lost each other: the primary sends what they would have passed on.
    fn parted(&mut self, peer: usize, other: u32, actions: &mut Vec<Action>) {
        let other = usize::try_from(other).unwrap_or(usize::MAX);
        if self.board.part(peer, other) && self.peers[other].life.is_heard() {
            actions.push(Action::Parted { peer: other, other: peer });
        }
    }

    fn finish(&mut self, actions: &mut Vec<Action>) {
        self.over = !self.is_inspected;
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
        self.board.validate();
        assert!(to_u64(self.sums.begun()) <= self.tiles_left);
    }

    /// Cross-checks all tiles: what is to be done, at whom it may be, and what is here are all steps of each tile, once.
    /// For tests: it takes as long as there are tiles.
    pub fn validate_tiles(&self) {
        let mut tiles: BTreeMap<(usize, u64), Vec<Span>> = BTreeMap::new();
        let tasks = self.peers.iter().flat_map(|p| p.walk.tasks(&self.plan));
        let here = self.sums.steps().map(|((region, tile), steps)| (region, tile, steps));
        for (region, tile, steps) in tasks.chain(here) {
            tiles.entry((region, tile)).or_default().push(steps);
        }
        for ((region, tile), mut spans) in tiles.iter().map(|(tile, spans)| (*tile, spans.clone())) {
            spans.sort_by_key(|s| s.start);
            let end = spans.iter().fold(0, |end, s| {
                assert_eq!(s.start, end, "steps of tile {tile}: {spans:?}");
                s.end
            });
            assert_eq!(end, self.plan.regions[region].steps(), "steps of tile {tile}: {spans:?}");
        }
        assert_eq!(to_u64(tiles.len()), self.tiles_left, "tiles that are missing are somebody's");
    }
}

/// Orders that have come about, or had to wait at `peer`, go out, unless what they refer to has not.
fn send_orders(board: &mut Board, peers: &mut [Peer], peer: usize, actions: &mut Vec<Action>) {
    let mut send = |member: usize, peer: &mut Peer| {
        let orders = peer.take_orders();
        actions.extend(orders.chunks(FORWARDS_MAX).map(|part| Action::Relay(member, part.to_vec())));
    };
    for (member, forwards) in board.take_orders() {
        peers[member].order(forwards);
        send(member, &mut peers[member]);
    }
    send(peer, &mut peers[peer]);
}
