//! Parts of placed matrices (*arrays*) that this worker holds for one connection.
//!
//! Place in the flow: `session/held_messages.rs` passes the messages about arrays to this store, and a session takes
//! its operands from it: a panel of an array is a view of the part, in place. The store lasts as long as the
//! connection, and all its products share it.
//!
//! Invariants: only complete parts can be viewed or fetched, and nothing writes them. A part's memory is taken from
//! the ledger before its first byte arrives, and returned when the last job that reads it has ended. The numbers of
//! arrays rise, so none is used twice. Elements land in the part's own buffer.
//!
//! Deliberately absent: sending and receiving, other workers, and products.

mod arriving;
mod making;

use self::arriving::{ArrivingPart, PartLanding};
pub(crate) use self::arriving::{FillPart, FilledPart};
use self::making::PartInMaking;
use crate::ledger::{HoldAccount, HoldActivity, HoldGrant};
use crate::memory::Operand;
use bramble_link::{Body, DiscardedBody, Frame, Landing, SharedRegion};
use bramble_matrix::{Buffer, DType, Digest128, Digester, Lines, Rect, Sealed, Shape};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{ARRAYS_MAX, MATRIX_BYTES_MIN};
use bramble_wire::message::{
    GetHead, Kind, MatrixHeader, PartHead, PartSource, PlacedHead, PutHead, PutOutcome, ResidentView,
    part_pieces,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A complete part.
#[derive(Debug)]
pub(crate) struct HeldPart {
    /// Its rectangle of the array.
    rect: Rect,
    dtype: DType,
    /// Its elements by rows.
    memory: PartMemory,
    /// Returned with the part.
    _grant: HoldGrant,
}

/// The memory of a complete part.
#[derive(Debug)]
enum PartMemory {
    /// It arrived, or was generated.
    Arrived(Buffer),
    /// This worker has made it.
    Made(Box<Sealed>),
}

impl AsRef<[u8]> for HeldPart {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            PartMemory::Arrived(buffer) => buffer.bytes(),
            PartMemory::Made(sealed) => sealed.bytes(),
        }
    }
}

impl HeldPart {
    /// The rows of a rectangle of the array: first byte, bytes of a row, bytes from row to row. `None` unless it lies in
    /// the part.
    fn rows_of(&self, rect: Rect) -> Option<(usize, usize, usize)> {
        let is_inside = rect.rows.intersect(self.rect.rows) == rect.rows
            && rect.cols.intersect(self.rect.cols) == rect.cols;
        if !is_inside || rect.rows.is_empty() || rect.cols.is_empty() {
            return None;
        }
        let (width, size) = (self.rect.cols.len(), self.dtype.size_bytes());
        let first = (rect.rows.start - self.rect.rows.start) * width + rect.cols.start - self.rect.cols.start;
        // All of them are within a buffer of this process.
        let bytes = |elements: u64| elements as usize * size;
        Some((bytes(first), bytes(rect.cols.len()), bytes(width)))
    }
}

enum HeldSlot {
    Arriving(Box<ArrivingPart>),
    Making(Box<PartInMaking>),
    Complete(Arc<HeldPart>),
    /// There was no memory: elements that are under way are discarded. The reason, until it has been told.
    Refused(Option<String>),
}

/// What a part is charged in the ledger.
fn charge(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(64).unwrap_or(u64::MAX).max(MATRIX_BYTES_MIN)
}

/// The digester of a part, which has its shape already.
fn part_digester(Shape { rows, cols }: Shape) -> Digester {
    let mut digester = Digester::default();
    digester.update(&rows.to_le_bytes());
    digester.update(&cols.to_le_bytes());
    digester
}

/// What follows when the body of a put message has landed.
pub(crate) enum PutProgress {
    /// More elements have to come.
    Incomplete,
    /// The part is held, or was refused.
    Done(PlacedHead),
    /// A compute thread has to generate the elements; then `HeldStore::filled`.
    Fill(Box<FillPart>),
}

