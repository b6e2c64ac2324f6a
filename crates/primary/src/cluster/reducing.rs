//! Reduces placed matrices, and products with one, at the machines that hold the parts.
//!
//! Place in the flow: as placing: a session with each machine that holds a part. The other operand of a product travels to all
//! of them in blocks; each machine multiplies a block by its part, reduces the product, and forgets it (`asking.rs`). This
//! process merges the answers.
//!
//! Invariants: this process merges the answers in the order of their rectangles, not of their arrival. The machines keep no
//! block. After an error the cluster is as before, except for machines that were lost.
//!
//! Deliberately absent: which machine reduces what (`plan/src/reduce.rs`), and matrices without parts (`reductions.rs`).

use super::Cluster;
use super::arrays::{ArrayId, PlacedOperand, place_of};
use super::asking::{Answer, Question, QuestionRound, TravellingBlock, jobs_of};
use super::part::PartToPut;
use super::putting::Holders;
use crate::gathering::early_loss;
use crate::product::{CheckRequest, ProductObserver, ProductOperand, SessionRequest};
use bramble_matrix::{
    DType, Matrix, Rect, RectReduction, ReducedMatrix, Reducer, Reducible, Reduction, Shape, Span,
};
use bramble_plan::{
    ArrayLayout, Preference, ReduceObjection, ReduceShare, ReducedRole, product_roles, travel_blocks,
};
use bramble_sessions::{EndedJob, LostConnection, PrimaryError, at_once, off_loop};
use bramble_verify::{Effort, LazyLines, RowSketch, SampledRows, judge};
use bramble_wire::message::{ReduceHead, ReducedFactor, ResidentView};
use std::collections::BTreeMap;
use std::time::Instant;

/// The matrix or the product to reduce.
#[derive(Clone)]
pub enum ReduceSubject {
    /// A placed matrix, or its transpose.
    Matrix(ProductOperand),
    /// The product αAB, of which an operand is placed.
    Product {
        /// α.
        alpha: f64,
        /// A.
        a: ProductOperand,
        /// B.
        b: ProductOperand,
    },
}

/// A reduction at the machines.
pub struct ReduceRequest {
    /// The reduction.
    pub reduction: Reduction,
    /// The matrix or the product to reduce.
    pub subject: ReduceSubject,
    /// Kernel of the products, by name, or `auto`.
    pub kernel: String,
    /// Whether this process's own threads hold parts, too.
    pub who: Preference,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
    /// How thoroughly the result of a product is checked.
    pub check: CheckRequest,
}

/// How a reduction went.
#[derive(Clone, Debug)]
pub struct ReduceReport {
    /// Machines that took part, each with the bytes of its answers.
    pub machines: Vec<(String, u64)>,
    /// Bytes sent to all of them, all framing included.
    pub bytes_sent: u64,
    /// Whether the result was checked.
    pub is_checked: bool,
    /// Rows of the product that this process has computed again, since their sums were doubtful.
    pub rows_recomputed: u64,
    /// Seconds from the first hello to the result.
    pub seconds: f64,
}

/// The placed operand with its role, and the operand that travels.
struct Roles {
    placed: PlacedOperand,
    role: ReducedRole,
    travelling: Option<Matrix>,
    alpha: f64,
}

/// Where the answers of one machine lie in the reduced matrix.
type Answers = Vec<(Rect, Vec<u8>)>;

