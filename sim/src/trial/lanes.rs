//! One direction of one link: frames that wait, leave, and are in flight.
//!
//! Place in the flow: senders pass frames to a lane; the lane signals when one has left (`Left`) and when the next has arrived
//! (`There`); faults slow it, hold it or end it.
//!
//! Invariants: frames arrive in the order in which they were sent; only the lane's end loses any. Signals do not name
//! frames: a lane that is held remembers pending signals.
//!
//! Deliberately absent: the meaning of frames, and network cards that several links share (the timing mode has those).

use crate::clock::{EventQueue, VirtualTime};
use crate::fault::FaultKind;
use bramble_matrix::Rect;
use bramble_wire::message::{Forward, Kind};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a frame's header.
const HEADER_BYTES: usize = 16;

/// The body of a frame.
#[derive(Clone, Debug)]
pub(super) enum FrameBody {
    Empty,
    /// Elements, line by line.
    Elements(Vec<f64>),
    /// The description of a generated matrix.
    Bytes(Vec<u8>),
    /// A lease of a part of C, in the primary's own memory.
    Lent(Rect),
}

/// The sender's action when a frame has left.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterSend {
    Nothing,
    /// Reports a sent store, with its bytes.
    Sent(usize),
    /// Frees a tile.
    Returned(u32),
    /// Reports that a relay order was carried out.
    Passed(Forward),
}

/// One message.
#[derive(Clone, Debug)]
pub(super) struct TrialFrame {
    pub(super) kind: Kind,
    pub(super) head: Vec<u8>,
    pub(super) body: FrameBody,
    pub(super) after: AfterSend,
    /// False if the link ends in the middle of the frame.
    pub(super) is_whole: bool,
}

/// An item on a lane.
#[derive(Clone, Debug)]
pub(super) enum LaneItem {
    Frame(TrialFrame),
    /// The credit accumulated until it leaves.
    Credit,
    /// The sender has closed the link.
    End,
}

impl TrialFrame {
    pub(super) fn new(kind: Kind, head: Vec<u8>, body: FrameBody, after: AfterSend) -> Self {
        Self { kind, head, body, after, is_whole: true }
    }
}

impl LaneItem {
    fn wire_bytes(&self) -> usize {
        match self {
            Self::End => 0,
            Self::Credit => HEADER_BYTES + 8,
            Self::Frame(frame) => {
                HEADER_BYTES
                    + frame.head.len()
                    + match &frame.body {
                        FrameBody::Empty | FrameBody::Lent(_) => 0,
                        FrameBody::Elements(elements) => 8 * elements.len(),
                        FrameBody::Bytes(bytes) => bytes.len(),
                    }
            }
        }
    }
}

/// Events of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneSignal {
    /// The leaving item has left.
    Left,
    /// The oldest item in flight has arrived.
    There,
}

/// Signals that came while the lane was held, and items that have arrived and were not taken.
#[derive(Default)]
struct DueSignals {
    left: bool,
    there: usize,
}

/// How many faults suspend the ends of a lane.
#[derive(Default)]
struct SuspendedEnds {
    sender: u32,
    receiver: u32,
}

/// Bytes of items that have left, and the part of the leaving item that had left when last computed.
#[derive(Default)]
struct SentBytes {
    gone: f64,
    going: f64,
}

/// One direction of one link.
pub(super) struct Lane {
    bytes_per_s: f64,
    latency_s: f64,
    waiting: VecDeque<LaneItem>,
    leaving: Option<LaneItem>,
    flying: VecDeque<LaneItem>,
    due: DueSignals,
    /// Faults that affect it.
    effects: BTreeMap<usize, FaultKind>,
    stands: SuspendedEnds,
    /// Whether the sender has closed it.
    is_closed: bool,
    /// Whether nothing arrives any more.
    is_over: bool,
    /// Whether the head of the first item in flight was read, so that its body lands.
    pub(super) lands: bool,
    /// Since when that item is the first; and when the lane was last held.
    pub(super) first_since: VirtualTime,
    pub(super) held_last: Option<VirtualTime>,
    /// Relay orders that will not be carried out.
    undone: Vec<Forward>,
    sent: SentBytes,
}

