//! One direction of all links of the primary: what is on its way, and how long that takes.
//!
//! A frame takes the primary's network card for its bytes at the card's rate, and at the same time, or as soon as the
//! frame before it has left, its link for its bytes at the slower of both rates. Links that have something to send
//! take the card in turn, but for no more than one frame ahead of what they carry. So slow links get what they can
//! take, and the others share what is left of the card evenly (max-min fair, in frames); the direction does not matter.
//!
//! Faults make a link slower, hold it (nothing more leaves it; what has left arrives) or end it.
//!
//! Invariants: a link's frames arrive in the order in which they were given to it; the card takes one frame at a time.

use crate::clock::{Agenda, Time};
use std::collections::{BTreeMap, VecDeque};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the primary.
    Out,
    /// To the primary.
    Back,
}

/// What a direction has to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The card is free.
    Card,
    /// The oldest frame on a link has left it.
    Left(usize),
    /// The oldest frame that has left a link is there.
    There(usize),
}

/// Frames on a link: the one that it carries, and one that is next.
const CARRIED_MAX: usize = 2;

/// One link, one way.
struct Lane<F> {
    bytes_per_s: f64,
    latency_s: f64,
    waiting: VecDeque<(F, usize)>,
    /// What the card has taken, and has not left the link; at most `CARRIED_MAX`.
    carrying: VecDeque<F>,
    /// When all of that will have left.
    free: Time,
    /// Waits for the card.
    is_ready: bool,
    flying: VecDeque<F>,
    bytes: u64,
    /// How many times slower it is, for each fault that is on it.
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
            free: Time::default(),
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

/// All links, one way.
pub(crate) struct Network<F> {
    way: Way,
    bytes_per_s: f64,
    card_is_busy: bool,
    lanes: Vec<Lane<F>>,
    /// Links that are free and have something to send, each once.
    ready: VecDeque<usize>,
}

impl<F> Network<F> {
    /// Links with (bytes a second, seconds of latency) behind a card of so many bytes a second.
    pub(crate) fn new(way: Way, bytes_per_s: f64, links: impl Iterator<Item = (f64, f64)>) -> Self {
        let lanes = links.map(|(bytes_per_s, latency_s)| Lane::new(bytes_per_s, latency_s)).collect();
        Self { way, bytes_per_s, card_is_busy: false, lanes, ready: VecDeque::new() }
    }

    /// Bytes that a link was given so far.
    pub(crate) fn bytes(&self, link: usize) -> u64 {
        self.lanes[link].bytes
    }

    /// Bytes that have left a link, also of the frame that is leaving.
    pub(crate) fn gone(&self, link: usize, now: Time) -> u64 {
        let lane = &self.lanes[link];
        let waiting: usize = lane.waiting.iter().map(|(_, bytes)| bytes).sum();
        let carried = lane.free.seconds_from(now) * lane.rate();
        // Saturates; a part of a byte does not count.
        lane.bytes.saturating_sub(waiting as u64).saturating_sub(carried as u64)
    }

    /// Whether a frame is on a link.
    pub(crate) fn is_busy(&self, link: usize) -> bool {
        !self.lanes[link].carrying.is_empty()
    }

    /// What a link carries at most, bytes a second.
    pub(crate) fn rate(&self, link: usize) -> f64 {
        self.lanes[link].rate().min(self.bytes_per_s)
    }

    /// Seconds that a frame flies.
    pub(crate) fn latency(&self, link: usize) -> f64 {
        self.lanes[link].latency_s
    }

    /// When all that a link carries will have left it.
    pub(crate) fn free(&self, link: usize) -> Time {
        self.lanes[link].free
    }

    /// A link carries something else until then.
    pub(crate) fn occupy(&mut self, link: usize, until: Time) {
        self.lanes[link].free = until;
    }

    /// One more link.
    pub(crate) fn add(&mut self, bytes_per_s: f64, latency_s: f64) {
        self.lanes.push(Lane::new(bytes_per_s, latency_s));
    }

    /// A fault makes a link slower, or does not any more.
    pub(crate) fn slow(&mut self, link: usize, fault: usize, times: Option<f64>) {
        let slowed = &mut self.lanes[link].slowed;
        match times {
            Some(times) => drop(slowed.insert(fault, times)),
            None => drop(slowed.remove(&fault)),
        }
    }

    /// A fault holds a link, or lets it go.
    pub(crate) fn hold<E>(&mut self, link: usize, holds: bool, agenda: &mut Agenda<E>)
    where
        E: From<(Way, Signal)>,
    {
        let count = &mut self.lanes[link].holds;
        *count = if holds { *count + 1 } else { count.saturating_sub(1) };
        self.queue(link);
        self.start(agenda);
    }

    /// The sender is gone: only what has left arrives.
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

    /// Gives a link a frame.
    pub(crate) fn send<E>(&mut self, link: usize, frame: F, bytes: usize, agenda: &mut Agenda<E>)
    where
        E: From<(Way, Signal)>,
    {
        let lane = &mut self.lanes[link];
        if lane.is_over {
            return;
        }
        lane.bytes += bytes as u64;
        lane.waiting.push_back((frame, bytes));
        self.queue(link);
        self.start(agenda);
    }

