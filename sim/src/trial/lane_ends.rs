//! The two ends of each lane, and their reactions when a frame has left or arrived.
//!
//! Invariants: frames are taken in order, each as a whole; its head is read before, when its body begins to land. An end
//! that is gone takes nothing.

use super::Trial;
use super::lanes::{AfterSend, FrameBody, LaneItem, TrialFrame};
use super::node::decoded;
use bramble_schedule::primary::PrimaryEvent;
use bramble_wire::message::{Kind, StoreHead};

impl Trial {
    pub(super) fn out(&self, peer: usize) -> usize {
        peer
    }

    pub(super) fn back(&self, peer: usize) -> usize {
        self.nodes.len() + peer
    }

    pub(super) fn across(&self, from: usize, to: usize) -> usize {
        (2 + from) * self.nodes.len() + to
    }

    /// The sender of a lane; `None` is the primary.
    pub(super) fn sender(&self, lane: usize) -> Option<usize> {
        let count = self.nodes.len();
        match lane / count {
            0 => None,
            1 => Some(lane - count),
            row => Some(row - 2),
        }
    }

    /// The receiver of a lane; `None` is the primary.
    pub(super) fn receiver(&self, lane: usize) -> Option<usize> {
        let count = self.nodes.len();
        if lane / count == 1 { None } else { Some(lane % count) }
    }

    /// All lanes that begin or end at a machine.
    pub(super) fn lanes_of(&self, peer: usize) -> Vec<usize> {
        let is_at = |lane: &usize| {
            (self.sender(*lane) == Some(peer) || self.receiver(*lane) == Some(peer))
                && self.sender(*lane) != self.receiver(*lane)
        };
        (0..self.lanes.len()).filter(is_at).collect()
    }

    pub(super) fn send(&mut self, lane: usize, kind: Kind, head: Vec<u8>, body: FrameBody, after: AfterSend) {
        let item = LaneItem::Frame(TrialFrame::new(kind, head, body, after));
        self.lanes[lane].send(lane, item, &mut self.event_queue);
    }

    /// The frame at the head of a lane has left, unless a fault holds it.
    pub(super) fn left(&mut self, lane: usize) {
        let Some(item) = self.lanes[lane].left() else { return };
        let sender = self.sender(lane);
        let item = match (item, sender) {
            (LaneItem::Credit, Some(peer)) => LaneItem::Frame(self.take_credit(peer)),
            (item, _) => item,
        };
        let (kind, after) = match &item {
            LaneItem::Frame(frame) => (Some(frame.kind), frame.after),
            LaneItem::Credit | LaneItem::End => (None, AfterSend::Nothing),
        };
        if !matches!(kind, Some(Kind::Ping | Kind::Pong)) {
            self.record.moved_last = self.event_queue.now();
        }
        let chance = self.random.between(0.0, 1.0);
        self.lanes[lane].fly(lane, (item, chance), &mut self.event_queue);
        match (sender, after) {
            (None, AfterSend::Sent(bytes)) if !self.drains => {
                self.dispatch(PrimaryEvent::Sent { peer: lane, bytes })
            }
            (None, _) => {}
            (Some(peer), after) if self.nodes[peer].machine.lives => self.has_left(peer, after),
            (Some(_), _) => {}
        }
        self.pump(lane);
    }

    /// Takes arrived frames off a lane, and lets the next one begin to land.
    pub(super) fn pump(&mut self, lane: usize) {
        while !self.is_over() || self.drains {
            let Some(item) = self.lanes[lane].first() else { return };
            if !self.lanes[lane].lands {
                let begun = match item {
                    LaneItem::Frame(frame) => Some((frame.kind, frame.head.clone(), has_body(frame))),
                    LaneItem::Credit | LaneItem::End => None,
                };
                if let Some((kind, head, has_body)) = begun
                    && !self.begin_frame(lane, kind, &head, has_body)
                {
                    return;
                }
                if self.lanes[lane].first().is_none() {
                    return;
                }
                self.lanes[lane].lands = true;
            }
            let now = self.event_queue.now();
            let Some(item) = self.lanes[lane].take(now) else { return };
            self.take(lane, item);
        }
    }

    /// Reads the head of a frame; false if its body has to wait.
    pub(super) fn begin_frame(&mut self, lane: usize, kind: Kind, head: &[u8], has_body: bool) -> bool {
        match (self.sender(lane), self.receiver(lane)) {
            (Some(peer), None) => {
                if has_body && !self.drains {
                    self.begin(peer, kind, head);
                }
                true
            }
            (None, Some(peer)) => {
                if kind == Kind::Store && has_body && self.nodes[peer].machine.lives {
                    let head = decoded(StoreHead::decode(head));
                    self.announce(peer, &head);
                }
                true
            }
            (Some(from), Some(to)) => {
                !self.nodes[to].machine.lives || kind == Kind::Ping || self.begin_piece(from, to, head)
            }
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }

    /// A frame has arrived.
    pub(super) fn take(&mut self, lane: usize, item: LaneItem) {
        self.record.moved_last = match &item {
            LaneItem::Frame(TrialFrame { kind: Kind::Ping | Kind::Pong, .. }) => self.record.moved_last,
            _ => self.event_queue.now(),
        };
        match (self.sender(lane), self.receiver(lane)) {
            (Some(_), None) if self.drains => {}
            (Some(peer), None) => self.take_at_primary(peer, item),
            (None, Some(peer)) => match item {
                _ if !self.nodes[peer].machine.lives => {}
                LaneItem::Frame(frame) if frame.is_whole => {
                    let was_announced = has_body(&frame);
                    self.receive_at_worker(peer, frame, was_announced);
                }
                LaneItem::Frame(_) | LaneItem::End => self.stop(peer, None),
                LaneItem::Credit => unreachable!("the primary gives no credit"),
            },
            (Some(from), Some(to)) => match item {
                _ if !self.nodes[to].machine.lives => {}
                LaneItem::Frame(frame) if frame.is_whole => self.take_of_a_neighbour((from, to), frame),
                LaneItem::Frame(_) | LaneItem::End => self.part(to, from, true),
                LaneItem::Credit => unreachable!("workers give each other no credit"),
            },
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }

    /// The receiver of a lane notices that its link is broken.
    pub(super) fn see_broken(&mut self, lane: usize) {
        match (self.sender(lane), self.receiver(lane)) {
            (Some(peer), None) => self.gone(peer, "the connection was reset"),
            (None, Some(peer)) => self.stop(peer, None),
            (Some(from), Some(to)) => self.part(to, from, true),
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }
}

/// Whether a frame has elements, which need memory before they land.
fn has_body(frame: &TrialFrame) -> bool {
    matches!(frame.body, FrameBody::Elements(_))
}
