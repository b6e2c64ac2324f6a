//! What a session knows of its neighbours: whom it can pass matrices on to, what waits for them, what lands from them.
//!
//! Place in the flow: the session's core does what its state machine asks for (`pass`) and what the primary says
//! (`introduce`, `part`); `neighbours.rs` has the tasks that meet neighbours and move bytes.
//!
//! Invariants: every order is followed by exactly one `Passed`, whether there is a link or not. The buffer of a matrix is
//! out while lines land in it and comes back in every case, before anything else is said of it; so when a neighbour is lost,
//! nothing of it can land any more, and the primary's lines find the buffer.

use super::WorkerError;
use super::core::Core;
use bramble_link::{Body, Landing};
use bramble_matrix::Buffer;
use bramble_matrix::number::to_usize;
use bramble_schedule::ProtocolError;
use bramble_schedule::limits::NEIGHBOURS_MAX;
use bramble_schedule::message::{Forward, Kind, MatrixHeader, Neighbour, PieceHead, Reached, Source};
use bramble_schedule::worker::{Action, Event};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};

/// Other workers of this product.
pub(super) struct Neighbours {
    /// All that were introduced, also those that are lost.
    known: BTreeMap<u32, Known>,
    /// To the task that meets them.
    introduced: mpsc::UnboundedSender<Introduction>,
    /// Something was announced, and lines may be waiting for it.
    pub(super) announced: Rc<Notify>,
    /// Bytes that came from other workers, and that went to them.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// A neighbour that is to be met.
pub(super) struct Introduction {
    pub(super) neighbour: Neighbour,
    pub(super) signals: Signals,
}

/// What the task of a neighbour listens to.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// There is a new order.
    pub(super) order: Rc<Notify>,
    /// The primary says that the other end has no link.
    pub(super) parted: Rc<Notify>,
}

struct Known {
    signals: Signals,
    /// Orders that are not done, the first of them perhaps under way.
    orders: VecDeque<Forward>,
    /// It was not met, or its link has ended.
    is_lost: bool,
}

impl Neighbours {
    pub(super) fn new(introduced: mpsc::UnboundedSender<Introduction>) -> Self {
        let known = BTreeMap::new();
        Self { known, introduced, announced: Rc::default(), bytes_in: 0, bytes_out: 0 }
    }

    /// Whoever is to send a matrix has to be known, so that his loss can be told.
    pub(super) fn check(&self, matrices: &[MatrixHeader]) -> Result<(), ProtocolError> {
        let is_unknown =
            |m: &&MatrixHeader| m.source == Source::Relayed && !self.known.contains_key(&m.first_line);
        match matrices.iter().find(is_unknown) {
            None => Ok(()),
            Some(MatrixHeader { id, first_line, .. }) => {
                let what = format!("matrix {id} is to come from worker {first_line}, who is not known here");
                Err(ProtocolError::new(what))
            }
        }
    }

    /// The next order for a neighbour.
    pub(super) fn next_order(&self, peer: u32) -> Option<Forward> {
        self.known.get(&peer)?.orders.front().copied()
    }
}

impl Core {
    /// The primary has introduced another worker.
    pub(super) fn introduce(&mut self, neighbour: Neighbour) -> Result<(), WorkerError> {
        let known = &mut self.neighbours.known;
        if known.len() >= NEIGHBOURS_MAX || known.contains_key(&neighbour.peer) {
            let what = format!("worker {} is introduced twice, or is one too many", neighbour.peer);
            return Err(ProtocolError::new(what).into());
        }
        let signals = Signals::default();
        let new = Known { signals: signals.clone(), orders: VecDeque::new(), is_lost: false };
        known.insert(neighbour.peer, new);
        // The task that takes them is there for as long as the session.
        let _ = self.neighbours.introduced.send(Introduction { neighbour, signals });
        Ok(())
    }

    /// The primary says that another worker has no link to this one.
    pub(super) fn part(&mut self, peer: u32) -> Result<(), WorkerError> {
        match self.neighbours.known.get(&peer) {
            Some(known) => known.signals.parted.notify_one(),
            None => return Err(ProtocolError::new(format!("worker {peer} is not known here")).into()),
        }
        Ok(())
    }

