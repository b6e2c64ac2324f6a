//! Checks an array that machines have made, without bringing it home.
//!
//! Place in the flow: `making.rs` calls this when the parts are made, and after lost parts were made again.
//!
//! Invariants: the machines sum the lines of their parts; the sums are compared with those of the sources
//! (`bramble_verify::SourceExpression`), by rows or by columns, whichever needs fewer bytes. Doubtful lines are fetched and
//! compared element by element; a wrong element is an error that names its machine. Each replica is checked by itself.
//!
//! Deliberately absent: computing wrong elements again. The array is not kept.

use super::Cluster;
use super::arrays::ArrayId;
use super::asking::{Answer, Question, QuestionRound, jobs_of};
use super::getting::{GetError, KnownPart, RectToGet, get, whole_again};
use super::putting::Holders;
use crate::gathering::early_loss;
use crate::product::{CheckRequest, ProductObserver};
use bramble_matrix::{DType, Matrix, MatrixError, Output, Rect, Reduction, Shape, Span};
use bramble_plan::PlacedPart;
use bramble_sessions::{EndedJob, LostConnection, PrimaryError, at_once, off_loop};
use bramble_verify::{ComputedLines, Effort, LineSums, SourceExpression};
use bramble_wire::message::{ReduceHead, ResidentView};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Sums of lines of parts: the lines, and the sums as bytes.
type PartSums = Vec<(Span, Vec<u8>)>;
/// The machine of a part, and its first row and column.
type PartKey = (usize, u64, u64);
/// The sums of the rows and of the columns of a part.
type SumsOfPart = [(Span, Vec<u8>); 2];
/// The sums of all parts of an array.
pub(super) type SumsOfParts = BTreeMap<PartKey, SumsOfPart>;

/// A check that computes the sums of the sources while the machines work.
pub(super) struct BegunCheck {
    /// The array, or its transpose if the check is by columns.
    expression: SourceExpression,
    is_turned: bool,
    effort: Effort,
    summing: JoinHandle<Result<Result<LineSums, MatrixError>, PrimaryError>>,
}

/// An array to check, as the check looks at it: by rows, or turned, so that its columns are rows.
struct Looked<'a> {
    name: &'a str,
    shape: Shape,
    dtype: DType,
    expression: SourceExpression,
    is_turned: bool,
    parts: &'a [KnownPart],
}

impl Cluster {
    /// Checks an array, and returns the number of lines that it computed again. Without `sums` it asks the machines for them.
    pub(super) async fn check_array(
        &mut self,
        id: ArrayId,
        (begun, sums): (BegunCheck, Option<SumsOfParts>),
        (holders, connections): (&mut Holders, &[u64]),
        watch: &dyn ProductObserver,
    ) -> Result<u64, PrimaryError> {
        let BegunCheck { expression, is_turned, effort, summing } = begun;
        let array = self.arrays.get(id)?;
        let (name, layout) = (array.source.name().to_owned(), array.layout.clone());
        let parts = array.known_parts(connections)?;
        // Replicas are checked one by one, and cut parts together.
        let groups: Vec<&[KnownPart]> = match layout.axis {
            Some(_) => vec![&parts[..]],
            None => parts.chunks(1).collect(),
        };
        let sums = match sums {
            Some(sums) => Ok(sums),
            None => self.sums_of(&parts, layout.dtype, holders, watch).await,
        };
        let known =
            summing.await.map_err(|e| PrimaryError::Failed(format!("checking an array: {e}")))???;
        let sums = sums?;
        let mut recomputed = 0;
        for group in groups {
            let [rows, columns] = sums_of_group(group, &sums);
            let (looked_at, others) = if is_turned { (columns, rows) } else { (rows, columns) };
            let doubtful = known.doubtful(&looked_at, effort);
            let looked = Looked {
                name: &name,
                shape: layout.shape,
                dtype: layout.dtype,
                expression: expression.clone(),
                is_turned,
                parts: group,
            };
            recomputed += looked.judge(doubtful, holders, watch).await?;
            let across = if is_turned { layout.shape.rows } else { layout.shape.cols };
            let [own, other] = known.known(&looked_at, &others, across as usize).map(Arc::new);
            let lines = if is_turned { [other, own] } else { [own, other] };
            if let Some(array) = self.arrays.get_mut(id) {
                array.passed(lines);
            }
        }
        Ok(recomputed)
    }

