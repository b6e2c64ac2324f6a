//! Parts that this worker makes from parts that it holds.
//!
//! Place in the flow: `session/making.rs` opens a part, lends its rectangles to compute threads, and seals it.
//!
//! Invariants: a rectangle is lent to one thread at a time. A part that is being made is neither viewed nor fetched. Its
//! memory is taken from the ledger when it is opened.
//!
//! Deliberately absent: the arithmetic.

use super::{HeldPart, HeldSlot, HeldStore, PartMemory, charge, part_digester};
use crate::ledger::HoldGrant;
use bramble_matrix::number::to_u64;
use bramble_matrix::{DType, Digest128, Output, Rect, Span, TileLease};
use bramble_wire::ProtocolError;
use bramble_wire::message::{MakeHead, PlacedHead, PutOutcome};
use std::sync::Arc;

/// A part that is being made.
pub(super) struct PartInMaking {
    part: Rect,
    dtype: DType,
    output: Output,
    grant: HoldGrant,
}

impl HeldStore {
    /// Opens a part; the refusal if there is no memory.
    pub(crate) fn open_making(&mut self, make: &MakeHead) -> Result<Option<PlacedHead>, ProtocolError> {
        self.claim(make.array)?;
        let (slot, refusal) = match self.part_to_make(make) {
            Ok(part) => (HeldSlot::Making(Box::new(part)), None),
            Err(why) => (HeldSlot::Refused(None), Some(why)),
        };
        self.slots.insert(make.array, slot);
        Ok(refusal.map(|why| PlacedHead { array: make.number, outcome: PutOutcome::Refused(why) }))
    }

    fn part_to_make(&self, make: &MakeHead) -> Result<PartInMaking, String> {
        let bytes = make.part.shape().bytes(make.dtype).unwrap_or(u64::MAX);
        let grant = self.account.take(charge(bytes))?;
        let output = Output::anonymous(make.part.shape(), make.dtype).map_err(|e| e.to_string())?;
        Ok(PartInMaking { part: make.part, dtype: make.dtype, output, grant })
    }

    /// The part that a step writes into, which has the step's rectangle. `None` if the part was refused, or freed meanwhile; an
    /// error if it is not being made, or an earlier step still runs.
    pub(crate) fn step_target(&self, make: &MakeHead) -> Result<Option<StepTarget<'_>>, ProtocolError> {
        let slot = match self.slots.get(&make.array) {
            Some(HeldSlot::Making(slot)) => slot,
            Some(HeldSlot::Refused(_)) => return Ok(None),
            None if self.last.is_some_and(|last| make.array <= last) => return Ok(None),
            _ => return Err(wrong_step(make)),
        };
        if slot.part != make.part || slot.dtype != make.dtype || slot.output.lent() > 0 {
            return Err(wrong_step(make));
        }
        Ok(Some(StepTarget { part: slot }))
    }

    /// Ends the making of a part, which is visible from now on; `None` if it was freed meanwhile.
    pub(crate) fn seal(&mut self, make: &MakeHead) -> Result<Option<Arc<HeldPart>>, ProtocolError> {
        let PartInMaking { part, dtype, output, grant } = match self.slots.remove(&make.array) {
            Some(HeldSlot::Making(slot)) => *slot,
            Some(slot) => {
                self.slots.insert(make.array, slot);
                return Err(wrong_step(make));
            }
            None => return Ok(None),
        };
        let sealed = output.seal().map_err(|e| ProtocolError::new(e.to_string()))?;
        let memory = PartMemory::Made(Box::new(sealed));
        let whole = Arc::new(HeldPart { rect: part, dtype, memory, _grant: grant });
        self.slots.insert(make.array, HeldSlot::Complete(whole.clone()));
        Ok(Some(whole))
    }
}

/// A part that a step may write into.
pub(crate) struct StepTarget<'a> {
    part: &'a PartInMaking,
}

impl StepTarget<'_> {
    /// Lends a rectangle of the array; those of one step are disjoint.
    pub(crate) fn lend(&self, rect: Rect) -> TileLease {
        let moved = |span: Span, by: u64| Span::new(span.start - by, span.end - by);
        let Rect { rows, cols } = self.part.part;
        self.part.output.lease(Rect::new(moved(rect.rows, rows.start), moved(rect.cols, cols.start)))
    }
}

impl HeldPart {
    /// The digest of a part, as of one that arrived; and its bytes.
    pub(crate) fn digest(&self) -> (Digest128, u64) {
        let mut digester = part_digester(self.rect.shape());
        let bytes = self.as_ref();
        digester.update(bytes);
        (digester.digest(), to_u64(bytes.len()))
    }
}

fn wrong_step(make: &MakeHead) -> ProtocolError {
    ProtocolError::new(format!(
        "step {} makes a part of array {} that is not being made",
        make.number, make.array
    ))
}
