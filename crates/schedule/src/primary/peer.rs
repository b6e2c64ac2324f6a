//! What the primary knows of one worker: its credit, what waits in its link, which tiles it owes.

use super::life::Life;
use super::outgoing::{Outgoing, small};
use super::relay::Board;
use super::slow::Flow;
use super::spots::Seen;
use super::standing::Standing;
use super::walk::{Course, Walk, tile_number};
use super::work::Lot;
use super::{PeerInfo, Place};
use crate::ProtocolError;
use crate::limits::{HELD_UP_AFTER, LINK_WINDOW_BYTES, PING_AFTER};
use crate::message::{Forward, Missing, ResultHead, Then};
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_matrix::{Rect, Span};
use bramble_plan::{Plan, charged_bytes};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// State of one worker.
pub(super) struct Peer {
    pub(super) info: PeerInfo,
    pub(super) walk: Walk,
    pub(super) life: Life,
    /// Whether tiles that go on from a sum in C land beside it (`Place::Staged`).
    pub(super) stages: bool,
    /// Bytes that may be sent now; `info.credit_bytes` minus what the worker holds.
    credit_left: u64,
    in_link_bytes: usize,
    /// Tiles that the worker has or was promised.
    tiles: BTreeMap<u32, TileState>,
    last_heard: Duration,
    /// When it was last given something to hear.
    last_said: Duration,
    last_ping: Duration,
    pings: u64,
    /// What it is to pass on, once it has been told of all of it.
    orders: Vec<Forward>,
    /// When it last gave credit.
    last_credit: Duration,
    /// What its link carries.
    pub(super) flow: Flow,
    pub(super) seen: Seen,
    /// Since the start: jobs that it was given, and tiles that it gave back whole.
    jobs_given: u32,
    tiles_back: u32,
}

/// How far a tile is.
#[derive(Clone, Copy, Default)]
struct TileState {
    /// The job that returns it was sent, and so everything that the tile consists of.
    was_asked_for: bool,
    /// Rows that have come back.
    rows: u32,
}

/// A tile that a worker owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) region: usize,
    /// Number in its region.
    pub(super) tile: u64,
    pub(super) rect: Rect,
    /// Steps of k that are summed in it (with those before, where the block goes on from a sum).
    pub(super) steps: Span,
    /// Where it lands.
    pub(super) place: Place,
}

impl Peer {
    pub(super) fn new(plan: &Plan, member: usize, info: PeerInfo) -> Self {
        Self {
            walk: Walk::new(plan, member, &info),
            life: if info.is_reserve && member >= plan.members.len() { Life::Reserve } else { Life::Works },
            stages: false,
            credit_left: info.credit_bytes,
            in_link_bytes: 0,
            tiles: BTreeMap::new(),
            last_heard: Duration::ZERO,
            last_said: Duration::ZERO,
            last_ping: Duration::ZERO,
            pings: 0,
            orders: Vec::new(),
            last_credit: Duration::ZERO,
            flow: Flow::default(),
            seen: Seen::default(),
            jobs_given: 0,
            tiles_back: 0,
            info,
        }
    }

    pub(super) fn heard(&mut self, now: Duration) {
        self.last_heard = now;
    }

