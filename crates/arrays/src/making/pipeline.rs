//! Makes a product whose sums pass from machine to machine.
//!
//! Place in the flow: `parts.rs` tries it before it makes parts in the usual way. In each round every stage of `SumPipeline`
//! makes its sum of another block, as an array of its own, from the sum of the stage before; the sums of the last stage are
//! copied into the parts of the result.
//!
//! Invariants: the sum of a block is freed when the next stage has added to it; after an error no machine holds one. A block that
//! is in the result counts there, also if the making goes on after a loss.
//!
//! Deliberately absent: which blocks and stages (`plan`), and blocks that pass through this process: without links between the
//! machines the product is made in the usual way.

use super::parts::{AskedSteps, MadeParts, MakeFailure, PartsInMaking};
use super::unfinished::UnfinishedPart;
use super::{MadeFrom, MakingPlan};
use crate::registry::Held;
use crate::{ArrayError, ArrayMachines, ArrayOperand, ArrayOperation, KnownPart};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Digest128, MatrixInfo};
use bramble_plan::{MadeOperand, Making, MakingForm, PartOfMaking, PlacedPart, SumPipeline};

/// The sums of blocks that machines hold, by stage: machine, number and place of each.
type BlockSums = BTreeMap<usize, (PlacedPart, u64)>;

impl<X: MatrixInfo> MakingPlan<X> {
    /// The pipeline of the parts, if they should be made so and its machines are linked.
    fn pipeline(&self, making: &PartsInMaking) -> Option<SumPipeline> {
        let parts = to_make(&making.parts);
        let pipeline = self.making.pipeline(&parts, self.block_bytes).filter(|_| !making.is_replicated)?;
        let are_linked = pipeline.pairs(&parts).iter().all(|pair| self.links.pairs.contains(pair));
        are_linked.then_some(pipeline)
    }

    /// Pairs of machines that a pipeline needs, the receiver first.
    pub(super) fn pipeline_pairs(&self, parts: &[UnfinishedPart]) -> Vec<(usize, usize)> {
        let parts = to_make(parts);
        let pipeline = self.making.pipeline(&parts, self.block_bytes);
        pipeline.map(|pipeline| pipeline.pairs(&parts)).unwrap_or_default()
    }

    /// The plan of a stage: its lines of the depth, added to the sum of the stage before; or, after the last, a copy of that.
    fn of_stage(&self, pipeline: &SumPipeline, stage: usize, before: Option<(PlacedPart, u64)>) -> Self {
        let (mut making, mut known, mut subject) =
            (self.making.clone(), self.known.clone(), self.subject.clone());
        match (pipeline.stages.get(stage), &mut subject) {
            (Some(stage), MadeFrom::Product { a, plus, .. }) => {
                making.depth = stage.depth;
                *plus = before.map(|_| (1.0, stand_in(a)));
            }
            _ => {
                making = Making::new(MakingForm::Sum, making.dtype, Vec::new());
                known.clear();
                subject = MadeFrom::Sum { x: (1.0, stand_in(subject.operands()[0])), y: None };
            }
        }
        if let Some((part, number)) = before {
            making.operands.push(MadeOperand { shape: self.making.shape(), parts: vec![part] });
            known.push(Some((vec![KnownPart { part, number, digest: Digest128::default() }], false)));
        }
        let (links, block_bytes) = (self.links.clone(), self.block_bytes);
        Self { subject, making, known, links, block_bytes, is_checked: false }
    }
}

/// An operand in the place of the sum of a block, of which nothing is read from this process.
fn stand_in<X: Clone>(operand: &ArrayOperand<X>) -> ArrayOperand<X> {
    ArrayOperand { matrix: operand.matrix.clone(), placed: None }
}

