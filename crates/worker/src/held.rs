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

use crate::ledger::{HoldAccount, HoldActivity, HoldGrant};
use crate::memory::Operand;
use bramble_link::{Body, DiscardedBody, Frame, Landing, SharedRegion};
use bramble_matrix::{Buffer, DType, Digest128, Digester, Generator, Layout, Lines, Rect, Shape, Span};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{ARRAYS_MAX, MATRIX_BYTES_MIN};
use bramble_wire::message::{
    Generated, GetHead, Kind, MatrixHeader, PartHead, PartSource, PlacedHead, PutHead, PutOutcome,
    ResidentView, part_pieces,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

/// A complete part.
#[derive(Debug)]
pub(crate) struct HeldPart {
    /// Its rectangle of the array.
    rect: Rect,
    dtype: DType,
    /// Its elements by rows.
    buffer: Buffer,
    /// Returned with the part.
    _grant: HoldGrant,
}

impl AsRef<[u8]> for HeldPart {
    fn as_ref(&self) -> &[u8] {
        self.buffer.bytes()
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

/// A part whose elements are arriving.
struct ArrivingPart {
    part: Rect,
    dtype: DType,
    /// `None` while bytes land in it, or while it is being filled.
    buffer: Option<Buffer>,
    /// The element that comes next.
    next: u64,
    digester: Digester,
    grant: HoldGrant,
}

enum HeldSlot {
    Arriving(Box<ArrivingPart>),
    Complete(Arc<HeldPart>),
    /// There was no memory: elements that are under way are discarded. The reason, until it has been told.
    Refused(Option<String>),
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

/// A part to be generated.
pub(crate) struct FillPart {
    array: u64,
    generator: Generator,
    /// The rectangle of the generated matrix.
    rect: Rect,
    dtype: DType,
    buffer: Buffer,
    digester: Digester,
}

/// A part that was generated.
pub(crate) struct FilledPart {
    array: u64,
    buffer: Buffer,
    digest: Digest128,
}

impl FillPart {
    /// Generates the elements, on any thread.
    pub(crate) fn run(mut self) -> FilledPart {
        self.generator.fill(self.rect, self.dtype, Layout::RowMajor, self.buffer.bytes_mut());
        self.digester.update(self.buffer.bytes());
        FilledPart { array: self.array, digest: self.digester.digest(), buffer: self.buffer }
    }
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
                let may_come = continues && put.first > 0 && put.source == PartSource::Data;
                return if may_come { Ok(()) } else { Err(out_of_order(put)) };
            }
            Some(HeldSlot::Complete(_)) => return Err(out_of_order(put)),
            None => {}
        }
        if put.first != 0 || self.last.is_some_and(|last| put.array <= last) {
            return Err(out_of_order(put));
        }
        if self.slots.len() >= ARRAYS_MAX {
            return Err(ProtocolError::new(format!("more than {ARRAYS_MAX} arrays")));
        }
        self.last = Some(put.array);
        let slot = match self.reserve(put) {
            Ok(slot) => HeldSlot::Arriving(Box::new(slot)),
            Err(why) => HeldSlot::Refused(Some(why)),
        };
        self.slots.insert(put.array, slot);
        Ok(())
    }

    /// Memory for a part, if there is any.
    fn reserve(&self, put: &PutHead) -> Result<ArrivingPart, String> {
        let bytes = put.part_bytes().checked_next_multiple_of(64).unwrap_or(u64::MAX).max(MATRIX_BYTES_MIN);
        let grant = self.account.take(bytes)?;
        let len = usize::try_from(put.part_bytes()).map_err(|e| e.to_string())?;
        let buffer = Buffer::untouched(len).map_err(|e| e.to_string())?;
        let mut digester = Digester::default();
        let Shape { rows, cols } = put.part.shape();
        digester.update(&rows.to_le_bytes());
        digester.update(&cols.to_le_bytes());
        let (part, dtype) = (put.part, put.dtype);
        Ok(ArrivingPart { part, dtype, buffer: Some(buffer), next: 0, digester, grant })
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
            Some(HeldSlot::Complete(_)) | None => return Err(out_of_order(put)),
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
        let part = HeldPart { rect, dtype, buffer: buffer?, _grant: grant };
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

impl ArrivingPart {
    /// The work to generate the part from its description.
    fn fill(&mut self, put: &PutHead, description: &[u8]) -> Result<FillPart, ProtocolError> {
        let generated = Generated::decode(description)?;
        let unknown = || ProtocolError::new(format!("array {} has an unknown generator", put.array));
        let generator = Generator::from_bytes(&generated.generator).ok_or_else(unknown)?;
        let span = |from: u64, len: u64| Some(Span::new(from, from.checked_add(len)?));
        let shape = put.part.shape();
        let (Some(rows), Some(cols)) = (span(generated.row, shape.rows), span(generated.col, shape.cols))
        else {
            return Err(ProtocolError::new(format!("array {} lies outside its generator", put.array)));
        };
        let buffer = self.buffer.take().ok_or_else(|| out_of_order(put))?;
        let (array, rect, dtype, digester) =
            (put.array, Rect::new(rows, cols), self.dtype, self.digester.clone());
        Ok(FillPart { array, generator, rect, dtype, buffer, digester })
    }
}

/// The memory for the body of a put message: a stretch of the part's buffer.
struct PartLanding {
    buffer: Buffer,
    from: usize,
    len: usize,
}

impl Landing for PartLanding {
    fn len(&self) -> usize {
        self.len
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, _max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if offset < self.len {
            let end = self.from + self.len;
            out.push(IoSliceMut::new(&mut self.buffer.bytes_mut()[self.from + offset..end]));
        }
    }
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
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
