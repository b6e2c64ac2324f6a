//! The machines of one operation on arrays: carries out what `bramble_arrays` decides, over their sessions.
//!
//! Place in the flow: each call of `Cluster` about arrays opens sessions, runs one operation over them, and releases them.
//!
//! Invariant: a session is in its slot, unless its task runs or its machine is lost.
//!
//! Deliberately absent: decisions.

use super::asking::ask;
use super::checking::BegunCheck;
use super::getting::{digest_at, get, whole_again};
use super::kept::{KeptSource, expression_here};
use super::part::{digest_of, free_numbers, put_part};
use super::task_count::TaskCount;
use super::{ClusterArrays, MakeSubject, PlacedMatrix};
use crate::gathering::early_loss;
use crate::product::{CheckRequest, ProductObserver};
use bramble_arrays::{
    ArrayError, ArrayHolder, ArrayHolders, ArrayId, ArrayMachines, IntroducedHolders, MachineTask, RectToGet,
    SumsOfParts, TaskEnd, TaskOutcome,
};
use bramble_matrix::{DType, Digest128, Matrix, Output, Rect, Shape};
use bramble_sessions::{
    EndedJob, IntroductionEnd, LostConnection, MachineJob, Pairing, PrimaryError, SecretSource, Session,
    at_once, introduce,
};
use std::sync::Arc;

/// Sessions with machines, and how an operation uses them.
pub(super) struct OpenMachines<'a> {
    /// The session of each machine, by its number in the operation; `None` if it is lost.
    pub(super) slots: Vec<Option<Session>>,
    pub(super) watch: &'a dyn ProductObserver,
    /// Source of the secrets with which machines authenticate each other.
    pub(super) random: SecretSource,
    /// How arrays that are made are checked; `None` if the operation makes none.
    pub(super) check: Option<CheckRequest>,
    pub(super) bytes_sent: u64,
}

impl<'a> OpenMachines<'a> {
    /// The machines with these sessions, and what an operation has to know of them.
    pub(super) fn new(
        sessions: Vec<Session>,
        random: SecretSource,
        check: Option<CheckRequest>,
        watch: &'a dyn ProductObserver,
    ) -> (Self, ArrayHolders) {
        let holder = |session: &Session| ArrayHolder {
            name: session.name.clone(),
            connection: session.known.number,
            gflops: session.welcome.gflops,
            left_bytes: session.welcome.hold_bytes,
            may_link: session.link.addresses.is_some(),
        };
        let holders = ArrayHolders::new(sessions.iter().map(holder).collect());
        let slots = sessions.into_iter().map(Some).collect();
        (Self { slots, watch, random, check, bytes_sent: 0 }, holders)
    }

    /// The sessions with machines that are still there.
    pub(super) fn into_sessions(self) -> Vec<Session> {
        self.slots.into_iter().flatten().collect()
    }

    fn lost(&self, LostConnection { name, why }: LostConnection) {
        early_loss(self.watch, name, why);
    }
}

/// An error of an operation, as callers of the primary see it.
pub(crate) fn primary_error(error: ArrayError<PrimaryError>) -> PrimaryError {
    match error {
        ArrayError::PartLost(why) => PrimaryError::PartLost(why),
        ArrayError::Operands(why) => PrimaryError::Operands(why),
        ArrayError::Failed(why) => PrimaryError::Failed(why),
        ArrayError::Wrong(why) => PrimaryError::Wrong(why),
        ArrayError::Layout(why) => PrimaryError::Layout(why),
        ArrayError::Shell(why) => why,
    }
}

