//! What a simulated machine does with a message: the rules of a worker, written independently of it.
//!
//! Place in the flow: `machines.rs` lets a machine take one message at a time.
//!
//! Invariants: an honest client never breaks a rule of the worker; where a worker would end the session, the simulator panics. A
//! machine without room refuses. Elements that were not written are recognizable.
//!
//! Deliberately absent: threads, the steps of parts (`steps.rs`), memory beside parts except that of reductions.

use super::matrix::{contains, digest_of, factor, product, reduced_bytes, viewed};
use super::world::{ArrayWorld, FromMachine, PartSlot, PartStore, PutRows, ToMachine, charge};
use bramble_arrays::Question;
use bramble_matrix::{DType, Rect, Reduction, Shape};
use bramble_wire::limits::{ARRAYS_MAX, FETCHES_MAX, MAKINGS_MAX};
use bramble_wire::message::{FetchHead, ReduceHead, ResidentView};
use std::collections::VecDeque;
use std::rc::Rc;

impl PartStore {
    /// Checks that a number is new, and that there may be another part.
    pub(super) fn claim(&mut self, number: u64) {
        assert!(number > self.last, "violation: number {number} comes after {}", self.last);
        assert!(self.slots.len() < ARRAYS_MAX, "violation: more than {ARRAYS_MAX} parts");
        self.last = number;
    }

    /// The elements of a matrix of that shape that is a view into a complete part.
    pub(super) fn operand(&self, view: &ResidentView, shape: Shape, dtype: DType) -> Vec<i64> {
        let Some(rect) = view.rect(shape) else { panic!("violation: a view beyond all arrays") };
        let used = if view.transposed { rect.transposed() } else { rect };
        viewed_in(self, view.array, used, view.transposed, dtype)
    }
}

/// The elements of a rectangle of a complete part, or of its transpose.
pub(super) fn viewed_in(
    store: &PartStore,
    number: u64,
    rect: Rect,
    is_turned: bool,
    dtype: DType,
) -> Vec<i64> {
    let Some(PartSlot::Complete { rect: part, dtype: held, elements, .. }) = store.slots.get(&number) else {
        panic!("violation: part {number} is read and is not complete");
    };
    let stored = if is_turned { rect.transposed() } else { rect };
    assert!(*held == dtype, "violation: part {number} is {held} and read as {dtype}");
    assert!(contains(*part, stored), "violation: {stored} is read from part {number}, which is {part}");
    viewed(*part, elements, rect, is_turned)
}

impl ArrayWorld {
    pub(super) fn store(&mut self, connection: u64) -> &mut PartStore {
        let Some(store) = self.stores.get_mut(&connection) else {
            panic!("violation: connection {connection} ended")
        };
        store
    }

    /// A machine takes its next message.
    pub(super) fn take_message(&mut self, connection: u64) {
        let store = self.store(connection);
        let asked = store.towards.iter().filter(|message| matches!(message, ToMachine::Ask(_))).count();
        assert!(asked <= MAKINGS_MAX, "violation: {asked} questions at a time");
        let Some(message) = store.towards.pop_front() else { return };
        match message {
            ToMachine::Put { head, piece, elements } => {
                self.note("put", connection, head.number);
                self.put(connection, head, piece, elements);
            }
            ToMachine::Fetch(fetch) => {
                self.note("fetch", connection, fetch.array);
                self.fetch_from_peer(connection, fetch);
            }
            ToMachine::Ask(Question::Make(make)) => {
                self.note("make", connection, make.number);
                self.make(connection, make);
            }
            ToMachine::Ask(Question::Reduce(head, _)) => {
                self.note("reduce", connection, head.number);
                self.reduce_part(connection, &head);
            }
            ToMachine::Free(number) => {
                self.note("free", connection, number);
                let freed = self.store(connection).slots.remove(&number);
                assert!(freed.is_some(), "violation: part {number} is freed and is not there");
            }
            ToMachine::Get(number, rect) => {
                self.note("get", connection, number);
                let store = self.store(connection);
                let Some(PartSlot::Complete { dtype, .. }) = store.slots.get(&number) else {
                    panic!("violation: part {number} is fetched and is not complete");
                };
                let elements = viewed_in(store, number, rect, false, *dtype);
                store.answers.push_back(FromMachine::Elements(number, rect, elements));
            }
        }
    }

