//! Sends the machines the steps that make parts of an array, and collects the parts.
//!
//! Place in the flow: `making.rs` passes the parts in that are to be made, for the first time or again.
//!
//! Invariants: all parts are held in the end, or none of them. All parts of a machine are opened before its first step, since
//! the numbers of arrays rise. If machines cannot pass blocks to each other any more, this process sends them.
//!
//! Deliberately absent: which steps make a part (`plan`), and the check.

use super::MakingPlan;
use super::links::BlockLinks;
use crate::registry::Held;
use crate::sums::sums_in;
use crate::{
    Answer, ArrayError, ArrayMachines, ArrayOperation, KnownPart, MachineTask, PartToPut, PlacedOperand,
    Question, QuestionRound, RecordedPart, SumsOfParts, TaskEnd, TaskOutcome, TravellingBlock,
};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use bramble_base::{Digest128, MatrixInfo};
use bramble_plan::{MadePiece, MakingStep, PieceSource, PlacedPart};
use bramble_wire::message::{FetchHead, MakeHead, ResidentView};

/// Parts that machines have made.
pub(super) struct MadeParts<M: ArrayMachines> {
    pub(super) held: Vec<Held>,
    /// Bytes of operands that machines sent to each other.
    pub(super) bytes_between: u64,
    /// The operands, as far as this process has them.
    pub(super) matrices: Vec<M::Matrix>,
    /// The check, if there is one, and the sums that the machines have sent for it.
    pub(super) begun: Option<(M::Check, SumsOfParts)>,
}

/// Why parts were not made.
enum MakeFailure<E> {
    /// Two machines have lost their link with each other.
    Apart,
    /// This machine was lost.
    Lost(usize),
    Failed(ArrayError<E>),
}

impl<X: MatrixInfo> MakingPlan<X> {
    fn steps(&self, part: &PlacedPart) -> Vec<MakingStep> {
        self.making.steps(part, &|to, from| self.links.pairs.contains(&(to, from)), self.block_bytes)
    }

    /// Bytes that come from other machines, by receiver and sender.
    pub(super) fn travels(
        &self,
        parts: &[PlacedPart],
        linked: &dyn Fn(usize, usize) -> bool,
    ) -> BTreeMap<(usize, usize), u64> {
        let mut bytes = BTreeMap::new();
        for part in parts {
            for step in self.making.steps(part, linked, self.block_bytes) {
                for piece in &step.pieces {
                    let (PieceSource::There(at), Some((known, _))) =
                        (piece.source, &self.known[piece.operand])
                    else {
                        continue;
                    };
                    let of = piece.rect.shape().bytes(self.making.dtype).unwrap_or(u64::MAX);
                    let pair = (part.machine, known[at].part.machine);
                    let sum: &mut u64 = bytes.entry(pair).or_default();
                    *sum = sum.saturating_add(of);
                }
            }
        }
        bytes
    }

    /// Bytes of an operand that this process sends, if machines that may pass blocks to each other are linked.
    pub(super) fn bytes_sent(&self, parts: &[PlacedPart], operand: usize) -> u64 {
        let is_sent = |piece: &&MadePiece| piece.operand == operand && piece.source == PieceSource::Primary;
        let of_part = |part: &PlacedPart| {
            let steps = self.making.steps(part, &|_, _| true, self.block_bytes);
            let pieces = steps.iter().flat_map(|step| &step.pieces).filter(is_sent);
            let bytes = pieces.map(|piece| piece.rect.shape().bytes(self.making.dtype).unwrap_or(u64::MAX));
            bytes.fold(0, u64::saturating_add)
        };
        parts.iter().map(of_part).fold(0, u64::saturating_add)
    }

