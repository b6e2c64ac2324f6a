//! State machine of the primary: decides which worker is sent what and in which order, and tracks which tiles
//! of C are complete.
//!
//! Place in the flow: the primary's shell calls `handle` with each event and carries out the actions. Before
//! rows of a result land, it asks `expect` where they belong.
//!
//! Tiles that come back with all their steps land in C itself. Where k is divided, a partial sum of later
//! steps is buffered until the earlier steps are in C (`Merge`), or its worker received the sum so far and
//! continues it.
//!
//! Invariants: a worker's credit is spent before anything is sent to it, and never falls below 0; at most
//! `LINK_WINDOW_BYTES` and one frame wait in a link; workers are served in turn; each (tile, step) is added
//! to C exactly once, in the order of the steps. The plan is expanded lazily: memory holds only what is in
//! flight.
//!
//! Deliberately absent: bytes of matrices, frames, sockets, clocks.

mod cell;
mod events;
mod inspection;
mod outgoing;
mod panel_stream;
mod peer;
mod peer_state;
mod peer_status;
mod pinned;
mod rate_estimator;
mod recompute;
mod relay;
mod resume;
mod slow_link;
mod spot_check;
mod steal;
mod steal_candidate;
mod sums;
mod units;
mod work;

pub use events::{PeerInfo, PrimaryAction, PrimaryEvent, Referred, ResultDestination, ResultPlace};
pub use inspection::{
    InspectionEnd, InspectionEvent, InspectionTask, InspectionVerdict, Recomputation, WrongResults,
};
pub use outgoing::{BodyPiece, Operands, Outgoing, UnplacedOperand, Which};
pub use peer_state::Lost;
pub use peer_status::{PeerStatus, WaitsFor};
pub use pinned::PartLost;
pub use steal::WorkMoves;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use bramble_base::Span;
use bramble_base::number::{nearest_f64, to_u64};
use bramble_plan::{Plan, Recipe, Sums};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{FORWARDS_MAX, SILENCE_MAX};
use bramble_wire::message::ResultHead;
use core::time::Duration;
use inspection::Inspection;
use panel_stream::{StreamContext, recipes};
use peer::{Owed, Peer};
use relay::PanelDirectory;
use spot_check::SpotChecks;
use steal::Stealing;
use sums::{PartialSums, ReceivedSum};

/// Matrices that workers have used up, by their charge in bytes.
struct UsedUp {
    /// Freed by the workers.
    freed_bytes: u64,
    /// All that the plan sends.
    stored_bytes: u64,
}

/// State of one product.
pub struct Primary {
    plan: Plan,
    operands: Operands,
    /// By region: how its cells are multiplied.
    recipes: Vec<Recipe>,
    peers: Vec<Peer>,
    sums: PartialSums,
    /// Panels that several members need.
    directory: PanelDirectory,
    stealing: Stealing,
    spot_checks: SpotChecks,
    tiles_left: u64,
    used_up: UsedUp,
    next_peer: usize,
    /// Whether the work of a lost worker is reassigned; otherwise a loss fails the product.
    recovers: bool,
    losses: Vec<Lost>,
    inspection: Inspection,
    /// Set once the user stops the product: nothing more is sent.
    stops: bool,
    over: bool,
}

impl Primary {
    /// The product of a plan. The first `peers` are the plan's members, in its order; the others have no
    /// share in it.
    pub fn new(plan: Plan, operands: Operands, peers: Vec<PeerInfo>) -> Self {
        assert!(plan.members.len() <= peers.len(), "a peer for each member");
        Self::of(plan, operands, peers, 0)
    }

