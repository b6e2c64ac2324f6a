//! Sends the machines the steps that make parts of an array, and notes the finished ones.
//!
//! Place in the flow: `making.rs` passes the parts in that are to be made: for the first time, again, or further.
//!
//! Invariants: a step counts as done when its machine has answered it. All parts of a machine are opened before its first step,
//! since the numbers of arrays rise. If machines cannot pass blocks to each other any more, this process sends them.
//!
//! Deliberately absent: which steps make a part (`plan`), what happens to parts after an error, and the check.

use super::MakingPlan;
use super::links::BlockLinks;
use super::unfinished::UnfinishedPart;
use crate::registry::Held;
use crate::sums::sums_in;
use crate::{
    Answer, ArrayError, ArrayMachines, ArrayOperation, KnownPart, MachineTask, PartToPut, PlacedOperand,
    Question, QuestionRound, SumsOfParts, TaskEnd, TaskOutcome, TravellingBlock,
};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use bramble_base::{Digest128, MatrixInfo};
use bramble_plan::{MadePiece, MakingStep, PieceSource};
use bramble_wire::message::{FetchHead, MakeHead, ResidentView};

/// Parts that machines have made.
pub(super) struct MadeParts<M: ArrayMachines> {
    pub(super) held: Vec<Held>,
    /// The operands, as far as this process has them.
    pub(super) matrices: Vec<M::Matrix>,
    /// The check, if there is one, and the sums that the machines have sent for it.
    pub(super) begun: Option<(M::Check, SumsOfParts)>,
}

/// Parts to make, and how far they are. After an error the caller keeps or frees them.
#[derive(Default)]
pub(super) struct PartsInMaking {
    pub(super) parts: Vec<UnfinishedPart>,
    /// Whether all parts are the whole array, with the same number.
    pub(super) is_replicated: bool,
    /// Bytes of operands that machines have sent to each other.
    pub(super) bytes_between: u64,
}

/// Why parts were not made.
pub(super) enum MakeFailure<E> {
    /// Two machines have lost their link with each other.
    Apart,
    /// This machine was lost.
    Lost(usize),
    Failed(ArrayError<E>),
}

/// The plan of each part, by its index.
type PlanOf<'a, X> = &'a dyn Fn(usize) -> &'a MakingPlan<X>;

/// What a machine was asked, and for which part.
pub(super) enum AskedStep {
    /// To open it with this number.
    Open(u64),
    /// A step, and whether the part is complete then.
    Step(MakingStep, bool),
}

/// What all machines were asked, by the number of the question.
pub(super) type AskedSteps = BTreeMap<u64, (usize, AskedStep)>;

impl<X: MatrixInfo> MakingPlan<X> {
    fn steps(&self, one: &UnfinishedPart) -> Vec<MakingStep> {
        self.steps_if(one, &|to, from| self.links.pairs.contains(&(to, from)))
    }

    /// The steps that are left of a part, if these machines are linked.
    fn steps_if(&self, one: &UnfinishedPart, linked: &dyn Fn(usize, usize) -> bool) -> Vec<MakingStep> {
        self.making.steps_left(one.part.machine, &one.to_make_now(), linked, self.block_bytes)
    }

    fn bytes(&self, piece: &MadePiece) -> u64 {
        piece.rect.shape().bytes(self.making.dtype).unwrap_or(u64::MAX)
    }

    /// Bytes that will come from other machines if all are linked, by receiver and sender.
    pub(super) fn travels(&self, parts: &[UnfinishedPart]) -> BTreeMap<(usize, usize), u64> {
        let mut bytes = BTreeMap::new();
        for one in parts {
            for step in self.steps_if(one, &|_, _| true) {
                for piece in &step.pieces {
                    let (PieceSource::There(at), Some((known, _))) =
                        (piece.source, &self.known[piece.operand])
                    else {
                        continue;
                    };
                    let pair = (one.part.machine, known[at].part.machine);
                    let sum: &mut u64 = bytes.entry(pair).or_default();
                    *sum = sum.saturating_add(self.bytes(piece));
                }
            }
        }
        bytes
    }

    /// Bytes of an operand that this process sends, if machines that may pass blocks to each other are linked.
    pub(super) fn bytes_sent(&self, parts: &[UnfinishedPart], operand: usize) -> u64 {
        let is_sent = |piece: &&MadePiece| piece.operand == operand && piece.source == PieceSource::Primary;
        let of_part = |one: &UnfinishedPart| {
            let steps = self.steps_if(one, &|_, _| true);
            let pieces = steps.iter().flat_map(|step| &step.pieces).filter(is_sent);
            pieces.map(|piece| self.bytes(piece)).fold(0, u64::saturating_add)
        };
        parts.iter().map(of_part).fold(0, u64::saturating_add)
    }

