//! Steps by which a simulated machine makes parts.
//!
//! Place in the flow: `machine.rs` passes make messages in; that a step ends is an event of its own.
//!
//! Invariants: steps of a connection run one after another. A step takes its operands when it starts, which then have to be
//! complete. Steps of a part that was refused or freed are left out, and not answered.
//!
//! Deliberately absent: pieces, and the time that the digest takes.

use super::matrix::{contains, digest_of, factor, index, product, scaled_sum, viewed, write};
use super::world::{ArrayWorld, FromMachine, PartSlot, RunningStep, charge};
use bramble_matrix::{Digest128, Shape};
use bramble_wire::limits::MAKINGS_MAX;
use bramble_wire::message::{MakeHead, MakeStepForm};
use std::rc::Rc;

/// The elements of a part of which nothing was written.
const UNWRITTEN: i64 = 0x5eed_5eed_5eed;

impl ArrayWorld {
    /// A make message.
    pub(super) fn make(&mut self, connection: u64, make: MakeHead) {
        if make.step.is_none() {
            return self.open_making(connection, &make);
        }
        let store = self.store(connection);
        let count = store.steps.len() + usize::from(store.running.is_some());
        assert!(count < MAKINGS_MAX, "violation: step {} comes too early", make.number);
        store.steps.push_back(make);
        self.start_step(connection);
    }

    fn open_making(&mut self, connection: u64, make: &MakeHead) {
        self.store(connection).claim(make.array);
        let room = self.room(connection, charge(make.part, make.dtype));
        let store = self.store(connection);
        let (slot, answer) = match room {
            Ok(()) => {
                let elements = vec![UNWRITTEN; index(make.part.shape().elements().unwrap_or(0))];
                let slot = PartSlot::Making { rect: make.part, dtype: make.dtype, elements };
                (slot, FromMachine::Held(make.number, Digest128::default()))
            }
            Err(why) => (PartSlot::Refused, FromMachine::Refused(make.number, why, false)),
        };
        store.slots.insert(make.array, slot);
        store.answers.push_back(answer);
    }

    /// Starts the first step that waits, if none runs.
    fn start_step(&mut self, connection: u64) {
        while self.store(connection).running.is_none() {
            let store = self.store(connection);
            let Some(make) = store.steps.pop_front() else { return };
            let elements = match store.slots.get(&make.array) {
                Some(PartSlot::Making { rect, dtype, elements }) => {
                    let is_same = *rect == make.part && *dtype == make.dtype && contains(*rect, make.rect);
                    assert!(is_same, "violation: step {} is of another part", make.number);
                    viewed(make.part, elements, make.rect, false)
                }
                Some(PartSlot::Refused) => continue,
                None if make.array <= store.last => continue,
                _ => panic!("violation: step {} makes a part that is not being made", make.number),
            };
            let mut elements = self.step_elements(connection, &make, elements);
            self.compute_wrongly(connection, &mut elements);
            self.store(connection).running = Some(RunningStep { make, elements });
        }
    }

    /// The step that runs ends.
    pub(super) fn end_step(&mut self, connection: u64) {
        let store = self.store(connection);
        let Some(RunningStep { make, elements: new }) = store.running.take() else { return };
        let mut digest = Digest128::default();
        // A part that was freed meanwhile is not written.
        if let Some(PartSlot::Making { rect, dtype, elements }) = store.slots.get_mut(&make.array) {
            write(make.part, elements, make.rect, &new);
            if make.is_last {
                let (rect, dtype, elements) = (*rect, *dtype, Rc::new(std::mem::take(elements)));
                digest = digest_of(rect.shape(), &elements);
                store.slots.insert(make.array, PartSlot::Complete { rect, dtype, elements, is_block: false });
            }
        }
        store.answers.push_back(FromMachine::Held(make.number, digest));
        self.note("step", connection, make.number);
        self.start_step(connection);
    }

    /// What the rectangle of a step becomes.
    fn step_elements(&mut self, connection: u64, make: &MakeHead, before: Vec<i64>) -> Vec<i64> {
        let Some(step) = make.step else { return before };
        let store = self.store(connection);
        let Shape { rows: m, cols: n } = make.rect.shape();
        match &step {
            MakeStepForm::Product { left, right, depth, alpha, adds } => {
                let a = store.operand(left, Shape::new(m, *depth), make.dtype);
                let b = store.operand(right, Shape::new(*depth, n), make.dtype);
                let new = product(factor(*alpha), [m, *depth, n], &a, &b);
                scaled_sum(1, &new, adds.then_some((1, &before[..])))
            }
            MakeStepForm::Scaled { x, alpha } => {
                let x = store.operand(x, make.rect.shape(), make.dtype);
                scaled_sum(factor(*alpha), &x, None)
            }
            MakeStepForm::Sum { x, alpha, y, beta } => {
                let x = store.operand(x, make.rect.shape(), make.dtype);
                let y = store.operand(y, make.rect.shape(), make.dtype);
                scaled_sum(factor(*alpha), &x, Some((factor(*beta), &y)))
            }
        }
    }

    /// A step has a wrong element, if a fault has chosen its machine.
    fn compute_wrongly(&mut self, connection: u64, elements: &mut [i64]) {
        let (client, machine) = (self.store(connection).client, self.store(connection).machine);
        if !std::mem::take(&mut self.machines[machine].computes_wrongly) {
            return;
        }
        let at = self.random.index(elements.len());
        elements[at] = elements[at].wrapping_add(1);
        self.struck[client].wrong_steps += 1;
        self.seen.wrong_steps += 1;
        self.tell(|| format!("  w{} computes a wrong element", machine + 1));
    }
}
