//! The primary's view of one worker: its credit, the bytes that wait in its link, the tiles that it owes.

use super::outgoing::{Outgoing, small};
use super::panel_stream::{PanelStream, StreamContext, tile_number};
use super::peer_state::PeerState;
use super::peer_status::PeerStatus;
use super::relay::PanelDirectory;
use super::slow_link::LinkFlow;
use super::spot_check::SpotCheckCounts;
use super::work::WorkItem;
use super::{PeerInfo, ResultPlace};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::number::{nearest_f64, to_u64};
use bramble_base::{Rect, Span};
use bramble_plan::{Plan, charged_bytes};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{HELD_UP_AFTER, LINK_WINDOW_BYTES, PING_AFTER};
use bramble_wire::message::{Forward, Missing, ResultHead, Then};
use core::time::Duration;

/// State of one peer.
pub(super) struct Peer {
    pub(super) info: PeerInfo,
    pub(super) stream: PanelStream,
    pub(super) state: PeerState,
    /// Whether tiles that continue a sum of C land in a staging buffer (`ResultPlace::Staged`).
    pub(super) stages: bool,
    /// Bytes that may be sent now: `info.credit_bytes` minus the bytes that the worker holds.
    credit_left: u64,
    in_link_bytes: usize,
    /// Tiles that the worker owes, by id.
    tiles: BTreeMap<u32, TileState>,
    heartbeat: Heartbeat,
    /// Relay orders that wait until the store messages they refer to are sent.
    orders: Vec<Forward>,
    /// When it last returned credit.
    last_credit: Duration,
    /// Measurements of its link.
    pub(super) flow: LinkFlow,
    pub(super) spot_checks: SpotCheckCounts,
    /// Since the start: jobs that it was given, and tiles that it returned completely.
    jobs_given: u32,
    tiles_back: u32,
}

/// When the two ends of a link last heard of each other.
#[derive(Default)]
struct Heartbeat {
    last_heard: Duration,
    /// When the last message was sent to the peer.
    last_sent: Duration,
    last_ping: Duration,
    pings: u64,
}

/// State of one owed tile.
#[derive(Clone, Copy, Default)]
struct TileState {
    /// Whether the job that returns the tile was sent, and thus everything that the tile depends on.
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
    /// Steps of k in its sum, without those before the block where it continues a sum.
    pub(super) steps: Span,
    /// Where it lands.
    pub(super) place: ResultPlace,
}

impl Peer {
    pub(super) fn new(plan: &Plan, member: usize, info: PeerInfo) -> Self {
        Self {
            stream: PanelStream::new(plan, member, &info),
            state: if info.is_reserve && member >= plan.members.len() {
                PeerState::Reserve
            } else {
                PeerState::Active
            },
            stages: false,
            credit_left: info.credit_bytes,
            in_link_bytes: 0,
            tiles: BTreeMap::new(),
            heartbeat: Heartbeat::default(),
            orders: Vec::new(),
            last_credit: Duration::ZERO,
            flow: LinkFlow::default(),
            spot_checks: SpotCheckCounts::default(),
            jobs_given: 0,
            tiles_back: 0,
            info,
        }
    }

    pub(super) fn heard(&mut self, now: Duration) {
        self.heartbeat.last_heard = now;
    }

