//! One way of one link: what waits, what is leaving, what is on its way.
//!
//! Place in the flow: ends give a lane what they send and hear when it has left (`Left`), and when the next is there (`There`);
//! faults slow it down, hold it up or end it.
//!
//! Invariants: what arrives does so in the order in which it was sent; nothing is lost but by the lane's end. Signals say that
//! something has left or is there, not what: held-up lanes remember that they came.
//!
//! Deliberately absent: what frames mean, and cards that several links share (the timing mode has those).

use crate::clock::{Agenda, Time};
use crate::fault::FaultKind;
use bramble_matrix::Rect;
use bramble_schedule::message::{Forward, Kind};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a frame's header.
const HEADER_BYTES: usize = 16;

/// What a frame carries beside its head.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Empty,
    /// Line by line.
    Elements(Vec<f64>),
    /// How a matrix is made.
    Bytes(Vec<u8>),
    /// A part of C, in the primary's own memory.
    Lent(Rect),
}

/// What the sender does when a frame has left.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    Nothing,
    /// Counts a store of so many bytes.
    Sent(usize),
    /// Forgets a tile.
    Returned(u32),
    /// An order has been carried out.
    Passed(Forward),
}

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) head: Vec<u8>,
    pub(super) body: Body,
    pub(super) after: After,
    /// False where the link ends in the middle of it.
    pub(super) is_whole: bool,
}

/// What a lane carries.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Frame(Frame),
    /// The credit that has gathered when it leaves.
    Credit,
    /// The sender has closed the link.
    End,
}

impl Frame {
    pub(super) fn new(kind: Kind, head: Vec<u8>, body: Body, after: After) -> Self {
        Self { kind, head, body, after, is_whole: true }
    }
}

impl Item {
    fn wire_bytes(&self) -> usize {
        match self {
            Self::End => 0,
            Self::Credit => HEADER_BYTES + 8,
            Self::Frame(frame) => {
                HEADER_BYTES
                    + frame.head.len()
                    + match &frame.body {
                        Body::Empty | Body::Lent(_) => 0,
                        Body::Elements(elements) => 8 * elements.len(),
                        Body::Bytes(bytes) => bytes.len(),
                    }
            }
        }
    }
}

/// What a lane has to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// What is leaving has left.
    Left,
    /// The oldest on its way is there.
    There,
}

/// One way of one link.
pub(super) struct Lane {
    bytes_per_s: f64,
    latency_s: f64,
    waiting: VecDeque<Item>,
    leaving: Option<Item>,
    flying: VecDeque<Item>,
    /// Signals that have come and could not be acted on.
    left_due: bool,
    there_due: usize,
    /// Faults that are on it.
    effects: BTreeMap<usize, FaultKind>,
    /// How many hold up the sender, and the receiver.
    sender_stands: u32,
    receiver_stands: u32,
    /// The sender has sent its last.
    is_closed: bool,
    /// Nothing arrives any more.
    is_over: bool,
    /// The first on its way has been looked at, and lands.
    pub(super) lands: bool,
    /// Since when it is the first; and when the lane was last held up.
    pub(super) first_since: Time,
    pub(super) held_last: Option<Time>,
    /// Orders that will not be carried out.
    undone: Vec<Forward>,
    /// Bytes of what has left, and what of the one that is leaving had left when that was last looked at.
    gone: f64,
    going: f64,
}

