//! Puts or makes the parts of lost machines again, on the machines that are left.
//!
//! Place in the flow: after an operation or a product has found a part lost; one array after the other, in the order in which
//! they were placed, so that an array is restored after those from which it was made.
//!
//! Invariants: a part is put again only from elements with the digest that was recorded. An array that was made is checked again
//! as a whole. A part that stays where it is keeps its number. An array that cannot be restored keeps no other from it.
//!
//! Deliberately absent: sessions; the caller opens them for each array.

use crate::{ArrayError, ArrayId, ArrayMachines, ArrayOperation, ArrayOrigin, RecordedPart, place_of};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::{MatrixInfo, Rect};

/// The arrays of a cluster that are still to be restored.
pub struct Restoring {
    left: VecDeque<ArrayId>,
    /// Why the first of those that could not be restored was not.
    unrestored: Option<String>,
}

impl Restoring {
    /// All arrays of a registry.
    pub fn all<X, K>(arrays: &crate::PlacedArrays<X, K>) -> Self {
        Self { left: arrays.ids().into(), unrestored: None }
    }

    /// The next array.
    pub fn next_array(&mut self) -> Option<ArrayId> {
        self.left.pop_front()
    }

    /// An array was restored, or not; an error if the others should not be tried.
    pub fn restored<E>(&mut self, result: Result<(), ArrayError<E>>) -> Result<(), ArrayError<E>> {
        match result {
            Err(ArrayError::PartLost(why)) => {
                self.unrestored.get_or_insert(why);
                Ok(())
            }
            other => other,
        }
    }

    /// The error of the first array that could not be restored.
    pub fn end<E>(self) -> Result<(), ArrayError<E>> {
        self.unrestored.map_or(Ok(()), |why| Err(ArrayError::PartLost(why)))
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Puts or makes the missing parts of one array again. `relays`: whether machines may pass operands to each other.
    pub async fn restore(&mut self, id: ArrayId, relays: bool) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let is_made = array.is_made();
        let was_whole = array.missing(self.holders).is_empty();
        if is_made {
            self.make_again(id, relays).await?;
        } else {
            self.put_again(id).await?;
        }
        let holders = &*self.holders;
        if let Some(array) = self.arrays.get_mut(id).filter(|array| array.layout.axis.is_none()) {
            array.keep_replicas(&|connection| holders.with_connection(connection).is_some());
        }
        let array = self.arrays.get(id)?;
        if !is_made || was_whole {
            return Ok(());
        }
        let Some(check) = self.machines.begin_check_again(array) else { return Ok(()) };
        let (parts, dtype) = (array.known_parts(self.holders)?, array.layout.dtype);
        let sums = self.sums_of(&parts, dtype).await?;
        let checked = self.machines.check(check, sums, id, self.arrays, self.holders).await;
        checked.map(drop)
    }

    /// Puts the missing parts of a matrix again that this process can read.
    async fn put_again(&mut self, id: ArrayId) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let ArrayOrigin::Put(source) = &array.origin else { return Ok(()) };
        let (source, layout) = (source.clone(), array.layout.clone());
        let missing = array.missing(self.holders);
        let lost: Vec<(Rect, RecordedPart)> =
            missing.iter().map(|part| (layout.parts[*part].rect, array.parts[*part])).collect();
        for (rect, recorded) in lost {
            self.unchanged(&source, rect, recorded).await?;
        }
        // From the last to the first, so that the indices of the others stay.
        for part in missing.into_iter().rev() {
            let lost = |why: String| {
                let place = place_of(layout.parts[part].rect, layout.shape);
                ArrayError::PartLost(format!(
                    "{place} of the placed matrix {} is lost, and cannot be put again: {why}",
                    source.name()
                ))
            };
            let pieces = layout.placed_again(part, &self.holders.offered());
            let pieces = pieces.map_err(|e| lost(format!("{e}")))?;
            let held = match self.put_all(&source, &layout, pieces).await {
                Err(ArrayError::Layout(e)) => return Err(lost(format!("{e}"))),
                held => held?,
            };
            let connections = self.holders.connections();
            if let Some(array) = self.arrays.get_mut(id) {
                array.replace(part, held, &connections);
            }
        }
        Ok(())
    }

    /// Checks that a lost part's source still has the elements that were placed.
    async fn unchanged(
        &mut self,
        source: &M::Matrix,
        rect: Rect,
        recorded: RecordedPart,
    ) -> Result<(), ArrayError<M::Error>> {
        let digest = self.machines.digest(source, rect).await.map_err(ArrayError::Shell)?;
        if digest.is_none_or(|digest| digest == recorded.digest) {
            return Ok(());
        }
        Err(ArrayError::PartLost(format!(
            "{} of the placed matrix {name} is lost, and {name} was changed since it was placed: place it again",
            place_of(rect, source.shape()),
            name = source.name()
        )))
    }
}