    /// Memory for a part; or why there is none.
    pub(super) fn room(&mut self, connection: u64, bytes: u64) -> Result<(), String> {
        let (client, machine) = (self.store(connection).client, self.store(connection).machine);
        let left = self.left_bytes(machine);
        if bytes <= left {
            return Ok(());
        }
        self.struck[client].refusals += 1;
        self.seen.refusals += 1;
        self.tell(|| format!("  w{} has {left} bytes left and refuses {bytes}", machine + 1));
        Err(format!("no room: {bytes} bytes are needed, and {left} are left"))
    }

    fn put(&mut self, connection: u64, head: PutRows, piece: Rect, mut new: Vec<i64>) {
        let PutRows { number, part, dtype, is_block, is_generated } = head;
        let is_first = piece.rows.start == part.rows.start;
        if is_first {
            self.store(connection).claim(number);
            if let Err(why) = self.room(connection, charge(part, dtype)) {
                let store = self.store(connection);
                store.slots.insert(number, PartSlot::Refused);
                store.answers.push_back(FromMachine::Refused(number, why, false));
                return;
            }
            let slot = PartSlot::Arriving { rect: part, dtype, elements: Vec::new(), is_block };
            self.store(connection).slots.insert(number, slot);
        }
        if !is_block && !is_generated {
            self.garble(connection, &mut new);
        }
        let store = self.store(connection);
        match store.slots.get_mut(&number) {
            Some(PartSlot::Refused) => {}
            Some(PartSlot::Arriving { rect, dtype, elements, is_block }) => {
                let (rect, dtype, is_block) = (*rect, *dtype, *is_block);
                elements.extend(new);
                if Some(elements.len() as u64) != rect.shape().elements() {
                    return;
                }
                let elements = Rc::new(std::mem::take(elements));
                let digest = digest_of(rect.shape(), &elements);
                store.slots.insert(number, PartSlot::Complete { rect, dtype, elements, is_block });
                store.answers.push_back(FromMachine::Held(number, digest));
            }
            _ => panic!("violation: elements of part {number} come out of order"),
        }
    }

    /// A part arrives with a wrong element, if a fault has chosen its machine.
    fn garble(&mut self, connection: u64, elements: &mut [i64]) {
        let (client, machine) = (self.store(connection).client, self.store(connection).machine);
        if !std::mem::take(&mut self.machines[machine].garbles_next) {
            return;
        }
        let at = self.random.index(elements.len());
        elements[at] ^= 4;
        self.struck[client].garbled += 1;
        self.seen.garbled[0] += 1;
        self.tell(|| format!("  a part arrives at w{} with a wrong element", machine + 1));
    }

    fn fetch_from_peer(&mut self, connection: u64, fetch: FetchHead) {
        self.store(connection).claim(fetch.array);
        if let Err(why) = self.room(connection, charge(fetch.rect, fetch.dtype)) {
            let store = self.store(connection);
            store.slots.insert(fetch.array, PartSlot::Refused);
            store.answers.push_back(FromMachine::Refused(fetch.array, why, false));
            return;
        }
        let FetchHead { array, peer, rect, dtype, .. } = fetch;
        let store = self.store(connection);
        store.slots.insert(array, PartSlot::Arriving { rect, dtype, elements: Vec::new(), is_block: true });
        let of_peer = store.waiting.iter().filter(|fetch| fetch.peer == peer).count();
        assert!(of_peer < FETCHES_MAX, "violation: {of_peer} fetches from one machine");
        store.waiting.push_back(fetch);
        if self.linked_peer(connection, peer).is_none() {
            self.refuse_fetches(connection, peer);
        }
    }