    /// Queues for the card, where there is something to send and room on the link.
    fn queue(&mut self, link: usize) {
        let lane = &mut self.lanes[link];
        let may = lane.holds == 0 && lane.carrying.len() < CARRIED_MAX;
        if may && !lane.is_ready && !lane.waiting.is_empty() {
            lane.is_ready = true;
            self.ready.push_back(link);
        }
    }

    /// The card is free.
    pub(crate) fn card_is_free<E: From<(Way, Signal)>>(&mut self, agenda: &mut Agenda<E>) {
        self.card_is_busy = false;
        self.start(agenda);
    }

    /// A frame has left its link and may be changed before it flies.
    pub(crate) fn left<E>(&mut self, link: usize, agenda: &mut Agenda<E>) -> Option<&mut F>
    where
        E: From<(Way, Signal)>,
    {
        let lane = &mut self.lanes[link];
        let frame = lane.carrying.pop_front()?;
        lane.flying.push_back(frame);
        agenda.add(lane.latency_s, E::from((self.way, Signal::There(link))));
        self.queue(link);
        self.start(agenda);
        self.lanes[link].flying.back_mut()
    }

    /// The frame that is there now.
    pub(crate) fn there(&mut self, link: usize) -> Option<F> {
        self.lanes[link].flying.pop_front()
    }

    fn start<E: From<(Way, Signal)>>(&mut self, agenda: &mut Agenda<E>) {
        while !self.card_is_busy {
            let Some(link) = self.ready.pop_front() else { return };
            let lane = &mut self.lanes[link];
            lane.is_ready = false;
            if lane.holds > 0 {
                continue;
            }
            let Some((frame, bytes)) = lane.waiting.pop_front() else { continue };
            let card_s = bytes as f64 / self.bytes_per_s;
            let wait_s = lane.free.seconds_from(agenda.now());
            let left_s = card_s.max(wait_s + bytes as f64 / lane.rate());
            lane.carrying.push_back(frame);
            lane.free = agenda.now().after(left_s);
            self.card_is_busy = card_s > 0.0;
            if self.card_is_busy {
                agenda.add(card_s, E::from((self.way, Signal::Card)));
            }
            agenda.add(left_s, E::from((self.way, Signal::Left(link))));
            self.queue(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each frame of 100 bytes is there: (link, seconds).
    fn arrivals(card: f64, links: &[(f64, usize)]) -> Vec<(usize, f64)> {
        let mut agenda: Agenda<(Way, Signal)> = Agenda::new(0);
        let mut network = Network::new(Way::Out, card, links.iter().map(|l| (l.0, 1.0)));
        for (link, (_, frames)) in links.iter().enumerate() {
            for _ in 0..*frames {
                network.send(link, (), 100, &mut agenda);
            }
        }
        let mut there = Vec::new();
        while let Some((_, signal)) = agenda.next() {
            match signal {
                Signal::Card => network.card_is_free(&mut agenda),
                Signal::Left(link) => drop(network.left(link, &mut agenda)),
                Signal::There(link) => {
                    assert!(network.there(link).is_some());
                    there.push((link, agenda.now().seconds()));
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

    /// When frames of 100 bytes are there over one link of 100 a second, to which `at` happens after 1.5 seconds.
    fn after(at: impl Fn(&mut Network<()>, &mut Agenda<(Way, Signal)>)) -> Vec<f64> {
        let mut agenda: Agenda<(Way, Signal)> = Agenda::new(0);
        let mut network = Network::new(Way::Out, 100.0, [(100.0, 1.0)].into_iter());
        // One has left by then, one is leaving, two wait.
        (0..4).for_each(|_| network.send(0, (), 100, &mut agenda));
        let mut there = Vec::new();
        let mut at = Some(at);
        while let Some((_, signal)) = agenda.next() {
            if agenda.now().seconds() > 1.5
                && let Some(at) = at.take()
            {
                at(&mut network, &mut agenda);
            }
            match signal {
                Signal::Card => network.card_is_free(&mut agenda),
                Signal::Left(link) => drop(network.left(link, &mut agenda)),
                Signal::There(link) => there.extend(network.there(link).map(|()| agenda.now().seconds())),
            }
        }
        there
    }

    #[test]
    fn what_has_left_a_link_that_is_held_or_closed_arrives_and_nothing_of_one_that_has_ended() {
        assert_eq!(after(|_, _| {}), [2.0, 3.0, 4.0, 5.0]);
        let held = after(|network, agenda| network.hold(0, true, agenda));
        assert_eq!(held, [2.0, 3.0], "what the system had is sent");
        assert_eq!(after(|network, _| network.close(0)), [2.0]);
        assert_eq!(after(|network, _| network.end(0)), [0.0; 0]);
        let slower = after(|network, _| network.slow(0, 7, Some(10.0)));
        assert_eq!(slower, [2.0, 3.0, 13.0, 23.0], "from the next frame on");
    }

    #[test]
    fn a_slow_link_gets_what_it_can_take_and_the_others_share_the_rest() {
        // The card: 100 a second; the slow link takes 10, the two others 45 each.
        let all = arrivals(100.0, &[(10.0, 10), (100.0, 45), (100.0, 45)]);
        let last = |link: usize| all.iter().filter(|a| a.0 == link).map(|a| a.1).fold(0.0, f64::max);
        assert!((last(0) - 101.0).abs() < 2.0, "{}", last(0));
        assert!((last(1) - 101.0).abs() < 6.0 && (last(2) - 101.0).abs() < 6.0, "{} {}", last(1), last(2));
    }
}