impl Lane {
    pub(super) fn new(bytes_per_s: f64, latency_s: f64) -> Self {
        Self {
            bytes_per_s,
            latency_s,
            waiting: VecDeque::new(),
            leaving: None,
            flying: VecDeque::new(),
            left_due: false,
            there_due: 0,
            effects: BTreeMap::new(),
            sender_stands: 0,
            receiver_stands: 0,
            is_closed: false,
            is_over: false,
            lands: false,
            first_since: Time::default(),
            held_last: None,
            undone: Vec::new(),
            gone: 0.0,
            going: 0.0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether nothing waits, and nothing leaves.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_none()
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.effects.values().any(|kind| *kind == FaultKind::Stall)
    }

    /// Whether nothing can arrive now.
    pub(super) fn is_held(&self) -> bool {
        self.receiver_stands > 0 || self.is_stalled()
    }

    fn is_held_at_sender(&self) -> bool {
        self.sender_stands > 0 || self.is_stalled()
    }

    /// Bytes that have left, after so many seconds more.
    pub(super) fn gone_after(&mut self, seconds: f64) -> u64 {
        if let Some(item) = self.leaving.as_ref().filter(|_| !self.left_due && !self.is_held_at_sender()) {
            let some = seconds * self.bytes_per_s / self.slowness();
            self.going = (self.going + some).min(item.wire_bytes() as f64);
        }
        // Whole bytes.
        (self.gone + self.going) as u64
    }

    /// Whether bytes of a frame are on their way now.
    pub(super) fn moves(&self) -> bool {
        let leaves = self.leaving.is_some() && !self.left_due;
        !self.is_over && !self.is_held() && (leaves && !self.is_held_at_sender() || !self.flying.is_empty())
    }

    /// Whether the receiver's system takes a body that is leaving, bit by bit. The head of a store is as long here as a body is
    /// on a real link, and as slow.
    pub(super) fn takes_a_body(&self) -> bool {
        let is_body = |item: &Item| match item {
            Item::Frame(frame) => frame.kind == Kind::Store || matches!(frame.body, Body::Elements(_)),
            Item::Credit | Item::End => false,
        };
        let stands = self.receiver_stands > 0 || self.is_held_at_sender();
        !self.is_over && !stands && !self.left_due && self.leaving.as_ref().is_some_and(is_body)
    }

    /// Whether something is on its way, and has begun to land.
    pub(super) fn is_in_a_frame(&self) -> bool {
        !self.is_over && self.lands && !self.flying.is_empty()
    }

    /// Whether something is there that may not land yet.
    pub(super) fn is_refused(&self) -> bool {
        !self.is_over && !self.lands && self.there_due > 0 && !self.is_held()
    }

    /// So many times slower, for the faults that are on it.
    fn slowness(&self) -> f64 {
        let slow = |kind: &FaultKind| if let FaultKind::Slow(times) = kind { *times } else { 1.0 };
        self.effects.values().map(slow).fold(1.0, f64::max)
    }

    /// How long a ping takes to leave, in seconds.
    pub(super) fn ping_s(&self) -> f64 {
        24.0 * self.slowness() / self.bytes_per_s
    }

    /// What a frame takes longer; `chance` from 0 to 1.
    fn extra_s(&self, chance: f64) -> f64 {
        let extra = |kind: &FaultKind| match kind {
            FaultKind::Delay(most) => most.as_secs_f64() * chance,
            FaultKind::Late(by) => by.as_secs_f64(),
            _ => 0.0,
        };
        self.effects.values().map(extra).sum()
    }

    /// Sends something. `me` is the lane's number.
    pub(super) fn send<E: From<(usize, Signal)>>(&mut self, me: usize, item: Item, agenda: &mut Agenda<E>) {
        if !self.is_over && !self.is_closed {
            self.waiting.push_back(item);
            self.start(me, agenda);
        } else if let Some(forward) = order(&item) {
            self.undone.push(forward);
        }
    }

    fn start<E: From<(usize, Signal)>>(&mut self, me: usize, agenda: &mut Agenda<E>) {
        if self.is_over || self.leaving.is_some() || self.is_held_at_sender() {
            return;
        }
        if let Some(item) = self.waiting.pop_front() {
            let seconds = item.wire_bytes() as f64 * self.slowness() / self.bytes_per_s;
            self.leaving = Some(item);
            agenda.add(seconds, E::from((me, Signal::Left)));
        }
    }

    /// What has left, if it could: to be changed, and given back (`fly`).
    pub(super) fn left(&mut self) -> Option<Item> {
        if self.is_over {
            return None;
        }
        self.left_due = self.is_held_at_sender();
        if self.left_due {
            return None;
        }
        self.going = 0.0;
        self.gone += self.leaving.as_ref().map_or(0.0, |item| item.wire_bytes() as f64);
        self.leaving.take()
    }

    /// Something is on its way.
    pub(super) fn fly<E: From<(usize, Signal)>>(
        &mut self,
        me: usize,
        (item, chance): (Item, f64),
        agenda: &mut Agenda<E>,
    ) {
        if self.flying.is_empty() {
            self.first_since = agenda.now();
        }
        self.flying.push_back(item);
        agenda.add(self.latency_s + self.extra_s(chance), E::from((me, Signal::There)));
        self.start(me, agenda);
    }

    /// One more is there.
    pub(super) fn there(&mut self) {
        self.there_due += 1;
    }

    /// The first on its way, if it is to be looked at now.
    pub(super) fn first(&self) -> Option<&Item> {
        if self.is_over || self.is_held() { None } else { self.flying.front() }
    }

    /// Takes the first if it is there.
    pub(super) fn take(&mut self, now: Time) -> Option<Item> {
        if self.there_due == 0 || self.is_over || self.is_held() {
            return None;
        }
        self.there_due -= 1;
        self.lands = false;
        self.first_since = now;
        self.flying.pop_front()
    }

    /// A fault begins.
    pub(super) fn suffer(&mut self, number: usize, kind: FaultKind) {
        self.effects.insert(number, kind);
    }

    /// A fault is over.
    pub(super) fn recover<E: From<(usize, Signal)>>(
        &mut self,
        (me, number): (usize, usize),
        agenda: &mut Agenda<E>,
    ) {
        self.effects.remove(&number);
        self.go_on(me, agenda);
    }

    /// An end of it stands still, or goes on.
    pub(super) fn stand<E: From<(usize, Signal)>>(
        &mut self,
        me: usize,
        (is_sender, stands): (bool, bool),
        agenda: &mut Agenda<E>,
    ) {
        let count = if is_sender { &mut self.sender_stands } else { &mut self.receiver_stands };
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        self.go_on(me, agenda);
    }

    fn go_on<E: From<(usize, Signal)>>(&mut self, me: usize, agenda: &mut Agenda<E>) {
        if std::mem::take(&mut self.left_due) {
            agenda.add(0.0, E::from((me, Signal::Left)));
        }
        self.start(me, agenda);
    }

    /// The link has ended for its receiver: nothing arrives any more.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.give_up();
        self.waiting.clear();
        self.leaving = None;
        self.flying.clear();
    }

