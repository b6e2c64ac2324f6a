//! One direction of all links of the primary: frames under way, and the time that they take.
//!
//! A frame occupies the primary's network card for its bytes at the card's rate, and at the same time, or as soon as the
//! frame before it has left the link, its link for its bytes at the slower of both rates. Links with frames to send
//! take turns at the card, but at most one frame ahead of the one that they carry. So slow links get their full
//! rate, and the others share the rest of the card evenly (max-min fair, in frames); this holds for both directions.
//!
//! Faults slow a link, hold it (nothing more leaves it; frames that have left arrive) or end it.
//!
//! Invariants: a link's frames arrive in the order in which they were sent; the card takes one frame at a time.

use crate::clock::{EventQueue, VirtualTime};
use std::collections::{BTreeMap, VecDeque};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the primary.
    Out,
    /// To the primary.
    Back,
}

/// Events of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkSignal {
    /// The card has become free.
    Card,
    /// The oldest frame on a link has left the link.
    Left(usize),
    /// The oldest frame that has left a link has arrived.
    There(usize),
}

/// Frames on a link: the one that it carries, and the next one.
const CARRIED_MAX: usize = 2;

/// One direction of one link.
struct Lane<F> {
    bytes_per_s: f64,
    latency_s: f64,
    waiting: VecDeque<(F, usize)>,
    /// Frames that the card has taken and that have not left the link; at most `CARRIED_MAX`.
    carrying: VecDeque<F>,
    /// When all of these will have left.
    free: VirtualTime,
    /// Queued for the card.
    is_ready: bool,
    flying: VecDeque<F>,
    bytes: u64,
    /// How many times slower it is, for each fault that slows it.
    slowed: BTreeMap<usize, f64>,
    /// How many faults hold it.
    holds: u32,
    /// Nothing is sent any more.
    is_over: bool,
}

impl<F> Lane<F> {
    fn new(bytes_per_s: f64, latency_s: f64) -> Self {
        Self {
            bytes_per_s,
            latency_s,
            waiting: VecDeque::new(),
            carrying: VecDeque::new(),
            free: VirtualTime::default(),
            is_ready: false,
            flying: VecDeque::new(),
            bytes: 0,
            slowed: BTreeMap::new(),
            holds: 0,
            is_over: false,
        }
    }

    fn rate(&self) -> f64 {
        self.bytes_per_s / self.slowed.values().copied().fold(1.0, f64::max)
    }
}

/// One direction of all links.
pub(crate) struct Network<F> {
    direction: Direction,
    bytes_per_s: f64,
    card_is_busy: bool,
    lanes: Vec<Lane<F>>,
    /// Links that have room and frames to send, each once.
    ready: VecDeque<usize>,
}

impl<F> Network<F> {
    /// Links with (bytes a second, seconds of latency) behind a card of `bytes_per_s`.
    pub(crate) fn new(
        direction: Direction,
        bytes_per_s: f64,
        links: impl Iterator<Item = (f64, f64)>,
    ) -> Self {
        let lanes = links.map(|(bytes_per_s, latency_s)| Lane::new(bytes_per_s, latency_s)).collect();
        Self { direction, bytes_per_s, card_is_busy: false, lanes, ready: VecDeque::new() }
    }

    /// Bytes that were sent over a link so far, queued ones included.
    pub(crate) fn bytes(&self, link: usize) -> u64 {
        self.lanes[link].bytes
    }

    /// Bytes that have left a link, including the part of the frame under way.
    pub(crate) fn gone(&self, link: usize, now: VirtualTime) -> u64 {
        let lane = &self.lanes[link];
        let waiting: usize = lane.waiting.iter().map(|(_, bytes)| bytes).sum();
        let carried = lane.free.seconds_from(now) * lane.rate();
        // Saturates; a part of a byte does not count.
        lane.bytes.saturating_sub(waiting as u64).saturating_sub(carried as u64)
    }

    /// Whether a link carries a frame.
    pub(crate) fn is_busy(&self, link: usize) -> bool {
        !self.lanes[link].carrying.is_empty()
    }

    /// Bandwidth of a link, bytes a second.
    pub(crate) fn rate(&self, link: usize) -> f64 {
        self.lanes[link].rate().min(self.bytes_per_s)
    }

