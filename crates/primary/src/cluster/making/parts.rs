//! Sends the machines the steps that make parts of an array, and collects the parts.
//!
//! Place in the flow: `making.rs` passes the parts in that are to be made, for the first time or again.
//!
//! Invariants: all parts are held in the end, or none of them. All parts of a machine are opened before its first step, since
//! the numbers of arrays rise. If machines cannot pass blocks to each other any more, this process sends them.
//!
//! Deliberately absent: which steps make a part (`plan`), and the check.

use super::MakeSubject;
use super::links::{BlockLinks, linked};
use crate::cluster::Cluster;
use crate::cluster::arrays::{PlacedOperand, RecordedPart};
use crate::cluster::asking::{Answer, Answered, Question, QuestionRound, TravellingBlock, jobs_of};
use crate::cluster::checking::{BegunCheck, SumsOfParts, sums_in};
use crate::cluster::getting::KnownPart;
use crate::cluster::part::PartToPut;
use crate::cluster::putting::{Held, Holders, free_numbers};
use crate::gathering::early_loss;
use crate::product::{CheckRequest, ProductObserver};
use bramble_matrix::{Matrix, Output, Rect};
use bramble_plan::{MadeOperand, MadePiece, Making, MakingForm, MakingStep, PieceSource, PlacedPart};
use bramble_sessions::{EndedJob, LostConnection, MachineJob, PrimaryError, SecretSource, at_once};
use bramble_wire::message::{FetchHead, MakeHead, ResidentView};
use std::collections::BTreeMap;

/// Bytes of a block: large enough for the kernel, small enough that the first is there soon.
const BLOCK_BYTES: u64 = 16 << 20;
/// A block takes at most this fraction of the memory that a machine has left: those of two rounds are there at once, beside the
/// result.
const BLOCK_PART: u64 = 16;

/// Parts that machines have made.
pub(super) struct MadeParts {
    pub(super) held: Vec<Held>,
    /// Bytes of operands that machines sent to each other.
    pub(super) bytes_between: u64,
    /// The operands, as far as this process has them.
    pub(super) matrices: Vec<Matrix>,
    /// The check, if there is one, and the sums that the machines have sent for it.
    pub(super) begun: Option<(BegunCheck, SumsOfParts)>,
}

/// What machines need to make parts.
pub(super) struct MakingPlan<'a> {
    subject: &'a MakeSubject,
    pub(super) making: Making,
    /// The parts of each operand, if it is placed, with its transposition.
    known: Vec<Option<(Vec<KnownPart>, bool)>>,
    links: BlockLinks,
    pub(super) block_bytes: u64,
    /// How the parts are checked, if they are all that the array has.
    pub(super) check: Option<CheckRequest>,
}

impl<'a> MakingPlan<'a> {
    /// The operation and its operands.
    pub(super) fn subject(&self) -> &'a MakeSubject {
        self.subject
    }

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

