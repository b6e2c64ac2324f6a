//! Reduces placed matrices, and products with one, at the machines that hold the parts.
//!
//! Place in the flow: `reduction_plan` chooses the operand that is read in place; `reduce` asks each machine with a part. The
//! other operand of a product travels to all of them in blocks; each machine multiplies a block by its part, reduces the product,
//! and forgets it.
//!
//! Invariants: the answers cover the reduced matrix, each element once. The machines keep no block.
//!
//! Deliberately absent: merging the answers, and their check.

use crate::{
    Answer, ArrayError, ArrayMachines, ArrayOperand, ArrayOperation, MachineTask, PartToPut, PlacedOperand,
    Question, QuestionRound, TaskOutcome, TravellingBlock,
};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{DType, MatrixInfo, Rect, Reduction, Shape, Span};
use bramble_plan::{PartHolder, ReduceObjection, ReduceShare, ReducedRole, product_roles, travel_blocks};
use bramble_wire::message::{ReduceHead, ReducedFactor, ResidentView};

/// The matrix or the product to reduce.
#[derive(Clone)]
pub enum ReducedFrom<X> {
    /// A placed matrix, or its transpose.
    Matrix(ArrayOperand<X>),
    /// The product αAB, of which an operand is placed.
    Product {
        /// α.
        alpha: f64,
        /// A.
        a: ArrayOperand<X>,
        /// B.
        b: ArrayOperand<X>,
    },
}

/// Which operand of a reduction is read where it lies, and the share of each machine.
pub struct ReducePlan<X> {
    /// The operand.
    pub placed: PlacedOperand,
    /// What it is to the reduction.
    pub role: ReducedRole,
    /// The operand that travels, if the reduction is of a product.
    travelling: Option<X>,
    alpha: f64,
    /// Machines are those of the operation.
    shares: Vec<ReduceShare>,
}

/// The answers of the machines.
#[derive(Debug, Default)]
pub struct ReducedParts {
    /// The rectangles of the reduced matrix, and the bytes of their reductions.
    pub answers: Vec<(Rect, Vec<u8>)>,
    /// Machines that took part, each with the bytes of its answers.
    pub machines: Vec<(String, u64)>,
}

impl<X: MatrixInfo> ReducedFrom<X> {
    /// Name, shape and element type of the reduced matrix.
    pub fn described(&self) -> (String, Shape, DType) {
        match self {
            Self::Matrix(of) => (of.matrix.name().to_string(), of.matrix.shape(), of.matrix.dtype()),
            Self::Product { a, b, .. } => {
                let name = format!("{} @ {}", a.matrix.name(), b.matrix.name());
                (name, Shape::new(a.matrix.shape().rows, b.matrix.shape().cols), a.matrix.dtype())
            }
        }
    }

    /// Element type of the reduced matrix.
    pub fn dtype(&self) -> DType {
        self.described().2
    }

    /// Whether an operand is placed, so that the machines can reduce.
    pub fn is_placed(&self) -> bool {
        self.operands().iter().any(|operand| operand.placed.is_some())
    }

    /// Operations of the product; of a matrix that is reduced itself, next to none.
    pub fn flops(&self) -> f64 {
        match self {
            Self::Matrix(_) => 1.0,
            Self::Product { a, b, .. } => {
                let (a, b) = (a.matrix.shape(), b.matrix.shape());
                2.0 * a.rows as f64 * a.cols as f64 * b.cols as f64
            }
        }
    }

    fn operands(&self) -> Vec<&ArrayOperand<X>> {
        match self {
            Self::Matrix(of) => vec![of],
            Self::Product { a, b, .. } => vec![a, b],
        }
    }

