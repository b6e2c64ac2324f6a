//! Parts that machines are making, and those of a making that a loss has cut short.
//!
//! Place in the flow: `parts.rs` notes in each part which of its steps its machine has answered. If a machine is lost, the caller
//! keeps the `UnfinishedArray`, restores the operands, and passes it to the next `make`, which makes only the rest.
//!
//! Invariants: a part has a number when its machine has opened it. The part of a lost machine is divided among
//! the others. Nothing stays at a machine after the caller has given up (`numbers`).
//!
//! Deliberately absent: replicas that are made on further machines in place of lost ones.

use crate::registry::Held;
use crate::{ArrayMachines, ArrayOperation, RecordedPart};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bramble_base::{DType, Digest128, Rect};
use bramble_plan::{ArrayLayout, PlacedPart, UnmadePart};

/// A part that a machine makes.
pub(super) struct UnfinishedPart {
    /// Its rectangle, and its machine in the operation.
    pub(super) part: PlacedPart,
    /// Its number at the machine, if that has opened it.
    pub(super) number: Option<u64>,
    /// The rectangles that are not complete.
    pub(super) unmade: UnmadePart,
    /// Its digest, when it is complete.
    pub(super) digest: Option<Digest128>,
    /// The rectangle that is made now; `None`: all of it.
    now: Option<Rect>,
}

/// An array whose making was cut short: some of its parts are at machines, complete or not.
pub struct UnfinishedArray {
    /// Its parts are those of `parts`; machines are meaningless.
    layout: ArrayLayout,
    /// Each part with the connection of its machine.
    parts: Vec<(u64, UnfinishedPart)>,
    /// Bytes of operands that machines have sent to each other for it.
    pub(super) bytes_between: u64,
}

impl UnfinishedPart {
    /// A part of which nothing was made.
    pub(super) fn new(part: PlacedPart) -> Self {
        Self { part, number: None, unmade: UnmadePart::all_of(part.rect), digest: None, now: None }
    }

    /// Its machine has freed it.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.part);
    }

    /// Lends the part, of which a rectangle is made now; an empty one stands here until it is given back.
    pub(super) fn lent_for(&mut self, rect: Rect) -> Self {
        let lent = core::mem::replace(self, Self::new(self.part));
        Self { now: Some(rect), ..lent }
    }

    /// The part, after the rectangle was made.
    pub(super) fn given_back(self) -> Self {
        Self { now: None, ..self }
    }

    /// The rectangles to make now.
    pub(super) fn to_make_now(&self) -> UnmadePart {
        self.now.map_or_else(|| self.unmade.clone(), |rect| self.unmade.within(rect))
    }

    /// Whether nothing is left of it then.
    pub(super) fn ends_now(&self) -> bool {
        self.now.is_none_or(|rect| self.unmade.is_within(rect))
    }

    /// Whether the rectangles to make now are complete.
    pub(super) fn is_made_now(&self) -> bool {
        match self.now {
            Some(rect) => self.unmade.within(rect).is_empty(),
            None => self.held().is_some(),
        }
    }

    /// As the registry records it, if it is complete.
    pub(super) fn held(&self) -> Option<Held> {
        Some((self.part, RecordedPart { number: self.number?, digest: self.digest? }))
    }
}

impl UnfinishedArray {
    /// The connections of the machines with parts, and the numbers of the parts: to free them.
    pub fn numbers(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut numbers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (connection, part) in &self.parts {
            numbers.entry(*connection).or_default().extend(part.number);
        }
        numbers
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// What the caller should keep of an array of which these parts were being made; `None` if no machine has any.
    pub(super) fn unfinished(
        &self,
        layout: ArrayLayout,
        parts: Vec<UnfinishedPart>,
        bytes_between: u64,
    ) -> Option<UnfinishedArray> {
        let connections = self.holders.connections();
        let layout = ArrayLayout { parts: parts.iter().map(|one| one.part).collect(), ..layout };
        let has_any = parts.iter().any(|one| one.number.is_some());
        let parts = parts.into_iter().map(|one| (connections[one.part.machine], one)).collect();
        has_any.then_some(UnfinishedArray { layout, parts, bytes_between })
    }

    /// The parts of an unfinished array: those at machines that are there, and the parts of lost machines, divided among them.
    /// Without room for these, all parts are freed, and the answer is `None`.
    pub(super) async fn continued(
        &mut self,
        unfinished: UnfinishedArray,
    ) -> Option<(ArrayLayout, Vec<UnfinishedPart>)> {
        let UnfinishedArray { layout, parts, .. } = unfinished;
        let (mut going_on, mut anew) = (Vec::new(), Some(Vec::new()));
        for (at, (connection, one)) in parts.into_iter().enumerate() {
            match self.holders.with_connection(connection).filter(|_| one.number.is_some()) {
                Some(machine) => {
                    going_on.push(UnfinishedPart { part: PlacedPart { machine, ..one.part }, ..one });
                }
                // Other machines have the same.
                None if layout.axis.is_none() => {}
                None => {
                    let pieces = layout.placed_again(at, &self.holders.offered()).ok();
                    anew = anew.zip(pieces).map(|(mut anew, pieces)| {
                        anew.extend(pieces.into_iter().map(UnfinishedPart::new));
                        anew
                    });
                }
            }
        }
        match anew {
            Some(anew) if !going_on.is_empty() => {
                going_on.extend(anew);
                going_on.sort_by_key(|one| (one.part.rect.rows.start, one.part.rect.cols.start));
                Some((layout, going_on))
            }
            _ => {
                self.free_opened(&going_on).await;
                None
            }
        }
    }

    /// Frees the parts that machines have opened.
    pub(super) async fn free_opened(&mut self, parts: &[UnfinishedPart]) {
        for one in parts.iter().filter(|one| self.holders.is_there(one.part.machine)) {
            if let Some(number) = one.number {
                self.machines.free(one.part.machine, &[number]).await;
            }
        }
    }
}