impl Cluster {
    /// What the operands are, and where.
    pub(super) fn making_plan<'a>(
        &self,
        subject: &'a MakeSubject,
        holders: &Holders,
        connections: &[u64],
        check: Option<CheckRequest>,
    ) -> Result<MakingPlan<'a>, PrimaryError> {
        let form = match subject {
            MakeSubject::Product { .. } => MakingForm::Product,
            MakeSubject::Sum { .. } => MakingForm::Sum,
        };
        let (mut operands, mut known) = (Vec::new(), Vec::new());
        for operand in subject.operands() {
            let shape = operand.matrix.shape();
            let Some(PlacedOperand { array, transposed }) = operand.placed else {
                operands.push(MadeOperand { shape, parts: Vec::new() });
                known.push(None);
                continue;
            };
            let parts = self.arrays.get(array)?.known_parts(connections)?;
            let turned = |rect: Rect| if transposed { rect.transposed() } else { rect };
            let as_used =
                parts.iter().map(|known| PlacedPart { rect: turned(known.part.rect), ..known.part });
            operands.push(MadeOperand { shape, parts: as_used.collect() });
            known.push(Some((parts, transposed)));
        }
        let making = Making { form, dtype: subject.dtype(), operands };
        let left = holders.offered().into_iter().map(|holder| holder.memory_bytes).filter(|bytes| *bytes > 0);
        let block_bytes = BLOCK_BYTES.min(left.min().unwrap_or(0) / BLOCK_PART).max(1 << 16);
        Ok(MakingPlan { subject, making, known, links: BlockLinks::default(), block_bytes, check })
    }

    /// Makes parts; all or none of them are held at the end. `is_replicated`: they have the same number; `random` serves to
    /// introduce machines to each other.
    pub(super) async fn make_parts(
        &mut self,
        mut plan: MakingPlan<'_>,
        (parts, is_replicated): (Vec<PlacedPart>, bool),
        (holders, connections): (&mut Holders, &[u64]),
        mut random: Option<SecretSource>,
        watch: &dyn ProductObserver,
    ) -> Result<MadeParts, PrimaryError> {
        loop {
            plan.links = match random {
                Some(random) => linked(&plan, &parts, holders, random, watch).await?,
                None => BlockLinks::default(),
            };
            let between = plan.travels(&parts, &|to, from| plan.links.pairs.contains(&(to, from)));
            let between = between.values().copied().fold(0, u64::saturating_add);
            let matrices = self.matrices_to_send(&plan, &parts, (&mut *holders, connections), watch).await?;
            let begun = match plan.check {
                Some(check) => BegunCheck::begin(self.expression_here(plan.subject, &matrices)?, check),
                None => None,
            };
            let shared = is_replicated.then(|| self.arrays.number());
            let numbered: Vec<(PlacedPart, u64)> =
                parts.iter().map(|part| (*part, shared.unwrap_or_else(|| self.arrays.number()))).collect();
            let jobs = self.jobs(&plan, &numbered, &matrices, begun.is_some());
            let ended = at_once(&mut holders.slots, jobs).await?;
            match made(&numbered, ended, holders, watch).await {
                Ok((held, sums)) => {
                    let begun = begun.map(|begun| (begun, sums));
                    return Ok(MadeParts { held, bytes_between: between, matrices, begun });
                }
                // The machines cannot pass blocks to each other any more: this process does.
                Err(MakeFailure::Apart) if random.is_some() => random = None,
                Err(MakeFailure::Apart) => {
                    return Err(PrimaryError::Failed("the links between machines have ended".to_owned()));
                }
                Err(MakeFailure::Lost(machine)) => return Err(self.lost_in_making(&plan, machine, holders)),
                Err(MakeFailure::Failed(e)) => return Err(e),
            }
        }
    }

    /// The operands that this process sends; operands that only machines hold are fetched first, and also those whose chain of
    /// sources has become long.
    async fn matrices_to_send(
        &mut self,
        plan: &MakingPlan<'_>,
        parts: &[PlacedPart],
        (holders, connections): (&mut Holders, &[u64]),
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Matrix>, PrimaryError> {
        let mut matrices = Vec::new();
        for (at, operand) in plan.subject.operands().into_iter().enumerate() {
            let is_far = plan.check.is_some() && self.is_far(operand);
            let is_needed = operand.matrix.is_remote() && (is_far || plan.sends(parts, at));
            let placed = operand.placed.filter(|_| is_needed);
            let Some(PlacedOperand { array, transposed }) = placed else {
                matrices.push(operand.matrix.clone());
                continue;
            };
            let layout = &self.arrays.get(array)?.layout;
            let output = Output::anonymous(layout.shape, layout.dtype)?;
            let home = self.fetch_from(array, (&mut *holders, connections), output, watch).await?;
            let matrix = home.seal()?.matrix()?;
            matrices.push(if transposed { matrix.transposed() } else { matrix });
        }
        Ok(matrices)
    }

    /// What each machine with a part does.
    fn jobs(
        &mut self,
        plan: &MakingPlan<'_>,
        numbered: &[(PlacedPart, u64)],
        matrices: &[Matrix],
        with_sums: bool,
    ) -> Vec<MachineJob<Answered>> {
        let mut rounds: BTreeMap<usize, Vec<QuestionRound>> = BTreeMap::new();
        for (part, number) in numbered {
            // All parts of a machine are opened first, since the numbers of arrays rise.
            let question = self.arrays.number();
            let open = MakeHead {
                number: question,
                array: *number,
                dtype: plan.making.dtype,
                part: part.rect,
                rect: part.rect,
                step: None,
                is_last: false,
            };
            let round =
                QuestionRound { blocks: Vec::new(), questions: vec![Question::Make(open)], waits: false };
            rounds.entry(part.machine).or_default().push(round);
        }
        for (part, number) in numbered {
            let steps = self.rounds(plan, (part, *number), matrices);
            let sums = with_sums.then(|| self.sum_questions(*number, part.rect, plan.making.dtype));
            rounds.entry(part.machine).or_default().extend(steps.into_iter().chain(sums));
        }
        jobs_of(rounds)
    }

    /// The steps of one part.
    fn rounds(
        &mut self,
        plan: &MakingPlan<'_>,
        (part, number): (&PlacedPart, u64),
        matrices: &[Matrix],
    ) -> Vec<QuestionRound> {
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
            rounds.push(QuestionRound { blocks, questions: vec![Question::Make(make)], waits: false });
        }
        rounds
    }

    /// How a piece of an operand comes to the machine, if it has to, and the view of it there.
    fn piece(
        &mut self,
        plan: &MakingPlan<'_>,
        piece: MadePiece,
        matrix: &Matrix,
    ) -> (Option<TravellingBlock>, ResidentView) {
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
    fn lost_in_making(&self, plan: &MakingPlan<'_>, machine: usize, holders: &Holders) -> PrimaryError {
        for (operand, known) in plan.subject.operands().into_iter().zip(&plan.known) {
            let (Some(placed), Some((known, _))) = (operand.placed, known) else { continue };
            let part = known.iter().position(|known| known.part.machine == machine);
            if let (Some(part), Ok(array)) = (part, self.arrays.get(placed.array)) {
                return array.lost(part);
            }
        }
        PrimaryError::PartLost(format!("{} was lost while it made its part", holders.names[machine]))
    }
}