    /// Latency of a link, seconds.
    pub(crate) fn latency(&self, link: usize) -> f64 {
        self.lanes[link].latency_s
    }

    /// When all frames that a link carries will have left it.
    pub(crate) fn free(&self, link: usize) -> VirtualTime {
        self.lanes[link].free
    }

    /// Marks a link as occupied by other traffic until then.
    pub(crate) fn occupy(&mut self, link: usize, until: VirtualTime) {
        self.lanes[link].free = until;
    }

    /// Adds a link.
    pub(crate) fn add(&mut self, bytes_per_s: f64, latency_s: f64) {
        self.lanes.push(Lane::new(bytes_per_s, latency_s));
    }

    /// A fault slows a link, or ends.
    pub(crate) fn slow(&mut self, link: usize, fault: usize, times: Option<f64>) {
        let slowed = &mut self.lanes[link].slowed;
        match times {
            Some(times) => drop(slowed.insert(fault, times)),
            None => drop(slowed.remove(&fault)),
        }
    }

    /// A fault holds a link, or ends.
    pub(crate) fn hold<E>(&mut self, link: usize, holds: bool, event_queue: &mut EventQueue<E>)
    where
        E: From<(Direction, LinkSignal)>,
    {
        let count = &mut self.lanes[link].holds;
        *count = if holds { *count + 1 } else { count.saturating_sub(1) };
        self.queue(link);
        self.start(event_queue);
    }

    /// The sender is gone: only frames that have left the link arrive.
    pub(crate) fn close(&mut self, link: usize) {
        let lane = &mut self.lanes[link];
        lane.is_over = true;
        lane.waiting.clear();
        lane.carrying.clear();
    }

    /// Nothing arrives any more.
    pub(crate) fn end(&mut self, link: usize) {
        self.close(link);
        self.lanes[link].flying.clear();
    }

    /// Sends a frame over a link.
    pub(crate) fn send<E>(&mut self, link: usize, frame: F, bytes: usize, event_queue: &mut EventQueue<E>)
    where
        E: From<(Direction, LinkSignal)>,
    {
        let lane = &mut self.lanes[link];
        if lane.is_over {
            return;
        }
        lane.bytes += bytes as u64;
        lane.waiting.push_back((frame, bytes));
        self.queue(link);
        self.start(event_queue);
    }

    /// Queues a link for the card, if it has frames to send and room.
    fn queue(&mut self, link: usize) {
        let lane = &mut self.lanes[link];
        let may = lane.holds == 0 && lane.carrying.len() < CARRIED_MAX;
        if may && !lane.is_ready && !lane.waiting.is_empty() {
            lane.is_ready = true;
            self.ready.push_back(link);
        }
    }

    /// The card has become free.
    pub(crate) fn card_is_free<E: From<(Direction, LinkSignal)>>(&mut self, event_queue: &mut EventQueue<E>) {
        self.card_is_busy = false;
        self.start(event_queue);
    }

    /// A frame has left its link; it may be changed before it arrives.
    pub(crate) fn left<E>(&mut self, link: usize, event_queue: &mut EventQueue<E>) -> Option<&mut F>
    where
        E: From<(Direction, LinkSignal)>,
    {
        let lane = &mut self.lanes[link];
        let frame = lane.carrying.pop_front()?;
        lane.flying.push_back(frame);
        event_queue.add(lane.latency_s, E::from((self.direction, LinkSignal::There(link))));
        self.queue(link);
        self.start(event_queue);
        self.lanes[link].flying.back_mut()
    }

    /// The frame that arrives now.
    pub(crate) fn there(&mut self, link: usize) -> Option<F> {
        self.lanes[link].flying.pop_front()
    }

