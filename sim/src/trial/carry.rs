//! Who is at the ends of each lane, what happens when something has left one, and when it is there.
//!
//! Invariants: what arrives is taken in order, each thing whole, after its head was read: from then on its body lands. An end
//! that is gone takes nothing.

use super::Trial;
use super::links::{After, Body, Frame, Item};
use super::node::decoded;
use bramble_schedule::message::{Kind, StoreHead};
use bramble_schedule::primary::Event;

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

    /// Who sends on a lane; `None` is the primary.
    pub(super) fn sender(&self, lane: usize) -> Option<usize> {
        let count = self.nodes.len();
        match lane / count {
            0 => None,
            1 => Some(lane - count),
            row => Some(row - 2),
        }
    }

    /// Who receives from it; `None` is the primary.
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

    pub(super) fn send(&mut self, lane: usize, kind: Kind, head: Vec<u8>, body: Body, after: After) {
        let item = Item::Frame(Frame::new(kind, head, body, after));
        self.lanes[lane].send(lane, item, &mut self.agenda);
    }

    /// What was leaving a lane has left, if nothing holds it.
    pub(super) fn left(&mut self, lane: usize) {
        let Some(item) = self.lanes[lane].left() else { return };
        let sender = self.sender(lane);
        let item = match (item, sender) {
            (Item::Credit, Some(peer)) => Item::Frame(self.take_credit(peer)),
            (item, _) => item,
        };
        let (kind, after) = match &item {
            Item::Frame(frame) => (Some(frame.kind), frame.after),
            Item::Credit | Item::End => (None, After::Nothing),
        };
        if !matches!(kind, Some(Kind::Ping | Kind::Pong)) {
            self.moved_last = self.agenda.now();
        }
        let chance = self.random.between(0.0, 1.0);
        self.lanes[lane].fly(lane, (item, chance), &mut self.agenda);
        match (sender, after) {
            (None, After::Sent(bytes)) if !self.drains => self.tell(Event::Sent { peer: lane, bytes }),
            (None, _) => {}
            (Some(peer), after) if self.nodes[peer].lives => self.has_left(peer, after),
            (Some(_), _) => {}
        }
        self.pump(lane);
    }

    /// Takes what is there off a lane, and has the next begin to land.
    pub(super) fn pump(&mut self, lane: usize) {
        while !self.is_over() || self.drains {
            let Some(item) = self.lanes[lane].first() else { return };
            if !self.lanes[lane].lands {
                let begun = match item {
                    Item::Frame(frame) => Some((frame.kind, frame.head.clone(), has_body(frame))),
                    Item::Credit | Item::End => None,
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
            let now = self.agenda.now();
            let Some(item) = self.lanes[lane].take(now) else { return };
            self.take(lane, item);
        }
    }

    /// The head of a frame is read; false where its body has to wait.
    pub(super) fn begin_frame(&mut self, lane: usize, kind: Kind, head: &[u8], has_body: bool) -> bool {
        match (self.sender(lane), self.receiver(lane)) {
            (Some(peer), None) => {
                if has_body && !self.drains {
                    self.begin(peer, kind, head);
                }
                true
            }
            (None, Some(peer)) => {
                if kind == Kind::Store && has_body && self.nodes[peer].lives {
                    let head = decoded(StoreHead::decode(head));
                    self.announce(peer, &head);
                }
                true
            }
            (Some(from), Some(to)) => {
                !self.nodes[to].lives || kind == Kind::Ping || self.begin_piece(from, to, head)
            }
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }

    /// Something is there.
    pub(super) fn take(&mut self, lane: usize, item: Item) {
        self.moved_last = match &item {
            Item::Frame(Frame { kind: Kind::Ping | Kind::Pong, .. }) => self.moved_last,
            _ => self.agenda.now(),
        };
        match (self.sender(lane), self.receiver(lane)) {
            (Some(_), None) if self.drains => {}
            (Some(peer), None) => self.take_at_primary(peer, item),
            (None, Some(peer)) => match item {
                _ if !self.nodes[peer].lives => {}
                Item::Frame(frame) if frame.is_whole => {
                    let was_announced = has_body(&frame);
                    self.hear(peer, frame, was_announced);
                }
                Item::Frame(_) | Item::End => self.stop(peer, None),
                Item::Credit => unreachable!("the primary gives no credit"),
            },
            (Some(from), Some(to)) => match item {
                _ if !self.nodes[to].lives => {}
                Item::Frame(frame) if frame.is_whole => self.take_of_a_neighbour((from, to), frame),
                Item::Frame(_) | Item::End => self.part(to, from, true),
                Item::Credit => unreachable!("workers give each other no credit"),
            },
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }

    /// The receiver of a lane sees that its link is broken.
    pub(super) fn see_broken(&mut self, lane: usize) {
        match (self.sender(lane), self.receiver(lane)) {
            (Some(peer), None) => self.gone(peer, "the connection was reset"),
            (None, Some(peer)) => self.stop(peer, None),
            (Some(from), Some(to)) => self.part(to, from, true),
            (None, None) => unreachable!("the primary has no link with itself"),
        }
    }
}

/// Whether a frame has bytes that land somewhere, which has to be named before.
fn has_body(frame: &Frame) -> bool {
    matches!(frame.body, Body::Elements(_))
}