impl ArrayMachines for OpenMachines<'_> {
    type Matrix = Matrix;
    type Kept = KeptSource;
    type Output = Arc<Output>;
    type Check = BegunCheck;
    type Error = PrimaryError;

    async fn at_once(
        &mut self,
        tasks: Vec<(usize, MachineTask<Matrix>)>,
    ) -> Result<Vec<TaskEnd>, PrimaryError> {
        let count = TaskCount::of_tasks(&tasks);
        let job = |(machine, task): (usize, MachineTask<Matrix>)| -> MachineJob<TaskOutcome> {
            let count = count.clone();
            match task {
                MachineTask::Put(part) => {
                    (machine, Box::new(move |session| Box::pin(put_part(session, part, count))))
                }
                MachineTask::Ask(rounds) => {
                    (machine, Box::new(move |session| Box::pin(ask(session, rounds, count))))
                }
            }
        };
        let working = at_once(&mut self.slots, tasks.into_iter().map(job).collect());
        let ended = count.told(self.watch, working).await?;
        let end = |EndedJob { machine, result }: EndedJob<TaskOutcome>| {
            let outcome = match result {
                Ok((sent, outcome)) => {
                    self.bytes_sent += sent;
                    Some(outcome)
                }
                Err(lost) => {
                    self.lost(lost);
                    None
                }
            };
            TaskEnd { machine, outcome }
        };
        Ok(ended.into_iter().map(end).collect())
    }

    async fn free(&mut self, machine: usize, numbers: &[u64]) {
        if let Some(session) = self.slots.get_mut(machine).and_then(Option::as_mut) {
            free_numbers(session, numbers).await;
        }
    }

    async fn digest(&mut self, matrix: &Matrix, rect: Rect) -> Result<Option<Digest128>, PrimaryError> {
        digest_of(matrix.clone(), rect).await
    }

    async fn introduce(&mut self, pairs: &[(usize, usize)]) -> Result<IntroducedHolders, PrimaryError> {
        let machines: Vec<usize> =
            (0..self.slots.len()).filter(|machine| self.slots[*machine].is_some()).collect();
        let member = |machine: &usize| machines.iter().position(|known| known == machine);
        let pairs: Vec<(usize, usize)> =
            pairs.iter().filter_map(|(one, other)| Some((member(one)?, member(other)?))).collect();
        let opened = self.slots.iter_mut().filter_map(Option::take).collect();
        let met = introduce(Pairing::Stated(&pairs), opened, self.random).await?;
        let mut found = IntroducedHolders::default();
        for (machine, (session, dead)) in machines.iter().zip(met.sessions.into_iter().zip(met.dead)) {
            match dead {
                Some(IntroductionEnd { why, .. }) => {
                    self.lost(LostConnection { name: session.name, why });
                    found.lost.push(*machine);
                }
                None => self.slots[*machine] = Some(session),
            }
        }
        for (member, neighbours) in met.neighbours.iter().enumerate() {
            found.pairs.extend(neighbours.iter().map(|other| (machines[member], machines[*other])));
            found.peers.insert(machines[member], u32::try_from(member).unwrap_or(u32::MAX));
        }
        Ok(found)
    }

    fn output(&mut self, shape: Shape, dtype: DType) -> Result<Arc<Output>, PrimaryError> {
        Ok(Arc::new(Output::anonymous(shape, dtype)?))
    }

    async fn get(
        &mut self,
        wanted: Vec<(usize, RectToGet)>,
        output: Arc<Output>,
    ) -> Result<(Arc<Output>, Vec<usize>), PrimaryError> {
        let mut lost = Vec::new();
        for EndedJob { machine, result } in get(&mut self.slots, wanted, &output, self.watch).await? {
            match result {
                Ok((sent, ())) => self.bytes_sent += sent,
                Err(connection) => {
                    self.lost(connection);
                    lost.push(machine);
                }
            }
        }
        Ok((output, lost))
    }

    async fn digest_in(&mut self, output: &mut Arc<Output>, rect: Rect) -> Result<Digest128, PrimaryError> {
        digest_at(output.clone(), rect).await
    }

    fn matrix(&mut self, output: Arc<Output>) -> Result<Matrix, PrimaryError> {
        Ok(whole_again(output)?.seal()?.matrix()?)
    }

    fn change(&self, matrix: &Matrix, is_doubted: bool) -> Option<String> {
        let change = matrix.change().filter(|change| is_doubted || change.is_of_contents());
        change.map(|change| change.to_string())
    }

    fn kept_of_put(&mut self, matrix: &Matrix) -> KeptSource {
        KeptSource::of_put(matrix)
    }

    fn kept_of_made(
        &mut self,
        made: &MakeSubject,
        matrices: &[Matrix],
        arrays: &ClusterArrays,
    ) -> Result<KeptSource, ArrayError<PrimaryError>> {
        KeptSource::of_made(made, matrices, arrays)
    }

    fn is_far(&self, array: &PlacedMatrix) -> bool {
        array.kept.expression.is_far()
    }

    fn begin_check(
        &mut self,
        made: &MakeSubject,
        matrices: &[Matrix],
        arrays: &ClusterArrays,
    ) -> Result<Option<BegunCheck>, ArrayError<PrimaryError>> {
        let Some(check) = self.check else { return Ok(None) };
        Ok(BegunCheck::begin(expression_here(made, matrices, arrays)?, check))
    }

    fn begin_check_again(&mut self, array: &PlacedMatrix) -> Option<BegunCheck> {
        BegunCheck::begin(array.kept.expression.as_made(), self.check?)
    }

    async fn check(
        &mut self,
        check: BegunCheck,
        sums: SumsOfParts,
        id: ArrayId,
        arrays: &mut ClusterArrays,
        holders: &mut ArrayHolders,
    ) -> Result<u64, ArrayError<PrimaryError>> {
        self.compare(check, sums, id, arrays, holders).await
    }
}