impl Lane {
    pub(super) fn new(bytes_per_s: f64, latency_s: f64) -> Self {
        Self {
            bytes_per_s,
            latency_s,
            waiting: VecDeque::new(),
            leaving: None,
            flying: VecDeque::new(),
            due: DueSignals::default(),
            effects: BTreeMap::new(),
            stands: SuspendedEnds::default(),
            is_closed: false,
            is_over: false,
            lands: false,
            first_since: VirtualTime::default(),
            held_last: None,
            undone: Vec::new(),
            sent: SentBytes::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// All items that have not been taken.
    pub(super) fn items(&self) -> impl Iterator<Item = &LaneItem> {
        self.flying.iter().chain(&self.leaving).chain(&self.waiting)
    }

    /// Whether nothing waits or leaves.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_none()
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.effects.values().any(|kind| *kind == FaultKind::Stall)
    }

    /// Whether nothing can arrive now.
    pub(super) fn is_held(&self) -> bool {
        self.stands.receiver > 0 || self.is_stalled()
    }

    fn is_held_at_sender(&self) -> bool {
        self.stands.sender > 0 || self.is_stalled()
    }

    /// Bytes that have left, `seconds` after the last call.
    pub(super) fn gone_after(&mut self, seconds: f64) -> u64 {
        if let Some(item) = self.leaving.as_ref().filter(|_| !self.due.left && !self.is_held_at_sender()) {
            let some = seconds * self.bytes_per_s / self.slowness();
            self.sent.going = (self.sent.going + some).min(item.wire_bytes() as f64);
        }
        // Whole bytes.
        (self.sent.gone + self.sent.going) as u64
    }

    /// Whether bytes are moving now.
    pub(super) fn moves(&self) -> bool {
        let leaves = self.leaving.is_some() && !self.due.left;
        !self.is_over && !self.is_held() && (leaves && !self.is_held_at_sender() || !self.flying.is_empty())
    }

    /// Whether the receiver is taking the bytes of a body that is leaving. The head of a store counts, too: here it is as
    /// long, and as slow, as a body on a real link.
    pub(super) fn takes_a_body(&self) -> bool {
        let is_body = |item: &LaneItem| match item {
            LaneItem::Frame(frame) => {
                frame.kind == Kind::Store || matches!(frame.body, FrameBody::Elements(_))
            }
            LaneItem::Credit | LaneItem::End => false,
        };
        let stands = self.stands.receiver > 0 || self.is_held_at_sender();
        !self.is_over && !stands && !self.due.left && self.leaving.as_ref().is_some_and(is_body)
    }

    /// Whether an item is in flight and has begun to land.
    pub(super) fn is_in_a_frame(&self) -> bool {
        !self.is_over && self.lands && !self.flying.is_empty()
    }

    /// Whether an item has arrived that may not land yet.
    pub(super) fn is_refused(&self) -> bool {
        !self.is_over && !self.lands && self.due.there > 0 && !self.is_held()
    }

    /// By how much the faults slow it.
    fn slowness(&self) -> f64 {
        let slow = |kind: &FaultKind| if let FaultKind::Slow(times) = kind { *times } else { 1.0 };
        self.effects.values().map(slow).fold(1.0, f64::max)
    }

    /// Seconds that a ping takes to leave.
    pub(super) fn ping_s(&self) -> f64 {
        24.0 * self.slowness() / self.bytes_per_s
    }

    /// Seconds by which the faults delay a frame; `chance` is from 0 to 1.
    fn extra_s(&self, chance: f64) -> f64 {
        let extra = |kind: &FaultKind| match kind {
            FaultKind::Delay(most) => most.as_secs_f64() * chance,
            FaultKind::Late(by) => by.as_secs_f64(),
            _ => 0.0,
        };
        self.effects.values().map(extra).sum()
    }

    /// Sends an item. `me` is the lane's index.
    pub(super) fn send<E: From<(usize, LaneSignal)>>(
        &mut self,
        me: usize,
        item: LaneItem,
        event_queue: &mut EventQueue<E>,
    ) {
        if !self.is_over && !self.is_closed {
            self.waiting.push_back(item);
            self.start(me, event_queue);
        } else if let Some(forward) = order(&item) {
            self.undone.push(forward);
        }
    }

    fn start<E: From<(usize, LaneSignal)>>(&mut self, me: usize, event_queue: &mut EventQueue<E>) {
        if self.is_over || self.leaving.is_some() || self.is_held_at_sender() {
            return;
        }
        if let Some(item) = self.waiting.pop_front() {
            let seconds = item.wire_bytes() as f64 * self.slowness() / self.bytes_per_s;
            self.leaving = Some(item);
            event_queue.add(seconds, E::from((me, LaneSignal::Left)));
        }
    }

    /// Removes the item that has left, unless the lane is held; the caller completes it and passes it to `fly`.
    pub(super) fn left(&mut self) -> Option<LaneItem> {
        if self.is_over {
            return None;
        }
        self.due.left = self.is_held_at_sender();
        if self.due.left {
            return None;
        }
        self.sent.going = 0.0;
        self.sent.gone += self.leaving.as_ref().map_or(0.0, |item| item.wire_bytes() as f64);
        self.leaving.take()
    }

    /// Puts an item in flight.
    pub(super) fn fly<E: From<(usize, LaneSignal)>>(
        &mut self,
        me: usize,
        (item, chance): (LaneItem, f64),
        event_queue: &mut EventQueue<E>,
    ) {
        if self.flying.is_empty() {
            self.first_since = event_queue.now();
        }
        self.flying.push_back(item);
        event_queue.add(self.latency_s + self.extra_s(chance), E::from((me, LaneSignal::There)));
        self.start(me, event_queue);
    }

    /// An item has arrived.
    pub(super) fn there(&mut self) {
        self.due.there += 1;
    }

    /// The first item in flight, if the receiver may look at it now.
    pub(super) fn first(&self) -> Option<&LaneItem> {
        if self.is_over || self.is_held() { None } else { self.flying.front() }
    }

    /// Takes the first item if it has arrived.
    pub(super) fn take(&mut self, now: VirtualTime) -> Option<LaneItem> {
        if self.due.there == 0 || self.is_over || self.is_held() {
            return None;
        }
        self.due.there -= 1;
        self.lands = false;
        self.first_since = now;
        self.flying.pop_front()
    }

    /// A fault begins.
    pub(super) fn suffer(&mut self, number: usize, kind: FaultKind) {
        self.effects.insert(number, kind);
    }

    /// A fault ends.
    pub(super) fn recover<E: From<(usize, LaneSignal)>>(
        &mut self,
        (me, number): (usize, usize),
        event_queue: &mut EventQueue<E>,
    ) {
        self.effects.remove(&number);
        self.go_on(me, event_queue);
    }

    /// Suspends or resumes one end.
    pub(super) fn stand<E: From<(usize, LaneSignal)>>(
        &mut self,
        me: usize,
        (is_sender, stands): (bool, bool),
        event_queue: &mut EventQueue<E>,
    ) {
        let count = if is_sender { &mut self.stands.sender } else { &mut self.stands.receiver };
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        self.go_on(me, event_queue);
    }

    fn go_on<E: From<(usize, LaneSignal)>>(&mut self, me: usize, event_queue: &mut EventQueue<E>) {
        if std::mem::take(&mut self.due.left) {
            event_queue.add(0.0, E::from((me, LaneSignal::Left)));
        }
        self.start(me, event_queue);
    }

    /// The link has ended for its receiver: nothing arrives any more.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.give_up();
        self.waiting.clear();
        self.leaving = None;
        self.flying.clear();
    }