    /// Whether this process has to send a piece of an operand.
    fn sends(&self, parts: &[PlacedPart], operand: usize) -> bool {
        let from_here = |piece: &MadePiece| piece.operand == operand && piece.source == PieceSource::Primary;
        parts.iter().any(|part| self.steps(part).iter().any(|step| step.pieces.iter().any(from_here)))
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Makes parts; all or none of them are held at the end. `is_replicated`: they have the same number.
    pub(super) async fn make_parts(
        &mut self,
        mut plan: MakingPlan<M::Matrix>,
        parts: Vec<PlacedPart>,
        is_replicated: bool,
        mut relays: bool,
    ) -> Result<MadeParts<M>, ArrayError<M::Error>> {
        loop {
            plan.links = if relays { self.linked(&plan, &parts).await? } else { BlockLinks::default() };
            let between = plan.travels(&parts, &|to, from| plan.links.pairs.contains(&(to, from)));
            let bytes_between = between.values().copied().fold(0, u64::saturating_add);
            let matrices = self.matrices_to_send(&plan, &parts).await?;
            // Some may have been lost meanwhile.
            if let Some(part) = parts.iter().find(|part| !self.holders.is_there(part.machine)) {
                return Err(self.lost_in_making(&plan, part.machine));
            }
            let check = match plan.is_checked {
                true => self.machines.begin_check(&plan.subject, &matrices, self.arrays)?,
                false => None,
            };
            let shared = is_replicated.then(|| self.arrays.number());
            let numbered: Vec<(PlacedPart, u64)> =
                parts.iter().map(|part| (*part, shared.unwrap_or_else(|| self.arrays.number()))).collect();
            let tasks = self.tasks(&plan, &numbered, &matrices, check.is_some());
            let ended = self.run(tasks).await?;
            match self.made(&numbered, ended).await {
                Ok((held, sums)) => {
                    let begun = check.map(|check| (check, sums));
                    return Ok(MadeParts { held, bytes_between, matrices, begun });
                }
                // The machines cannot pass blocks to each other any more: this process does.
                Err(MakeFailure::Apart) if relays => relays = false,
                Err(MakeFailure::Apart) => {
                    return Err(ArrayError::Failed("the links between machines have ended".to_owned()));
                }
                Err(MakeFailure::Lost(machine)) => return Err(self.lost_in_making(&plan, machine)),
                Err(MakeFailure::Failed(e)) => return Err(e),
            }
        }
    }

    /// The operands that this process sends; operands that only machines hold are fetched first, and also those whose chain of
    /// sources has become long.
    async fn matrices_to_send(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        parts: &[PlacedPart],
    ) -> Result<Vec<M::Matrix>, ArrayError<M::Error>> {
        let mut matrices = Vec::new();
        for (at, operand) in plan.subject.operands().into_iter().enumerate() {
            let Some(PlacedOperand { array: id, transposed }) =
                operand.placed.filter(|_| operand.matrix.is_remote())
            else {
                matrices.push(operand.matrix.clone());
                continue;
            };
            let array = self.arrays.get(id)?;
            let is_far = plan.is_checked && self.machines.is_far(array);
            if !is_far && !plan.sends(parts, at) {
                matrices.push(operand.matrix.clone());
                continue;
            }
            let output = self.machines.output(array.layout.shape, array.layout.dtype);
            let output = self.fetch(id, output.map_err(ArrayError::Shell)?).await?;
            let matrix = self.machines.matrix(output).map_err(ArrayError::Shell)?;
            matrices.push(if transposed { matrix.turned() } else { matrix });
        }
        Ok(matrices)
    }

    /// What each machine with a part does.
    fn tasks(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        numbered: &[(PlacedPart, u64)],
        matrices: &[M::Matrix],
        with_sums: bool,
    ) -> Vec<(usize, MachineTask<M::Matrix>)> {
        let mut rounds: BTreeMap<usize, Vec<QuestionRound<M::Matrix>>> = BTreeMap::new();
        for (part, number) in numbered {
            // All parts of a machine are opened first, since the numbers of arrays rise.
            let open = MakeHead {
                number: self.arrays.number(),
                array: *number,
                dtype: plan.making.dtype,
                part: part.rect,
                rect: part.rect,
                step: None,
                is_last: false,
            };
            let questions = Vec::from([Question::Make(open)]);
            let round = QuestionRound { blocks: Vec::new(), questions, waits: false };
            rounds.entry(part.machine).or_default().push(round);
        }
        for (part, number) in numbered {
            let steps = self.rounds(plan, (part, *number), matrices);
            let sums = with_sums.then(|| self.sum_questions(*number, part.rect, plan.making.dtype));
            rounds.entry(part.machine).or_default().extend(steps.into_iter().chain(sums));
        }
        rounds.into_iter().map(|(machine, rounds)| (machine, MachineTask::Ask(rounds))).collect()
    }

    /// The steps of one part.
    fn rounds(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        (part, number): (&PlacedPart, u64),
        matrices: &[M::Matrix],
    ) -> Vec<QuestionRound<M::Matrix>> {
        let steps = plan.steps(part);
        let last = steps.len().saturating_sub(1);
        let mut rounds = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            let (mut blocks, mut views) = (Vec::new(), Vec::new());
            for piece in &step.pieces {
                let (block, view) = self.piece(plan, *piece, &matrices[piece.operand]);
                blocks.extend(block);
                views.push(view);
            }
            let depth = step.pieces[0].rect.cols.len();
            let make = MakeHead {
                number: self.arrays.number(),
                array: number,
                dtype: plan.making.dtype,
                part: part.rect,
                rect: step.rect,
                step: Some(plan.subject.step(&views, depth, step.adds)),
                is_last: at == last,
            };
            let questions = Vec::from([Question::Make(make)]);
            rounds.push(QuestionRound { blocks, questions, waits: false });
        }
        rounds
    }