/// All parts of one connection.
pub(crate) struct HeldStore {
    account: HoldAccount,
    slots: BTreeMap<u64, HeldSlot>,
    /// The highest number of an array so far.
    last: Option<u64>,
}

impl HeldStore {
    pub(crate) fn new(account: HoldAccount) -> Self {
        Self { account, slots: BTreeMap::new(), last: None }
    }

    /// The activity of the connection: other primaries may ask for the memory of an idle one.
    pub(crate) fn activity(&self) -> Arc<HoldActivity> {
        self.account.activity().clone()
    }

    /// The memory into which the body of a put message lands.
    pub(crate) fn place(
        &mut self,
        put: &PutHead,
        body_bytes: usize,
    ) -> Result<Box<dyn Landing>, ProtocolError> {
        put.next(body_bytes)?;
        self.open(put)?;
        let size = put.dtype.size_bytes();
        match self.slots.get_mut(&put.array) {
            Some(HeldSlot::Arriving(_)) if put.source == PartSource::Generated => {
                Ok(Box::new(vec![0; body_bytes]))
            }
            Some(HeldSlot::Arriving(slot)) => {
                let buffer = slot.buffer.take().ok_or_else(|| out_of_order(put))?;
                Ok(Box::new(PartLanding { buffer, from: to_size(put.first)? * size, len: body_bytes }))
            }
            _ => Ok(Box::new(DiscardedBody::new(body_bytes))),
        }
    }

    /// Opens a part with its first frame; checks that another frame continues it.
    fn open(&mut self, put: &PutHead) -> Result<(), ProtocolError> {
        match self.slots.get(&put.array) {
            Some(HeldSlot::Refused(_)) => return Ok(()),
            Some(HeldSlot::Arriving(slot)) => {
                let continues = slot.part == put.part && slot.dtype == put.dtype && slot.next == put.first;
                let is_due = put.first > 0 || slot.is_fetched;
                let may_come = continues && is_due && put.source == PartSource::Data;
                return if may_come { Ok(()) } else { Err(out_of_order(put)) };
            }
            Some(HeldSlot::Complete(_) | HeldSlot::Making(_)) => return Err(out_of_order(put)),
            None => {}
        }
        if put.first != 0 {
            return Err(out_of_order(put));
        }
        self.claim(put.array)?;
        let slot = match self.reserve(put) {
            Ok(slot) => HeldSlot::Arriving(Box::new(slot)),
            Err(why) => HeldSlot::Refused(Some(why)),
        };
        self.slots.insert(put.array, slot);
        Ok(())
    }

    /// Checks that the number of a new array was never used, and that there may be another array.
    fn claim(&mut self, array: u64) -> Result<(), ProtocolError> {
        if self.last.is_some_and(|last| array <= last) {
            return Err(ProtocolError::new(format!("array {array} comes twice, or out of order")));
        }
        if self.slots.len() >= ARRAYS_MAX {
            return Err(ProtocolError::new(format!("more than {ARRAYS_MAX} arrays")));
        }
        self.last = Some(array);
        Ok(())
    }

    /// Opens a part whose elements another worker will send; the refusal if there is no memory.
    pub(crate) fn open_fetched(&mut self, put: &PutHead) -> Result<Option<PlacedHead>, ProtocolError> {
        self.claim(put.array)?;
        let (slot, refusal) = match self.reserve(put) {
            Ok(slot) => (HeldSlot::Arriving(Box::new(ArrivingPart { is_fetched: true, ..slot })), None),
            Err(why) => (HeldSlot::Refused(None), Some(why)),
        };
        self.slots.insert(put.array, slot);
        Ok(refusal.map(|why| PlacedHead { array: put.array, outcome: PutOutcome::Refused(why) }))
    }

    /// Elements that were expected will not come: the memory is given back.
    pub(crate) fn give_up(&mut self, array: u64) {
        if let Some(slot @ HeldSlot::Arriving(_)) = self.slots.get_mut(&array) {
            *slot = HeldSlot::Refused(None);
        }
    }