    /// The sender is gone: items in flight arrive, the leaving one partly, then `last`, then the end.
    pub(super) fn close<E: From<(usize, LaneSignal)>>(
        &mut self,
        me: usize,
        last: Option<TrialFrame>,
        event_queue: &mut EventQueue<E>,
    ) {
        if self.is_over || std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.give_up();
        self.waiting.clear();
        self.stands.sender = 0;
        if let Some(last) = last {
            self.waiting.extend([LaneItem::Frame(last), LaneItem::End]);
        } else {
            if let Some(LaneItem::Frame(frame)) = self.leaving.take() {
                self.fly(me, (LaneItem::Frame(TrialFrame { is_whole: false, ..frame }), 0.0), event_queue);
            }
            self.leaving = None;
            self.fly(me, (LaneItem::End, 0.0), event_queue);
        }
        self.go_on(me, event_queue);
    }

    fn give_up(&mut self) {
        let orders = self.leaving.iter().chain(&self.waiting).filter_map(order);
        self.undone.extend(orders);
    }

    /// Takes the relay orders that will not be carried out.
    pub(super) fn take_undone(&mut self) -> Vec<Forward> {
        std::mem::take(&mut self.undone)
    }
}

/// The relay order that an item completes.
fn order(item: &LaneItem) -> Option<Forward> {
    match item {
        LaneItem::Frame(TrialFrame { after: AfterSend::Passed(forward), .. }) => Some(*forward),
        LaneItem::Frame(_) | LaneItem::Credit | LaneItem::End => None,
    }
}
