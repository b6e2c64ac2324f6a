//! What the primary knows of one worker: its credit, what waits in its link, which tiles it owes.

use super::PeerInfo;
use super::outgoing::{Outgoing, small};
use super::standing::Standing;
use super::walk::{Course, Walk, tile_number};
use crate::ProtocolError;
use crate::limits::{LINK_WINDOW_BYTES, PING_AFTER};
use crate::message::{ResultHead, Then};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Rect, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// State of one worker.
pub(super) struct Peer {
    pub(super) info: PeerInfo,
    walk: Walk,
    /// Bytes that may be sent now; `info.credit_bytes` minus what the worker holds.
    credit_left: u64,
    in_link_bytes: usize,
    /// Tiles that the worker has or was promised.
    tiles: BTreeMap<u32, TileState>,
    last_heard: Duration,
    last_ping: Duration,
    pings: u64,
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
    /// Whether the block went on from the sum of the steps before.
    pub(super) goes_on: bool,
}

impl Peer {
    pub(super) fn new(member: usize, info: PeerInfo) -> Self {
        Self {
            walk: Walk::new(member, info.shares_memory),
            credit_left: info.credit_bytes,
            in_link_bytes: 0,
            tiles: BTreeMap::new(),
            last_heard: Duration::ZERO,
            last_ping: Duration::ZERO,
            pings: 0,
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

    /// A nonce, unless it was asked a moment ago.
    pub(super) fn ping(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.last_ping) < PING_AFTER {
            return None;
        }
        self.last_ping = now;
        self.pings += 1;
        Some(self.pings)
    }

    /// The link took bytes: the other end, or the network before it, is still reading.
    pub(super) fn sent(&mut self, bytes: usize, now: Duration) {
        assert!(bytes <= self.in_link_bytes, "a link sent more than it was given");
        self.in_link_bytes -= bytes;
        self.heard(now);
    }

    pub(super) fn credit(&mut self, bytes: u64) -> Result<(), ProtocolError> {
        let credit = self.credit_left.checked_add(bytes).filter(|c| *c <= self.info.credit_bytes);
        self.credit_left =
            credit.ok_or_else(|| ProtocolError::new("it gave more credit than it ever had"))?;
        Ok(())
    }

    /// The next message for this worker, if credit and window allow one.
    pub(super) fn next(&mut self, course: &Course<'_>) -> Option<Outgoing> {
        if self.in_link_bytes >= LINK_WINDOW_BYTES {
            return None;
        }
        let message = self.walk.next(course, &mut self.credit_left)?;
        for matrix in message.head.matrices.iter().filter(|m| m.uses == 0 && m.first_line == 0) {
            self.tiles.entry(matrix.id).or_default();
        }
        for job in message.head.jobs.iter().filter(|j| j.then == Then::Return) {
            self.tiles.entry(job.c).or_default().was_asked_for = true;
        }
        self.in_link_bytes += message.wire_bytes();
        self.jobs_given = self.jobs_given.saturating_add(small(to_u64(message.head.jobs.len())));
        Some(message)
    }

    /// The tile that these lines of a result belong to, if they are the ones that have to come next.
    pub(super) fn expect(&self, course: &Course<'_>, head: &ResultHead) -> Result<Owed, ProtocolError> {
        let found = self.tiles.get(&head.c).zip(self.walk.find(head.c));
        let Some((state, (out, at))) = found else {
            return Err(ProtocolError::new(format!("it returned tile {}, which it was not given", head.c)));
        };
        if !state.was_asked_for {
            // The shell may still have to read what the worker has not been sent, from where this would land.
            let what = format!("it returned tile {} before it was given all that it needs for it", head.c);
            return Err(ProtocolError::new(what));
        }
        let region = &course.plan.regions[out.block.region];
        let (tile, i, j, u, v) = tile_number(region, &out.block, at);
        let rect = region.tile(i, j, u, v);
        let steps = Walk::result_steps(course, out);
        let as_asked = u64::from(head.step_start) == steps.start && u64::from(head.step_end) == steps.end;
        let next = head.first_line == state.rows && head.lines > 0;
        let inside = u64::from(head.first_line) + u64::from(head.lines) <= rect.rows.len();
        if !(as_asked && head.epoch == 0 && next && inside) {
            let what = format!("it returned lines {}+{} of tile {}", head.first_line, head.lines, head.c);
            return Err(ProtocolError::new(format!(
                "{what} with steps {}..{}",
                head.step_start, head.step_end
            )));
        }
        let goes_on = course.plan.continues(&out.block);
        Ok(Owed { region: out.block.region, tile, rect, steps: out.block.steps, goes_on })
    }

    /// Lines of a tile with so many rows have landed; true when it is whole.
    pub(super) fn landed(&mut self, head: &ResultHead, rows: u64) -> bool {
        let Some(state) = self.tiles.get_mut(&head.c) else { return false };
        state.rows += head.lines;
        let whole = u64::from(state.rows) == rows;
        if whole {
            self.tiles.remove(&head.c);
            self.walk.returned(head.c);
            self.tiles_back = self.tiles_back.saturating_add(1);
        }
        whole
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

    pub(super) fn validate(&self) {
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
