//! Counts the work that machines have done in the tasks of one operation on arrays.
//!
//! Place in the flow: `machines.rs` makes a count before the tasks of several machines begin; each task adds to it; the observer
//! is told of it while they run.
//!
//! Invariant: the count never exceeds its total.
//!
//! Deliberately absent: the time that is left, and a total over the steps of an operation: each begins a new count.

use crate::product::ProductObserver;
use bramble_arrays::{MachineTask, QuestionRound, RectToGet};
use bramble_matrix::{DType, Matrix};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How often an observer is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The unit of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskUnit {
    /// Bytes that were sent to be placed.
    PlacedBytes,
    /// Bytes that have come.
    FetchedBytes,
    /// Answers of machines: each has reduced or made a piece.
    Answers,
}

/// Progress of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    /// The unit of both numbers.
    pub unit: TaskUnit,
    /// Units that are done.
    pub done: u64,
    /// All units.
    pub of: u64,
}

/// A count that tasks share.
pub(super) struct TaskCount {
    unit: TaskUnit,
    done: Cell<u64>,
    of: u64,
}

impl TaskCount {
    fn new(unit: TaskUnit, of: u64) -> Rc<Self> {
        Rc::new(Self { unit, done: Cell::new(0), of })
    }

    /// For these tasks, which all put or all ask.
    pub(super) fn of_tasks(tasks: &[(usize, MachineTask<Matrix>)]) -> Rc<Self> {
        let bytes = |task: &MachineTask<Matrix>| match task {
            MachineTask::Put(part) => part.rect.shape().bytes(part.source.dtype()).unwrap_or(0),
            MachineTask::Ask(_) => 0,
        };
        let questions = |rounds: &[QuestionRound<Matrix>]| {
            rounds.iter().map(|round| round.questions.len() as u64).sum::<u64>()
        };
        let answers = |task: &MachineTask<Matrix>| match task {
            MachineTask::Put(_) => 0,
            MachineTask::Ask(rounds) => questions(rounds),
        };
        let total =
            |count: &dyn Fn(&MachineTask<Matrix>) -> u64| tasks.iter().map(|(_, task)| count(task)).sum();
        match tasks.first() {
            Some((_, MachineTask::Ask(_))) => Self::new(TaskUnit::Answers, total(&answers)),
            _ => Self::new(TaskUnit::PlacedBytes, total(&bytes)),
        }
    }

    /// For rectangles to fetch.
    pub(super) fn of_rects(wanted: &[(usize, RectToGet)], dtype: DType) -> Rc<Self> {
        let bytes = |(_, wanted): &(usize, RectToGet)| wanted.rect.shape().bytes(dtype).unwrap_or(0);
        Self::new(TaskUnit::FetchedBytes, wanted.iter().map(bytes).sum())
    }

    /// More is done.
    pub(super) fn add(&self, more: u64) {
        self.done.set(self.done.get().saturating_add(more).min(self.of));
    }

    /// Does the work, and tells the observer meanwhile.
    pub(super) async fn told<T>(&self, watch: &dyn ProductObserver, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(TELL_EVERY) => {
                    watch.tasks(TaskProgress { unit: self.unit, done: self.done.get(), of: self.of });
                }
            }
        }
    }
}