    /// The questions for the sums of rows and columns of a part, when it is made.
    pub(super) fn sum_questions(&mut self, part: u64, rect: Rect, dtype: DType) -> QuestionRound {
        let mut question = |reduction: Reduction| {
            let (code, count) = reduction.code();
            let (number, left) = (self.arrays.number(), ResidentView::of(part, false, rect));
            let head = ReduceHead { number, reduction: code, count, dtype, rect, left, right: None };
            Question::Reduce(head, reduction.bytes_of(rect, dtype))
        };
        let questions = vec![question(Reduction::RowSum), question(Reduction::ColSum)];
        QuestionRound { blocks: Vec::new(), questions, waits: true }
    }

    /// The sums of rows and columns of all parts.
    async fn sums_of(
        &mut self,
        parts: &[KnownPart],
        dtype: DType,
        holders: &mut Holders,
        watch: &dyn ProductObserver,
    ) -> Result<SumsOfParts, PrimaryError> {
        let mut rounds: BTreeMap<usize, Vec<QuestionRound>> = BTreeMap::new();
        for KnownPart { part, number, .. } in parts {
            let round = self.sum_questions(*number, part.rect, dtype);
            rounds.entry(part.machine).or_default().push(round);
        }
        let mut sums = BTreeMap::new();
        for EndedJob { machine, result } in at_once(&mut holders.slots, jobs_of(rounds)).await? {
            match result {
                Ok((sent, Ok(answers))) => {
                    holders.bytes_sent += sent;
                    let own = parts.iter().filter(|known| known.part.machine == machine);
                    sums.extend(own.map(|known| sums_in(&answers, &known.part)));
                }
                Ok((_, Err(refusal))) => {
                    let name = &holders.names[machine];
                    return Err(PrimaryError::Failed(format!("worker {name}: {}", refusal.why)));
                }
                Err(LostConnection { name, why }) => {
                    holders.lost.push(early_loss(watch, name.clone(), why).name);
                    return Err(PrimaryError::PartLost(format!(
                        "{name} was lost while its part was checked"
                    )));
                }
            }
        }
        Ok(sums)
    }
}

impl BegunCheck {
    /// Begins the check of an array that is this expression; `None` if arrays are not checked.
    pub(super) fn begin(by_rows: SourceExpression, check: CheckRequest) -> Option<Self> {
        let CheckRequest { effort, threads, .. } = check;
        if effort == Effort::Off {
            return None;
        }
        let by_cols = by_rows.transposed();
        let is_turned = by_cols.bytes_to_read() < by_rows.bytes_to_read();
        let expression = if is_turned { by_cols } else { by_rows };
        let of = expression.clone();
        let work = move || LineSums::of(&of, threads);
        let summing = tokio::task::spawn_local(off_loop("checking an array", work));
        Some(Self { expression, is_turned, effort, summing })
    }
}

/// The sums of the rows and of the columns of a part, among the answers of its machine; with their key.
pub(super) fn sums_in(answers: &[Answer], part: &PlacedPart) -> (PartKey, SumsOfPart) {
    let sums_of = |reduction: Reduction, lines: Span| {
        let bytes = answers.iter().find_map(|answer| answer.of(reduction, part.rect));
        (lines, bytes.unwrap_or_default())
    };
    let Rect { rows, cols } = part.rect;
    let sums = [sums_of(Reduction::RowSum, rows), sums_of(Reduction::ColSum, cols)];
    ((part.machine, rows.start, cols.start), sums)
}

