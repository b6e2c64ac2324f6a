//! Relaying in the target: orders of the primary, lines from other workers, and links that end.
//!
//! Promises: an order is carried out once, when its matrix is whole, and holds the matrix until then; lines are expected only
//! from the named worker, in order; after its loss none are expected, and the missing lines are reported once.

use super::Session;
use crate::bytes::Bytes;
use bramble_schedule::worker::WorkerEvent;
use bramble_wire::message::{Forward, MatrixSource, Missing, PieceHead};

impl Session {
    /// One event between workers; false where the primary has broken the protocol.
    pub(super) fn relaying(&mut self, bytes: &mut Bytes<'_>) -> bool {
        let (what, which) = (bytes.u8(), bytes.u8());
        match what % 8 {
            // Orders follow bodies, like all messages.
            0 | 1 if self.landing.is_none() => {
                let orders: Vec<Forward> = (0..=what >> 6).map(|_| any_order(bytes)).collect();
                self.orders.extend(&orders);
                self.handle(WorkerEvent::Relay(&orders))
            }
            2 | 3 if !self.passing.is_empty() => {
                let done = self.passing.swap_remove(usize::from(which) % self.passing.len());
                self.handle(WorkerEvent::Passed(&done))
            }
            4 => {
                let from = u32::from(which % 4);
                self.lost.insert(from);
                self.handle(WorkerEvent::PeerLost(from))
            }
            5 => {
                let (first_line, lines) = (u32::from(bytes.u8() % 16), u32::from(bytes.u8() % 16));
                self.piece(u32::from(what >> 4), PieceHead { id: u32::from(which % 16), first_line, lines })
            }
            _ => {
                // The expected piece.
                let relayed =
                    self.stored.values().filter(|s| s.header.source == MatrixSource::Relayed && !s.there());
                let Some(stored) = relayed.min_by_key(|s| s.header.id ^ u32::from(which)) else {
                    return true;
                };
                let (header, first_line) = (stored.header, stored.landed);
                let lines = (header.lines - first_line).min(1 + u32::from(what >> 4));
                self.piece(header.first_line, PieceHead { id: header.id, first_line, lines })
            }
        }
    }

    /// Lines arrive from another worker; a lie ends only the link with that worker.
    fn piece(&mut self, from: u32, piece: PieceHead) -> bool {
        let Ok(Some(_)) = self.worker.expects(from, &piece) else { return true };
        assert!(!self.lost.contains(&from), "lines are expected of worker {from}, which is lost");
        let stored = self.book(piece.id);
        assert!(
            stored.header.source == MatrixSource::Relayed && stored.header.first_line == from,
            "{piece:?}"
        );
        assert!(piece.lines > 0 && stored.landed == piece.first_line, "{piece:?} is out of order");
        stored.landed += piece.lines;
        assert!(stored.landed <= stored.header.lines_total().0, "{piece:?} is too long");
        self.handle(WorkerEvent::Piece(&piece))
    }

    pub(super) fn pass(&mut self, order: Forward) {
        assert!(order.to != Forward::NO_MEMBER && !self.lost.contains(&order.to), "{order:?} cannot be done");
        assert!(self.book(order.id).may_be_read(), "{order:?} comes too early");
        let at = self.orders.iter().position(|o| *o == order);
        self.orders.swap_remove(at.unwrap_or_else(|| panic!("{order:?} was not given")));
        self.passing.push(order);
    }

    pub(super) fn missing(&mut self, missing: Missing) {
        let (stored, Missing { id, lines }) = (self.book(missing.id), missing);
        assert!(stored.header.source == MatrixSource::Relayed && stored.landed == lines, "{id} misses lines");
        stored.header.source = MatrixSource::Data;
        let from = stored.header.first_line;
        assert!(self.lost.contains(&from), "matrix {id} is reported missing, but worker {from} is connected");
    }

    /// Orders whose matrix is whole are carried out, or cancelled.
    pub(super) fn no_order_is_forgotten(&mut self) {
        let (stored, lost) = (&self.stored, &self.lost);
        self.orders.retain(|order| {
            let is_due = stored.get(&order.id).is_none_or(|s| s.may_be_read());
            let nobody = order.to == Forward::NO_MEMBER || lost.contains(&order.to);
            assert!(!is_due || nobody, "{order:?} is forgotten");
            !is_due
        });
    }
}

fn any_order(bytes: &mut Bytes<'_>) -> Forward {
    let (id, to) = (bytes.u8(), bytes.u8());
    let to = if to % 8 == 7 { Forward::NO_MEMBER } else { u32::from(to % 4) };
    Forward { id: u32::from(id % 16), to, id_there: u32::from(id >> 4) }
}