    /// Memory for a part, if there is any.
    fn reserve(&self, put: &PutHead) -> Result<ArrivingPart, String> {
        let grant = self.account.take(charge(put.part_bytes()))?;
        let len = usize::try_from(put.part_bytes()).map_err(|e| e.to_string())?;
        let buffer = Buffer::untouched(len).map_err(|e| e.to_string())?;
        let (part, dtype, digester) = (put.part, put.dtype, part_digester(put.part.shape()));
        Ok(ArrivingPart { part, dtype, buffer: Some(buffer), next: 0, is_fetched: false, digester, grant })
    }

    /// The body of a put message has landed in the memory that `place` gave.
    pub(crate) fn landed(
        &mut self,
        put: &PutHead,
        landing: Box<dyn Landing>,
    ) -> Result<PutProgress, ProtocolError> {
        let next = put.next(landing.len())?;
        let any = landing.into_any();
        let slot = match self.slots.get_mut(&put.array) {
            Some(HeldSlot::Arriving(slot)) => slot,
            Some(HeldSlot::Refused(why)) => {
                let refused = |why| PlacedHead { array: put.array, outcome: PutOutcome::Refused(why) };
                return Ok(why.take().map_or(PutProgress::Incomplete, |why| PutProgress::Done(refused(why))));
            }
            Some(HeldSlot::Complete(_) | HeldSlot::Making(_)) | None => return Err(out_of_order(put)),
        };
        if put.source == PartSource::Generated {
            let description = any.downcast::<Vec<u8>>().map_err(|_| out_of_order(put))?;
            return slot.fill(put, &description).map(|fill| PutProgress::Fill(Box::new(fill)));
        }
        let landing = any.downcast::<PartLanding>().map_err(|_| out_of_order(put))?;
        let PartLanding { buffer, from, len } = *landing;
        slot.digester.update(&buffer.bytes()[from..from + len]);
        slot.buffer = Some(buffer);
        slot.next = next;
        Ok(self.complete_if_whole(put.array))
    }

    /// The body of a put message is in memory that the link refers to. It may change or end, so the part has a copy.
    pub(crate) fn referred(
        &mut self,
        put: &PutHead,
        region: &SharedRegion,
    ) -> Result<PutProgress, ProtocolError> {
        let mut landing = self.place(put, region.len())?;
        let mut at = 0;
        for run in (0..region.runs).map(|i| region.run(i)) {
            let mut taken = 0;
            while taken < run.len() {
                let mut free = Vec::new();
                landing.runs_mut(at, 1, &mut free);
                let Some(free) = free.first_mut() else { return Err(out_of_order(put)) };
                let count = free.len().min(run.len() - taken);
                free[..count].copy_from_slice(&run[taken..taken + count]);
                (taken, at) = (taken + count, at + count);
            }
        }
        self.landed(put, landing)
    }

    /// A part was generated; `None` if it was freed meanwhile.
    pub(crate) fn filled(&mut self, filled: FilledPart) -> Option<PlacedHead> {
        let FilledPart { array, buffer, digest } = filled;
        let HeldSlot::Arriving(mut slot) = self.slots.remove(&array)? else { return None };
        slot.buffer = Some(buffer);
        self.complete(array, *slot, digest)
    }

    fn complete_if_whole(&mut self, array: u64) -> PutProgress {
        let is_whole = |slot: &ArrivingPart| slot.part.shape().elements() == Some(slot.next);
        match self.slots.remove(&array) {
            Some(HeldSlot::Arriving(slot)) if is_whole(&slot) => {
                let digest = slot.digester.digest();
                self.complete(array, *slot, digest).map_or(PutProgress::Incomplete, PutProgress::Done)
            }
            Some(slot) => {
                self.slots.insert(array, slot);
                PutProgress::Incomplete
            }
            None => PutProgress::Incomplete,
        }
    }