/// The sums of the rows and of the columns of some parts.
fn sums_of_group(group: &[KnownPart], sums: &SumsOfParts) -> [PartSums; 2] {
    let of = |known: &KnownPart| {
        let Rect { rows, cols } = known.part.rect;
        sums.get(&(known.part.machine, rows.start, cols.start)).cloned()
    };
    let (rows, columns) = group.iter().filter_map(of).map(|[rows, columns]| (rows, columns)).unzip();
    [rows, columns]
}

impl Looked<'_> {
    /// Compares doubtful lines with the elements that the machines hold; the number of these lines.
    async fn judge(
        &self,
        doubtful: Vec<u64>,
        holders: &mut Holders,
        watch: &dyn ProductObserver,
    ) -> Result<u64, PrimaryError> {
        if doubtful.is_empty() {
            return Ok(0);
        }
        if !self.dtype.is_float() {
            let line = if self.is_turned { "column" } else { "row" };
            return Err(PrimaryError::Wrong(format!(
                "{} is wrong at {line} {}: a machine has computed wrongly; check the memory, clock and cooling of those that \
                 hold it",
                self.name, doubtful[0]
            )));
        }
        let kept = self.lines(&doubtful, holders, watch).await?;
        let (expression, count) = (self.expression.clone(), doubtful.len() as u64);
        let work = move || ComputedLines::of(&expression, doubtful);
        let lines = off_loop("checking an array", work).await??;
        let wrong = (0..kept.len()).find_map(|at| lines.wrong_element(at, &kept[at]));
        let Some((line, place)) = wrong else { return Ok(count) };
        let (row, col) = if self.is_turned { (place, line) } else { (line, place) };
        let has =
            |known: &&KnownPart| known.part.rect.rows.contains(row) && known.part.rect.cols.contains(col);
        let machine =
            self.parts.iter().find(has).map_or("a machine", |known| &holders.names[known.part.machine]);
        Err(PrimaryError::Wrong(format!(
            "{} is wrong at row {row}, column {col}: {machine} has computed wrongly; check its memory, clock and cooling",
            self.name
        )))
    }

    /// The elements of lines, as they are kept.
    async fn lines(
        &self,
        doubtful: &[u64],
        holders: &mut Holders,
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Vec<f64>>, PrimaryError> {
        let count = doubtful.len() as u64;
        let (rows, cols) = if self.is_turned { (self.shape.rows, count) } else { (count, self.shape.cols) };
        let mut wanted = Vec::new();
        for (at, line) in doubtful.iter().enumerate() {
            let (at, one) = (at as u64, Span::new(*line, line + 1));
            for KnownPart { part, number, .. } in self.parts {
                let Rect { rows, cols } = part.rect;
                let (rect, to) = match self.is_turned {
                    true => (Rect::new(rows, cols.intersect(one)), (rows.start, at)),
                    false => (Rect::new(rows.intersect(one), cols), (at, cols.start)),
                };
                if !rect.rows.is_empty() && !rect.cols.is_empty() {
                    wanted.push((part.machine, RectToGet { number: *number, rect, to }));
                }
            }
        }
        let output = Output::anonymous(Shape::new(rows, cols), self.dtype)?;
        let got = get(holders, wanted, output, watch).await.map_err(|e| match e {
            GetError::Lost(machine) => PrimaryError::PartLost(format!(
                "{} was lost while its part was checked",
                holders.names[machine]
            )),
            GetError::Failed(e) => e,
        })?;
        let matrix = whole_again(got)?.seal()?.matrix()?.converted(DType::F64)?;
        let matrix = if self.is_turned { matrix.transposed() } else { matrix };
        let line = |at: u64| elements_of(&matrix, at);
        (0..count).map(line).collect()
    }
}

/// A row of a matrix of f64.
fn elements_of(matrix: &Matrix, row: u64) -> Result<Vec<f64>, PrimaryError> {
    let rect = Rect::new(Span::new(row, row + 1), Span::new(0, matrix.shape().cols));
    let buffer = matrix.block(rect)?;
    let view = matrix.block_view::<f64>(rect, &buffer);
    Ok((0..view.cols()).map(|col| view.at(0, col)).collect())
}
