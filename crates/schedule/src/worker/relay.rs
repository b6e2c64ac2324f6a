//! Relaying at a worker: matrices that it passes on to other workers, and matrices that arrive from them.
//!
//! Place in the flow: independent of jobs. The primary announces a matrix at both workers before it orders
//! one to pass it on, but the lines may overtake the announcement: then `expects` returns `None`, and the
//! shell leaves them in the link until the announcement arrives.
//!
//! Invariants: passing a matrix on is one of its announced uses, so the matrix stays until that is over, and
//! no longer. Lines arrive in order, from the one worker that was named, into memory that the primary's
//! credit has paid for, so no sender waits for a receiver's memory. After a neighbour is lost, nothing is
//! expected from it: the missing lines are requested from the primary, once for each matrix.

use super::{Worker, WorkerAction};
use alloc::format;
use alloc::vec::Vec;
use bramble_wire::ProtocolError;
use bramble_wire::message::{Forward, MatrixHeader, MatrixSource, Missing, PieceHead};

impl Worker {
    /// Whether lines from another worker may land now. Returns the matrix they belong to, or `None` if it was
    /// not announced yet.
    pub fn expects(&self, from: u32, piece: &PieceHead) -> Result<Option<MatrixHeader>, ProtocolError> {
        let Some(matrix) = self.matrices.get(&piece.id) else { return Ok(None) };
        let header = matrix.header;
        let end = piece.first_line.checked_add(piece.lines);
        let fits = piece.lines > 0 && end.is_some_and(|end| end <= header.lines_total().0);
        let is_next = piece.first_line == matrix.lines;
        if header.source != MatrixSource::Relayed || header.first_line != from || !is_next || !fits {
            let PieceHead { id, first_line, lines } = piece;
            let what = format!(
                "worker {from} passed on lines {first_line}+{lines} of matrix {id}, which are not due"
            );
            return Err(ProtocolError::new(what));
        }
        Ok(Some(header))
    }

    /// Takes relay orders of the primary.
    pub(super) fn relay(
        &mut self,
        forwards: &[Forward],
        actions: &mut Vec<WorkerAction>,
    ) -> Result<(), ProtocolError> {
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
                self.pass(*forward, actions);
            } else {
                matrix.order(*forward);
            }
        }
        Ok(())
    }

    /// Passes a complete matrix on, unless the order only releases it or the receiver is lost.
    pub(super) fn pass(&mut self, forward: Forward, actions: &mut Vec<WorkerAction>) {
        if forward.to == Forward::NO_MEMBER || self.lost.contains(&forward.to) {
            self.used(forward.id, actions);
        } else {
            self.passing += 1;
            actions.push(WorkerAction::Pass(forward));
        }
    }

    /// The shell has finished an order.
    pub(super) fn passed(&mut self, forward: &Forward, actions: &mut Vec<WorkerAction>) {
        assert!(self.passing > 0, "matrix {} was passed on without an order", forward.id);
        self.passing -= 1;
        self.used(forward.id, actions);
    }

    /// Lines that `expects` allowed have landed.
    pub(super) fn piece(&mut self, piece: &PieceHead, actions: &mut Vec<WorkerAction>) {
        if let Some(matrix) = self.matrices.get_mut(&piece.id) {
            matrix.lines += piece.lines;
            self.wake(piece.id, actions);
        }
    }

    /// The link to a neighbour has ended.
    pub(super) fn peer_lost(&mut self, peer: u32, actions: &mut Vec<WorkerAction>) {
        if !self.lost.insert(peer) {
            return;
        }
        let from_there =
            |header: &MatrixHeader| header.source == MatrixSource::Relayed && header.first_line == peer;
        let waiting = self.matrices.values().filter(|m| from_there(&m.header) && !m.is_whole());
        let missing: Vec<u32> = waiting.map(|m| m.header.id).collect();
        missing.into_iter().for_each(|id| self.miss(id, actions));
    }

    /// Requests the rest of a matrix from the primary.
    pub(super) fn miss(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        if let Some(matrix) = self.matrices.get_mut(&id) {
            matrix.turn_to_the_primary();
            actions.push(WorkerAction::Missing(Missing { id, lines: matrix.lines }));
        }
    }
}