fn to_make(parts: &[UnfinishedPart]) -> Vec<PartOfMaking<'_>> {
    parts.iter().map(|one| PartOfMaking { machine: one.part.machine, unmade: &one.unmade }).collect()
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Makes parts by a pipeline; `None` if there is none, or if its links have ended: then the rest should be made in the usual
    /// way.
    pub(super) async fn make_by_pipeline(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        making: &mut PartsInMaking,
    ) -> Result<Option<MadeParts<M>>, ArrayError<M::Error>> {
        let Some(pipeline) = plan.pipeline(making) else { return Ok(None) };
        // No block is sent from here.
        let matrices = self.matrices_to_send(plan, &[]).await?;
        let check = match plan.is_checked {
            true => self.machines.begin_check(&plan.subject, &matrices, self.arrays)?,
            false => None,
        };
        let mut sums = BlockSums::new();
        for round in 0..pipeline.rounds() {
            let done = self.round(plan, (&pipeline, round), making, &mut sums).await;
            if done.is_err() {
                self.free_sums(sums).await;
                return match done {
                    Err(MakeFailure::Lost(machine)) => Err(self.lost_in_making(plan, machine)),
                    Err(MakeFailure::Failed(e)) => Err(e),
                    Err(MakeFailure::Apart) | Ok(()) => Ok(None),
                };
            }
        }
        let held = making.held();
        let known = |(part, recorded): &Held| KnownPart {
            part: *part,
            number: recorded.number,
            digest: recorded.digest,
        };
        let known: Vec<KnownPart> = held.iter().map(known).collect();
        if known.len() < making.parts.len() {
            return Err(ArrayError::Failed("a machine has not confirmed its part".to_owned()));
        }
        let begun = match check {
            Some(check) => Some((check, self.sums_of(&known, plan.making.dtype).await?)),
            None => None,
        };
        Ok(Some(MadeParts { held, matrices, begun }))
    }

    /// One round of all stages. `sums`: those of the round before, and then those of this one.
    async fn round(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        (pipeline, round): (&SumPipeline, usize),
        making: &mut PartsInMaking,
        sums: &mut BlockSums,
    ) -> Result<(), MakeFailure<M::Error>> {
        let homes = making.parts.iter().map(|one| one.part.machine);
        let mut machines = pipeline.stages.iter().map(|stage| stage.machine).chain(homes);
        if let Some(lost) = machines.find(|machine| !self.holders.is_there(*machine)) {
            return Err(MakeFailure::Lost(lost));
        }
        let (mut plans, mut places, mut now) = (Vec::new(), Vec::new(), PartsInMaking::default());
        for stage in 0..=pipeline.stages.len() {
            let Some(block) = pipeline.block_at(round, stage) else { continue };
            let before = stage.checked_sub(1).and_then(|at| sums.get(&at).copied());
            plans.push(plan.of_stage(pipeline, stage, before));
            places.push((stage, block.part));
            now.parts.push(match pipeline.stages.get(stage) {
                Some(stage) => UnfinishedPart::new(PlacedPart { machine: stage.machine, rect: block.rect }),
                None => making.parts[block.part].lent_for(block.rect),
            });
        }
        let stand_ins = vec![plan.subject.operands()[0].matrix.clone(); 3];
        let mut asked = AskedSteps::new();
        let tasks = self.tasks(&|at| &plans[at], &now, &mut asked, (&stand_ins, false));
        let heard = match self.run(tasks).await {
            Ok(ended) => self.heard(&|at| &plans[at], &mut now, &asked, ended).await,
            Err(e) => Err(MakeFailure::Failed(e)),
        };
        making.bytes_between = making.bytes_between.saturating_add(now.bytes_between);
        let before = core::mem::take(sums);
        for (one, (stage, part)) in now.parts.into_iter().zip(places) {
            if stage == pipeline.stages.len() {
                making.parts[part] = one.given_back();
            } else if let Some(number) = one.number {
                sums.insert(stage, (one.part, number));
            }
        }
        self.free_sums(before).await;
        heard.map(drop)
    }

    async fn free_sums(&mut self, sums: BlockSums) {
        for (part, number) in sums.into_values() {
            if self.holders.is_there(part.machine) {
                self.machines.free(part.machine, &[number]).await;
            }
        }
    }
}