    /// A link with a neighbour is over, or did not come about, and nothing of it can land any more.
    pub(super) fn lose(&mut self, peer: u32) -> Result<(), WorkerError> {
        let Some(known) = self.neighbours.known.get_mut(&peer) else { return Ok(()) };
        known.is_lost = true;
        for forward in std::mem::take(&mut known.orders) {
            self.passed(&forward)?;
        }
        let actions = self.decide(Event::PeerLost(peer))?;
        self.act(actions)
    }

    /// Has a matrix passed on, if there is anybody to pass it on to. Gives what else is to be done.
    pub(super) fn pass(&mut self, forward: Forward) -> Result<Vec<Action>, WorkerError> {
        match self.neighbours.known.get_mut(&forward.to) {
            Some(known) if !known.is_lost => {
                known.orders.push_back(forward);
                known.signals.order.notify_one();
                Ok(Vec::new())
            }
            Some(_) => Ok(self.decide(Event::Passed(&forward))?),
            None => {
                let what =
                    format!("matrix {} is to go to worker {}, who is not known here", forward.id, forward.to);
                Err(ProtocolError::new(what).into())
            }
        }
    }

    /// The first order of a neighbour has been carried out.
    pub(super) fn order_done(&mut self, peer: u32) -> Result<(), WorkerError> {
        let orders = self.neighbours.known.get_mut(&peer);
        match orders.and_then(|known| known.orders.pop_front()) {
            Some(forward) => self.passed(&forward),
            None => Ok(()),
        }
    }

    fn passed(&mut self, forward: &Forward) -> Result<(), WorkerError> {
        let actions = self.decide(Event::Passed(forward))?;
        self.act(actions)
    }

    /// Tells the primary about a neighbour.
    pub(super) fn say_reached(&self, peer: u32, is_there: bool, why: &str) {
        let mut why = why.to_owned();
        why.retain(|c| !c.is_control());
        self.send(Kind::Reached, Reached { peer, is_there, why }.encode(), Body::Empty);
    }

    /// Where lines from a neighbour land, if it may send them.
    pub(super) fn landing(&mut self, from: u32, piece: &PieceHead, bytes: usize) -> Result<Part, String> {
        let Some(header) = self.state.expects(from, piece).map_err(|e| e.0)? else {
            return Err(format!("worker {from} passed on matrix {}, which was never announced", piece.id));
        };
        let line_bytes = header.lines_total().1;
        if to_usize(piece.lines).checked_mul(line_bytes) != Some(bytes) {
            return Err(format!("{} lines of matrix {} came with {bytes} bytes", piece.lines, piece.id));
        }
        let buffer = self.store.lend(piece.id);
        let buffer =
            buffer.ok_or_else(|| format!("matrix {} is not there for lines to land in", piece.id))?;
        Ok(Part { id: piece.id, buffer, from: to_usize(piece.first_line) * line_bytes, len: bytes })
    }

    /// Puts back a buffer in which lines have landed, or should have.
    pub(super) fn put_back(&mut self, out: &Out) {
        if let Some(part) = out.take() {
            self.store.put_back(part.id, part.buffer);
        }
    }
}

/// A place for lines.
pub(super) struct Part {
    id: u32,
    buffer: Buffer,
    from: usize,
    len: usize,
}

/// Where a buffer is that lines have landed in, until it is back in the store.
#[derive(Clone, Default)]
pub(super) struct Out(Arc<Mutex<Option<Part>>>);

impl Out {
    fn put(&self, part: Part) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
    }

    fn take(&self) -> Option<Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Lines of a matrix on their way into its buffer. However that ends, the buffer is in `out` afterwards.
pub(super) struct Lines {
    part: Option<Part>,
    out: Out,
}

impl Lines {
    pub(super) fn new(part: Part, out: Out) -> Self {
        Self { part: Some(part), out }
    }
}

impl Landing for Lines {
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

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            self.out.put(part);
        }
    }
}
