//! Sequences of operations on placed matrices: several primaries over the same machines, with elements, while faults strike.
//!
//! Place in the flow: replaces the primary's shell and the workers around the crate `arrays`, whose decisions are the real ones.
//!
//! | file | purpose |
//! |---|---|
//! | `scenario.rs` `faults.rs` | what is drawn from a seed: machines, clients, faults |
//! | `world.rs` `machine.rs` `steps.rs` | machines, links and connections; what a machine does with a message |
//! | `machines.rs` `talk.rs` | the trait `ArrayMachines`, and the conversation with one machine |
//! | `client.rs` `calls.rs` `reductions.rs` `operands.rs` | a primary, its calls, and how their results are compared |
//! | `check.rs` `causes.rs` `matrix.rs` | the rules, the causes of failures, and the reference model |
//!
//! Invariants: those of `check.rs`, after each operation. The same seed gives the same run, event by event.
//!
//! Deliberately absent: time, products (a trial computes one), speed.

mod calls;
mod causes;
mod check;
mod client;
mod faults;
mod machine;
mod machines;
mod matrix;
mod operands;
mod reductions;
mod result;
mod scenario;
mod steps;
mod talk;
mod world;

pub use self::result::{ArrayRareEvents, ArraySequenceResult, RestoredEvents};

use self::client::ArrayClient;
use self::scenario::ArrayScenario;
use self::world::{ArrayWorld, HoldingMachine, StruckClient};
use crate::random::SeededRandom;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Events after which a sequence counts as endless.
const STEPS_MAX: u64 = 2_000_000;

/// Runs the sequences of one seed; panics if an invariant is violated.
pub fn run_array_sequence(seed: u64) -> ArraySequenceResult {
    run(&world_of(seed, false))
}

/// The same, with violations as values, and with the events as text if `is_told`: these also of a run with a violation.
pub fn array_sequence_outcome(
    seed: u64,
    is_told: bool,
) -> (Result<ArraySequenceResult, String>, Vec<String>) {
    let world = world_of(seed, is_told);
    let result = catch_unwind(AssertUnwindSafe(|| run(&world))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a text".to_owned())
    });
    let log = world.0.borrow_mut().log.take().unwrap_or_default();
    (result, log)
}

fn world_of(seed: u64, is_told: bool) -> (Rc<RefCell<ArrayWorld>>, ArrayScenario) {
    let mut random = SeededRandom::new(seed ^ 0xa77a75);
    let scenario = ArrayScenario::drawn(&mut random);
    let machines: Vec<HoldingMachine> = scenario
        .machines
        .iter()
        .enumerate()
        .map(|(at, setting)| HoldingMachine {
            name: format!("w{}", at + 1),
            gflops: setting.gflops,
            memory_bytes: setting.memory_bytes,
            taken_bytes: 0,
            is_alive: true,
            may_link: setting.may_link,
            computes_wrongly: false,
            garbles_next: false,
        })
        .collect();
    let pairs = (0..machines.len()).flat_map(|one| (0..one).map(move |other| (other, one)));
    let apart = pairs.filter(|_| random.chance(scenario.apart)).collect();
    let world = ArrayWorld {
        random,
        machines,
        stores: BTreeMap::new(),
        last_connection: 0,
        links: BTreeSet::new(),
        apart,
        corrupted: BTreeSet::new(),
        sources: Vec::new(),
        struck: vec![StruckClient::default(); scenario.clients.len()],
        seen: ArrayRareEvents::default(),
        steps: 0,
        hash: seed,
        log: is_told.then(|| vec![format!("{scenario:?}")]),
    };
    (Rc::new(RefCell::new(world)), scenario)
}

/// Polls the clients in turns, and lets faults strike between.
fn run((world, scenario): &(Rc<RefCell<ArrayWorld>>, ArrayScenario)) -> ArraySequenceResult {
    let mut context = Context::from_waker(Waker::noop());
    let start = |(index, setting): (usize, &scenario::ClientSetting)| {
        let client = ArrayClient::new(world.clone(), index, setting.clone());
        Box::pin(client.run()) as Pin<Box<dyn Future<Output = ()>>>
    };
    let mut clients: Vec<Pin<Box<dyn Future<Output = ()>>>> =
        scenario.clients.iter().enumerate().map(start).collect();
    while !clients.is_empty() {
        let at = {
            let world = &mut *world.borrow_mut();
            world.steps += 1;
            assert!(world.steps < STEPS_MAX, "violation: the sequence does not end");
            world.strike(scenario);
            world.random.index(clients.len())
        };
        if clients[at].as_mut().poll(&mut context).is_ready() {
            drop(clients.remove(at));
        }
    }
    let world = world.borrow();
    let held: usize = world.stores.values().map(|store| store.slots.len()).sum();
    assert!(held == 0, "violation: the machines hold {held} parts when all arrays are freed");
    ArraySequenceResult { seen: world.seen, steps: world.steps, hash: world.hash }
}
