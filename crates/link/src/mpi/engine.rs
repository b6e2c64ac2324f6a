//! All messages of this process that are under way, and who waits for them.
//!
//! Place in the flow: between the ends of links, which start messages and wait for them, and the library. MPI tells nobody
//! when a message is complete: somebody has to ask it, again and again. That is `poll`, which `drive` calls.
//!
//! Invariants: everything is on one thread. A message that nobody waits for any more stays under way until it is complete, with
//! its memory. After the first error of the library nothing more is asked of it: every message ends with that error.
//!
//! Deliberately absent: cancelling. Each end of a link takes what the other has begun to send, to the end (`receive`), so
//! everything that is under way gets complete.

use super::held::{self, Payload, UnderWay};
use super::table::{Calls, Fault, Message};
use crate::to_u64;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// Messages that one `poll` takes note of, before others have their turn.
const POLL_MESSAGES: usize = 256;
/// Buffers that wait to be used again: so many of each size.
const SPARE_BUFFERS: usize = 32;
/// Buffers longer than this are used again too, but fewer of them.
const LARGE_BYTES: usize = 64 << 10;
const SPARE_LARGE_BUFFERS: usize = 8;

/// Bytes of bodies on their way out, and those that have got to the other end.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) held: Cell<u64>,
    pub(super) there: Cell<u64>,
}

/// Whose bytes a message is made of.
pub(super) type Counted = Option<(Rc<Tally>, u64)>;

/// One message.
struct Slot {
    state: State,
    waker: Option<Waker>,
    /// Whether somebody has its ticket.
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
    /// Those of them that carry much.
    bulk: usize,
}

type Chore = Pin<Box<dyn Future<Output = ()>>>;

/// The messages of this process.
pub(super) struct Engine {
    calls: Box<dyn Calls>,
    slots: RefCell<Slots>,
    fault: RefCell<Option<Fault>>,
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
    /// What goes on without anybody who waits for it.
    chores: RefCell<Vec<Chore>>,
    has_new_chores: Cell<bool>,
    /// Told when a message starts.
    pub(super) started: Notify,
    /// Messages that were started so far.
    starts: Cell<u64>,
}

/// A message that somebody waits for: the bytes that came, and the payload.
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
            chores: RefCell::default(),
            has_new_chores: Cell::new(false),
            started: Notify::new(),
            starts: Cell::new(0),
        }
    }

    pub(super) fn calls(&self) -> &dyn Calls {
        &*self.calls
    }

    /// Starts to send; see `held::send`. `counted` is who counts which bytes of it.
    pub(super) fn send(
        self: &Rc<Self>,
        payload: Payload,
        message: Message,
        is_synchronous: bool,
        counted: Counted,
    ) -> Result<Ticket, Fault> {
        self.start(message, counted, || held::send(self.calls(), payload, message, is_synchronous))
    }

    /// Starts to receive; see `held::receive`.
    pub(super) fn receive(self: &Rc<Self>, payload: Payload, message: Message) -> Result<Ticket, Fault> {
        self.start(message, None, || held::receive(self.calls(), payload, message))
    }

    fn start(
        self: &Rc<Self>,
        message: Message,
        counted: Counted,
        begin: impl FnOnce() -> Result<held::Held, Fault>,
    ) -> Result<Ticket, Fault> {
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

    /// Nothing more will come of any message.
    pub(super) fn fail(&self, fault: &Fault) {
        self.fault.borrow_mut().get_or_insert_with(|| fault.clone());
        let mut slots = self.slots.borrow_mut();
        let waiting = slots.slots.iter_mut().flatten().filter_map(|slot| slot.waker.take());
        waiting.for_each(Waker::wake);
    }

    /// Asks the library which messages are complete; gives their number.
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

    /// Asks the library once if that message is not complete: its turn may be now, before that of the task that asks.
    pub(super) fn look_for(&self, ticket: &Ticket) {
        if !ticket.is_done() {
            self.poll();
        }
    }

    fn complete(&self, number: usize, bytes: usize, payload: Payload) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.slots[number].as_mut() else { unreachable!("message {number} is nobody's") };
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

    /// Goes on with something that nobody waits for, with every message that gets complete.
    pub(super) fn adopt(&self, chore: impl Future<Output = ()> + 'static) {
        self.chores.borrow_mut().push(Box::pin(chore));
        self.has_new_chores.set(true);
        self.started.notify_one();
    }

    fn do_chores(&self) {
        // They may adopt others.
        let mut chores = self.chores.take();
        chores.retain_mut(|chore| chore.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.chores.borrow_mut().append(&mut chores);
    }

    /// Whether no message is under way, and none will be by itself.
    pub(super) fn is_quiet(&self) -> bool {
        self.slots.borrow().under_way.is_empty() && self.chores.borrow().is_empty()
    }

    /// What the library said when it failed.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.borrow().clone()
    }

    /// Whether something is under way that takes its time and needs this process to ask often.
    pub(super) fn has_bulk(&self) -> bool {
        self.slots.borrow().bulk > 0
    }

    /// Messages that were started so far.
    pub(super) fn starts(&self) -> u64 {
        self.starts.get()
    }

    /// A buffer of so many bytes, with anything in it.
    pub(super) fn buffer(&self, bytes: usize) -> Box<[u8]> {
        let spare = if bytes > LARGE_BYTES { &self.large } else { &self.small };
        let mut spare = spare.borrow_mut();
        let fitting = spare.iter().position(|buffer| buffer.len() == bytes);
        fitting.map_or_else(|| vec![0; bytes].into_boxed_slice(), |at| spare.swap_remove(at))
    }

    /// Keeps a buffer for later.
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
    /// Whether there is something to be had without waiting.
    pub(super) fn is_done(&self) -> bool {
        let slots = self.engine.slots.borrow();
        let slot = slots.slots.get(self.number).and_then(Option::as_ref);
        slot.is_none_or(|slot| matches!(slot.state, State::Complete(..)))
            || self.engine.fault.borrow().is_some()
    }

    /// The same; if there is nothing, whoever asks is woken when there is.
    pub(super) fn watch(&self, context: &Context<'_>) -> bool {
        let is_done = self.is_done();
        if !is_done && let Some(slot) = self.engine.slots.borrow_mut().slots[self.number].as_mut() {
            slot.waker = Some(context.waker().clone());
        }
        is_done
    }
}

impl Future for Ticket {
    type Output = Result<(usize, Payload), Fault>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.engine.slots.borrow_mut();
        let Some(slot) = slots.slots[self.number].as_mut() else {
            unreachable!("message {} has been waited for", self.number)
        };
        match std::mem::replace(&mut slot.state, State::UnderWay) {
            State::Complete(bytes, payload) => {
                // The slot goes with the ticket.
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
        // Taken: nothing is under way. Complete: nobody wants it. Else it stays until it is complete.
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

/// As the counter of bodies has it.
pub(super) fn counted(tally: &Rc<Tally>, bytes: usize) -> Counted {
    (bytes > 0).then(|| (tally.clone(), to_u64(bytes)))
}