    fn complete(&mut self, array: u64, slot: ArrivingPart, digest: Digest128) -> Option<PlacedHead> {
        let ArrivingPart { part: rect, dtype, buffer, grant, .. } = slot;
        let bytes = grant.bytes();
        let part = HeldPart { rect, dtype, memory: PartMemory::Arrived(buffer?), _grant: grant };
        self.slots.insert(array, HeldSlot::Complete(Arc::new(part)));
        Some(PlacedHead { array, outcome: PutOutcome::Held { bytes, digest } })
    }

    /// Drops a part, also one that is still arriving or was refused.
    pub(crate) fn free(&mut self, array: u64) -> Result<(), ProtocolError> {
        let freed = self.slots.remove(&array).map(drop);
        freed.ok_or_else(|| ProtocolError::new(format!("array {array} is not here, and is freed")))
    }

    fn part(&self, array: u64) -> Result<&Arc<HeldPart>, ProtocolError> {
        match self.slots.get(&array) {
            Some(HeldSlot::Complete(part)) => Ok(part),
            _ => Err(ProtocolError::new(format!("no complete part of array {array} is here"))),
        }
    }

    /// An operand that is a view into a part, as a message about jobs describes it.
    pub(crate) fn view(&self, header: &MatrixHeader, view: &ResidentView) -> Result<Operand, ProtocolError> {
        if header.layout != view.layout() {
            let what = format!("matrix {} has another layout than array {}", header.id, view.array);
            return Err(ProtocolError::new(what));
        }
        self.operand(view, header.shape(), header.dtype)
    }

    /// A matrix of that shape that is a view into a part.
    pub(crate) fn operand(
        &self,
        view: &ResidentView,
        shape: Shape,
        dtype: DType,
    ) -> Result<Operand, ProtocolError> {
        let part = self.part(view.array)?;
        let rect = view.rect(shape);
        let Some((start, line_bytes, pitch_bytes)) = rect.and_then(|rect| part.rows_of(rect)) else {
            let what = format!("a matrix of {shape} is not in the part of array {}", view.array);
            return Err(ProtocolError::new(what));
        };
        if dtype != part.dtype {
            return Err(ProtocolError::new(format!(
                "array {} has another type than a view of it",
                view.array
            )));
        }
        let lines = if view.transposed { shape.cols } else { shape.rows };
        let lines = usize::try_from(lines).map_err(|_| ProtocolError::new("a part with too many lines"))?;
        let (owner, layout) = (part.clone(), view.layout());
        Ok(Operand::Borrowed(Lines { owner, start, line_bytes, pitch_bytes, lines, shape, layout, dtype }))
    }

    /// Memory beside the parts, for as long as the grant lives; or why there is none.
    pub(crate) fn room(&self, bytes: u64) -> Result<HoldGrant, String> {
        self.account.take(bytes)
    }

    /// The frames with the elements of a rectangle, read from the part as they are sent.
    pub(crate) fn get(&self, get: &GetHead) -> Result<Vec<Frame>, ProtocolError> {
        let part = self.part(get.array)?;
        let frame = |piece: bramble_wire::message::PartPiece| {
            let (start, run_bytes, pitch_bytes) = part.rows_of(piece.rect)?;
            let runs = piece.rect.rows.len() as usize;
            let region = SharedRegion::new(part.clone(), start, run_bytes, pitch_bytes, runs).merged();
            let head = PartHead { array: get.array, first: piece.first };
            Some(Frame::new(Kind::Part.code(), head.encode(), Body::Shared(region)))
        };
        let outside =
            || ProtocolError::new(format!("{} is not in the part of array {}", get.rect, get.array));
        part.rows_of(get.rect).ok_or_else(outside)?;
        part_pieces(get.rect, part.dtype).map(frame).collect::<Option<_>>().ok_or_else(outside)
    }
}

fn to_size(x: u64) -> Result<usize, ProtocolError> {
    usize::try_from(x).map_err(|_| ProtocolError::new("a part larger than this machine's memory"))
}

fn out_of_order(put: &PutHead) -> ProtocolError {
    ProtocolError::new(format!(
        "array {} comes twice, or out of order, at its element {}",
        put.array, put.first
    ))
}

#[cfg(test)]
mod tests;
