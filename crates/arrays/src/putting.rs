//! Puts the parts of one matrix on several machines at once.
//!
//! Place in the flow: a matrix is placed, a lost part is put again, or an operand is spread before an array is made from it.
//!
//! Invariants: all parts are held at the end, or none of them. A machine is given one part at a time. Parts of a machine that is
//! lost meanwhile are placed anew on the others. A part is held when its machine names the digest of the source. A matrix that
//! was changed meanwhile is not placed.
//!
//! Deliberately absent: which machine gets which part (`plan/src/layout.rs`).

use crate::registry::Held;
use crate::{
    ArrayError, ArrayHolders, ArrayId, ArrayMachines, ArrayOperation, ArrayOrigin, MachineTask, PartToPut,
    PlacedArray, RecordedPart, TaskOutcome,
};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::MatrixInfo;
use bramble_plan::{ArrayLayout, PlacedPart, Placement};

/// The progress of a put.
struct PutRound<E> {
    waiting: Vec<PlacedPart>,
    held: Vec<Held>,
    /// The first error that no other machine can mend.
    failed: Option<ArrayError<E>>,
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Places a matrix; `None`: by its shape and size. After an error no machine holds anything of it.
    pub async fn put(
        &mut self,
        matrix: M::Matrix,
        placement: Option<&Placement>,
    ) -> Result<ArrayId, ArrayError<M::Error>> {
        self.arrays.admit()?;
        let (shape, dtype) = (matrix.shape(), matrix.dtype());
        let offered = self.holders.offered();
        let automatic = || Placement::automatic(shape, dtype, &offered);
        let placement = placement.cloned().unwrap_or_else(automatic);
        let layout = ArrayLayout::new(shape, dtype, &placement, &offered)?;
        self.put_as(matrix, layout).await
    }

    /// Places a matrix in a layout.
    pub(crate) async fn put_as(
        &mut self,
        matrix: M::Matrix,
        layout: ArrayLayout,
    ) -> Result<ArrayId, ArrayError<M::Error>> {
        let held = self.put_all(&matrix, &layout, layout.parts.clone()).await?;
        // Parts are read at different times. They fit together only if the source did not change between.
        if let Err(e) = self.still_as_opened(&matrix) {
            self.free_parts(&held).await;
            return Err(e);
        }
        let (parts, recorded) = held.into_iter().unzip();
        let array = PlacedArray {
            name: matrix.name().to_owned(),
            layout: ArrayLayout { parts, ..layout },
            parts: recorded,
            holders: self.holders.connections(),
            kept: self.machines.kept_of_put(&matrix),
            origin: ArrayOrigin::Put(matrix),
        };
        Ok(self.arrays.add(array))
    }

    /// Puts parts until all are held. After an error none is held.
    pub(crate) async fn put_all(
        &mut self,
        source: &M::Matrix,
        layout: &ArrayLayout,
        parts: Vec<PlacedPart>,
    ) -> Result<Vec<Held>, ArrayError<M::Error>> {
        let mut round = PutRound { waiting: parts, held: Vec::new(), failed: None };
        while !round.waiting.is_empty() && round.failed.is_none() {
            self.put_round(source, layout, &mut round).await;
            for part in round.take_lost(self.holders) {
                let has_others = !round.held.is_empty() || !round.waiting.is_empty();
                match placed_elsewhere(layout, part, has_others, self.holders) {
                    Ok(again) => round.waiting.extend(again),
                    Err(e) => round.fail(e),
                }
            }
        }
        let PutRound { mut held, failed, .. } = round;
        let Some(e) = failed else {
            held.sort_by_key(|(part, _)| (part.rect.rows.start, part.rect.cols.start, part.machine));
            return Ok(held);
        };
        for (part, recorded) in held {
            self.machines.free(part.machine, &[recorded.number]).await;
        }
        Err(e)
    }

