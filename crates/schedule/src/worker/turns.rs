//! In which order the threads of a worker take what may run.
//!
//! Place in the flow: the shell's pool, and the simulator's machines, put what `Action::Start` and `Action::Fill` ask for here.
//!
//! Invariants: what is urgent is taken first, the last of it before the others; then what was sent first, and of the same
//! number what came first.
//!
//! Deliberately absent: threads.

use crate::message::{Job, Operation};
use std::collections::BTreeMap;

/// When a task is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// After those with lesser numbers, and those with the same that came before it.
    InOrder(u32),
    /// Before all that wait.
    First,
}

impl Turn {
    /// A job's. The jobs of one target come one at a time, whatever their turn.
    ///
    /// Additions go by what they make. What puts products together has a number of its block, before all panels: tiles go
    /// home the sooner, and products make room. A sum of panels has one among theirs, in the order in which products come
    /// to need them: it waits for the products of the sums before it, so that few sums are there at once.
    pub fn of(job: &Job) -> Self {
        match job.operation {
            Operation::Multiply => Self::InOrder(job.order()),
            Operation::Add | Operation::Subtract => Self::InOrder(job.c),
        }
    }
}

/// Tasks that wait for a thread.
#[derive(Debug)]
pub struct Turns<T> {
    urgent: Vec<T>,
    /// By number, and how many tasks came before.
    in_order: BTreeMap<(u32, u64), T>,
    came: u64,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { urgent: Vec::new(), in_order: BTreeMap::new(), came: 0 }
    }
}

impl<T> Turns<T> {
    /// How many wait.
    pub fn count(&self) -> usize {
        self.urgent.len() + self.in_order.len()
    }

    /// One more.
    pub fn put(&mut self, task: T, turn: Turn) {
        match turn {
            Turn::InOrder(number) => drop(self.in_order.insert((number, self.came), task)),
            Turn::First => self.urgent.push(task),
        }
        self.came += 1;
    }

    /// The one whose turn it is.
    pub fn take(&mut self) -> Option<T> {
        self.urgent.pop().or_else(|| self.in_order.pop_first().map(|(_, task)| task))
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.urgent.clear();
        self.in_order.clear();
    }
}
