//! The world of a sequence of operations on placed matrices: machines, their stores, links, and everything that is counted.
//!
//! Place in the flow: `machine.rs` takes messages in it, `machines.rs` talks with it for a client, `faults.rs` strikes it.
//!
//! Invariants: a connection that has ended has no store. The events depend on the seed alone; `hash` has all of them.
//!
//! Deliberately absent: time. Events happen one after another, in an order drawn from the seed.

use super::matrix::{Elements, SourceElements};
use super::result::ArrayRareEvents;
use crate::random::{SeededRandom, mixed};
use bramble_arrays::Question;
use bramble_matrix::{DType, Digest128, Rect};
use bramble_plan::charged_bytes;
use bramble_wire::message::{FetchHead, MakeHead};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A simulated machine.
pub(super) struct HoldingMachine {
    pub(super) name: String,
    pub(super) gflops: f64,
    pub(super) memory_bytes: u64,
    /// Memory that others have taken.
    pub(super) taken_bytes: u64,
    pub(super) is_alive: bool,
    pub(super) may_link: bool,
    /// The next step that it makes has a wrong element.
    pub(super) computes_wrongly: bool,
    /// The next part that it gets has a wrong element.
    pub(super) garbles_next: bool,
}

/// A message towards a machine.
pub(super) enum ToMachine {
    /// Rows of a part, or of a block; of a generated one, all rows.
    Put {
        head: PutRows,
        piece: Rect,
        elements: Vec<i64>,
    },
    Fetch(FetchHead),
    Ask(Question),
    Free(u64),
    Get(u64, Rect),
}

/// What rows belong to.
#[derive(Clone, Copy)]
pub(super) struct PutRows {
    pub(super) number: u64,
    pub(super) part: Rect,
    pub(super) dtype: DType,
    pub(super) is_block: bool,
    /// The machine computes the elements itself.
    pub(super) is_generated: bool,
}

/// A message of a machine.
pub(super) enum FromMachine {
    /// A part or a block is held, or a step is done.
    Held(u64, Digest128),
    /// The number, why, and whether a link between machines has ended.
    Refused(u64, String, bool),
    Reduced(u64, Vec<u8>),
    Elements(u64, Rect, Vec<i64>),
}

/// What a number means at a machine.
pub(super) enum PartSlot {
    /// Elements that have come so far.
    Arriving {
        rect: Rect,
        dtype: DType,
        elements: Vec<i64>,
        is_block: bool,
    },
    Making {
        rect: Rect,
        dtype: DType,
        elements: Vec<i64>,
    },
    Complete {
        rect: Rect,
        dtype: DType,
        elements: Elements,
        is_block: bool,
    },
    Refused,
}

/// A step that has taken its operands.
pub(super) struct RunningStep {
    pub(super) make: MakeHead,
    /// What its rectangle becomes.
    pub(super) elements: Vec<i64>,
}

/// All that a machine has for one connection.
pub(super) struct PartStore {
    pub(super) client: usize,
    pub(super) machine: usize,
    pub(super) slots: BTreeMap<u64, PartSlot>,
    /// The last number that was claimed.
    pub(super) last: u64,
    pub(super) towards: VecDeque<ToMachine>,
    pub(super) answers: VecDeque<FromMachine>,
    /// Fetches that wait for another machine.
    pub(super) waiting: VecDeque<FetchHead>,
    /// Steps that wait, and the one that runs.
    pub(super) steps: VecDeque<MakeHead>,
    pub(super) running: Option<RunningStep>,
    /// The connections of the machines that it was introduced to.
    pub(super) peers: BTreeMap<u32, u64>,
    /// Whether the client talks with it.
    pub(super) is_asked: bool,
}

/// What has struck a client so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StruckClient {
    /// Connections that have ended.
    pub(super) losses: u64,
    pub(super) refusals: u64,
    /// Changes of its sources.
    pub(super) changes: u64,
    /// Wrong elements of steps.
    pub(super) wrong_steps: u64,
    /// Parts that arrived with a wrong element.
    pub(super) garbled: u64,
    /// Parts that were corrupted where they lie.
    pub(super) corrupted: u64,
    pub(super) shell_errors: u64,
}