    /// The sender is gone: what is on its way arrives, of what is leaving a part, then the end; before it `last`.
    pub(super) fn close<E: From<(usize, Signal)>>(
        &mut self,
        me: usize,
        last: Option<Frame>,
        agenda: &mut Agenda<E>,
    ) {
        if self.is_over || std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.give_up();
        self.waiting.clear();
        self.sender_stands = 0;
        if let Some(last) = last {
            self.waiting.extend([Item::Frame(last), Item::End]);
        } else {
            if let Some(Item::Frame(frame)) = self.leaving.take() {
                self.fly(me, (Item::Frame(Frame { is_whole: false, ..frame }), 0.0), agenda);
            }
            self.leaving = None;
            self.fly(me, (Item::End, 0.0), agenda);
        }
        self.go_on(me, agenda);
    }

    fn give_up(&mut self) {
        let orders = self.leaving.iter().chain(&self.waiting).filter_map(order);
        self.undone.extend(orders);
    }

    /// Orders to pass something on that will not be carried out.
    pub(super) fn take_undone(&mut self) -> Vec<Forward> {
        std::mem::take(&mut self.undone)
    }
}

/// The order that something ends.
fn order(item: &Item) -> Option<Forward> {
    match item {
        Item::Frame(Frame { after: After::Passed(forward), .. }) => Some(*forward),
        Item::Frame(_) | Item::Credit | Item::End => None,
    }
}
