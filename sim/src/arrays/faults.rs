//! Faults: which strikes next, and whom.
//!
//! Place in the flow: `mod.rs` calls this before each event.
//!
//! Invariant: what strikes is drawn from the seed. A fault that would hit nothing does nothing.

use super::scenario::{ArrayFault, ArrayScenario};
use super::world::{ArrayWorld, PartSlot};
use std::rc::Rc;

/// Most elements that a change of a source concerns.
const CHANGED_MAX: u64 = 4000;

impl ArrayWorld {
    /// Lets faults strike before an event.
    pub(super) fn strike(&mut self, scenario: &ArrayScenario) {
        for machine in 0..self.machines.len() {
            if !self.machines[machine].is_alive && self.random.chance(scenario.return_chance) {
                self.machines[machine].is_alive = true;
                self.seen.came_back += 1;
                self.note("back", machine as u64, 0);
                self.tell(|| format!("* w{} comes back", machine + 1));
            }
        }
        if !self.random.chance(scenario.fault_chance) {
            return;
        }
        let fault = *self.random.one_of(&scenario.faults);
        let machine = self.random.index(self.machines.len());
        self.note("fault", fault as u64, machine as u64);
        let name = self.machines[machine].name.clone();
        match fault {
            ArrayFault::Death if self.machines[machine].is_alive => {
                self.tell(|| format!("* {name} dies"));
                self.die(machine);
            }
            ArrayFault::Death => {}
            ArrayFault::Cut => {
                let all: Vec<u64> = self.stores.keys().copied().collect();
                if !all.is_empty() {
                    let connection = *self.random.one_of(&all);
                    self.tell(|| format!("* connection {connection} breaks"));
                    self.end_connection(connection);
                }
            }
            ArrayFault::Parting => {
                let all: Vec<(u64, u64)> = self.links.iter().copied().collect();
                if !all.is_empty() {
                    let (one, other) = *self.random.one_of(&all);
                    self.tell(|| format!("* connections {one} and {other} lose their link"));
                    self.links.remove(&(one, other));
                    self.links.remove(&(other, one));
                }
            }
            ArrayFault::WrongStep => self.machines[machine].computes_wrongly = true,
            ArrayFault::Garbled => self.machines[machine].garbles_next = true,
            ArrayFault::Corruption => self.corrupt(),
            ArrayFault::Change => self.change_a_source(),
            ArrayFault::Memory => self.take_memory(machine),
        }
    }

    fn die(&mut self, machine: usize) {
        let own = self.stores.iter().filter(|(_, store)| store.machine == machine);
        let connections: Vec<u64> = own.map(|(connection, _)| *connection).collect();
        connections.into_iter().for_each(|connection| self.end_connection(connection));
        let machine = &mut self.machines[machine];
        (machine.is_alive, machine.taken_bytes) = (false, 0);
        (machine.computes_wrongly, machine.garbles_next) = (false, false);
    }

    /// An element of a complete part changes.
    fn corrupt(&mut self) {
        let mut all = Vec::new();
        for (connection, store) in &self.stores {
            let complete = store
                .slots
                .iter()
                .filter(|(_, slot)| matches!(slot, PartSlot::Complete { is_block: false, .. }));
            all.extend(complete.map(|(number, _)| (*connection, *number)));
        }
        if all.is_empty() {
            return;
        }
        let (connection, number) = *self.random.one_of(&all);
        let at = self.random.next();
        let Some(store) = self.stores.get_mut(&connection) else { return };
        let client = store.client;
        if let Some(PartSlot::Complete { elements, .. }) = store.slots.get_mut(&number) {
            let elements = Rc::make_mut(elements);
            let at = (at % elements.len() as u64) as usize;
            elements[at] ^= 2;
        }
        self.corrupted.insert((connection, number));
        self.struck[client].corrupted += 1;
        self.seen.garbled[1] += 1;
        self.tell(|| format!("* part {number} of connection {connection} changes where it lies"));
    }

    fn change_a_source(&mut self) {
        if self.sources.is_empty() {
            return;
        }
        let at = self.random.index(self.sources.len());
        let (first, count) = (self.random.next(), self.random.below(CHANGED_MAX));
        let (client, source) = self.sources[at].clone();
        source.change((first % (1 << 20)) as usize, count as usize);
        self.struck[client].changes += 1;
        self.tell(|| format!("* source {at} of client {} changes", client + 1));
    }

    /// Others take a part of the memory that a machine has left, or give theirs back.
    fn take_memory(&mut self, machine: usize) {
        let left = self.left_bytes(machine);
        let more = if left == 0 { 0 } else { left / 2 + self.random.below(left.div_ceil(2)) };
        let is_taken = self.machines[machine].taken_bytes > 0;
        let taken = &mut self.machines[machine].taken_bytes;
        *taken = if is_taken { 0 } else { more };
        let taken = *taken;
        self.tell(|| format!("* others have {taken} bytes of w{}", machine + 1));
    }
}
