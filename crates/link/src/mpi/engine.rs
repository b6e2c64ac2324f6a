//! All messages of this process that are in flight, and the tasks that wait for them.
//!
//! Place in the flow: between the ends of links, which start messages and wait for them, and the library. MPI does
//! not notify: a message is only known to be complete when the library is asked. `poll` asks, and `drive` calls it
//! again and again.
//!
//! Invariants: everything is on one thread. A message stays in flight, with its memory, until it is complete, even
//! if no task waits for it any more. After the first error of the library no more calls are made: every message
//! ends with that error.
//!
//! Deliberately absent: cancelling. Each end of a link receives everything that the peer has begun to send
//! (`receive`), so every message in flight completes.

use super::held::{self, Payload, UnderWay};
use super::table::{Calls, Message, MpiFault};
use crate::to_u64;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// Completions that one `poll` handles before it yields.
const POLL_MESSAGES: usize = 256;
/// Free buffers that are kept, of each size class.
const SPARE_BUFFERS: usize = 32;
/// Longer buffers are kept too, but fewer of them.
const LARGE_BYTES: usize = 64 << 10;
const SPARE_LARGE_BUFFERS: usize = 8;

/// Bytes of bodies in flight, and of those that have reached the peer.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) held: Cell<u64>,
    pub(super) there: Cell<u64>,
}

/// The tally that counts a message, and its bytes.
pub(super) type Counted = Option<(Rc<Tally>, u64)>;

/// One message.
struct Slot {
    state: State,
    waker: Option<Waker>,
    /// Whether its ticket exists.
    is_wanted: bool,
    counted: Counted,
    is_bulk: bool,
}

enum State {
    UnderWay,
    Complete(usize, Payload),
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    under_way: UnderWay,
    /// Messages in flight that are large.
    bulk: usize,
}

type DetachedTask = Pin<Box<dyn Future<Output = ()>>>;

/// The messages of this process.
pub(super) struct Engine {
    calls: Box<dyn Calls>,
    slots: RefCell<Slots>,
    fault: RefCell<Option<MpiFault>>,
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
    /// Detached tasks.
    detached: RefCell<Vec<DetachedTask>>,
    has_new_chores: Cell<bool>,
    /// Notified when a message starts.
    pub(super) started: Notify,
    /// Number of messages started so far.
    starts: Cell<u64>,
}

/// A pending message: await it for the bytes that arrived and the payload.
pub(super) struct Ticket {
    engine: Rc<Engine>,
    number: usize,
}

impl Engine {
    pub(super) fn new(calls: Box<dyn Calls>) -> Self {
        Self {
            calls,
            slots: RefCell::default(),
            fault: RefCell::default(),
            small: RefCell::default(),
            large: RefCell::default(),
            detached: RefCell::default(),
            has_new_chores: Cell::new(false),
            started: Notify::new(),
            starts: Cell::new(0),
        }
    }

    pub(super) fn calls(&self) -> &dyn Calls {
        &*self.calls
    }

    /// Starts a send; see `held::send`. `counted`: the tally that counts its bytes.
    pub(super) fn send(
        self: &Rc<Self>,
        payload: Payload,
        message: Message,
        is_synchronous: bool,
        counted: Counted,
    ) -> Result<Ticket, MpiFault> {
        self.start(message, counted, || held::send(self.calls(), payload, message, is_synchronous))
    }

    /// Starts a receive; see `held::receive`.
    pub(super) fn receive(self: &Rc<Self>, payload: Payload, message: Message) -> Result<Ticket, MpiFault> {
        self.start(message, None, || held::receive(self.calls(), payload, message))
    }

    fn start(
        self: &Rc<Self>,
        message: Message,
        counted: Counted,
        begin: impl FnOnce() -> Result<held::HeldPayload, MpiFault>,
    ) -> Result<Ticket, MpiFault> {
        if let Some(fault) = &*self.fault.borrow() {
            return Err(fault.clone());
        }
        let held = begin().inspect_err(|fault| self.fail(fault))?;
        if let Some((tally, bytes)) = &counted {
            tally.held.set(tally.held.get() + bytes);
        }
        let is_bulk = message.bytes > super::FIRST_BYTES;
        let slot = Slot { state: State::UnderWay, waker: None, is_wanted: true, counted, is_bulk };
        let mut slots = self.slots.borrow_mut();
        slots.bulk += usize::from(is_bulk);
        let number = slots.free.pop().unwrap_or(slots.slots.len());
        if number == slots.slots.len() {
            slots.slots.push(None);
        }
        slots.slots[number] = Some(slot);
        slots.under_way.push(number, held);
        self.starts.set(self.starts.get() + 1);
        self.started.notify_one();
        Ok(Ticket { engine: self.clone(), number })
    }

    /// Ends all messages with an error.
    pub(super) fn fail(&self, fault: &MpiFault) {
        self.fault.borrow_mut().get_or_insert_with(|| fault.clone());
        let mut slots = self.slots.borrow_mut();
        let waiting = slots.slots.iter_mut().flatten().filter_map(|slot| slot.waker.take());
        waiting.for_each(Waker::wake);
    }

    /// Asks the library for completed messages; returns their number.
    pub(super) fn poll(&self) -> usize {
        let mut complete = 0;
        while complete < POLL_MESSAGES && self.fault.borrow().is_none() {
            let next = self.slots.borrow_mut().under_way.next_complete(self.calls());
            match next {
                Ok(Some((number, bytes, payload))) => self.complete(number, bytes, payload),
                Ok(None) => break,
                Err(fault) => {
                    self.fail(&fault);
                    break;
                }
            }
            complete += 1;
        }
        if complete > 0 || self.has_new_chores.take() {
            self.do_chores();
        }
        complete
    }

