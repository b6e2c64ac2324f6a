//! The order in which the threads of a worker take tasks.
//!
//! Place in the flow: the shell's pool and the simulator's machines queue the tasks of `WorkerAction::Start`
//! and `WorkerAction::Fill` here.
//!
//! Invariant: the task with the least number is taken first; of equal numbers, the one that was queued first.
//!
//! Deliberately absent: threads.

use alloc::collections::BTreeMap;
use bramble_wire::message::{Job, Operation};

/// Priority of a task: lower numbers first, then in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority(pub u32);

impl Priority {
    /// Priority of a job. The jobs of one target run one at a time in any case.
    ///
    /// An addition has the id of its result as priority. Sums of products have ids of their block, before all
    /// its panels, so tiles leave early and free the products' memory. Operand sums have ids among those of
    /// the panels, in the order in which products need them: each waits for the products of the sums before
    /// it, so that only few sums exist at a time.
    pub fn of(job: &Job) -> Self {
        match job.operation {
            Operation::Multiply => Self(job.order()),
            Operation::Add | Operation::Subtract => Self(job.c),
        }
    }
}

/// Tasks that wait for a thread.
#[derive(Debug)]
pub struct PriorityQueue<T> {
    /// Tasks by (priority, number of tasks queued before).
    in_order: BTreeMap<(u32, u64), T>,
    queued: u64,
}

impl<T> Default for PriorityQueue<T> {
    fn default() -> Self {
        Self { in_order: BTreeMap::new(), queued: 0 }
    }
}

impl<T> PriorityQueue<T> {
    /// Number of waiting tasks.
    pub fn count(&self) -> usize {
        self.in_order.len()
    }

    /// Queues a task.
    pub fn put(&mut self, task: T, priority: Priority) {
        self.in_order.insert((priority.0, self.queued), task);
        self.queued += 1;
    }

    /// Takes the next task.
    pub fn take(&mut self) -> Option<T> {
        self.in_order.pop_first().map(|(_, task)| task)
    }

    /// Drops all tasks.
    pub fn clear(&mut self) {
        self.in_order.clear();
    }
}
