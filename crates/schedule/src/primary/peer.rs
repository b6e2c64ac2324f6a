//! What the primary knows of one worker: its credit, what waits in its link, which tiles it owes.

use super::PeerInfo;
use super::walk::{Operands, Outgoing, Walk};
use crate::ProtocolError;
use crate::limits::{LINK_WINDOW_BYTES, PING_AFTER};
use crate::message::ResultHead;
use bramble_plan::Plan;
use std::collections::BTreeMap;
use std::time::Duration;

/// State of one worker.
pub(super) struct Peer {
    pub(super) info: PeerInfo,
    walk: Walk,
    /// Bytes that may be sent now; `info.credit_bytes` minus what the worker holds.
    credit_left: u64,
    in_link_bytes: usize,
    /// Tiles that the worker has or was promised, and how many of their rows have come back.
    tiles: BTreeMap<u32, u32>,
    last_heard: Duration,
    last_ping: Duration,
    pings: u64,
}

impl Peer {
    pub(super) fn new(share: usize, info: PeerInfo) -> Self {
        Self {
            walk: Walk::new(share, info.shares_memory),
            credit_left: info.credit_bytes,
            in_link_bytes: 0,
            tiles: BTreeMap::new(),
            last_heard: Duration::ZERO,
            last_ping: Duration::ZERO,
            pings: 0,
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
    pub(super) fn next(&mut self, plan: &Plan, operands: &Operands) -> Option<Outgoing> {
        if self.in_link_bytes >= LINK_WINDOW_BYTES {
            return None;
        }
        let message = self.walk.next(plan, operands, &mut self.credit_left)?;
        for matrix in message.head.matrices.iter().filter(|m| m.uses == 0 && m.first_line == 0) {
            self.tiles.entry(matrix.id).or_insert(0);
        }
        self.in_link_bytes += message.wire_bytes();
        Some(message)
    }

    /// Whether these lines of a result are the ones that have to come next.
    pub(super) fn expect(&self, head: &ResultHead, rows: u64, steps: u64) -> Result<(), ProtocolError> {
        let Some(have) = self.tiles.get(&head.c) else {
            return Err(ProtocolError::new(format!("it returned tile {}, which it was not given", head.c)));
        };
        let all_steps = head.step_start == 0 && u64::from(head.step_end) == steps && head.epoch == 0;
        let next = head.first_line == *have && head.lines > 0;
        let inside = u64::from(head.first_line) + u64::from(head.lines) <= rows;
        if !(all_steps && next && inside) {
            let what = format!("it returned lines {}+{} of tile {}", head.first_line, head.lines, head.c);
            return Err(ProtocolError::new(format!(
                "{what} with steps {}..{}",
                head.step_start, head.step_end
            )));
        }
        Ok(())
    }

    /// Lines have landed; true when the tile is whole.
    pub(super) fn landed(&mut self, plan: &Plan, head: &ResultHead, row: u64, col: u64) -> bool {
        let Some(have) = self.tiles.get_mut(&head.c) else { return false };
        *have += head.lines;
        let whole = u64::from(*have) == plan.grid.tile(row, col).shape().rows;
        if whole {
            self.tiles.remove(&head.c);
            self.walk.committed(plan, row, col);
        }
        whole
    }

    pub(super) fn tiles(&self) -> impl Iterator<Item = u32> + '_ {
        self.tiles.keys().copied()
    }

    pub(super) fn validate(&self, plan: &Plan) {
        assert!(self.credit_left <= self.info.credit_bytes);
        for tile in self.tiles.keys() {
            assert!(plan.grid.tile_of(*tile).is_some());
        }
    }
}