    pub(super) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heartbeat.last_heard)
    }

    /// The nonce of a heartbeat, if one end has not heard from the other for a while and none was sent just
    /// before. A worker that computes for long without new messages must hear that its primary is alive.
    pub(super) fn ping(&mut self, now: Duration) -> Option<u64> {
        let is_quiet =
            self.silence(now) > PING_AFTER || now.saturating_sub(self.heartbeat.last_sent) > PING_AFTER;
        if !is_quiet || now.saturating_sub(self.heartbeat.last_ping) < PING_AFTER {
            return None;
        }
        self.heartbeat.last_sent = now;
        self.heartbeat.last_ping = now;
        self.heartbeat.pings += 1;
        Some(self.heartbeat.pings)
    }

    /// The link accepted bytes, so the peer or the network is still reading.
    pub(super) fn sent(&mut self, bytes: usize, now: Duration) {
        assert!(bytes <= self.in_link_bytes, "a link reported more bytes sent than it was given");
        self.in_link_bytes -= bytes;
        self.stream.speed.link_took(to_u64(bytes), self.in_link_bytes > 0, now);
        self.heard(now);
    }

    pub(super) fn credit(&mut self, bytes: u64, now: Duration) -> Result<(), ProtocolError> {
        self.last_credit = now;
        let credit = self.credit_left.checked_add(bytes).filter(|c| *c <= self.info.credit_bytes);
        self.credit_left =
            credit.ok_or_else(|| ProtocolError::new("it returned more credit than it had granted"))?;
        self.stream.speed.credit(bytes, now);
        Ok(())
    }

    /// The next message for this worker, if credit and link window allow one.
    pub(super) fn next(
        &mut self,
        context: &StreamContext<'_>,
        directory: &mut PanelDirectory,
    ) -> Option<Outgoing> {
        if self.state != PeerState::Active || self.in_link_bytes >= LINK_WINDOW_BYTES {
            return None;
        }
        let message = self.stream.next(context, directory, &mut self.credit_left)?;
        for matrix in message.head.matrices.iter().filter(|m| m.uses == 0 && m.first_line == 0) {
            self.tiles.entry(matrix.id).or_default();
        }
        for job in message.head.jobs.iter().filter(|j| j.then == Then::Return) {
            self.tiles.entry(job.c).or_default().was_asked_for = true;
        }
        self.in_link_bytes += message.wire_bytes();
        self.stream.speed.link_given(context.now);
        self.heartbeat.last_sent = context.now;
        self.jobs_given = self.jobs_given.saturating_add(small(to_u64(message.head.jobs.len())));
        Some(message)
    }

    /// The tile that these rows of a result belong to. An error unless they are the next expected ones.
    pub(super) fn expect(
        &self,
        context: &StreamContext<'_>,
        head: &ResultHead,
    ) -> Result<Owed, ProtocolError> {
        if !self.state.is_connected() {
            return Err(ProtocolError::new("it sent a result after its part in the product was over"));
        }
        let found = self.tiles.get(&head.c).zip(self.stream.find(head.c));
        let Some((state, (out, at))) = found else {
            return Err(ProtocolError::new(format!("it returned tile {}, which it was not given", head.c)));
        };
        if !state.was_asked_for {
            // The shell may still have to send data of this tile, which it would read from where the result
            // lands.
            let what = format!("it returned tile {} before it was sent all operands of it", head.c);
            return Err(ProtocolError::new(what));
        }
        let work = &out.work;
        let region = &context.plan.regions[work.block.region];
        let (tile, i, j, u, v) = tile_number(region, &work.block, at);
        let rect = region.tile(i, j, u, v);
        let steps = PanelStream::result_steps(context, out, i, j);
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
            _ if work.is_committed(at) => ResultPlace::Discarded,
            // A leased tile is written in place, and its worker is never lost.
            _ if work.continues_sum && self.stages => ResultPlace::Staged,
            _ if work.lands_in_c() => ResultPlace::InC,
            _ => ResultPlace::PartialSum,
        };
        Ok(Owed { region, tile, rect, steps, place })
    }

    /// Rows of a tile have landed; true if the tile is complete.
    pub(super) fn landed(&mut self, head: &ResultHead, rect: Rect, element_bytes: u64) -> bool {
        let Some(state) = self.tiles.get_mut(&head.c) else { return false };
        state.rows += head.lines;
        let whole = u64::from(state.rows) == rect.rows.len();
        if whole {
            let bytes = rect.rows.len().saturating_mul(rect.cols.len()).saturating_mul(element_bytes);
            self.stream.speed.returned(charged_bytes(bytes, 0));
            self.tiles.remove(&head.c);
            self.stream.returned(head.c);
            self.tiles_back = self.tiles_back.saturating_add(1);
        }
        whole
    }

    /// Work per second as observed, or else as reported by the worker; at least 1.
    pub(super) fn known_rate(&self) -> f64 {
        match self.stream.speed.rate() {
            seen if seen > 0.0 => seen,
            _ => self.info.work_per_s.max(1.0),
        }
    }

    /// Bytes that its link was given and has not yet accepted.
    pub(super) fn in_link_bytes(&self) -> f64 {
        nearest_f64(to_u64(self.in_link_bytes))
    }

    /// Whether its link has accepted everything.
    pub(super) fn link_is_empty(&self) -> bool {
        self.in_link_bytes == 0
    }

    /// Whether the worker is stalled because it retains operands for slower members: the next panel waits for
    /// credit, no credit has come back for a while, and retained panels are at least half of its memory.
    /// Restarts the wait if so.
    pub(super) fn is_held_up(&mut self, kept_bytes: u64, now: Duration) -> bool {
        let waits = self.stream.waits_for_credit() && now.saturating_sub(self.last_credit) > HELD_UP_AFTER;
        let is_held_up = waits && kept_bytes >= self.stream.speed.bytes_out() / 2;
        if is_held_up {
            self.last_credit = now;
        }
        is_held_up
    }

    /// Adds relay orders.
    pub(super) fn order(&mut self, forwards: Vec<Forward>) {
        self.orders.extend(forwards);
    }

    /// Takes the relay orders if every panel that was begun has been sent, so that the worker knows the
    /// matrices.
    pub(super) fn take_orders(&mut self) -> Vec<Forward> {
        if !self.state.is_connected() {
            self.orders.clear();
        }
        if self.stream.is_between_panels() { core::mem::take(&mut self.orders) } else { Vec::new() }
    }

    /// A matrix that another worker should have relayed does not arrive.
    pub(super) fn missing(&mut self, missing: &Missing) -> Result<(), ProtocolError> {
        if self.stream.missing(missing.id, missing.lines) {
            return Ok(());
        }
        let what = format!(
            "it reports matrix {} as missing, but no worker was to relay that matrix to it",
            missing.id
        );
        Err(ProtocolError::new(what))
    }

    pub(super) fn peer_status(&self) -> PeerStatus {
        PeerStatus {
            credit_left_bytes: self.credit_left,
            in_link_bytes: to_u64(self.in_link_bytes),
            jobs_given: self.jobs_given,
            tiles_back: self.tiles_back,
            next: self.stream.next_waits_for(),
        }
    }

    /// The peer is lost: returns its unfinished work.
    pub(super) fn abandon(&mut self, plan: &Plan) -> VecDeque<WorkItem> {
        self.state = PeerState::Gone;
        self.tiles.clear();
        self.orders.clear();
        self.in_link_bytes = 0;
        self.stream.abandon(plan)
    }

    pub(super) fn validate(&self) {
        assert!(self.state != PeerState::Gone || self.stream.is_empty(), "a lost peer has work");
        assert!(self.credit_left <= self.info.credit_bytes);
        for (tile, state) in &self.tiles {
            let rows = state.rows;
            assert!(
                self.stream.find(*tile).is_some(),
                "tile {tile} ({rows} rows are back) belongs to no block"
            );
        }
    }
}