    fn start<E: From<(Direction, LinkSignal)>>(&mut self, event_queue: &mut EventQueue<E>) {
        while !self.card_is_busy {
            let Some(link) = self.ready.pop_front() else { return };
            let lane = &mut self.lanes[link];
            lane.is_ready = false;
            if lane.holds > 0 {
                continue;
            }
            let Some((frame, bytes)) = lane.waiting.pop_front() else { continue };
            let card_s = bytes as f64 / self.bytes_per_s;
            let wait_s = lane.free.seconds_from(event_queue.now());
            let left_s = card_s.max(wait_s + bytes as f64 / lane.rate());
            lane.carrying.push_back(frame);
            lane.free = event_queue.now().after(left_s);
            self.card_is_busy = card_s > 0.0;
            if self.card_is_busy {
                event_queue.add(card_s, E::from((self.direction, LinkSignal::Card)));
            }
            event_queue.add(left_s, E::from((self.direction, LinkSignal::Left(link))));
            self.queue(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrival of each frame of 100 bytes: (link, seconds).
    fn arrivals(card: f64, links: &[(f64, usize)]) -> Vec<(usize, f64)> {
        let mut event_queue: EventQueue<(Direction, LinkSignal)> = EventQueue::new(0);
        let mut network = Network::new(Direction::Out, card, links.iter().map(|l| (l.0, 1.0)));
        for (link, (_, frames)) in links.iter().enumerate() {
            for _ in 0..*frames {
                network.send(link, (), 100, &mut event_queue);
            }
        }
        let mut there = Vec::new();
        while let Some((_, signal)) = event_queue.next() {
            match signal {
                LinkSignal::Card => network.card_is_free(&mut event_queue),
                LinkSignal::Left(link) => drop(network.left(link, &mut event_queue)),
                LinkSignal::There(link) => {
                    assert!(network.there(link).is_some());
                    there.push((link, event_queue.now().seconds()));
                }
            }
        }
        there
    }

    #[test]
    fn one_link_is_as_fast_as_the_slower_of_it_and_the_card() {
        assert_eq!(arrivals(100.0, &[(100.0, 3)]), [(0, 2.0), (0, 3.0), (0, 4.0)]);
        assert_eq!(arrivals(100.0, &[(50.0, 2)]), [(0, 3.0), (0, 5.0)]);
        assert_eq!(arrivals(50.0, &[(100.0, 2)]), [(0, 3.0), (0, 5.0)]);
    }

    /// Arrivals of frames of 100 bytes over one link of 100 bytes a second; `at` is applied after 1.5 seconds.
    fn after(at: impl Fn(&mut Network<()>, &mut EventQueue<(Direction, LinkSignal)>)) -> Vec<f64> {
        let mut event_queue: EventQueue<(Direction, LinkSignal)> = EventQueue::new(0);
        let mut network = Network::new(Direction::Out, 100.0, [(100.0, 1.0)].into_iter());
        // At that time one frame has left, one is on the link, two wait.
        (0..4).for_each(|_| network.send(0, (), 100, &mut event_queue));
        let mut there = Vec::new();
        let mut at = Some(at);
        while let Some((_, signal)) = event_queue.next() {
            if event_queue.now().seconds() > 1.5
                && let Some(at) = at.take()
            {
                at(&mut network, &mut event_queue);
            }
            match signal {
                LinkSignal::Card => network.card_is_free(&mut event_queue),
                LinkSignal::Left(link) => drop(network.left(link, &mut event_queue)),
                LinkSignal::There(link) => {
                    there.extend(network.there(link).map(|()| event_queue.now().seconds()))
                }
            }
        }
        there
    }

    #[test]
    fn frames_that_left_a_held_or_closed_link_arrive_but_none_of_an_ended_link() {
        assert_eq!(after(|_, _| {}), [2.0, 3.0, 4.0, 5.0]);
        let held = after(|network, event_queue| network.hold(0, true, event_queue));
        assert_eq!(held, [2.0, 3.0], "what the system had is sent");
        assert_eq!(after(|network, _| network.close(0)), [2.0]);
        assert_eq!(after(|network, _| network.end(0)), [0.0; 0]);
        let slower = after(|network, _| network.slow(0, 7, Some(10.0)));
        assert_eq!(slower, [2.0, 3.0, 13.0, 23.0], "from the next frame on");
    }

    #[test]
    fn a_slow_link_gets_its_full_rate_and_the_others_share_the_rest() {
        // The card carries 100 bytes a second; the slow link takes 10, the two others 45 each.
        let all = arrivals(100.0, &[(10.0, 10), (100.0, 45), (100.0, 45)]);
        let last = |link: usize| all.iter().filter(|a| a.0 == link).map(|a| a.1).fold(0.0, f64::max);
        assert!((last(0) - 101.0).abs() < 2.0, "{}", last(0));
        assert!((last(1) - 101.0).abs() < 6.0 && (last(2) - 101.0).abs() < 6.0, "{} {}", last(1), last(2));
    }
}