impl ReduceSubject {
    /// Name, shape and element type of the reduced matrix.
    fn described(&self) -> (String, Shape, DType) {
        match self {
            Self::Matrix(of) => (of.matrix.name().to_owned(), of.matrix.shape(), of.matrix.dtype()),
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
        match self {
            Self::Matrix(of) => of.placed.is_some(),
            Self::Product { a, b, .. } => a.placed.is_some() || b.placed.is_some(),
        }
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

    /// The placed operand and the travelling one, for each role that `product_roles` names.
    fn roles(&self) -> Vec<Roles> {
        match self {
            Self::Matrix(of) => {
                let role = ReducedRole::Itself;
                let roles = of.placed.map(|placed| Roles { placed, role, travelling: None, alpha: 1.0 });
                roles.into_iter().collect()
            }
            Self::Product { alpha, a, b } => {
                let elements = |one: &ProductOperand| one.placed.and_then(|_| one.matrix.shape().elements());
                let of = |role: ReducedRole| {
                    let (one, other) = if role == ReducedRole::Left { (a, b) } else { (b, a) };
                    let travelling = Some(other.matrix.clone());
                    one.placed.map(|placed| Roles { placed, role, travelling, alpha: *alpha })
                };
                product_roles(elements(a), elements(b)).into_iter().filter_map(of).collect()
            }
        }
    }
}

impl Cluster {
    /// Reduces at the machines. The subject must be placed (`ReduceSubject::is_placed`).
    pub async fn reduce(
        &mut self,
        request: ReduceRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(Vec<ReducedMatrix>, ReduceReport), PrimaryError> {
        let began = Instant::now();
        let (name, shape, dtype) = request.subject.described();
        self.reducible(&request, (&name, shape, dtype))?;
        let mut objection = None;
        for roles in request.subject.roles() {
            let id = roles.placed.array;
            let source = self.arrays.get(id)?.source.clone();
            let probe = (request.kernel.clone(), dtype, request.subject.flops());
            let opened = self.holders(&request.sessions, probe, request.who, watch).await?;
            let mut holders = self.known_holders(id, opened.0);
            let layout = self.arrays.get(id)?.layout.clone();
            match layout.reduce_shares(roles.placed.transposed, roles.role, &holders.offered()) {
                Ok(shares) => {
                    let answered =
                        self.at_all(&request, &roles, (&layout, shares), &mut holders, watch).await;
                    let bytes_sent = holders.bytes_sent;
                    self.idle.release(holders.slots.into_iter().flatten().collect()).await;
                    let (answers, machines, sketch) = answered?;
                    let (answers, sums) = split(request.reduction, dtype, answers);
                    let merged = merged_as(dtype, (request.reduction, &name, shape), answers)?;
                    let is_checked = sketch.is_some();
                    let rows_recomputed = match sketch {
                        Some(sketch) => checked(&request, sketch, sums, &merged).await?,
                        None => 0,
                    };
                    let seconds = began.elapsed().as_secs_f64();
                    return Ok((
                        merged,
                        ReduceReport { machines, bytes_sent, is_checked, rows_recomputed, seconds },
                    ));
                }
                Err(ReduceObjection::Missing(missing)) => {
                    self.idle.release(holders.slots.into_iter().flatten().collect()).await;
                    return Err(self.lost_part(id, missing.part));
                }
                Err(ReduceObjection::CutDepth) => {
                    self.idle.release(holders.slots.into_iter().flatten().collect()).await;
                    objection.get_or_insert_with(|| cut_depth(&source, roles.role));
                }
            }
        }
        Err(objection
            .unwrap_or_else(|| PrimaryError::Operands(format!("{name} is not placed: place it with put"))))
    }

    /// Refuses a matrix that has no such reduction.
    fn reducible(
        &self,
        request: &ReduceRequest,
        (name, shape, dtype): (&str, Shape, DType),
    ) -> Result<(), PrimaryError> {
        if let Some(why) = request.reduction.refusal(shape) {
            return Err(PrimaryError::Operands(format!("{name} {why}")));
        }
        let operands: Vec<&ProductOperand> = match &request.subject {
            ReduceSubject::Matrix(of) => vec![of],
            ReduceSubject::Product { a, b, .. } => vec![a, b],
        };
        for operand in operands {
            super::arrays::fits(operand, &self.arrays)?;
            if operand.matrix.dtype() != dtype {
                let (one, other) = (operand.matrix.name(), operand.matrix.dtype());
                return Err(PrimaryError::Operands(format!(
                    "{one} is {other}, and {name} is computed as {dtype}"
                )));
            }
        }
        match &request.subject {
            ReduceSubject::Product { a, .. } if a.matrix.shape().cols == 0 => {
                Err(PrimaryError::Operands(format!("{name} is a product of depth 0")))
            }
            _ if shape.elements() == Some(0) => {
                Err(PrimaryError::Operands(format!("{name} is {shape} and has no elements")))
            }
            _ => Ok(()),
        }
    }

    fn lost_part(&self, id: ArrayId, part: usize) -> PrimaryError {
        self.arrays.get(id).map_or_else(|e| e, |array| array.lost(part))
    }

    /// Asks all machines; their answers, and what this process has computed meanwhile for the check.
    async fn at_all(
        &mut self,
        request: &ReduceRequest,
        roles: &Roles,
        (layout, shares): (&ArrayLayout, Vec<ReduceShare>),
        holders: &mut Holders,
        watch: &dyn ProductObserver,
    ) -> Result<(Answers, Vec<(String, u64)>, Option<RowSketch>), PrimaryError> {
        let lines = match roles.role {
            ReducedRole::Right => {
                self.arrays.get(roles.placed.array)?.lines[usize::from(roles.placed.transposed)].clone()
            }
            _ => LazyLines::default(),
        };
        let sketching = tokio::task::spawn_local(sketch_of(request.subject.clone(), request.check, lines));
        let mut rounds = BTreeMap::new();
        for (machine, slot) in holders.slots.iter().enumerate() {
            let own: Vec<ReduceShare> =
                shares.iter().filter(|share| share.machine == machine).copied().collect();
            // A share's machine is there: the plan has looked.
            let Some(session) = slot.as_ref().filter(|_| !own.is_empty()) else { continue };
            let left_bytes = session.welcome.hold_bytes;
            rounds.insert(machine, self.questions(request.reduction, roles, (layout, &own), left_bytes)?);
        }
        let (mut answers, mut reports, mut failed) = (Vec::new(), Vec::new(), None);
        for EndedJob { machine, result } in at_once(&mut holders.slots, jobs_of(rounds)).await? {
            let name = &holders.names[machine];
            match result {
                Ok((sent, answered)) => {
                    holders.bytes_sent += sent;
                    match answered {
                        Ok(new) => {
                            let new: Answers = new.into_iter().filter_map(reduction_of).collect();
                            reports
                                .push((name.clone(), new.iter().map(|(_, bytes)| bytes.len() as u64).sum()));
                            answers.extend(new);
                        }
                        Err(refusal) => {
                            failed = Some(PrimaryError::Failed(format!("worker {name}: {}", refusal.why)));
                        }
                    }
                }
                Err(LostConnection { name, why }) => {
                    early_loss(watch, name, why);
                    let part = shares.iter().find(|share| share.machine == machine);
                    // A machine without a share is missed by the next task only.
                    failed = part.map(|share| self.lost_part(roles.placed.array, share.part)).or(failed);
                }
            }
        }
        if let Some(e) = failed {
            sketching.abort();
            return Err(e);
        }
        let sketch =
            sketching.await.map_err(|e| PrimaryError::Failed(format!("checking a reduction: {e}")))??;
        reports.sort();
        Ok((answers, reports, sketch))
    }

    /// The questions to one machine, in order.
    fn questions(
        &mut self,
        reduction: Reduction,
        roles: &Roles,
        (layout, shares): (&ArrayLayout, &[ReduceShare]),
        left_bytes: u64,
    ) -> Result<Vec<QuestionRound>, PrimaryError> {
        let array = self.arrays.get(roles.placed.array)?;
        let parts: Vec<u64> = shares.iter().map(|share| array.parts[share.part].number).collect();
        let blocks: Vec<Option<PartToPut>> = match &roles.travelling {
            None => vec![None],
            Some(matrix) => {
                let shape = matrix.shape();
                let is_left = roles.role == ReducedRole::Right;
                let (lines, depth) =
                    if is_left { (shape.rows, shape.cols) } else { (shape.cols, shape.rows) };
                let line_bytes = depth.saturating_mul(layout.dtype.size_bytes() as u64);
                let block = |span: Span| {
                    let whole = shape.rect();
                    let rect =
                        if is_left { Rect::new(span, whole.cols) } else { Rect::new(whole.rows, span) };
                    Some(PartToPut { source: matrix.clone(), rect, number: 0 })
                };
                travel_blocks(lines, line_bytes, left_bytes).into_iter().map(block).collect()
            }
        };
        let (code, count) = reduction.code();
        let mut rounds = Vec::new();
        for block in blocks {
            let block = block.map(|block| PartToPut { number: self.arrays.number(), ..block });
            let mut questions = Vec::new();
            for (share, part) in shares.iter().zip(&parts) {
                let placed = ResidentView::of(*part, roles.placed.transposed, share.operand);
                let (rect, left, right) = operands(roles, share.operand, placed, block.as_ref());
                let number = self.arrays.number();
                let head =
                    ReduceHead { number, reduction: code, count, dtype: layout.dtype, rect, left, right };
                let sums = if right.is_some() { Reduction::RowSum.bytes_of(rect, layout.dtype) } else { 0 };
                questions.push(Question::Reduce(head, reduction.bytes_of(rect, layout.dtype) + sums));
            }
            let blocks = block.map(TravellingBlock::Put).into_iter().collect();
            rounds.push(QuestionRound { blocks, questions, waits: false });
        }
        Ok(rounds)
    }
}

/// The bytes of a reduction; other questions are not asked here.
fn reduction_of(answer: Answer) -> Option<(Rect, Vec<u8>)> {
    match answer {
        Answer::Reduced(_, rect, bytes) => Some((rect, bytes)),
        Answer::Made(_) => None,
    }
}

/// The reduced rectangle of a share, its left operand, and its right one if it is that of a product.
fn operands(
    roles: &Roles,
    share: Rect,
    placed: ResidentView,
    block: Option<&PartToPut>,
) -> (Rect, ResidentView, Option<ReducedFactor>) {
    let Some(block) = block else { return (share, placed, None) };
    let travelled = ResidentView::of(block.number, false, block.rect);
    let (rect, left, view, depth) = match roles.role {
        ReducedRole::Left => (Rect::new(share.rows, block.rect.cols), placed, travelled, share.cols.len()),
        _ => (Rect::new(block.rect.rows, share.cols), travelled, placed, share.rows.len()),
    };
    (rect, left, Some(ReducedFactor { view, depth, alpha: roles.alpha }))
}

/// The sums of the rows of the product, if it is one and is to be checked. Integers wrap, which sums in f64 do not.
async fn sketch_of(
    subject: ReduceSubject,
    check: CheckRequest,
    lines: LazyLines,
) -> Result<Option<RowSketch>, PrimaryError> {
    match subject {
        ReduceSubject::Product { alpha, a, b }
            if check.effort != Effort::Off && a.matrix.dtype().is_float() =>
        {
            let work = move || RowSketch::of(alpha, [&a.matrix, &b.matrix], &lines, check.threads);
            Ok(Some(off_loop("checking a reduction", work).await??))
        }
        _ => Ok(None),
    }
}

/// Compares the rows that the sums of the machines make most doubtful; how many.
async fn checked(
    request: &ReduceRequest,
    sketch: RowSketch,
    sums: Vec<(Span, Vec<f64>)>,
    merged: &[ReducedMatrix],
) -> Result<u64, PrimaryError> {
    let ReduceSubject::Product { a, b, .. } = request.subject.clone() else { return Ok(0) };
    let (reduction, check) = (request.reduction, request.check);
    let rows = sketch.doubtful(sums, check.effort);
    let work = move || SampledRows::of(reduction, [&a.matrix, &b.matrix], (rows, sketch), check.threads);
    let sampled = off_loop("checking a reduction", work).await??;
    judge(reduction, &sampled, merged).map_err(PrimaryError::Wrong)?;
    Ok(sampled.count())
}

/// The reductions of the answers, and the sums of rows that follow them in those of a product.
fn split(reduction: Reduction, dtype: DType, answers: Answers) -> (Answers, Vec<(Span, Vec<f64>)>) {
    let mut sums = Vec::new();
    let one = |(rect, mut bytes): (Rect, Vec<u8>)| {
        // The answer has as many bytes as were asked for.
        let of_rows =
            bytes.split_off(usize::try_from(reduction.bytes_of(rect, dtype)).unwrap_or(0).min(bytes.len()));
        if !of_rows.is_empty() && dtype.is_float() {
            let of_rows = of_rows.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            sums.push((rect.rows, of_rows.collect()));
        }
        (rect, bytes)
    };
    let answers = answers.into_iter().map(one).collect();
    (answers, sums)
}

fn cut_depth(source: &Matrix, role: ReducedRole) -> PrimaryError {
    let name = source.name();
    let (operand, shard) = match role {
        ReducedRole::Left => ("left", 0),
        _ => ("right", 1),
    };
    PrimaryError::Operands(format!(
        "{name} is cut along the depth of the product, so no machine has whole elements of it to reduce: as the {operand} \
         operand, place it with shard={shard} (its transpose with shard={})",
        1 - shard
    ))
}

fn merged_as(
    dtype: DType,
    what: (Reduction, &str, Shape),
    answers: Answers,
) -> Result<Vec<ReducedMatrix>, PrimaryError> {
    match dtype {
        DType::F32 => merged::<f32>(what, answers),
        DType::F64 => merged::<f64>(what, answers),
        DType::I32 => merged::<i32>(what, answers),
        DType::I64 => merged::<i64>(what, answers),
    }
}

/// The reduction of the whole matrix.
fn merged<T: Reducible>(
    (reduction, name, shape): (Reduction, &str, Shape),
    mut answers: Answers,
) -> Result<Vec<ReducedMatrix>, PrimaryError> {
    answers.sort_by_key(|(rect, _)| (rect.rows.start, rect.cols.start));
    let mut reducer = Reducer::<T>::new(reduction, name, shape)?;
    for (rect, bytes) in answers {
        let part = RectReduction::from_bytes(reduction, rect, &bytes).ok_or_else(|| {
            let place = place_of(rect, shape);
            PrimaryError::Failed(format!("the reduction of {place} of {name} came as bytes that are none"))
        })?;
        reducer.merge(part);
    }
    Ok(reducer.finish()?)
}
