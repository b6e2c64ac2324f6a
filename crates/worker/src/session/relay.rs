//! The session's knowledge of its neighbours: relay orders that wait for each, and buffers into which neighbours' lines land.
//!
//! Place in the flow: the core carries out the state machine's `Pass` (`pass`) and the primary's messages
//! (`introduce`, `part`); the tasks in `neighbours.rs` establish the links and move bytes.
//!
//! Invariants: every order is followed by exactly one `Passed`, whether there is a link or not. A matrix's buffer is
//! out while lines land in it and is always returned before the next event of that neighbour. So after the loss of a neighbour
//! none of its lines can land, and the primary's lines find the buffer.

use super::WorkerError;
use super::core::Core;
use bramble_link::{Body, Landing};
use bramble_matrix::Buffer;
use bramble_matrix::number::to_usize;
use bramble_schedule::worker::{WorkerAction, WorkerEvent};
use bramble_wire::ProtocolError;
use bramble_wire::limits::NEIGHBOURS_MAX;
use bramble_wire::message::{
    Forward, Kind, MatrixHeader, MatrixSource, Neighbour, PieceHead, Reached, decode_forwards,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};

/// Other workers of this product.
pub(super) struct Neighbours {
    /// All neighbours that were introduced, including lost ones.
    known: BTreeMap<u32, NeighbourState>,
    /// To the task that establishes links.
    introduced: mpsc::UnboundedSender<NeighbourIntroduction>,
    /// Notified of each announcement: lines may be waiting for it.
    pub(super) announced: Rc<Notify>,
    /// Bytes from other workers, and to other workers.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// A neighbour that was introduced, and the signals of its task.
pub(super) struct NeighbourIntroduction {
    pub(super) neighbour: Neighbour,
    pub(super) signals: LinkSignals,
}

/// Signals to the task of a neighbour.
#[derive(Clone, Default)]
pub(super) struct LinkSignals {
    /// A new order is queued.
    pub(super) order: Rc<Notify>,
    /// The primary reports that the neighbour has no link.
    pub(super) parted: Rc<Notify>,
}

struct NeighbourState {
    signals: LinkSignals,
    /// Orders that are not done; the first may be under way.
    orders: VecDeque<Forward>,
    /// No link was established, or it has ended.
    is_lost: bool,
}

impl Neighbours {
    pub(super) fn new(introduced: mpsc::UnboundedSender<NeighbourIntroduction>) -> Self {
        let known = BTreeMap::new();
        Self { known, introduced, announced: Rc::default(), bytes_in: 0, bytes_out: 0 }
    }

    /// A worker that is to send a matrix must be known, so that its loss can be reported.
    pub(super) fn check(&self, matrices: &[MatrixHeader]) -> Result<(), ProtocolError> {
        let is_unknown =
            |m: &&MatrixHeader| m.source == MatrixSource::Relayed && !self.known.contains_key(&m.first_line);
        match matrices.iter().find(is_unknown) {
            None => Ok(()),
            Some(MatrixHeader { id, first_line, .. }) => {
                let what =
                    format!("matrix {id} is to come from worker {first_line}, which is not known here");
                Err(ProtocolError::new(what))
            }
        }
    }

    /// Whether a neighbour was introduced, and its link is not lost. It may not be there yet.
    pub(super) fn is_linked(&self, peer: u32) -> bool {
        self.known.get(&peer).is_some_and(|known| !known.is_lost)
    }

    /// Something else than an order is to be sent to a neighbour.
    pub(super) fn wake(&self, peer: u32) {
        if let Some(known) = self.known.get(&peer) {
            known.signals.order.notify_one();
        }
    }

    /// The next order for a neighbour.
    pub(super) fn next_order(&self, peer: u32) -> Option<Forward> {
        self.known.get(&peer)?.orders.front().copied()
    }
}

impl Core {
    /// The primary introduces another worker.
    pub(super) fn introduce(&mut self, neighbour: Neighbour) -> Result<(), WorkerError> {
        let known = &mut self.neighbours.known;
        if known.len() >= NEIGHBOURS_MAX || known.contains_key(&neighbour.peer) {
            let what = format!("worker {} is introduced twice, or is one too many", neighbour.peer);
            return Err(ProtocolError::new(what).into());
        }
        let signals = LinkSignals::default();
        let new = NeighbourState { signals: signals.clone(), orders: VecDeque::new(), is_lost: false };
        known.insert(neighbour.peer, new);
        // The receiving task lasts as long as the session.
        let _ = self.neighbours.introduced.send(NeighbourIntroduction { neighbour, signals });
        Ok(())
    }

    /// The primary reports that another worker has no link to this one.
    pub(super) fn pair_parted(&mut self, peer: u32) -> Result<(), WorkerError> {
        match self.neighbours.known.get(&peer) {
            Some(known) => known.signals.parted.notify_one(),
            None => return Err(ProtocolError::new(format!("worker {peer} is not known here")).into()),
        }
        Ok(())
    }