    pub(super) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_heard)
    }

    /// A nonce, where one of the two ends has not heard the other for a while, unless it was asked a moment ago: whoever has
    /// all that it needs and works for long has to hear that its primary is still there.
    pub(super) fn ping(&mut self, now: Duration) -> Option<u64> {
        let is_quiet = self.silence(now) > PING_AFTER || now.saturating_sub(self.last_said) > PING_AFTER;
        if !is_quiet || now.saturating_sub(self.last_ping) < PING_AFTER {
            return None;
        }
        self.last_said = now;
        self.last_ping = now;
        self.pings += 1;
        Some(self.pings)
    }

    /// The link took bytes: the other end, or the network before it, is still reading.
    pub(super) fn sent(&mut self, bytes: usize, now: Duration) {
        assert!(bytes <= self.in_link_bytes, "a link sent more than it was given");
        self.in_link_bytes -= bytes;
        self.walk.pace.link_took(to_u64(bytes), self.in_link_bytes > 0, now);
        self.heard(now);
    }

    pub(super) fn credit(&mut self, bytes: u64, now: Duration) -> Result<(), ProtocolError> {
        self.last_credit = now;
        let credit = self.credit_left.checked_add(bytes).filter(|c| *c <= self.info.credit_bytes);
        self.credit_left =
            credit.ok_or_else(|| ProtocolError::new("it gave more credit than it ever had"))?;
        self.walk.pace.credit(bytes, now);
        Ok(())
    }

    /// The next message for this worker, if credit and window allow one.
    pub(super) fn next(&mut self, course: &Course<'_>, board: &mut Board) -> Option<Outgoing> {
        if self.life != Life::Works || self.in_link_bytes >= LINK_WINDOW_BYTES {
            return None;
        }
        let message = self.walk.next(course, board, &mut self.credit_left)?;
        for matrix in message.head.matrices.iter().filter(|m| m.uses == 0 && m.first_line == 0) {
            self.tiles.entry(matrix.id).or_default();
        }
        for job in message.head.jobs.iter().filter(|j| j.then == Then::Return) {
            self.tiles.entry(job.c).or_default().was_asked_for = true;
        }
        self.in_link_bytes += message.wire_bytes();
        self.walk.pace.link_given(course.now);
        self.last_said = course.now;
        self.jobs_given = self.jobs_given.saturating_add(small(to_u64(message.head.jobs.len())));
        Some(message)
    }

    /// The tile that these lines of a result belong to, if they are the ones that have to come next.
    pub(super) fn expect(&self, course: &Course<'_>, head: &ResultHead) -> Result<Owed, ProtocolError> {
        if !self.life.is_heard() {
            return Err(ProtocolError::new("its part in the product is over"));
        }
        let found = self.tiles.get(&head.c).zip(self.walk.find(head.c));
        let Some((state, (out, at))) = found else {
            return Err(ProtocolError::new(format!("it returned tile {}, which it was not given", head.c)));
        };
        if !state.was_asked_for {
            // The shell may still have to read what the worker has not been sent, from where this would land.
            let what = format!("it returned tile {} before it was given all that it needs for it", head.c);
            return Err(ProtocolError::new(what));
        }
        let work = &out.work;
        let region = &course.plan.regions[work.block.region];
        let (tile, i, j, u, v) = tile_number(region, &work.block, at);
        let rect = region.tile(i, j, u, v);
        let steps = Walk::result_steps(course, out, i, j);
        let as_asked = u64::from(head.step_start) == steps.start && u64::from(head.step_end) == steps.end;
        let next = head.first_line == state.rows && head.lines > 0;
        let inside = u64::from(head.first_line) + u64::from(head.lines) <= rect.rows.len();
        if !(as_asked && head.epoch == work.attempt && next && inside) {
            let what = format!("it returned lines {}+{} of tile {}", head.first_line, head.lines, head.c);
            return Err(ProtocolError::new(format!(
                "{what} with steps {}..{}",
                head.step_start, head.step_end
            )));
        }
        let (region, steps) = (work.block.region, work.steps_of(i, j));
        let place = match work {
            _ if work.skips(at) => Place::Nowhere,
            // What is lent is written where it lies; the lender is never lost.
            _ if work.goes_on && self.stages => Place::Staged,
            _ if work.lands_in_c() => Place::InC,
            _ => Place::Aside,
        };
        Ok(Owed { region, tile, rect, steps, place })
    }

    /// Lines of a tile have landed; true when it is whole.
    pub(super) fn landed(&mut self, head: &ResultHead, rect: Rect, element_bytes: u64) -> bool {
        let Some(state) = self.tiles.get_mut(&head.c) else { return false };
        state.rows += head.lines;
        let whole = u64::from(state.rows) == rect.rows.len();
        if whole {
            let bytes = rect.rows.len().saturating_mul(rect.cols.len()).saturating_mul(element_bytes);
            self.walk.pace.returned(charged_bytes(bytes, 0));
            self.tiles.remove(&head.c);
            self.walk.returned(head.c);
            self.tiles_back = self.tiles_back.saturating_add(1);
        }
        whole
    }

    /// Bytes that its link was given and has not taken whole.
    pub(super) fn in_link_bytes(&self) -> f64 {
        nearest_f64(to_u64(self.in_link_bytes))
    }

    /// Whether nothing is on its way to it.
    pub(super) fn link_is_empty(&self) -> bool {
        self.in_link_bytes == 0
    }

    /// Whether it gets no further because it keeps operands that count for so much for slower ones: it has no room for
    /// what comes next, has given back nothing for a while, and half of what it has is theirs. It is not said again at
    /// once.
    pub(super) fn is_held_up(&mut self, kept_bytes: u64, now: Duration) -> bool {
        let waits = self.walk.is_refused() && now.saturating_sub(self.last_credit) > HELD_UP_AFTER;
        let is_held_up = waits && kept_bytes >= self.walk.pace.bytes_out() / 2;
        if is_held_up {
            self.last_credit = now;
        }
        is_held_up
    }

    /// It is to pass matrices on.
    pub(super) fn order(&mut self, forwards: Vec<Forward>) {
        self.orders.extend(forwards);
    }

    /// The orders for it, if all that was begun for it has been sent: then it knows what they are about.
    pub(super) fn take_orders(&mut self) -> Vec<Forward> {
        if !self.life.is_heard() {
            self.orders.clear();
        }
        if self.walk.is_between_panels() { std::mem::take(&mut self.orders) } else { Vec::new() }
    }

    /// A matrix that another worker should have sent does not come from there.
    pub(super) fn missing(&mut self, missing: &Missing) -> Result<(), ProtocolError> {
        if self.walk.missing(missing.id, missing.lines) {
            return Ok(());
        }
        let what = format!("it misses matrix {}, which nobody was to pass on to it", missing.id);
        Err(ProtocolError::new(what))
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            credit_left_bytes: self.credit_left,
            in_link_bytes: to_u64(self.in_link_bytes),
            jobs_given: self.jobs_given,
            tiles_back: self.tiles_back,
            next: self.walk.next_waits_for(),
        }
    }

    /// It is gone: what it had to do.
    pub(super) fn abandon(&mut self, plan: &Plan) -> VecDeque<Lot> {
        self.life = Life::Gone;
        self.tiles.clear();
        self.orders.clear();
        self.in_link_bytes = 0;
        self.walk.abandon(plan)
    }

    pub(super) fn validate(&self) {
        assert!(self.life != Life::Gone || self.walk.is_empty(), "who is gone has work");
        assert!(self.credit_left <= self.info.credit_bytes);
        for (tile, state) in &self.tiles {
            let rows = state.rows;
            assert!(
                self.walk.find(*tile).is_some(),
                "tile {tile} ({rows} rows are back) belongs to no block"
            );
        }
    }
}