    /// Whether this process has to send a piece of an operand.
    fn sends(&self, parts: &[UnfinishedPart], operand: usize) -> bool {
        let from_here = |piece: &MadePiece| piece.operand == operand && piece.source == PieceSource::Primary;
        parts.iter().any(|one| self.steps(one).iter().any(|step| step.pieces.iter().any(from_here)))
    }
}

impl PartsInMaking {
    /// The parts that are complete, as the registry records them.
    pub(super) fn held(&self) -> Vec<Held> {
        let mut held: Vec<Held> = self.parts.iter().filter_map(UnfinishedPart::held).collect();
        held.sort_by_key(|(part, _)| (part.rect.rows.start, part.rect.cols.start, part.machine));
        held
    }

    /// Notes what a machine has answered.
    fn note<X: MatrixInfo>(&mut self, plan_of: PlanOf<'_, X>, asked: &AskedSteps, answers: &[Answer]) {
        for answer in answers {
            let Answer::Made(number, digest) = answer else { continue };
            let Some((part, step)) = asked.get(number) else { continue };
            let (one, plan) = (&mut self.parts[*part], plan_of(*part));
            match step {
                AskedStep::Open(number) => one.number = Some(*number),
                AskedStep::Step(step, is_last) => {
                    one.unmade.advance(step, plan.making.depth.end);
                    one.digest = Some(*digest).filter(|digest| *is_last && *digest != Digest128::default());
                    let fetched =
                        step.pieces.iter().filter(|piece| matches!(piece.source, PieceSource::There(_)));
                    let bytes = fetched.map(|piece| plan.bytes(piece)).fold(0, u64::saturating_add);
                    self.bytes_between = self.bytes_between.saturating_add(bytes);
                }
            }
        }
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Makes the unfinished rest of parts.
    pub(super) async fn make_parts(
        &mut self,
        mut plan: MakingPlan<M::Matrix>,
        making: &mut PartsInMaking,
        mut relays: bool,
    ) -> Result<MadeParts<M>, ArrayError<M::Error>> {
        loop {
            plan.links =
                if relays { self.linked(&plan, &making.parts).await? } else { BlockLinks::default() };
            if let Some(made) = self.make_by_pipeline(&plan, making).await? {
                return Ok(made);
            }
            let matrices = self.matrices_to_send(&plan, &making.parts).await?;
            // Some may have been lost meanwhile.
            if let Some(lost) = making.parts.iter().find(|one| !self.holders.is_there(one.part.machine)) {
                return Err(self.lost_in_making(&plan, lost.part.machine));
            }
            let check = match plan.is_checked {
                true => self.machines.begin_check(&plan.subject, &matrices, self.arrays)?,
                false => None,
            };
            let mut asked = AskedSteps::new();
            let tasks = self.tasks(&|_| &plan, making, &mut asked, (&matrices, check.is_some()));
            let ended = self.run(tasks).await?;
            match self.heard(&|_| &plan, making, &asked, ended).await {
                Ok(sums) => {
                    let begun = check.map(|check| (check, sums));
                    return Ok(MadeParts { held: making.held(), matrices, begun });
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
    pub(super) async fn matrices_to_send(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        parts: &[UnfinishedPart],
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
    pub(super) fn tasks(
        &mut self,
        plan_of: PlanOf<'_, M::Matrix>,
        making: &PartsInMaking,
        asked: &mut AskedSteps,
        (matrices, with_sums): (&[M::Matrix], bool),
    ) -> Vec<(usize, MachineTask<M::Matrix>)> {
        let mut rounds: BTreeMap<usize, Vec<QuestionRound<M::Matrix>>> = BTreeMap::new();
        let mut shared = making.parts.iter().find_map(|one| one.number).filter(|_| making.is_replicated);
        let mut numbers = Vec::new();
        for (at, one) in making.parts.iter().enumerate() {
            let number = one.number.or(shared).unwrap_or_else(|| self.arrays.number());
            shared = Some(number).filter(|_| making.is_replicated);
            numbers.push(number);
            if one.number.is_some() {
                continue;
            }
            let rect = one.part.rect;
            let (dtype, question) = (plan_of(at).making.dtype, self.arrays.number());
            let open = MakeHead {
                number: question,
                array: number,
                dtype,
                part: rect,
                rect,
                step: None,
                is_last: false,
            };
            asked.insert(question, (at, AskedStep::Open(number)));
            let questions = Vec::from([Question::Make(open)]);
            let round = QuestionRound { blocks: Vec::new(), questions, waits: false };
            rounds.entry(one.part.machine).or_default().push(round);
        }
        for (at, (one, number)) in making.parts.iter().zip(numbers).enumerate() {
            let plan = plan_of(at);
            let steps = self.rounds(plan, (at, one, number), matrices, asked);
            let sums = with_sums.then(|| self.sum_questions(number, one.part.rect, plan.making.dtype));
            rounds.entry(one.part.machine).or_default().extend(steps.into_iter().chain(sums));
        }
        rounds.retain(|_, rounds| !rounds.is_empty());
        rounds.into_iter().map(|(machine, rounds)| (machine, MachineTask::Ask(rounds))).collect()
    }

    /// The steps that are left of one part.
    fn rounds(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        (at, one, number): (usize, &UnfinishedPart, u64),
        matrices: &[M::Matrix],
        asked: &mut AskedSteps,
    ) -> Vec<QuestionRound<M::Matrix>> {
        let steps = plan.steps(one);
        let last = steps.len().saturating_sub(1);
        let mut rounds = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            let (mut blocks, mut views) = (Vec::new(), Vec::new());
            for piece in &step.pieces {
                let (block, view) = self.piece(plan, *piece, &matrices[piece.operand]);
                blocks.extend(block);
                views.push(view);
            }
            let is_last = index == last && one.ends_now();
            let make = MakeHead {
                number: self.arrays.number(),
                array: number,
                dtype: plan.making.dtype,
                part: one.part.rect,
                rect: step.rect,
                step: Some(plan.subject.step(&views, step.depth.len(), step.adds)),
                is_last,
            };
            asked.insert(make.number, (at, AskedStep::Step(step, is_last)));
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
    pub(super) fn lost_in_making(
        &self,
        plan: &MakingPlan<M::Matrix>,
        machine: usize,
    ) -> ArrayError<M::Error> {
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

    /// Notes what the machines have made; the sums of their parts, if all are complete.
    pub(super) async fn heard(
        &mut self,
        plan_of: PlanOf<'_, M::Matrix>,
        making: &mut PartsInMaking,
        asked: &AskedSteps,
        ended: Vec<TaskEnd>,
    ) -> Result<SumsOfParts, MakeFailure<M::Error>> {
        let (mut sums, mut failure) = (SumsOfParts::new(), None);
        for TaskEnd { machine, outcome } in ended {
            match outcome {
                // A machine without a part is missed by the next operation only.
                None if making.parts.iter().all(|one| one.part.machine != machine) => {}
                None => failure = Some(MakeFailure::Lost(machine)),
                Some(TaskOutcome::Answered(answers)) => {
                    making.note(plan_of, asked, &answers);
                    let own = making.parts.iter().filter(|one| one.part.machine == machine);
                    sums.extend(own.map(|one| sums_in(&answers, &one.part)));
                }
                Some(TaskOutcome::Refused(refusal)) if refusal.is_apart => {
                    making.note(plan_of, asked, &refusal.answers);
                    failure.get_or_insert(MakeFailure::Apart);
                }
                // The parts that it has just opened are freed already. How far the others are is not known.
                Some(TaskOutcome::Refused(refusal)) => {
                    for one in making.parts.iter_mut().filter(|one| one.part.machine == machine) {
                        if let Some(number) = one.number {
                            self.machines.free(machine, &[number]).await;
                        }
                        one.forget();
                    }
                    let name = self.holders.name(machine);
                    let why = ArrayError::Failed(format!("worker {name}: {}", refusal.why));
                    // Another attempt would be refused as well.
                    failure = failure.filter(|failure| !matches!(failure, MakeFailure::Apart));
                    failure.get_or_insert(MakeFailure::Failed(why));
                }
                Some(TaskOutcome::Held { .. }) => {}
            }
        }
        let has_all = making.parts.iter().all(UnfinishedPart::is_made_now);
        failure.or_else(|| (!has_all).then(incomplete)).map_or(Ok(sums), Err)
    }
}

fn incomplete<E>() -> MakeFailure<E> {
    MakeFailure::Failed(ArrayError::Failed("a machine has not confirmed its part".to_string()))
}