    /// A link with a neighbour has ended, or was not established, and nothing can land from it any more.
    pub(super) fn neighbour_lost(&mut self, peer: u32) -> Result<(), WorkerError> {
        let Some(known) = self.neighbours.known.get_mut(&peer) else { return Ok(()) };
        known.is_lost = true;
        for forward in std::mem::take(&mut known.orders) {
            self.passed(&forward)?;
        }
        self.refuse_fetches(peer);
        let actions = self.dispatch(WorkerEvent::PeerLost(peer))?;
        self.carry_out(actions)
    }

    /// Orders of the primary to pass matrices on.
    pub(super) fn relay_orders(&mut self, head: &[u8]) -> Result<(), WorkerError> {
        let forwards = decode_forwards(head)?;
        let actions = self.dispatch(WorkerEvent::Relay(&forwards))?;
        self.carry_out(actions)
    }

    /// Queues a matrix for relaying, or reports it passed if the neighbour is lost. Returns further actions.
    pub(super) fn pass(&mut self, forward: Forward) -> Result<Vec<WorkerAction>, WorkerError> {
        match self.neighbours.known.get_mut(&forward.to) {
            Some(known) if !known.is_lost => {
                known.orders.push_back(forward);
                known.signals.order.notify_one();
                Ok(Vec::new())
            }
            Some(_) => Ok(self.dispatch(WorkerEvent::Passed(&forward))?),
            None => {
                let what = format!(
                    "matrix {} is to go to worker {}, which is not known here",
                    forward.id, forward.to
                );
                Err(ProtocolError::new(what).into())
            }
        }
    }

    /// The first order for a neighbour has been carried out.
    pub(super) fn order_done(&mut self, peer: u32) -> Result<(), WorkerError> {
        let orders = self.neighbours.known.get_mut(&peer);
        match orders.and_then(|known| known.orders.pop_front()) {
            Some(forward) => self.passed(&forward),
            None => Ok(()),
        }
    }

    fn passed(&mut self, forward: &Forward) -> Result<(), WorkerError> {
        let actions = self.dispatch(WorkerEvent::Passed(forward))?;
        self.carry_out(actions)
    }

    /// Tells the primary whether a neighbour has a link.
    pub(super) fn say_reached(&self, peer: u32, is_there: bool, why: &str) {
        let mut why = why.to_owned();
        why.retain(|c| !c.is_control());
        self.send(Kind::Reached, Reached { peer, is_there, why }.encode(), Body::Empty);
    }

    /// The memory in which lines from a neighbour land, if it may send them.
    pub(super) fn landing(
        &mut self,
        from: u32,
        piece: &PieceHead,
        bytes: usize,
    ) -> Result<RelayedPart, String> {
        let Some(header) = self.state.expects(from, piece).map_err(|e| e.0)? else {
            return Err(format!("worker {from} relayed matrix {}, which was never announced", piece.id));
        };
        let line_bytes = header.lines_total().1;
        if to_usize(piece.lines).checked_mul(line_bytes) != Some(bytes) {
            return Err(format!("{} lines of matrix {} came with {bytes} bytes", piece.lines, piece.id));
        }
        let buffer = self.store.take_arriving_buffer(piece.id);
        let buffer = buffer.ok_or_else(|| format!("matrix {} cannot take lines now", piece.id))?;
        Ok(RelayedPart { id: piece.id, buffer, from: to_usize(piece.first_line) * line_bytes, len: bytes })
    }

    /// Returns a buffer to the store after a landing, successful or not.
    pub(super) fn put_back(&mut self, out: &LandedBuffer) {
        if let Some(part) = out.take() {
            self.store.put_back(part.id, part.buffer);
        }
    }
}

/// A part of a buffer in which lines land.
pub(super) struct RelayedPart {
    id: u32,
    buffer: Buffer,
    from: usize,
    len: usize,
}

/// Holds a buffer after a landing, until it is back in the store.
#[derive(Clone, Default)]
pub(super) struct LandedBuffer(Arc<Mutex<Option<RelayedPart>>>);

impl LandedBuffer {
    fn put(&self, part: RelayedPart) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
    }

    fn take(&self) -> Option<RelayedPart> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A landing of lines in a matrix's buffer. When it is dropped, the buffer is in `out`.
pub(super) struct RelayedLines {
    part: Option<RelayedPart>,
    out: LandedBuffer,
}

impl RelayedLines {
    pub(super) fn new(part: RelayedPart, out: LandedBuffer) -> Self {
        Self { part: Some(part), out }
    }
}

impl Landing for RelayedLines {
    fn len(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.len)
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, _max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if let Some(part) = &mut self.part
            && offset < part.len
        {
            let end = part.from + part.len;
            out.push(IoSliceMut::new(&mut part.buffer.bytes_mut()[part.from + offset..end]));
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for RelayedLines {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            self.out.put(part);
        }
    }
}
