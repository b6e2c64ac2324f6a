//! Relaying at a worker: what it passes on to others, and what comes from them.
//!
//! Place in the flow: beside jobs. The primary announces a matrix at both ends before it orders one to pass it to the
//! other, but the lines may be faster than the announcement: `expects` then says so, and the shell leaves them in the
//! link until it has come.
//!
//! Invariants: passing a matrix on is one of the uses that it was announced with, so it stays until that is over, and no
//! longer. Lines come in order, from the one worker that was named, into memory that the primary's credit here has paid
//! for: nobody waits for a neighbour's memory. After a neighbour is lost nothing is expected of it: what is missing is
//! asked of the primary, once for each matrix.

use super::{Action, Worker};
use crate::ProtocolError;
use crate::message::{Forward, MatrixHeader, Missing, PieceHead, Source};

impl Worker {
    /// Whether lines from another worker may land now: in which matrix, or `None` where it has not been announced yet.
    pub fn expects(&self, from: u32, piece: &PieceHead) -> Result<Option<MatrixHeader>, ProtocolError> {
        let Some(matrix) = self.matrices.get(&piece.id) else { return Ok(None) };
        let header = matrix.header;
        let end = piece.first_line.checked_add(piece.lines);
        let fits = piece.lines > 0 && end.is_some_and(|end| end <= header.lines_total().0);
        let is_next = piece.first_line == matrix.lines;
        if header.source != Source::Relayed || header.first_line != from || !is_next || !fits {
            let PieceHead { id, first_line, lines } = piece;
            let what = format!(
                "worker {from} passed on lines {first_line}+{lines} of matrix {id}, which are not due"
            );
            return Err(ProtocolError::new(what));
        }
        Ok(Some(header))
    }

    /// Orders of the primary.
    pub(super) fn relay(&mut self, forwards: &[Forward]) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
        for forward in forwards {
            let id = forward.id;
            let Some(matrix) = self.matrices.get_mut(&id).filter(|m| !m.is_tile()) else {
                return Err(ProtocolError::new(format!(
                    "matrix {id} is to be relayed, but is not stored here"
                )));
            };
            if matrix.promised == matrix.header.uses {
                let what = format!("matrix {id} is to be relayed, but was announced for fewer uses");
                return Err(ProtocolError::new(what));
            }
            matrix.promised += 1;
            if matrix.is_whole() {
                self.pass(*forward, &mut actions);
            } else {
                matrix.order(*forward);
            }
        }
        Ok(actions)
    }

    /// Passes a whole matrix on, if there is anybody to take it.
    pub(super) fn pass(&mut self, forward: Forward, actions: &mut Vec<Action>) {
        if forward.to == Forward::NOBODY || self.lost.contains(&forward.to) {
            self.used(forward.id, actions);
        } else {
            self.passing += 1;
            actions.push(Action::Pass(forward));
        }
    }

    /// The shell has no more to do with an order.
    pub(super) fn passed(&mut self, forward: &Forward) -> Vec<Action> {
        let mut actions = Vec::new();
        assert!(self.passing > 0, "matrix {} was passed on, but nobody asked for it", forward.id);
        self.passing -= 1;
        self.used(forward.id, &mut actions);
        actions
    }

    /// Lines that `expects` allowed have landed.
    pub(super) fn piece(&mut self, piece: &PieceHead) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(matrix) = self.matrices.get_mut(&piece.id) {
            matrix.lines += piece.lines;
            self.wake(piece.id, &mut actions);
        }
        actions
    }

    /// A neighbour is gone.
    pub(super) fn peer_lost(&mut self, peer: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        if !self.lost.insert(peer) {
            return actions;
        }
        let from_there =
            |header: &MatrixHeader| header.source == Source::Relayed && header.first_line == peer;
        let waiting = self.matrices.values().filter(|m| from_there(&m.header) && !m.is_whole());
        let missing: Vec<u32> = waiting.map(|m| m.header.id).collect();
        missing.into_iter().for_each(|id| self.miss(id, &mut actions));
        actions
    }

    /// A matrix comes from the primary after all.
    pub(super) fn miss(&mut self, id: u32, actions: &mut Vec<Action>) {
        if let Some(matrix) = self.matrices.get_mut(&id) {
            matrix.turn_to_the_primary();
            actions.push(Action::Missing(Missing { id, lines: matrix.lines }));
        }
    }
}
