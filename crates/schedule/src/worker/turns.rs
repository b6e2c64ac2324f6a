//! In which order the threads of a worker take what may run.
//!
//! Place in the flow: the shell's pool, and the simulator's machines, put what `Action::Start` and `Action::Fill` ask for here.
//!
//! Invariant: what has the least number is taken first, and of the same number what came first.
//!
//! Deliberately absent: threads.

use crate::message::{Job, Operation};
use std::collections::BTreeMap;

/// When a task is taken: after those with lesser numbers, and those with the same that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(pub u32);

impl Turn {
    /// A job's. The jobs of one target come one at a time, whatever their turn.
    ///
    /// Additions go by what they make. What puts products together has a number of its block, before all panels: tiles go
    /// home the sooner, and products make room. A sum of panels has one among theirs, in the order in which products come
    /// to need them: it waits for the products of the sums before it, so that few sums are there at once.
    pub fn of(job: &Job) -> Self {
        match job.operation {
            Operation::Multiply => Self(job.order()),
            Operation::Add | Operation::Subtract => Self(job.c),
        }
    }
}

/// Tasks that wait for a thread.
#[derive(Debug)]
pub struct Turns<T> {
    /// By number, and how many tasks came before.
    in_order: BTreeMap<(u32, u64), T>,
    came: u64,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { in_order: BTreeMap::new(), came: 0 }
    }
}

impl<T> Turns<T> {
    /// How many wait.
    pub fn count(&self) -> usize {
        self.in_order.len()
    }

    /// One more.
    pub fn put(&mut self, task: T, turn: Turn) {
        self.in_order.insert((turn.0, self.came), task);
        self.came += 1;
    }

    /// The one whose turn it is.
    pub fn take(&mut self) -> Option<T> {
        self.in_order.pop_first().map(|(_, task)| task)
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.in_order.clear();
    }
}