    /// Puts at most one of the parts that wait on each machine.
    async fn put_round(&mut self, source: &M::Matrix, layout: &ArrayLayout, round: &mut PutRound<M::Error>) {
        // Replicas have the same number.
        let shared = layout.axis.is_none().then(|| self.arrays.number());
        let (mut given, mut tasks) = (BTreeMap::new(), Vec::new());
        for part in core::mem::take(&mut round.waiting) {
            if !self.holders.is_there(part.machine) || given.contains_key(&part.machine) {
                round.waiting.push(part);
                continue;
            }
            let number = shared.unwrap_or_else(|| self.arrays.number());
            self.holders.charge(part.machine, layout.part_bytes(&part));
            let to_put = PartToPut { source: source.clone(), rect: part.rect, number };
            tasks.push((part.machine, MachineTask::Put(to_put)));
            given.insert(part.machine, (part, number));
        }
        let ended = match self.run(tasks).await {
            Ok(ended) => ended,
            Err(e) => return round.fail(e),
        };
        for end in ended {
            let Some((part, number)) = given.remove(&end.machine) else { continue };
            match end.outcome.map(|outcome| self.digest_of(source, end.machine, outcome)) {
                None => round.waiting.push(part),
                Some(Ok(digest)) => round.held.push((part, RecordedPart { number, digest })),
                Some(Err(why)) => {
                    // A refused part takes a slot until it is freed.
                    self.machines.free(end.machine, &[number]).await;
                    round.fail(ArrayError::Failed(why));
                }
            }
        }
    }

    /// The digest of a part that a machine holds; or why it does not count.
    fn digest_of(
        &self,
        source: &M::Matrix,
        machine: usize,
        outcome: TaskOutcome,
    ) -> Result<bramble_base::Digest128, String> {
        let (machine, name) = (self.holders.name(machine), source.name());
        let why = match outcome {
            TaskOutcome::Held { digest, own: Ok(own) } if own.is_none_or(|own| own == digest) => {
                return Ok(digest);
            }
            TaskOutcome::Held { own: Ok(_), .. } => self.machines.change(source, true).map_or_else(
                || format!("{machine} holds other elements than were sent: check its memory"),
                |change| format!("it was changed meanwhile ({change})"),
            ),
            TaskOutcome::Held { own: Err(why), .. } => return Err(why),
            TaskOutcome::Refused(refusal) => format!("{machine} says: {}", refusal.why),
            TaskOutcome::Answered(_) => format!("{machine} has answered without a part"),
        };
        Err(format!("{name} cannot be placed: {why}"))
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// The error if a matrix that this process has read was changed since it was opened.
    pub(crate) fn still_as_opened(&self, matrix: &M::Matrix) -> Result<(), ArrayError<M::Error>> {
        let Some(change) = self.machines.change(matrix, false) else { return Ok(()) };
        Err(ArrayError::Failed(format!("{} was changed meanwhile ({change}): run this again", matrix.name())))
    }
}

impl<E> PutRound<E> {
    fn fail(&mut self, e: ArrayError<E>) {
        self.failed.get_or_insert(e);
    }

    /// Takes out the parts whose machine is lost, whether it held them or was to get them.
    fn take_lost(&mut self, holders: &ArrayHolders) -> Vec<PlacedPart> {
        let is_lost = |part: &PlacedPart| !holders.is_there(part.machine);
        let mut lost: Vec<PlacedPart> = self.waiting.extract_if(.., |part| is_lost(part)).collect();
        lost.extend(self.held.extract_if(.., |(part, _)| is_lost(part)).map(|(part, _)| part));
        lost
    }
}

/// Where a part goes whose machine was lost while it was put. A replica goes nowhere if there are others (`has_others`).
fn placed_elsewhere<E>(
    layout: &ArrayLayout,
    part: PlacedPart,
    has_others: bool,
    holders: &ArrayHolders,
) -> Result<Vec<PlacedPart>, ArrayError<E>> {
    let one = ArrayLayout { parts: Vec::from([part]), ..layout.clone() };
    if layout.axis.is_none() && has_others {
        return Ok(Vec::new());
    }
    Ok(one.placed_again(0, &holders.offered())?)
}
