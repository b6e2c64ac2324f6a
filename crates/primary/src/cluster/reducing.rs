//! Reduces placed matrices, and products with one, at the machines that hold the parts.
//!
//! Place in the flow: a call opens sessions with the machines, `bramble_arrays` asks them, and this file merges their answers.
//!
//! Invariants: the answers are merged in the order of their rectangles, not of their arrival. After an error the cluster is as
//! before, except for machines that were lost.
//!
//! Deliberately absent: which machine reduces what (`plan/src/reduce.rs`), and matrices without parts.

use super::Cluster;
use super::machines::{OpenMachines, primary_error};
use crate::product::{CheckRequest, ProductObserver, SessionRequest};
use bramble_arrays::{ArrayOperation, ReducedFrom, ReducedParts, place_of};
use bramble_link::LocalFuture;
use bramble_matrix::{
    DType, Matrix, Rect, RectReduction, ReducedMatrix, Reducer, Reducible, Reduction, Shape, Span,
};
use bramble_plan::{Preference, ReducedRole};
use bramble_sessions::{PrimaryError, off_loop};
use bramble_verify::{Effort, LazyLines, RowSketch, SampledRows, judge};
use std::time::Instant;
use tokio::task::JoinHandle;

/// The matrix or the product to reduce.
pub type ReduceSubject = ReducedFrom<Matrix>;

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

/// Where the answers of one machine lie in the reduced matrix.
type Answers = Vec<(Rect, Vec<u8>)>;

impl Cluster {
    /// Reduces at the machines. The subject must be placed (`ReduceSubject::is_placed`).
    pub fn reduce<'f>(
        &'f mut self,
        request: ReduceRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<(Vec<ReducedMatrix>, ReduceReport), PrimaryError>> {
        Box::pin(async move {
            let began = Instant::now();
            let (name, shape, dtype) = request.subject.described();
            let probe = (request.kernel.clone(), dtype, request.subject.flops());
            let (opened, _) = self.holders(&request.sessions, probe, request.who, watch).await?;
            let (mut machines, mut holders) = OpenMachines::new(opened, request.sessions.random, None, watch);
            let mut operation =
                ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
            let answered = at_all(&request, &mut operation).await;
            let bytes_sent = machines.bytes_sent;
            self.idle.release(machines.into_sessions()).await;
            let (ReducedParts { answers, machines }, sketching) = answered?;
            let sketch =
                sketching.await.map_err(|e| PrimaryError::Failed(format!("checking a reduction: {e}")))??;
            let (answers, sums) = split(request.reduction, dtype, answers);
            let merged = merged_as(dtype, (request.reduction, &name, shape), answers)?;
            let is_checked = sketch.is_some();
            let rows_recomputed = match sketch {
                Some(sketch) => checked(&request, sketch, sums, &merged).await?,
                None => 0,
            };
            let seconds = began.elapsed().as_secs_f64();
            Ok((merged, ReduceReport { machines, bytes_sent, is_checked, rows_recomputed, seconds }))
        })
    }
}

/// Asks all machines; their answers, and what this process computes meanwhile for the check.
async fn at_all(
    request: &ReduceRequest,
    operation: &mut ArrayOperation<'_, OpenMachines<'_>>,
) -> Result<(ReducedParts, JoinHandle<Result<Option<RowSketch>, PrimaryError>>), PrimaryError> {
    let plan = operation.reduction_plan(request.reduction, &request.subject).map_err(primary_error)?;
    let lines = match plan.role {
        ReducedRole::Right => {
            let array = operation.arrays.get(plan.placed.array).map_err(primary_error)?;
            array.kept.lines[usize::from(plan.placed.transposed)].clone()
        }
        _ => LazyLines::default(),
    };
    let sketching = tokio::task::spawn_local(sketch_of(request.subject.clone(), request.check, lines));
    match operation.reduce(request.reduction, &plan).await {
        Ok(parts) => Ok((parts, sketching)),
        Err(e) => {
            sketching.abort();
            Err(primary_error(e))
        }
    }
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
