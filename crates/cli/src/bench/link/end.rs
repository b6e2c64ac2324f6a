//! One end among several: a link to each other end, and messages over them.
//!
//! Place in the flow: `mesh` makes ends; `pairs` and `collective` are what they do.
//!
//! Invariants: a message is frames of at most `CHUNK_BYTES_MAX`, as in a product; a body leaves from where it lies and lands in
//! memory that was used before; what a link gives by reference is not copied. Every body is summed anew, as in a product.
//!
//! Deliberately absent: time limits. Whoever conducts has them.

use bramble_link::{
    ArrivedBody, Body, CHUNK_BYTES_MAX, Frame, Landing, Limits, Link, LinkError, Place, Receiver, Region,
    Sender,
};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The kind of frames that carry messages.
pub(crate) const DATA: u8 = 1;
/// The kind of those that only say that somebody is so far.
pub(crate) const SIGNAL: u8 = 2;

/// One end.
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) out: Out,
    pub(crate) into: In,
    pub(crate) pool: Pool,
}

impl End {
    /// The end of that rank; `links` are by the rank of the other end, with nothing at its own place.
    pub(crate) fn new(rank: usize, links: Vec<Option<Link>>) -> Self {
        let pool = Pool::default();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for link in links {
            let (sender, receiver) = link.map(|l| (l.sender, l.receiver)).unzip();
            senders.push(sender);
            receivers.push(receiver.map(|mut receiver| {
                receiver.set_limits(Limits::SESSION);
                receiver
            }));
        }
        Self { rank, out: Out(senders), into: In { receivers, pool: pool.clone() }, pool }
    }

    /// Waits until the first so many ends are here: in as many steps as twice the last one has doublings (dissemination).
    pub(crate) async fn barrier(&mut self, ends: usize) -> Result<(), LinkError> {
        let mut far = 1;
        while far < ends {
            let (to, from) = ((self.rank + far) % ends, (self.rank + ends - far) % ends);
            self.out.signal(to, Vec::new()).await?;
            self.into.signal(from).await?;
            far *= 2;
        }
        Ok(())
    }
}

/// The sending sides.
pub(crate) struct Out(Vec<Option<Box<dyn Sender>>>);

impl Out {
    /// Sends bytes from where they lie, in one frame.
    pub(crate) async fn region(&mut self, to: usize, region: Region) -> Result<(), LinkError> {
        self.to(to).send(Frame::new(DATA, Vec::new(), Body::Shared(region))).await
    }

    /// Sends a part of some bytes, in as many frames as it takes.
    pub(crate) async fn message(
        &mut self,
        to: usize,
        source: &Arc<Vec<u8>>,
        part: Range<usize>,
    ) -> Result<(), LinkError> {
        for range in chunks(part) {
            self.region(to, region(source, range)).await?;
        }
        Ok(())
    }

    /// Sends a frame without a body.
    pub(crate) async fn signal(&mut self, to: usize, head: Vec<u8>) -> Result<(), LinkError> {
        self.to(to).send(Frame::new(SIGNAL, head, Body::Empty)).await
    }

    /// Tells all others that nothing more will come.
    pub(crate) async fn close(&mut self) {
        for sender in self.0.iter_mut().flatten() {
            // Whoever is gone need not be told.
            let _ = sender.close().await;
        }
    }

    fn to(&mut self, to: usize) -> &mut dyn Sender {
        match &mut self.0[to] {
            Some(sender) => &mut **sender,
            None => unreachable!("an end sends nothing to itself"),
        }
    }
}

/// The receiving sides.
pub(crate) struct In {
    receivers: Vec<Option<Box<dyn Receiver>>>,
    pool: Pool,
}

impl In {
    /// The next frame of a message from that end.
    pub(crate) async fn piece(&mut self, from: usize) -> Result<Piece, LinkError> {
        let Self { receivers, pool } = self;
        let arrived = receiver(receivers, from).receive(pool).await?;
        let foreign = |what: &str| Err(LinkError::Foreign(format!("{what} came from end {from}")));
        match arrived.body {
            ArrivedBody::Shared(region) if region.runs == 1 => Ok(Piece { region, memory: None }),
            ArrivedBody::Landed(landing) => match landing.into_any().downcast::<Vec<u8>>() {
                Ok(memory) => Ok(Piece::owned(*memory)),
                Err(_) => foreign("memory of nobody"),
            },
            _ => foreign("a frame without a body"),
        }
    }