    /// Like `new`, but the first peer has the member number `first`.
    fn of(plan: Plan, operands: Operands, peers: Vec<PeerInfo>, first: usize) -> Self {
        let tiles_left = plan.tiles();
        let directory =
            PanelDirectory::new(peers.iter().map(|p| p.neighbours.iter().copied().collect()).collect());
        let peers = peers.into_iter().zip(first..).map(|(info, at)| Peer::new(&plan, at, info)).collect();
        let used_up = UsedUp { freed_bytes: 0, stored_bytes: plan.stored_bytes() };
        Self {
            recipes: recipes(&plan),
            plan,
            operands,
            peers,
            sums: PartialSums::default(),
            directory,
            stealing: Stealing::default(),
            spot_checks: SpotChecks::default(),
            tiles_left,
            used_up,
            next_peer: 0,
            recovers: false,
            losses: Vec::new(),
            inspection: Inspection::default(),
            stops: false,
            over: false,
        }
    }

    /// The same primary without work stealing.
    pub fn without_stealing(mut self) -> Self {
        self.stealing.is_off = true;
        self
    }

    /// The plan of this product.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Number of tiles of C that are not complete.
    pub fn tiles_left(&self) -> u64 {
        self.tiles_left
    }

    /// Progress of the product, 0 to 1, by the panels that were used up: tiles stay at the workers until
    /// their last step.
    pub fn progress(&self) -> f64 {
        if self.tiles_left == 0 {
            return 1.0;
        }
        // Workers that take over lost work free the memory of the same panels again.
        let most = if self.recovers { 0.999 } else { 1.0 };
        (nearest_f64(self.used_up.freed_bytes) / nearest_f64(self.used_up.stored_bytes.max(1))).min(most)
    }

    /// Handles one event and returns the actions. `now` never decreases.
    pub fn handle(&mut self, event: PrimaryEvent, now: Duration) -> Vec<PrimaryAction> {
        let mut actions = Vec::new();
        if self.over {
            self.register_late(event);
            return actions;
        }
        if self.is_stale(&event) {
            return actions;
        }
        match event {
            PrimaryEvent::Start => {
                self.peers.iter_mut().for_each(|p| p.heard(now));
                if self.tiles_left == 0 {
                    self.finish(&mut actions);
                }
                self.serve(now, &mut actions);
            }
            PrimaryEvent::Sent { peer, bytes } => {
                self.peers[peer].sent(bytes, now);
                self.serve_one(peer, now, &mut actions);
            }
            PrimaryEvent::Credit { peer, bytes } => {
                self.peers[peer].heard(now);
                match self.peers[peer].credit(bytes, now) {
                    Ok(()) => {
                        self.used_up.freed_bytes = self.used_up.freed_bytes.saturating_add(bytes);
                        self.serve_one(peer, now, &mut actions);
                        self.balance(now, &mut actions);
                    }
                    Err(e) => self.disconnect(peer, &e.0, &mut actions),
                }
            }
            PrimaryEvent::Landed { peer, head } => {
                self.peers[peer].heard(now);
                self.landed(peer, &head, now, &mut actions);
                self.balance(now, &mut actions);
            }
            PrimaryEvent::Alive { peer } => self.peers[peer].heard(now),
            PrimaryEvent::Flow { peer, received, acknowledged, buffered } => {
                self.peers[peer].heard(now);
                self.peers[peer].flow.moved(received, acknowledged, buffered);
            }
            PrimaryEvent::Missing { peer, missing } => match self.peers[peer].missing(&missing) {
                Ok(()) => self.serve_one(peer, now, &mut actions),
                Err(e) => self.disconnect(peer, &e.0, &mut actions),
            },
            PrimaryEvent::Parted { peer, other } => self.parted(peer, other, &mut actions),
            PrimaryEvent::Joined(info) => self.join(info, now, &mut actions),
            PrimaryEvent::Lost { peer, why } => self.lose(peer, why, now, &mut actions),
            PrimaryEvent::Stop => self.stops = true,
            PrimaryEvent::Inspection(event) => self.inspection_event(event, now, &mut actions),
            PrimaryEvent::SpotChecked(is_wrong) => self.spot_checked(is_wrong, now, &mut actions),
            PrimaryEvent::Accepted => self.over = true,
            PrimaryEvent::Tick => {
                self.tick(now, &mut actions);
                self.disconnect_slow_link(now, &mut actions);
                self.balance(now, &mut actions);
            }
        }
        actions
    }

