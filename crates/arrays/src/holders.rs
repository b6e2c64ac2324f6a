//! The machines that may hold parts during one operation.
//!
//! Place in the flow: the shell opens a session with each and describes it here; the operation marks those that are lost.
//!
//! Invariant: a lost machine is offered no part, and stays at its number.
//!
//! Deliberately absent: sessions.

use alloc::string::String;
use alloc::vec::Vec;
use bramble_plan::PartHolder;

/// A machine that may hold parts.
#[derive(Clone, Debug)]
pub struct ArrayHolder {
    /// Its name in messages.
    pub name: String,
    /// The number of the connection with it. A machine that comes back has another one, and no parts.
    pub connection: u64,
    /// Its speed, Gflop/s.
    pub gflops: f64,
    /// Bytes that it has left for parts.
    pub left_bytes: u64,
    /// Whether other machines can connect with it.
    pub may_link: bool,
}

/// The machines of an operation, by their numbers in it.
#[derive(Debug)]
pub struct ArrayHolders {
    all: Vec<ArrayHolder>,
    is_there: Vec<bool>,
}

impl ArrayHolders {
    /// Machines that have answered.
    pub fn new(all: Vec<ArrayHolder>) -> Self {
        let is_there = all.iter().map(|_| true).collect();
        Self { all, is_there }
    }

    /// What each machine can hold. Only a lost one has no byte: a full one has one, in which nothing fits.
    pub fn offered(&self) -> Vec<PartHolder> {
        let of = |(holder, is_there): (&ArrayHolder, &bool)| PartHolder {
            name: holder.name.clone(),
            gflops: if *is_there { holder.gflops } else { 0.0 },
            memory_bytes: if *is_there { holder.left_bytes.max(1) } else { 0 },
        };
        self.all.iter().zip(&self.is_there).map(of).collect()
    }

    /// The machine behind a connection, if it is still there.
    pub fn with_connection(&self, connection: u64) -> Option<usize> {
        let found = self.all.iter().position(|holder| holder.connection == connection);
        found.filter(|machine| self.is_there[*machine])
    }

    /// The connections of all machines, also of lost ones.
    pub fn connections(&self) -> Vec<u64> {
        self.all.iter().map(|holder| holder.connection).collect()
    }

    /// Whether a machine is still there.
    pub fn is_there(&self, machine: usize) -> bool {
        self.is_there.get(machine).is_some_and(|is_there| *is_there)
    }

    /// The machines that are still there.
    pub fn live(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|machine| self.is_there[*machine]).collect()
    }

    /// The name of a machine.
    pub fn name(&self, machine: usize) -> &str {
        self.all.get(machine).map_or("a machine", |holder| &holder.name)
    }

    /// The names of all machines.
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(|holder| holder.name.clone()).collect()
    }

    /// The names of machines that were lost.
    pub fn lost(&self) -> Vec<String> {
        let lost = self.all.iter().zip(&self.is_there).filter(|(_, is_there)| !**is_there);
        lost.map(|(holder, _)| holder.name.clone()).collect()
    }

    /// Whether other machines can connect with a machine.
    pub(crate) fn may_link(&self, machine: usize) -> bool {
        self.is_there(machine) && self.all[machine].may_link
    }

    /// Bytes that a machine has left for parts.
    pub(crate) fn left_bytes(&self, machine: usize) -> u64 {
        if self.is_there(machine) { self.all[machine].left_bytes } else { 0 }
    }

    /// A machine is lost.
    pub fn lose(&mut self, machine: usize) {
        if let Some(is_there) = self.is_there.get_mut(machine) {
            *is_there = false;
        }
    }

    /// A part takes its memory.
    pub(crate) fn charge(&mut self, machine: usize, bytes: u64) {
        let left = &mut self.all[machine].left_bytes;
        *left = left.saturating_sub(bytes);
    }
}
