//! The sums of rows and columns of parts, by which machines show that they have made the right elements.
//!
//! Place in the flow: asked with the steps that make a part, or after lost parts were made again.
//!
//! Invariant: there are sums of the rows and of the columns of each part.
//!
//! Deliberately absent: the comparison (`ArrayMachines::check`).

use crate::{
    Answer, ArrayError, ArrayMachines, ArrayOperation, KnownPart, MachineTask, Question, QuestionRound,
    TaskOutcome,
};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use bramble_base::{DType, Rect, Reduction, Span};
use bramble_plan::PlacedPart;
use bramble_wire::message::{ReduceHead, ResidentView};

/// The machine of a part, and its first row and column.
pub type PartKey = (usize, u64, u64);
/// The sums of the rows and of the columns of a part.
pub type SumsOfPart = [(Span, Vec<u8>); 2];
/// The sums of all parts of an array.
pub type SumsOfParts = BTreeMap<PartKey, SumsOfPart>;

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// The questions for the sums of rows and columns of a part, when it is made.
    pub(crate) fn sum_questions(&mut self, part: u64, rect: Rect, dtype: DType) -> QuestionRound<M::Matrix> {
        let mut question = |reduction: Reduction| {
            let (code, count) = reduction.code();
            let (number, left) = (self.arrays.number(), ResidentView::of(part, false, rect));
            let head = ReduceHead { number, reduction: code, count, dtype, rect, left, right: None };
            Question::Reduce(head, reduction.bytes_of(rect, dtype))
        };
        let questions = Vec::from([question(Reduction::RowSum), question(Reduction::ColSum)]);
        QuestionRound { blocks: Vec::new(), questions, waits: true }
    }

    /// The sums of rows and columns of all parts.
    pub(crate) async fn sums_of(
        &mut self,
        parts: &[KnownPart],
        dtype: DType,
    ) -> Result<SumsOfParts, ArrayError<M::Error>> {
        let mut rounds: BTreeMap<usize, Vec<QuestionRound<M::Matrix>>> = BTreeMap::new();
        for KnownPart { part, number, .. } in parts {
            let round = self.sum_questions(*number, part.rect, dtype);
            rounds.entry(part.machine).or_default().push(round);
        }
        let tasks = rounds.into_iter().map(|(machine, rounds)| (machine, MachineTask::Ask(rounds))).collect();
        let (mut sums, mut failed) = (BTreeMap::new(), None);
        for end in self.run(tasks).await? {
            let name = self.holders.name(end.machine);
            match end.outcome {
                Some(TaskOutcome::Answered(answers)) => {
                    let own = parts.iter().filter(|known| known.part.machine == end.machine);
                    sums.extend(own.map(|known| sums_in(&answers, &known.part)));
                }
                Some(TaskOutcome::Refused(refusal)) => {
                    failed.get_or_insert(ArrayError::Failed(format!("worker {name}: {}", refusal.why)));
                }
                // A machine without a part is missed by the next operation only.
                None if parts.iter().all(|known| known.part.machine != end.machine) => {}
                None | Some(TaskOutcome::Held { .. }) => {
                    failed =
                        Some(ArrayError::PartLost(format!("{name} was lost while its part was checked")));
                }
            }
        }
        failed.map_or(Ok(sums), Err)
    }
}

/// The sums of the rows and of the columns of a part, among the answers of its machine; with their key.
pub(crate) fn sums_in(answers: &[Answer], part: &PlacedPart) -> (PartKey, SumsOfPart) {
    let sums_of = |reduction: Reduction, lines: Span| {
        let bytes = answers.iter().find_map(|answer| answer.of(reduction, part.rect));
        (lines, bytes.unwrap_or_default().to_vec())
    };
    let Rect { rows, cols } = part.rect;
    let sums = [sums_of(Reduction::RowSum, rows), sums_of(Reduction::ColSum, cols)];
    ((part.machine, rows.start, cols.start), sums)
}