    /// ResultDestination of the rows of a result. An error if the peer was not asked for them.
    pub fn expect(&self, peer: usize, head: &ResultHead) -> Result<ResultDestination, ProtocolError> {
        let owed = self.peers[peer].expect(&self.context(Duration::ZERO), head)?;
        Ok(ResultDestination { rect: owed.rect, place: owed.place })
    }

    fn context(&self, now: Duration) -> StreamContext<'_> {
        StreamContext {
            plan: &self.plan,
            operands: &self.operands,
            recipes: &self.recipes,
            sums: &self.sums,
            now,
        }
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let owed = match self.peers[peer].expect(&self.context(now), head) {
            Ok(owed) => owed,
            Err(e) => return self.disconnect(peer, &e.0, actions),
        };
        if self.peers[peer].landed(head, owed.rect, self.plan.problem.element_bytes()) {
            if owed.place == ResultPlace::Staged {
                actions.push(PrimaryAction::Put { peer, tile: head.c, rect: owed.rect });
            }
            if owed.place != ResultPlace::Discarded {
                self.returned(ReceivedSum { peer, id: head.c }, &owed, now, actions);
            }
            // A returned tile frees credit, and other work may continue its sum.
            if self.plan.sums == Sums::Chained || self.stealing.has_moved() {
                self.serve(now, actions);
            } else {
                self.serve_one(peer, now, actions);
            }
        }
    }

    /// A tile, or a partial sum of it, has come back completely.
    fn returned(&mut self, came: ReceivedSum, owed: &Owed, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let all = self.plan.regions[owed.region].steps();
        let whole = owed.steps.start == 0 && owed.steps.end == all;
        let complete = if whole {
            true
        } else {
            let tile = (owed.region, owed.tile);
            let added = self.sums.receive(tile, owed.steps, came, all);
            // A sum that was not buffered is in C already.
            let there = usize::from(owed.place != ResultPlace::PartialSum);
            let merge = |c: &ReceivedSum| PrimaryAction::Merge { peer: c.peer, tile: c.id, rect: owed.rect };
            actions.extend(added.iter().skip(there.min(added.len())).map(merge));
            !added.is_empty() && !self.sums.is_begun(tile)
        };
        if complete {
            self.spot_check(came.peer, owed, now, actions);
            self.tiles_left -= 1;
            actions.push(PrimaryAction::Committed(owed.rect));
            if self.tiles_left == 0 {
                self.finish(actions);
            }
        }
    }

    /// Sends to all peers what credit and links allow, one message each in turn.
    fn serve(&mut self, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let context = StreamContext { plan, operands, recipes, sums: &self.sums, now };
        let mut idle = 0;
        while idle < self.peers.len() && !self.over && !self.stops {
            let peer = &mut self.peers[self.next_peer];
            match peer.next(&context, &mut self.directory) {
                Some(message) => {
                    actions.push(PrimaryAction::Send(self.next_peer, message));
                    send_orders(&mut self.directory, &mut self.peers, self.next_peer, actions);
                    idle = 0;
                }
                None => idle += 1,
            }
            self.next_peer = (self.next_peer + 1) % self.peers.len();
        }
    }

    /// The same for one peer, for events that change nothing for the others.
    fn serve_one(&mut self, peer: usize, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let (plan, operands, recipes) = (&self.plan, &self.operands, &self.recipes);
        let context = StreamContext { plan, operands, recipes, sums: &self.sums, now };
        while !self.over
            && !self.stops
            && let Some(message) = self.peers[peer].next(&context, &mut self.directory)
        {
            actions.push(PrimaryAction::Send(peer, message));
            send_orders(&mut self.directory, &mut self.peers, peer, actions);
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<PrimaryAction>) {
        // While data is on its way to any worker, the network is the bottleneck, not a stalled relay.
        let quiet = self.peers.iter().all(Peer::link_is_empty);
        for i in 0..self.peers.len() {
            let silence = self.peers[i].silence(now);
            let kept_bytes = self.directory.kept_bytes(i);
            let is_held_up = kept_bytes > 0 && quiet && self.peers[i].is_held_up(kept_bytes, now);
            if is_held_up && self.directory.release_oldest_step(i) {
                send_orders(&mut self.directory, &mut self.peers, i, actions);
            }
            if self.peers[i].info.shares_memory || !self.peers[i].state.is_connected() {
                continue;
            }
            if silence > SILENCE_MAX {
                let why = format!("it has been silent for {} s", silence.as_secs());
                self.disconnect(i, &why, actions);
                if self.over {
                    return;
                }
                continue;
            }
            if let Some(nonce) = self.peers[i].ping(now) {
                actions.push(PrimaryAction::Ping(i, nonce));
            }
        }
    }

    /// The link between two workers has ended: the primary sends the panels that one would have passed to the
    /// other.
    fn parted(&mut self, peer: usize, other: u32, actions: &mut Vec<PrimaryAction>) {
        let other = usize::try_from(other).unwrap_or(usize::MAX);
        if self.directory.remove_link(peer, other) && self.peers[other].state.is_connected() {
            actions.push(PrimaryAction::Parted { peer: other, other: peer });
        }
    }

    fn finish(&mut self, actions: &mut Vec<PrimaryAction>) {
        self.over = !self.inspection.is_on;
        actions.push(PrimaryAction::Finished);
        if self.inspection.is_on {
            self.inspect(actions);
        }
    }

    fn fail(&mut self, peer: usize, why: &str, actions: &mut Vec<PrimaryAction>) {
        self.over = true;
        actions.push(PrimaryAction::Fail(format!("worker {}: {why}", self.peers[peer].info.name)));
    }

    /// Status of a peer.
    pub fn peer_status(&self, peer: usize) -> PeerStatus {
        self.peers[peer].peer_status()
    }

    /// Number of partial sums that wait for earlier steps, and of tiles that have only some of their steps.
    pub fn sums_under_way(&self) -> (usize, usize) {
        (self.sums.waiting(), self.sums.begun())
    }

    /// Cross-checks, for tests and the simulator after each event.
    pub fn validate(&self) {
        self.peers.iter().for_each(Peer::validate);
        self.directory.validate();
        assert!(to_u64(self.sums.begun()) <= self.tiles_left);
    }

    /// Checks that each step of each incomplete tile occurs exactly once: in unfinished work, in C, or in a
    /// buffered partial sum; and the rules of units. For tests: the time grows with the number of tiles.
    pub fn validate_tiles(&self) {
        let mut tiles: BTreeMap<(usize, u64), Vec<Span>> = BTreeMap::new();
        let tasks = self.peers.iter().flat_map(|p| p.stream.tasks(&self.plan));
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
        assert_eq!(to_u64(tiles.len()), self.tiles_left, "each incomplete tile belongs to a peer");
        units::validate(&self.plan, self.peers.iter().map(|p| p.stream.unfinished(&self.plan)));
        let is_outside = |peer| self.stealing.is_resumed || peer >= self.plan.members.len();
        let waiting = self.sums.waiting_at().filter(|(_, peer)| is_outside(*peer));
        units::validate_waiting(&self.plan, waiting.map(|(tile, _)| tile));
    }
}

/// Sends pending relay orders, and those that waited at `peer`, unless the store messages that they refer to
/// are still unsent.
fn send_orders(
    directory: &mut PanelDirectory,
    peers: &mut [Peer],
    peer: usize,
    actions: &mut Vec<PrimaryAction>,
) {
    let mut send = |member: usize, peer: &mut Peer| {
        let orders = peer.take_orders();
        actions.extend(orders.chunks(FORWARDS_MAX).map(|part| PrimaryAction::Relay(member, part.to_vec())));
    };
    for (member, forwards) in directory.take_orders() {
        peers[member].order(forwards);
        send(member, &mut peers[member]);
    }
    send(peer, &mut peers[peer]);
}