    /// The placed operand and the travelling one, for each role that `product_roles` names. Without shares.
    fn roles(&self) -> Vec<ReducePlan<X>> {
        let plan = |placed: PlacedOperand, role, travelling, alpha| ReducePlan {
            placed,
            role,
            travelling,
            alpha,
            shares: Vec::new(),
        };
        match self {
            Self::Matrix(of) => {
                of.placed.map(|placed| plan(placed, ReducedRole::Itself, None, 1.0)).into_iter().collect()
            }
            Self::Product { alpha, a, b } => {
                let elements = |one: &ArrayOperand<X>| one.placed.and_then(|_| one.matrix.shape().elements());
                let of = |role: ReducedRole| {
                    let (one, other) = if role == ReducedRole::Left { (a, b) } else { (b, a) };
                    one.placed.map(|placed| plan(placed, role, Some(other.matrix.clone()), *alpha))
                };
                product_roles(elements(a), elements(b)).into_iter().filter_map(of).collect()
            }
        }
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Which operand is read where it lies. The subject must be placed (`ReducedFrom::is_placed`).
    pub fn reduction_plan(
        &self,
        reduction: Reduction,
        subject: &ReducedFrom<M::Matrix>,
    ) -> Result<ReducePlan<M::Matrix>, ArrayError<M::Error>> {
        self.reducible(reduction, subject)?;
        let mut objection = None;
        for plan in subject.roles() {
            let array = self.arrays.get(plan.placed.array)?;
            let offered = self.holders.offered();
            let lost = || PartHolder { name: String::new(), gflops: 0.0, memory_bytes: 0 };
            let of = |connection: &u64| {
                self.holders.with_connection(*connection).map_or_else(lost, |at| offered[at].clone())
            };
            let holders: Vec<PartHolder> = array.holders.iter().map(of).collect();
            match array.layout.reduce_shares(plan.placed.transposed, plan.role, &holders) {
                Ok(shares) => {
                    let renumbered = |share: ReduceShare| {
                        let machine = self.holders.with_connection(array.holders[share.machine])?;
                        Some(ReduceShare { machine, ..share })
                    };
                    let shares = shares.into_iter().filter_map(renumbered).collect();
                    return Ok(ReducePlan { shares, ..plan });
                }
                Err(ReduceObjection::Missing(missing)) => return Err(array.lost(missing.part)),
                Err(ReduceObjection::CutDepth) => {
                    objection.get_or_insert_with(|| cut_depth(&array.name, plan.role));
                }
            }
        }
        let name = subject.described().0;
        let unplaced = || ArrayError::Operands(format!("{name} is not placed: place it with put"));
        Err(objection.unwrap_or_else(unplaced))
    }

    /// Refuses a matrix that has no such reduction.
    fn reducible(
        &self,
        reduction: Reduction,
        subject: &ReducedFrom<M::Matrix>,
    ) -> Result<(), ArrayError<M::Error>> {
        let (name, shape, dtype) = subject.described();
        if let Some(why) = reduction.refusal(shape) {
            return Err(ArrayError::Operands(format!("{name} {why}")));
        }
        for operand in subject.operands() {
            operand.fits(self.arrays)?;
            if operand.matrix.dtype() != dtype {
                let (one, other) = (operand.matrix.name(), operand.matrix.dtype());
                return Err(ArrayError::Operands(format!(
                    "{one} is {other}, and {name} is computed as {dtype}"
                )));
            }
        }
        match subject {
            ReducedFrom::Product { a, .. } if a.matrix.shape().cols == 0 => {
                Err(ArrayError::Operands(format!("{name} is a product of depth 0")))
            }
            _ if shape.elements() == Some(0) => {
                Err(ArrayError::Operands(format!("{name} is {shape} and has no elements")))
            }
            _ => Ok(()),
        }
    }

    /// Asks all machines with a share. Answers of a product also have the sums of the rows of each rectangle.
    pub async fn reduce(
        &mut self,
        reduction: Reduction,
        plan: &ReducePlan<M::Matrix>,
    ) -> Result<ReducedParts, ArrayError<M::Error>> {
        let mut tasks = Vec::new();
        for machine in self.holders.live() {
            let own: Vec<ReduceShare> =
                plan.shares.iter().filter(|share| share.machine == machine).copied().collect();
            if !own.is_empty() {
                let left_bytes = self.holders.left_bytes(machine);
                tasks.push((machine, MachineTask::Ask(self.questions(reduction, plan, &own, left_bytes)?)));
            }
        }
        let (mut parts, mut failed) = (ReducedParts::default(), None);
        for end in self.run(tasks).await? {
            let name = self.holders.name(end.machine).to_string();
            match end.outcome {
                Some(TaskOutcome::Answered(answers)) => {
                    let new: Vec<(Rect, Vec<u8>)> = answers.into_iter().filter_map(reduction_of).collect();
                    let bytes = new.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                    parts.machines.push((name, bytes));
                    parts.answers.extend(new);
                }
                Some(TaskOutcome::Refused(refusal)) => {
                    failed.get_or_insert(ArrayError::Failed(format!("worker {name}: {}", refusal.why)));
                }
                Some(TaskOutcome::Held { .. }) => {
                    failed = Some(ArrayError::Failed(format!("worker {name} has put a part")));
                }
                None => {
                    // A machine without a share is missed by the next operation only.
                    let share = plan.shares.iter().find(|share| share.machine == end.machine);
                    let array = self.arrays.get(plan.placed.array)?;
                    failed = share.map(|share| array.lost(share.part)).or(failed);
                }
            }
        }
        parts.machines.sort();
        if let (None, Some(matrix)) = (&failed, &plan.travelling) {
            self.still_as_opened(matrix)?;
        }
        failed.map_or(Ok(parts), Err)
    }

    /// The questions to one machine, in order.
    fn questions(
        &mut self,
        reduction: Reduction,
        plan: &ReducePlan<M::Matrix>,
        shares: &[ReduceShare],
        left_bytes: u64,
    ) -> Result<Vec<QuestionRound<M::Matrix>>, ArrayError<M::Error>> {
        let array = self.arrays.get(plan.placed.array)?;
        let dtype = array.layout.dtype;
        let parts: Vec<u64> = shares.iter().map(|share| array.parts[share.part].number).collect();
        let (code, count) = reduction.code();
        let mut rounds = Vec::new();
        for block in plan.blocks(dtype, left_bytes) {
            let block = block.map(|block| PartToPut { number: self.arrays.number(), ..block });
            let mut questions = Vec::new();
            for (share, part) in shares.iter().zip(&parts) {
                let placed = ResidentView::of(*part, plan.placed.transposed, share.operand);
                let (rect, left, right) = plan.operands(share.operand, placed, block.as_ref());
                let number = self.arrays.number();
                let head = ReduceHead { number, reduction: code, count, dtype, rect, left, right };
                let sums = if right.is_some() { Reduction::RowSum.bytes_of(rect, dtype) } else { 0 };
                questions.push(Question::Reduce(head, reduction.bytes_of(rect, dtype) + sums));
            }
            let blocks = block.map(TravellingBlock::Put).into_iter().collect();
            rounds.push(QuestionRound { blocks, questions, waits: false });
        }
        Ok(rounds)
    }
}

impl<X: MatrixInfo> ReducePlan<X> {
    /// The blocks of the operand that travels, without numbers; `None` for a matrix that is reduced itself.
    fn blocks(&self, dtype: DType, left_bytes: u64) -> Vec<Option<PartToPut<X>>> {
        let Some(matrix) = &self.travelling else { return vec![None] };
        let shape = matrix.shape();
        let is_left = self.role == ReducedRole::Right;
        let (lines, depth) = if is_left { (shape.rows, shape.cols) } else { (shape.cols, shape.rows) };
        let line_bytes = depth.saturating_mul(dtype.size_bytes() as u64);
        let block = |span: Span| {
            let whole = shape.rect();
            let rect = if is_left { Rect::new(span, whole.cols) } else { Rect::new(whole.rows, span) };
            Some(PartToPut { source: matrix.clone(), rect, number: 0 })
        };
        travel_blocks(lines, line_bytes, left_bytes).into_iter().map(block).collect()
    }