/// Why parts were not made.
enum MakeFailure {
    /// Two machines have lost their link with each other.
    Apart,
    /// This machine was lost.
    Lost(usize),
    Failed(PrimaryError),
}

/// The parts that the machines have made; those of a failed making are freed.
async fn made(
    numbered: &[(PlacedPart, u64)],
    ended: Vec<EndedJob<Answered>>,
    holders: &mut Holders,
    watch: &dyn ProductObserver,
) -> Result<(Vec<Held>, SumsOfParts), MakeFailure> {
    let (mut held, mut failure, mut whole) = (Vec::new(), None, Vec::new());
    let mut sums = SumsOfParts::new();
    for EndedJob { machine, result } in ended {
        match result {
            Err(LostConnection { name, why }) => {
                holders.lost.push(early_loss(watch, name, why).name);
                failure = Some(MakeFailure::Lost(machine));
            }
            Ok((sent, Ok(answers))) => {
                holders.bytes_sent += sent;
                whole.push(machine);
                let own = numbered.iter().map(|(part, _)| part).filter(|part| part.machine == machine);
                sums.extend(own.map(|part| sums_in(&answers, part)));
                held.extend(parts_of(machine, numbered, answers));
            }
            Ok((sent, Err(refusal))) => {
                holders.bytes_sent += sent;
                let name = &holders.names[machine];
                let failed = match refusal.is_apart {
                    true => MakeFailure::Apart,
                    false => {
                        MakeFailure::Failed(PrimaryError::Failed(format!("worker {name}: {}", refusal.why)))
                    }
                };
                failure.get_or_insert(failed);
            }
        }
    }
    let has_all = held.len() == numbered.len();
    let Some(failure) = failure.or_else(|| (!has_all).then(incomplete)) else { return Ok((held, sums)) };
    for machine in whole {
        let own = numbered.iter().filter(|(part, _)| part.machine == machine);
        let numbers: Vec<u64> = own.map(|(_, number)| *number).collect();
        if let Some(session) = &mut holders.slots[machine] {
            free_numbers(session, &numbers).await;
        }
    }
    Err(failure)
}

fn incomplete() -> MakeFailure {
    MakeFailure::Failed(PrimaryError::Failed("a machine has not confirmed its part".to_owned()))
}

/// The parts of a machine with the digests of their last steps, which are the last answers of each part.
fn parts_of(machine: usize, numbered: &[(PlacedPart, u64)], answers: Vec<Answer>) -> Vec<Held> {
    let own = numbered.iter().filter(|(part, _)| part.machine == machine);
    // Only last steps have digests.
    let digests = answers.into_iter().filter_map(|answer| match answer {
        Answer::Made(digest) if digest != Default::default() => Some(digest),
        _ => None,
    });
    own.zip(digests)
        .map(|((part, number), digest)| (*part, RecordedPart { number: *number, digest }))
        .collect()
}
