//! One end of a mesh: a link to every other end, and messages over these links.
//!
//! Place in the flow: `mesh` creates ends; `pairs` and `collective` exchange messages between them.
//!
//! Invariants: as in a product, a message is sent in frames of at most `CHUNK_BYTES_MAX`, each with a fresh checksum;
//! bodies are sent without a copy and received into reused buffers; a body that a link delivers by reference is not
//! copied.
//!
//! Deliberately absent: time limits; `measure` has one for each run.

use bramble_link::{
    ArrivedBody, Body, BodyPlacer, CHUNK_BYTES_MAX, Frame, FrameLimits, Landing, Link, LinkError, Receiver,
    Sender, SharedRegion,
};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Frame kind of message data.
pub(crate) const DATA: u8 = 1;
/// Frame kind of signals without a body, for barriers and acknowledgements.
pub(crate) const SIGNAL: u8 = 2;

/// One end of a mesh.
pub(crate) struct MeshEnd {
    pub(crate) rank: usize,
    pub(crate) out: MeshSenders,
    pub(crate) into: MeshReceivers,
    pub(crate) pool: BodyPool,
}

impl MeshEnd {
    /// The end of rank `rank`; `links` is indexed by the rank of the other end, with `None` at its own rank.
    pub(crate) fn new(rank: usize, links: Vec<Option<Link>>) -> Self {
        let pool = BodyPool::default();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for link in links {
            let (sender, receiver) = link.map(|l| (l.sender, l.receiver)).unzip();
            senders.push(sender);
            receivers.push(receiver.map(|mut receiver| {
                receiver.set_limits(FrameLimits::SESSION);
                receiver
            }));
        }
        Self { rank, out: MeshSenders(senders), into: MeshReceivers { receivers, pool: pool.clone() }, pool }
    }

    /// A barrier of the first `ends` ends, by the dissemination algorithm: log2 of `ends` rounds, rounded up.
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

/// The senders of an end's links, by rank.
pub(crate) struct MeshSenders(Vec<Option<Box<dyn Sender>>>);

impl MeshSenders {
    /// Sends a region in one frame, without a copy.
    pub(crate) async fn region(&mut self, to: usize, region: SharedRegion) -> Result<(), LinkError> {
        self.to(to).send(Frame::new(DATA, Vec::new(), Body::Shared(region))).await
    }

    /// Sends a range of bytes, in as many frames as needed.
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

    /// Closes the links to all other ends.
    pub(crate) async fn close(&mut self) {
        for sender in self.0.iter_mut().flatten() {
            // A closed link is no error here.
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

/// The receivers of an end's links, by rank.
pub(crate) struct MeshReceivers {
    receivers: Vec<Option<Box<dyn Receiver>>>,
    pool: BodyPool,
}

impl MeshReceivers {
    /// Receives the next frame of a message from an end.
    pub(crate) async fn piece(&mut self, from: usize) -> Result<MessageChunk, LinkError> {
        let Self { receivers, pool } = self;
        let arrived = receiver(receivers, from).receive(pool).await?;
        let foreign = |what: &str| Err(LinkError::Foreign(format!("{what} came from end {from}")));
        match arrived.body {
            ArrivedBody::Shared(region) if region.runs == 1 => Ok(MessageChunk { region, memory: None }),
            ArrivedBody::Landed(landing) => match landing.into_any().downcast::<Vec<u8>>() {
                Ok(memory) => Ok(MessageChunk::owned(*memory)),
                Err(_) => foreign("an unknown buffer"),
            },
            _ => foreign("a frame without a body"),
        }
    }

    /// Receives a message of `bytes` bytes; appends its chunks to `held`.
    pub(crate) async fn message(
        &mut self,
        from: usize,
        bytes: usize,
        held: &mut Vec<MessageChunk>,
    ) -> Result<(), LinkError> {
        for range in chunks(0..bytes) {
            let piece = self.piece(from).await?;
            if piece.bytes().len() != range.len() {
                let what =
                    format!("{} bytes instead of {} came from end {from}", piece.bytes().len(), range.len());
                return Err(LinkError::Foreign(what));
            }
            held.push(piece);
        }
        Ok(())
    }

    /// Receives a signal; returns its head.
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

/// The byte ranges of a message, one per frame.
pub(crate) fn chunks(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = part.end;
    part.step_by(CHUNK_BYTES_MAX).map(move |from| from..end.min(from + CHUNK_BYTES_MAX))
}

fn region(source: &Arc<Vec<u8>>, range: Range<usize>) -> SharedRegion {
    SharedRegion::new(source.clone(), range.start, range.len(), range.len(), 1)
}

/// A contiguous chunk of a message.
pub(crate) struct MessageChunk {
    pub(crate) region: SharedRegion,
    /// The buffer, if this end owns it.
    memory: Option<Arc<Vec<u8>>>,
}

impl MessageChunk {
    fn owned(memory: Vec<u8>) -> Self {
        let memory = Arc::new(memory);
        Self { region: SharedRegion::whole(memory.clone()), memory: Some(memory) }
    }

    /// A chunk of this end's own data.
    pub(crate) fn of(source: &Arc<Vec<u8>>, range: Range<usize>) -> Self {
        Self { region: region(source, range), memory: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.region.run(0)
    }

    /// Adds 8-byte floats to this chunk, in place if no other reference to its buffer exists.
    pub(crate) fn plus(self, other: &[u8], pool: &BodyPool) -> Self {
        let mut sum = self.into_memory().unwrap_or_else(|region| pool.copy_of(region.run(0)));
        for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(other.as_chunks().0) {
            *a = (f64::from_le_bytes(*a) + f64::from_le_bytes(*b)).to_le_bytes();
        }
        Self::owned(sum)
    }

    /// The buffer, if this end is its only owner; else the region.
    fn into_memory(self) -> Result<Vec<u8>, SharedRegion> {
        let Self { region, memory } = self;
        let Some(memory) = memory else { return Err(region) };
        drop(region);
        Arc::try_unwrap(memory).map_err(|memory| SharedRegion::whole(memory))
    }
}

/// Reusable buffers for received bodies.
#[derive(Clone, Default)]
pub(crate) struct BodyPool(Rc<RefCell<Vec<Vec<u8>>>>);

impl BodyPool {
    /// Returns the buffers of chunks that have no other references.
    pub(crate) fn put_back(&self, pieces: impl IntoIterator<Item = MessageChunk>) {
        self.0.borrow_mut().extend(pieces.into_iter().filter_map(|piece| piece.into_memory().ok()));
    }

    /// Frees all buffers: the next messages have another size.
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

impl BodyPlacer for BodyPool {
    fn place(&mut self, _kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        let mut memory = self.0.borrow_mut().pop().unwrap_or_default();
        memory.resize(body_bytes, 0);
        Ok(Box::new(memory))
    }
}