    /// Polls the library once if that message is not complete: this task may run before the one that drives.
    pub(super) fn look_for(&self, ticket: &Ticket) {
        if !ticket.is_done() {
            self.poll();
        }
    }

    fn complete(&self, number: usize, bytes: usize, payload: Payload) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.slots[number].as_mut() else { unreachable!("message {number} is unknown") };
        if let Some((tally, bytes)) = slot.counted.take() {
            tally.held.set(tally.held.get().saturating_sub(bytes));
            tally.there.set(tally.there.get() + bytes);
        }
        let (is_wanted, is_bulk, waker) = (slot.is_wanted, slot.is_bulk, slot.waker.take());
        let mut unwanted = None;
        if is_wanted {
            slot.state = State::Complete(bytes, payload);
        } else {
            slots.slots[number] = None;
            slots.free.push(number);
            unwanted = Some(payload);
        }
        slots.bulk -= usize::from(is_bulk);
        drop(slots);
        unwanted.into_iter().for_each(|payload| self.keep(payload));
        waker.into_iter().for_each(Waker::wake);
    }

    /// Runs a task that no caller awaits; it is polled with every message that completes.
    pub(super) fn run_detached(&self, task: impl Future<Output = ()> + 'static) {
        self.detached.borrow_mut().push(Box::pin(task));
        self.has_new_chores.set(true);
        self.started.notify_one();
    }

    fn do_chores(&self) {
        // A task may start others.
        let mut detached = self.detached.take();
        detached.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.detached.borrow_mut().append(&mut detached);
    }

    /// Whether no message is in flight and no detached task remains.
    pub(super) fn is_quiet(&self) -> bool {
        self.slots.borrow().under_way.is_empty() && self.detached.borrow().is_empty()
    }

    /// The error with which the library failed.
    pub(super) fn fault(&self) -> Option<MpiFault> {
        self.fault.borrow().clone()
    }

    /// Whether a large message is in flight, which needs frequent polls.
    pub(super) fn has_bulk(&self) -> bool {
        self.slots.borrow().bulk > 0
    }

    /// Number of messages started so far.
    pub(super) fn starts(&self) -> u64 {
        self.starts.get()
    }

    /// A buffer of that length, with arbitrary content.
    pub(super) fn buffer(&self, bytes: usize) -> Box<[u8]> {
        let spare = if bytes > LARGE_BYTES { &self.large } else { &self.small };
        let mut spare = spare.borrow_mut();
        let fitting = spare.iter().position(|buffer| buffer.len() == bytes);
        fitting.map_or_else(|| vec![0; bytes].into_boxed_slice(), |at| spare.swap_remove(at))
    }

    /// Keeps a buffer for reuse.
    pub(super) fn keep(&self, payload: Payload) {
        let Payload::Buffer(buffer) = payload else { return };
        let is_large = buffer.len() > LARGE_BYTES;
        let (spare, most) =
            if is_large { (&self.large, SPARE_LARGE_BUFFERS) } else { (&self.small, SPARE_BUFFERS) };
        let mut spare = spare.borrow_mut();
        if spare.len() < most && !buffer.is_empty() {
            spare.push(buffer);
        }
    }
}

impl Ticket {
    /// Whether the result is available without waiting.
    pub(super) fn is_done(&self) -> bool {
        let slots = self.engine.slots.borrow();
        let slot = slots.slots.get(self.number).and_then(Option::as_ref);
        slot.is_none_or(|slot| matches!(slot.state, State::Complete(..)))
            || self.engine.fault.borrow().is_some()
    }

    /// The same; if not, the current task is woken when it is.
    pub(super) fn watch(&self, context: &Context<'_>) -> bool {
        let is_done = self.is_done();
        if !is_done && let Some(slot) = self.engine.slots.borrow_mut().slots[self.number].as_mut() {
            slot.waker = Some(context.waker().clone());
        }
        is_done
    }
}

impl Future for Ticket {
    type Output = Result<(usize, Payload), MpiFault>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.engine.slots.borrow_mut();
        let Some(slot) = slots.slots[self.number].as_mut() else {
            unreachable!("message {} has been waited for", self.number)
        };
        match std::mem::replace(&mut slot.state, State::UnderWay) {
            State::Complete(bytes, payload) => {
                // The slot is freed with the ticket.
                slot.is_wanted = false;
                Poll::Ready(Ok((bytes, payload)))
            }
            State::UnderWay => match &*self.engine.fault.borrow() {
                Some(fault) => Poll::Ready(Err(fault.clone())),
                None => {
                    slot.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            },
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut slots = self.engine.slots.borrow_mut();
        let Some(slot) = slots.slots[self.number].as_mut() else { return };
        // Result taken: nothing is in flight. Complete: the result is discarded. Otherwise the slot stays until the
        // message is complete.
        let is_taken = !slot.is_wanted;
        let state = std::mem::replace(&mut slot.state, State::UnderWay);
        (slot.is_wanted, slot.waker) = (false, None);
        if is_taken || matches!(state, State::Complete(..)) {
            slots.slots[self.number] = None;
            slots.free.push(self.number);
            drop(slots);
            if let State::Complete(_, payload) = state {
                self.engine.keep(payload);
            }
        }
    }
}

/// A tally and a number of bytes for `Counted`.
pub(super) fn counted(tally: &Rc<Tally>, bytes: usize) -> Counted {
    (bytes > 0).then(|| (tally.clone(), to_u64(bytes)))
}
