//! The setting of a sequence of operations on placed matrices, drawn from a seed.
//!
//! Place in the flow: `mod.rs` draws it, builds the world from it, and starts the clients.
//!
//! Invariant: faults whose effects nobody could notice without a check strike only where arrays are checked.

use crate::random::SeededRandom;
use bramble_matrix::DType;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayFault {
    /// A machine dies, and comes back later.
    Death,
    /// The link of a client with a machine breaks.
    Cut,
    /// The link between two machines breaks.
    Parting,
    /// The next step of a machine has a wrong element.
    WrongStep,
    /// The next part that a machine gets has a wrong element.
    Garbled,
    /// A part changes where it lies.
    Corruption,
    /// A source changes.
    Change,
    /// Others take memory of a machine, or give it back.
    Memory,
}

/// The matrices and calls of a client.
#[derive(Clone, Debug)]
pub(super) struct ClientSetting {
    /// Sides of matrices.
    pub(super) sides: Vec<u64>,
    /// Most elements of a matrix.
    pub(super) elements_max: u64,
    pub(super) dtype: DType,
    /// Whether machines may pass blocks to each other.
    pub(super) relays: bool,
    /// Whether arrays are checked.
    pub(super) verifies: bool,
    pub(super) calls: u64,
}

/// A machine as it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineSetting {
    pub(super) gflops: f64,
    pub(super) memory_bytes: u64,
    pub(super) may_link: bool,
}

/// The setting.
#[derive(Clone, Debug)]
pub(super) struct ArrayScenario {
    pub(super) machines: Vec<MachineSetting>,
    /// Chance that a pair of machines cannot be linked.
    pub(super) apart: f64,
    pub(super) clients: Vec<ClientSetting>,
    /// Faults that may strike, and the chance that one does before an event.
    pub(super) faults: Vec<ArrayFault>,
    pub(super) fault_chance: f64,
    /// Chance that a dead machine comes back before an event.
    pub(super) return_chance: f64,
}

impl ArrayScenario {
    /// Draws a scenario.
    pub(super) fn drawn(random: &mut SeededRandom) -> Self {
        let is_large = random.chance(0.26);
        let verifies = random.chance(0.6);
        let count = 2 + random.index(4);
        let unit = if is_large { 1 << 20 } else { 8 << 10 };
        let has_room = random.chance(0.6);
        let machine = |random: &mut SeededRandom| {
            let least = if has_room { 64 } else { 2 };
            MachineSetting {
                gflops: *random.one_of(&[0.0, 1.0, 2.0, 5.0, 5.0, 8.0]),
                memory_bytes: unit * (least + random.below(40)),
                may_link: random.chance(0.95),
            }
        };
        let machines = (0..count).map(|_| machine(random)).collect();
        let clients = if is_large { 1 } else { 1 + random.index(3) };
        let calls = if is_large { 5 + random.below(5) } else { 4 + random.below(9) };
        let clients = (0..clients).map(|_| client(random, (is_large, verifies), calls)).collect();
        let mut faults = Vec::new();
        let all = [
            (ArrayFault::Death, 0.7),
            (ArrayFault::Cut, 0.35),
            (ArrayFault::Parting, if is_large { 0.8 } else { 0.0 }),
            (ArrayFault::WrongStep, if verifies { 0.35 } else { 0.0 }),
            (ArrayFault::Garbled, 0.15),
            (ArrayFault::Corruption, if verifies { 0.15 } else { 0.0 }),
            (ArrayFault::Change, 0.25),
            (ArrayFault::Memory, if is_large { 0.6 } else { 0.2 }),
        ];
        faults.extend(all.into_iter().filter(|(_, chance)| random.chance(*chance)).map(|(fault, _)| fault));
        let fault_chance =
            if faults.is_empty() { 0.0 } else { *random.one_of(&[0.002, 0.005, 0.01, 0.02, 0.05]) };
        let return_chance = *random.one_of(&[0.0, 0.005, 0.02, 0.05]);
        let apart = *random.one_of(&[0.0, 0.0, 0.0, 0.2, 0.6]);
        Self { machines, apart, clients, faults, fault_chance, return_chance }
    }
}

fn client(random: &mut SeededRandom, (is_large, verifies): (bool, bool), calls: u64) -> ClientSetting {
    let small = |random: &mut SeededRandom| 1 + random.below(6);
    let sides = if is_large {
        let (long, side) = (*random.one_of(&[1024, 1280]), *random.one_of(&[128, 256]));
        vec![long, side, side, small(random)]
    } else {
        vec![257 + random.below(850), 200 + random.below(600), small(random), small(random)]
    };
    ClientSetting {
        sides,
        elements_max: if is_large { 1 << 19 } else { 6000 },
        dtype: if random.chance(0.7) { DType::I64 } else { DType::F64 },
        relays: random.chance(0.85),
        verifies,
        calls,
    }
}