    /// The reduced rectangle of a share, its left operand, and its right one if it is that of a product.
    fn operands(
        &self,
        share: Rect,
        placed: ResidentView,
        block: Option<&PartToPut<X>>,
    ) -> (Rect, ResidentView, Option<ReducedFactor>) {
        let Some(block) = block else { return (share, placed, None) };
        let travelled = ResidentView::of(block.number, false, block.rect);
        let (rect, left, view, depth) = match self.role {
            ReducedRole::Left => {
                (Rect::new(share.rows, block.rect.cols), placed, travelled, share.cols.len())
            }
            _ => (Rect::new(block.rect.rows, share.cols), travelled, placed, share.rows.len()),
        };
        (rect, left, Some(ReducedFactor { view, depth, alpha: self.alpha }))
    }
}

/// The bytes of a reduction; other questions are not asked here.
fn reduction_of(answer: Answer) -> Option<(Rect, Vec<u8>)> {
    match answer {
        Answer::Reduced(_, rect, bytes) => Some((rect, bytes)),
        Answer::Made(..) => None,
    }
}

fn cut_depth<E>(name: &str, role: ReducedRole) -> ArrayError<E> {
    let (operand, shard) = match role {
        ReducedRole::Left => ("left", 0),
        _ => ("right", 1),
    };
    ArrayError::Operands(format!(
        "{name} is cut along the depth of the product, so no machine has whole elements of it to reduce: as the {operand} \
         operand, place it with shard={shard} (its transpose with shard={})",
        1 - shard
    ))
}
