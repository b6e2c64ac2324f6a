//! Puts or makes the parts of lost machines again, on the machines that are left.
//!
//! Place in the flow: after an operation or a product has found a part lost; one array after the other, in the order in which
//! they were placed, so that an array is restored after those from which it was made.
//!
//! Invariants: a part is put again only from elements with the digest that was recorded. An array that was made is checked again
//! as a whole. A part that stays where it is keeps its number. An array that cannot be restored keeps no other from it. If a
//! machine is lost meanwhile, all arrays are looked at again.
//!
//! Deliberately absent: sessions; the caller opens them for each array.

use crate::registry::Held;
use crate::{
    ArrayError, ArrayHolders, ArrayId, ArrayMachines, ArrayOperation, ArrayOrigin, PlacedArrays,
    RecordedPart, place_of,
};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::{MatrixInfo, Rect};
use bramble_plan::ArrayLayout;

/// How often all arrays are restored from the first on, since machines are lost meanwhile.
const ROUNDS_MAX: usize = 16;

/// The arrays of a cluster that are still to be restored.
pub struct Restoring {
    all: Vec<ArrayId>,
    left: VecDeque<ArrayId>,
    rounds: usize,
    /// The connections of the machines that were there for the last array.
    there: Vec<u64>,
    /// Why the first of those that could not be restored was not.
    unrestored: Option<String>,
}

impl Restoring {
    /// All arrays of a registry.
    pub fn all<X, K>(arrays: &PlacedArrays<X, K>) -> Self {
        let all = arrays.ids();
        Self { left: all.iter().copied().collect(), all, rounds: 1, there: Vec::new(), unrestored: None }
    }

    /// The next array.
    pub fn next_array(&mut self) -> Option<ArrayId> {
        self.left.pop_front()
    }

    /// An array was restored with these machines, or not; an error if the others should not be tried. A machine that was lost
    /// meanwhile may have had parts of any array.
    pub fn restored<E>(
        &mut self,
        result: Result<(), ArrayError<E>>,
        holders: &ArrayHolders,
    ) -> Result<(), ArrayError<E>> {
        match result {
            Err(ArrayError::PartLost(why) | ArrayError::Failed(why) | ArrayError::Operands(why)) => {
                self.unrestored.get_or_insert(why);
            }
            Err(ArrayError::Layout(why)) => {
                self.unrestored.get_or_insert_with(|| format!("{why}"));
            }
            // Wrong elements, or an error of this process: the user should hear of it at once.
            other => other?,
        }
        let there: Vec<u64> =
            holders.live().into_iter().map(|machine| holders.connections()[machine]).collect();
        let is_gone = |connection: &u64| !there.contains(connection);
        let was_lost = !holders.lost().is_empty() || self.there.iter().any(is_gone);
        self.there = there;
        if was_lost && self.rounds < ROUNDS_MAX {
            self.rounds += 1;
            self.left = self.all.iter().copied().collect();
            self.unrestored = None;
        }
        Ok(())
    }

    /// The error of the first array that could not be restored.
    pub fn end<E>(self) -> Result<(), ArrayError<E>> {
        self.unrestored.map_or(Ok(()), |why| Err(ArrayError::PartLost(why)))
    }
}

/// The error if the source of a lost part has other elements than were placed.
pub fn changed<E>(rect: Rect, source: &impl MatrixInfo) -> ArrayError<E> {
    ArrayError::PartLost(format!(
        "{} of the placed matrix {name} is lost, and {name} was changed since it was placed: place it again",
        place_of(rect, source.shape()),
        name = source.name()
    ))
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Puts or makes the missing parts of one array again. `relays`: whether machines may pass operands to each other. After an
    /// error some parts are missing still, and machines hold nothing that is not recorded.
    pub async fn restore(&mut self, id: ArrayId, relays: bool) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        if !array.missing(self.holders).is_empty() {
            if array.is_made() {
                let before = (array.layout.clone(), array.parts.clone());
                self.make_again(id, relays).await?;
                if let Err(e) = self.check_again(id).await {
                    self.take_back(id, before).await;
                    return Err(e);
                }
            } else {
                self.put_again(id).await?;
            }
        }
        let holders = &*self.holders;
        if let Some(array) = self.arrays.get_mut(id).filter(|array| array.layout.axis.is_none()) {
            array.keep_replicas(&|connection| holders.with_connection(connection).is_some());
        }
        Ok(())
    }

    /// Checks an array of which parts were made again.
    async fn check_again(&mut self, id: ArrayId) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let Some(check) = self.machines.begin_check_again(array) else { return Ok(()) };
        let (parts, dtype) = (array.known_parts(self.holders)?, array.layout.dtype);
        let sums = self.sums_of(&parts, dtype).await?;
        let checked = self.machines.check(check, sums, id, self.arrays, self.holders).await;
        checked.map(drop)
    }

    /// Frees the parts that an array has got since it had these.
    async fn take_back(&mut self, id: ArrayId, (layout, parts): (ArrayLayout, Vec<RecordedPart>)) {
        let Some(array) = self.arrays.get_mut(id) else { return };
        let is_new = |number: &u64| parts.iter().all(|part| part.number != *number);
        let new: Vec<(u64, Vec<u64>)> = array
            .numbers()
            .into_iter()
            .map(|(connection, numbers)| (connection, numbers.into_iter().filter(is_new).collect()))
            .collect();
        (array.layout, array.parts) = (layout, parts);
        for (connection, numbers) in new {
            if let Some(machine) = self.holders.with_connection(connection) {
                self.machines.free(machine, &numbers).await;
            }
        }
    }

    /// Puts the missing parts of a matrix again that this process can read.
    async fn put_again(&mut self, id: ArrayId) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let ArrayOrigin::Put(source) = &array.origin else { return Ok(()) };
        let (source, layout) = (source.clone(), array.layout.clone());
        let missing = array.missing(self.holders);
        let recorded = array.parts.clone();
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
            // The source may have been changed since it was placed, or while it was read now.
            let is_whole = matches!(&held[..], [(_, piece)] if piece.digest == recorded[part].digest);
            if !is_whole
                && let Err(e) =
                    self.unchanged(&source, (layout.parts[part].rect, recorded[part]), &held).await
            {
                self.free_parts(&held).await;
                return Err(e);
            }
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
        (rect, recorded): (Rect, RecordedPart),
        held: &[Held],
    ) -> Result<(), ArrayError<M::Error>> {
        let digest = self.machines.digest(source, rect).await.map_err(ArrayError::Shell)?;
        if digest.is_some_and(|digest| digest != recorded.digest) {
            return Err(changed(rect, source));
        }
        // It may have had other elements when the pieces were read, and have the old ones again.
        let pieces = if self.machines.change(source, false).is_some() { held } else { &[] };
        for (piece, recorded) in pieces {
            let digest = self.machines.digest(source, piece.rect).await.map_err(ArrayError::Shell)?;
            if digest.is_some_and(|digest| digest != recorded.digest) {
                return Err(changed(rect, source));
            }
        }
        Ok(())
    }
}