    /// How a piece of an operand comes to the machine, if it has to, and the view of it there.
    fn piece(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        piece: MadePiece,
        matrix: &M::Matrix,
    ) -> (Option<TravellingBlock<M::Matrix>>, ResidentView) {
        match (piece.source, &plan.known[piece.operand]) {
            (PieceSource::Here(at), Some((known, transposed))) => {
                (None, ResidentView::of(known[at].number, *transposed, piece.rect))
            }
            (PieceSource::There(at), Some((known, transposed))) => {
                let array = self.arrays.number();
                let rect = if *transposed { piece.rect.transposed() } else { piece.rect };
                let KnownPart { part, number, .. } = known[at];
                // A piece comes from another machine only if the two are linked.
                let peer = plan.links.peers.get(&part.machine).copied().unwrap_or(u32::MAX);
                let fetch = FetchHead { array, peer, from: number, dtype: plan.making.dtype, rect };
                (Some(TravellingBlock::Fetch(fetch)), ResidentView::of(array, *transposed, piece.rect))
            }
            _ => {
                let number = self.arrays.number();
                let part = PartToPut { source: matrix.clone(), rect: piece.rect, number };
                (Some(TravellingBlock::Put(part)), ResidentView::of(number, false, piece.rect))
            }
        }
    }

    /// The error after the loss of a machine: it names a part of an operand, if the machine had one.
    fn lost_in_making(&self, plan: &MakingPlan<M::Matrix>, machine: usize) -> ArrayError<M::Error> {
        for (operand, known) in plan.subject.operands().into_iter().zip(&plan.known) {
            let (Some(placed), Some((known, _))) = (operand.placed, known) else { continue };
            let part = known.iter().position(|known| known.part.machine == machine);
            if let (Some(part), Ok(array)) = (part, self.arrays.get::<M::Error>(placed.array)) {
                return array.lost(part);
            }
        }
        let name = self.holders.name(machine);
        ArrayError::PartLost(format!("{name} was lost while it made its part"))
    }

    /// The parts that the machines have made; those of a failed making are freed.
    async fn made(
        &mut self,
        numbered: &[(PlacedPart, u64)],
        ended: Vec<TaskEnd>,
    ) -> Result<(Vec<Held>, SumsOfParts), MakeFailure<M::Error>> {
        let (mut held, mut failure, mut whole) = (Vec::new(), None, Vec::new());
        let mut sums = SumsOfParts::new();
        for TaskEnd { machine, outcome } in ended {
            match outcome {
                // A machine without a part is missed by the next operation only.
                None if numbered.iter().all(|(part, _)| part.machine != machine) => {}
                None => failure = Some(MakeFailure::Lost(machine)),
                Some(TaskOutcome::Answered(answers)) => {
                    whole.push(machine);
                    let own = numbered.iter().map(|(part, _)| part).filter(|part| part.machine == machine);
                    sums.extend(own.map(|part| sums_in(&answers, part)));
                    held.extend(parts_of(machine, numbered, answers));
                }
                Some(TaskOutcome::Refused(refusal)) if refusal.is_apart => {
                    failure.get_or_insert(MakeFailure::Apart);
                }
                Some(TaskOutcome::Refused(refusal)) => {
                    let name = self.holders.name(machine);
                    let why = ArrayError::Failed(format!("worker {name}: {}", refusal.why));
                    failure.get_or_insert(MakeFailure::Failed(why));
                }
                Some(TaskOutcome::Held { .. }) => {}
            }
        }
        let has_all = held.len() == numbered.len();
        let Some(failure) = failure.or_else(|| (!has_all).then(incomplete)) else {
            held.sort_by_key(|(part, _): &Held| (part.rect.rows.start, part.rect.cols.start, part.machine));
            return Ok((held, sums));
        };
        for machine in whole {
            let own = numbered.iter().filter(|(part, _)| part.machine == machine);
            let numbers: Vec<u64> = own.map(|(_, number)| *number).collect();
            self.machines.free(machine, &numbers).await;
        }
        Err(failure)
    }
}

fn incomplete<E>() -> MakeFailure<E> {
    MakeFailure::Failed(ArrayError::Failed("a machine has not confirmed its part".to_string()))
}

/// The parts of a machine with the digests of their last steps, which are the last answers of each part.
fn parts_of(machine: usize, numbered: &[(PlacedPart, u64)], answers: Vec<Answer>) -> Vec<Held> {
    let own = numbered.iter().filter(|(part, _)| part.machine == machine);
    // Only last steps have digests.
    let digests = answers.into_iter().filter_map(|answer| match answer {
        Answer::Made(digest) if digest != Digest128::default() => Some(digest),
        _ => None,
    });
    own.zip(digests)
        .map(|((part, number), digest)| (*part, RecordedPart { number: *number, digest }))
        .collect()
}