    /// A message of so many bytes from that end; its pieces are added to `held`.
    pub(crate) async fn message(
        &mut self,
        from: usize,
        bytes: usize,
        held: &mut Vec<Piece>,
    ) -> Result<(), LinkError> {
        for range in chunks(0..bytes) {
            let piece = self.piece(from).await?;
            if piece.bytes().len() != range.len() {
                let what = format!("{} bytes for {} from end {from}", piece.bytes().len(), range.len());
                return Err(LinkError::Foreign(what));
            }
            held.push(piece);
        }
        Ok(())
    }

    /// The head of a frame that has no body.
    pub(crate) async fn signal(&mut self, from: usize) -> Result<Vec<u8>, LinkError> {
        let Self { receivers, pool } = self;
        let arrived = receiver(receivers, from).receive(pool).await?;
        if arrived.kind != SIGNAL {
            return Err(LinkError::Foreign(format!("end {from} sent a message out of turn")));
        }
        Ok(arrived.head.to_vec())
    }
}

fn receiver(receivers: &mut [Option<Box<dyn Receiver>>], from: usize) -> &mut dyn Receiver {
    match &mut receivers[from] {
        Some(receiver) => &mut **receiver,
        None => unreachable!("an end gets nothing from itself"),
    }
}

/// The parts of a message that go into a frame each.
pub(crate) fn chunks(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = part.end;
    part.step_by(CHUNK_BYTES_MAX).map(move |from| from..end.min(from + CHUNK_BYTES_MAX))
}

fn region(source: &Arc<Vec<u8>>, range: Range<usize>) -> Region {
    Region::new(source.clone(), range.start, range.len(), range.len(), 1)
}

/// Some bytes of a message, in one run.
pub(crate) struct Piece {
    pub(crate) region: Region,
    /// The memory, where it is this end's.
    memory: Option<Arc<Vec<u8>>>,
}

impl Piece {
    fn owned(memory: Vec<u8>) -> Self {
        let memory = Arc::new(memory);
        Self { region: Region::whole(memory.clone()), memory: Some(memory) }
    }

    /// A part of what an end has to give.
    pub(crate) fn of(source: &Arc<Vec<u8>>, range: Range<usize>) -> Self {
        Self { region: region(source, range), memory: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.region.run(0)
    }

    /// The sum of this piece and other numbers (8-byte floats), in its own memory where nobody else holds that.
    pub(crate) fn plus(self, other: &[u8], pool: &Pool) -> Self {
        let mut sum = self.into_memory().unwrap_or_else(|region| pool.copy_of(region.run(0)));
        for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(other.as_chunks().0) {
            *a = (f64::from_le_bytes(*a) + f64::from_le_bytes(*b)).to_le_bytes();
        }
        Self::owned(sum)
    }

    /// Its memory; its bytes where it is not this end's alone.
    fn into_memory(self) -> Result<Vec<u8>, Region> {
        let Self { region, memory } = self;
        let Some(memory) = memory else { return Err(region) };
        drop(region);
        Arc::try_unwrap(memory).map_err(|memory| Region::whole(memory))
    }
}

/// Memory for bodies, used again and again.
#[derive(Clone, Default)]
pub(crate) struct Pool(Rc<RefCell<Vec<Vec<u8>>>>);

impl Pool {
    /// Takes memory back that nobody holds any more.
    pub(crate) fn put_back(&self, pieces: impl IntoIterator<Item = Piece>) {
        self.0.borrow_mut().extend(pieces.into_iter().filter_map(|piece| piece.into_memory().ok()));
    }

    /// Forgets all that it has: what comes next is of another size.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    fn copy_of(&self, bytes: &[u8]) -> Vec<u8> {
        let mut memory = self.0.borrow_mut().pop().unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(bytes);
        memory
    }
}

impl Place for Pool {
    fn place(&mut self, _kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        let mut memory = self.0.borrow_mut().pop().unwrap_or_default();
        memory.resize(body_bytes, 0);
        Ok(Box::new(memory))
    }
}