pub(super) struct ArrayWorld {
    pub(super) random: SeededRandom,
    pub(super) machines: Vec<HoldingMachine>,
    /// By the number of the connection.
    pub(super) stores: BTreeMap<u64, PartStore>,
    pub(super) last_connection: u64,
    /// Pairs of connections whose machines pass blocks to each other, in both orders.
    pub(super) links: BTreeSet<(u64, u64)>,
    /// Pairs of machines that cannot be linked, the smaller first.
    pub(super) apart: BTreeSet<(usize, usize)>,
    /// Connections and numbers of parts that were corrupted.
    pub(super) corrupted: BTreeSet<(u64, u64)>,
    /// Sources that may change, with their clients.
    pub(super) sources: Vec<(usize, Rc<SourceElements>)>,
    pub(super) struck: Vec<StruckClient>,
    pub(super) seen: ArrayRareEvents,
    pub(super) steps: u64,
    pub(super) hash: u64,
    /// The events as text, if they are wanted.
    pub(super) log: Option<Vec<String>>,
}

impl PartSlot {
    /// Bytes that it takes.
    pub(super) fn charge(&self) -> u64 {
        match self {
            Self::Arriving { rect, dtype, .. }
            | Self::Making { rect, dtype, .. }
            | Self::Complete { rect, dtype, .. } => charge(*rect, *dtype),
            Self::Refused => 0,
        }
    }
}

/// What a part is charged.
pub(super) fn charge(rect: Rect, dtype: DType) -> u64 {
    charged_bytes(rect.shape().bytes(dtype).unwrap_or(u64::MAX), 0)
}

impl ArrayWorld {
    /// Adds an event to the hash.
    pub(super) fn note(&mut self, kind: &str, one: u64, other: u64) {
        let word = kind.bytes().fold(0u64, |word, byte| word.rotate_left(7) ^ u64::from(byte));
        self.hash = mixed(self.hash ^ mixed(word ^ mixed(one ^ mixed(other))));
    }

    /// Adds a line to the log, if it is wanted.
    pub(super) fn tell(&mut self, text: impl FnOnce() -> String) {
        let steps = self.steps;
        if let Some(log) = &mut self.log {
            log.push(format!("{steps:6} {}", text()));
        }
    }

    /// Bytes that parts take at a machine.
    pub(super) fn held_bytes(&self, machine: usize) -> u64 {
        let stores = self.stores.values().filter(|store| store.machine == machine);
        stores.flat_map(|store| store.slots.values()).map(PartSlot::charge).sum()
    }

    /// Bytes that a machine has left.
    pub(super) fn left_bytes(&self, machine: usize) -> u64 {
        let of = &self.machines[machine];
        of.memory_bytes.saturating_sub(of.taken_bytes).saturating_sub(self.held_bytes(machine))
    }

    /// Ends a connection: all that the machine has for it is gone.
    pub(super) fn end_connection(&mut self, connection: u64) {
        let Some(store) = self.stores.remove(&connection) else { return };
        self.links.retain(|(one, other)| *one != connection && *other != connection);
        self.struck[store.client].losses += 1;
        self.seen.losses += 1;
    }

    /// The connections of a client with machines that are alive; new ones where it has none.
    pub(super) fn connections_of(&mut self, client: usize) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        for machine in 0..self.machines.len() {
            if !self.machines[machine].is_alive {
                continue;
            }
            let known =
                self.stores.iter().find(|(_, store)| store.client == client && store.machine == machine);
            let connection = known.map(|(connection, _)| *connection).unwrap_or_else(|| {
                self.last_connection += 1;
                let store = PartStore::new(client, machine);
                self.stores.insert(self.last_connection, store);
                self.last_connection
            });
            found.push((machine, connection));
        }
        found
    }
}

impl PartStore {
    fn new(client: usize, machine: usize) -> Self {
        Self {
            client,
            machine,
            slots: BTreeMap::new(),
            last: 0,
            towards: VecDeque::new(),
            answers: VecDeque::new(),
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            running: None,
            peers: BTreeMap::new(),
            is_asked: false,
        }
    }
}
