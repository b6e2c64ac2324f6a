//! What operations need of the machines: the border between decisions and their execution.
//!
//! Place in the flow: an operation asks for tasks, and waits; the primary's shell implements the trait over sessions, the
//! simulator over simulated machines.
//!
//! Invariants: tasks run on several machines at once, and each ends once. A machine that breaks a rule, or whose link breaks, is
//! reported as lost, once; then all that it held is gone.
//!
//! Deliberately absent: which part goes where.

use crate::{
    Answer, ArrayError, ArrayHolders, ArrayId, MadeFrom, PartToPut, PlacedArray, PlacedArrays, QuestionRound,
    RectToGet, Refusal, SumsOfParts,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::{DType, Digest128, MatrixInfo, Rect, Shape};
use core::future::Future;

/// The work of one machine.
pub enum MachineTask<X> {
    /// It gets a part.
    Put(PartToPut<X>),
    /// It answers questions (`Asking`).
    Ask(Vec<QuestionRound<X>>),
}

/// How a task has ended.
#[derive(Debug)]
pub enum TaskOutcome {
    /// The machine holds the part, with this digest. `own`: that of the source, unless it is generated; or why it is useless.
    Held {
        /// As the machine has computed it.
        digest: Digest128,
        /// As this process has computed it.
        own: Result<Option<Digest128>, String>,
    },
    /// The answers to all questions.
    Answered(Vec<Answer>),
    /// The machine refuses.
    Refused(Refusal),
}

/// A task that has ended.
#[derive(Debug)]
pub struct TaskEnd {
    /// The machine's number.
    pub machine: usize,
    /// The outcome; `None` if the machine was lost, with a task or without.
    pub outcome: Option<TaskOutcome>,
}

/// Machines that were introduced to each other.
#[derive(Debug, Default)]
pub struct IntroducedHolders {
    /// Pairs that can pass blocks to each other, in both orders.
    pub pairs: BTreeSet<(usize, usize)>,
    /// The numbers by which machines know each other.
    pub peers: BTreeMap<usize, u32>,
    /// Machines that were lost.
    pub lost: Vec<usize>,
}

/// The registry of the shell that implements the trait.
pub type ArraysOf<M> = PlacedArrays<<M as ArrayMachines>::Matrix, <M as ArrayMachines>::Kept>;

/// Carries out what operations decide.
pub trait ArrayMachines {
    /// A matrix that this process can read, or the stand-in for one that only machines have.
    type Matrix: MatrixInfo;
    /// Data that the shell keeps beside an array.
    type Kept;
    /// Memory for a matrix that comes from machines.
    type Output;
    /// A check that computes with the sources while machines work.
    type Check;
    /// An error of this process.
    type Error;

    /// Runs tasks of several machines at once. Machines without a task hear from this process meanwhile.
    fn at_once(
        &mut self,
        tasks: Vec<(usize, MachineTask<Self::Matrix>)>,
    ) -> impl Future<Output = Result<Vec<TaskEnd>, Self::Error>>;

    /// Frees parts. A machine that is lost then is noticed by the next task.
    fn free(&mut self, machine: usize, numbers: &[u64]) -> impl Future<Output = ()>;

    /// The digest of a rectangle as a machine would compute it; `None` for a generated matrix.
    fn digest(
        &mut self,
        matrix: &Self::Matrix,
        rect: Rect,
    ) -> impl Future<Output = Result<Option<Digest128>, Self::Error>>;

    /// Introduces machines to each other.
    fn introduce(
        &mut self,
        pairs: &[(usize, usize)],
    ) -> impl Future<Output = Result<IntroducedHolders, Self::Error>>;

    /// Memory of this process for a matrix.
    fn output(&mut self, shape: Shape, dtype: DType) -> Result<Self::Output, Self::Error>;

    /// Gets rectangles, each from its machine, into an output; with the machines that were lost.
    fn get(
        &mut self,
        wanted: Vec<(usize, RectToGet)>,
        output: Self::Output,
    ) -> impl Future<Output = Result<(Self::Output, Vec<usize>), Self::Error>>;

    /// The digest of a part in an output, as its machine would compute it.
    fn digest_in(
        &mut self,
        output: &mut Self::Output,
        rect: Rect,
    ) -> impl Future<Output = Result<Digest128, Self::Error>>;

    /// The matrix in an output that is complete.
    fn matrix(&mut self, output: Self::Output) -> Result<Self::Matrix, Self::Error>;

    /// Why a matrix may have other elements than before, if that is known. `is_doubted`: elements are wrong, so that the least
    /// sign counts.
    fn change(&self, matrix: &Self::Matrix, is_doubted: bool) -> Option<String>;

    /// The data to keep beside an array that was put.
    fn kept_of_put(&mut self, matrix: &Self::Matrix) -> Self::Kept;

    /// The data to keep beside an array that was made; `matrices` are its operands, as far as this process has their elements.
    fn kept_of_made(
        &mut self,
        made: &MadeFrom<Self::Matrix>,
        matrices: &[Self::Matrix],
        arrays: &ArraysOf<Self>,
    ) -> Result<Self::Kept, ArrayError<Self::Error>>;

    /// Whether the sources of an array are so far that it should be fetched before another array is made from it.
    fn is_far(&self, array: &PlacedArray<Self::Matrix, Self::Kept>) -> bool;

    /// Begins the check of an array; `None` if arrays are not checked.
    fn begin_check(
        &mut self,
        made: &MadeFrom<Self::Matrix>,
        matrices: &[Self::Matrix],
        arrays: &ArraysOf<Self>,
    ) -> Result<Option<Self::Check>, ArrayError<Self::Error>>;

    /// Begins the check of an array of which parts were made again; `None` if arrays are not checked.
    fn begin_check_again(&mut self, array: &PlacedArray<Self::Matrix, Self::Kept>) -> Option<Self::Check>;

    /// Compares an array with its sources, by sums that its machines have sent; the number of lines that were computed again.
    fn check(
        &mut self,
        check: Self::Check,
        sums: SumsOfParts,
        id: ArrayId,
        arrays: &mut ArraysOf<Self>,
        holders: &mut ArrayHolders,
    ) -> impl Future<Output = Result<u64, ArrayError<Self::Error>>>;
}

/// An operation on the arrays of a cluster, over machines that have answered.
pub struct ArrayOperation<'a, M: ArrayMachines> {
    /// All arrays.
    pub arrays: &'a mut ArraysOf<M>,
    /// Carries out what is decided.
    pub machines: &'a mut M,
    /// The machines.
    pub holders: &'a mut ArrayHolders,
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Runs tasks, and marks the machines that were lost.
    pub(crate) async fn run(
        &mut self,
        tasks: Vec<(usize, MachineTask<M::Matrix>)>,
    ) -> Result<Vec<TaskEnd>, ArrayError<M::Error>> {
        let ended = self.machines.at_once(tasks).await.map_err(ArrayError::Shell)?;
        for end in ended.iter().filter(|end| end.outcome.is_none()) {
            self.holders.lose(end.machine);
        }
        Ok(ended)
    }

    /// Frees the parts of an array, and forgets it.
    pub async fn free(&mut self, id: ArrayId) {
        let Some(array) = self.arrays.remove(id) else { return };
        for (connection, numbers) in array.numbers() {
            if let Some(machine) = self.holders.with_connection(connection) {
                self.machines.free(machine, &numbers).await;
            }
        }
    }
}
