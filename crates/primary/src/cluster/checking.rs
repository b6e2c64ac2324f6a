//! Checks an array that machines have made, without fetching it.
//!
//! Place in the flow: `bramble_arrays` asks for it when the parts are made, and after lost parts were made again.
//!
//! Invariants: the machines sum the lines of their parts; the sums are compared with those of the sources
//! (`bramble_verify::SourceExpression`), by rows or by columns, whichever needs fewer bytes. Doubtful lines are fetched and
//! compared element by element; a wrong element is an error that names its machine. Each replica is checked by itself.
//!
//! Deliberately absent: computing wrong elements again. The array is not kept.

use super::ClusterArrays;
use super::machines::OpenMachines;
use crate::product::CheckRequest;
use bramble_arrays::{ArrayError, ArrayHolders, ArrayId, ArrayMachines, KnownPart, RectToGet, SumsOfParts};
use bramble_matrix::{DType, Matrix, MatrixError, Rect, Shape, Span};
use bramble_sessions::{PrimaryError, off_loop};
use bramble_verify::{ComputedLines, Effort, LineSums, SourceExpression};
use std::sync::Arc;
use tokio::task::{JoinError, JoinHandle};

/// Sums of lines of parts: the lines, and the sums as bytes.
type PartSums = Vec<(Span, Vec<u8>)>;
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

impl OpenMachines<'_> {
    /// Compares an array with its sources, and returns the number of lines that it computed again.
    pub(super) async fn compare(
        &mut self,
        BegunCheck { expression, is_turned, effort, summing }: BegunCheck,
        sums: SumsOfParts,
        id: ArrayId,
        arrays: &mut ClusterArrays,
        holders: &mut ArrayHolders,
    ) -> Result<u64, ArrayError<PrimaryError>> {
        let array = arrays.get(id)?;
        let (name, layout) = (array.name.clone(), array.layout.clone());
        let parts = array.known_parts(holders)?;
        // Replicas are checked one by one, and cut parts together.
        let groups: Vec<&[KnownPart]> = match layout.axis {
            Some(_) => vec![&parts[..]],
            None => parts.chunks(1).collect(),
        };
        let ended = |e: JoinError| ArrayError::Failed(format!("checking an array: {e}"));
        let known = summing.await.map_err(ended)?.map_err(ArrayError::Shell)?.map_err(of_matrix)?;
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
            recomputed += looked.judge(doubtful, self, holders).await?;
            let across = if is_turned { layout.shape.rows } else { layout.shape.cols };
            let [own, other] = known.known(&looked_at, &others, across as usize).map(Arc::new);
            let lines = if is_turned { [other, own] } else { [own, other] };
            if let Some(array) = arrays.get_mut(id) {
                array.kept.passed(lines);
            }
        }
        Ok(recomputed)
    }
}

fn of_matrix(e: MatrixError) -> ArrayError<PrimaryError> {
    ArrayError::Shell(PrimaryError::Matrix(e))
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
        machines: &mut OpenMachines<'_>,
        holders: &mut ArrayHolders,
    ) -> Result<u64, ArrayError<PrimaryError>> {
        if doubtful.is_empty() {
            return Ok(0);
        }
        if !self.dtype.is_float() {
            let line = if self.is_turned { "column" } else { "row" };
            return Err(ArrayError::Wrong(format!(
                "{} is wrong at {line} {}: a machine has computed wrongly; check the memory, clock and cooling of those that \
                 hold it",
                self.name, doubtful[0]
            )));
        }
        let kept = self.lines(&doubtful, machines, holders).await?;
        let (expression, count) = (self.expression.clone(), doubtful.len() as u64);
        let work = move || ComputedLines::of(&expression, doubtful);
        let lines =
            off_loop("checking an array", work).await.map_err(ArrayError::Shell)?.map_err(of_matrix)?;
        let wrong = (0..kept.len()).find_map(|at| lines.wrong_element(at, &kept[at]));
        let Some((line, place)) = wrong else { return Ok(count) };
        let (row, col) = if self.is_turned { (place, line) } else { (line, place) };
        let has =
            |known: &&KnownPart| known.part.rect.rows.contains(row) && known.part.rect.cols.contains(col);
        let machine =
            self.parts.iter().find(has).map_or("a machine", |known| holders.name(known.part.machine));
        Err(ArrayError::Wrong(format!(
            "{} is wrong at row {row}, column {col}: {machine} has computed wrongly; check its memory, clock and cooling",
            self.name
        )))
    }

    /// The elements of lines, as they are kept.
    async fn lines(
        &self,
        doubtful: &[u64],
        machines: &mut OpenMachines<'_>,
        holders: &mut ArrayHolders,
    ) -> Result<Vec<Vec<f64>>, ArrayError<PrimaryError>> {
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
        let output = machines.output(Shape::new(rows, cols), self.dtype).map_err(ArrayError::Shell)?;
        let (output, lost) = machines.get(wanted, output).await.map_err(ArrayError::Shell)?;
        lost.iter().for_each(|machine| holders.lose(*machine));
        if let Some(machine) = lost.first() {
            let name = holders.name(*machine);
            return Err(ArrayError::PartLost(format!("{name} was lost while its part was checked")));
        }
        let matrix = machines.matrix(output).map_err(ArrayError::Shell)?;
        let matrix = matrix.converted(DType::F64).map_err(of_matrix)?;
        let matrix = if self.is_turned { matrix.transposed() } else { matrix };
        let line = |at: u64| elements_of(&matrix, at).map_err(ArrayError::Shell);
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