    /// The connection of a peer, while the two are linked.
    fn linked_peer(&mut self, connection: u64, peer: u32) -> Option<u64> {
        let other = *self.store(connection).peers.get(&peer)?;
        self.links.contains(&(connection, other)).then_some(other)
    }

    /// The link with another machine has ended.
    fn refuse_fetches(&mut self, connection: u64, peer: u32) {
        let store = self.store(connection);
        let (gone, waiting) = store.waiting.drain(..).partition(|fetch| fetch.peer == peer);
        store.waiting = waiting;
        let gone: VecDeque<FetchHead> = gone;
        let count = gone.len() as u64;
        for fetch in gone {
            // A fetch that was freed meanwhile is refused, too: the worker does not look.
            if let Some(slot @ PartSlot::Arriving { .. }) = store.slots.get_mut(&fetch.array) {
                *slot = PartSlot::Refused;
            }
            let why = format!("the link with worker {peer} has ended");
            store.answers.push_back(FromMachine::Refused(fetch.array, why, true));
        }
        self.seen.links_ended += count;
    }

    /// The first fetch that waits is answered by the other machine.
    pub(super) fn serve_fetch(&mut self, connection: u64) {
        let Some(fetch) = self.store(connection).waiting.front().copied() else { return };
        self.note("serve", connection, fetch.array);
        let is_asked = self.store(connection).is_asked;
        let Some(other) = self.linked_peer(connection, fetch.peer) else {
            return self.refuse_fetches(connection, fetch.peer);
        };
        let is_wanted = self.store(connection).slots.contains_key(&fetch.array);
        let is_there = matches!(self.store(other).slots.get(&fetch.from), Some(PartSlot::Complete { .. }));
        if !is_wanted || !is_there {
            assert!(
                !is_asked || is_there,
                "violation: part {} is fetched from another machine and is not there",
                fetch.from
            );
            // The elements have no place: the link between the two ends.
            self.links.retain(|pair| *pair != (connection, other) && *pair != (other, connection));
            return self.refuse_fetches(connection, fetch.peer);
        }
        let elements = Rc::new(viewed_in(self.store(other), fetch.from, fetch.rect, false, fetch.dtype));
        let digest = digest_of(fetch.rect.shape(), &elements);
        self.seen.fetches += 1;
        let store = self.store(connection);
        store.waiting.pop_front();
        let slot = PartSlot::Complete { rect: fetch.rect, dtype: fetch.dtype, elements, is_block: true };
        store.slots.insert(fetch.array, slot);
        store.answers.push_back(FromMachine::Held(fetch.array, digest));
    }

    fn reduce_part(&mut self, connection: u64, head: &ReduceHead) {
        let Some(reduction) = Reduction::from_code(head.reduction, head.count) else {
            panic!("violation: a reduction of unknown kind");
        };
        let store = self.store(connection);
        let ((left, left_shape), right) = head.operands(head.rect);
        let of_left = store.operand(&left, left_shape, head.dtype);
        let elements = match right {
            None => of_left,
            Some((right, right_shape)) => {
                let of_right = store.operand(&right, right_shape, head.dtype);
                let alpha = factor(head.right.map_or(1.0, |right| right.alpha));
                let sides = [left_shape.rows, left_shape.cols, right_shape.cols];
                product(alpha, sides, &of_left, &of_right)
            }
        };
        let mut bytes = reduced_bytes(reduction, head.rect, &elements);
        if head.right.is_some() {
            bytes.extend(reduced_bytes(Reduction::RowSum, head.rect, &elements));
        }
        let room = self.room(connection, bytes.len() as u64);
        self.store(connection).answers.push_back(match room {
            Ok(()) => FromMachine::Reduced(head.number, bytes),
            Err(why) => FromMachine::Refused(head.number, why, false),
        });
    }
}
