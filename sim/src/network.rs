//! One direction of all links of the primary: what is on its way, and how long that takes.
//!
//! A frame takes the primary's network card for its bytes at the card's rate, and at the same time, or as soon as the
//! frame before it has left, its link for its bytes at the slower of both rates. Links that have something to send
//! take the card in turn, but for no more than one frame ahead of what they carry. So slow links get what they can
//! take, and the others share what is left of the card evenly (max-min fair, in frames); the direction does not matter.
//!
//! Invariants: a link's frames arrive in the order in which they were given to it; the card takes one frame at a time.

use crate::clock::{Agenda, Time};
use std::collections::VecDeque;

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
        let lane = |(bytes_per_s, latency_s)| Lane {
            bytes_per_s,
            latency_s,
            waiting: VecDeque::new(),
            carrying: VecDeque::new(),
            free: Time::default(),
            is_ready: false,
            flying: VecDeque::new(),
            bytes: 0,
        };
        let lanes = links.map(lane).collect();
        Self { way, bytes_per_s, card_is_busy: false, lanes, ready: VecDeque::new() }
    }

    /// Bytes that a link was given so far.
    pub(crate) fn bytes(&self, link: usize) -> u64 {
        self.lanes[link].bytes
    }

    /// Whether a frame is on a link.
    pub(crate) fn is_busy(&self, link: usize) -> bool {
        !self.lanes[link].carrying.is_empty()
    }

    /// What a link carries at most, bytes a second.
    pub(crate) fn rate(&self, link: usize) -> f64 {
        self.lanes[link].bytes_per_s.min(self.bytes_per_s)
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

    /// Gives a link a frame.
    pub(crate) fn send<E>(&mut self, link: usize, frame: F, bytes: usize, agenda: &mut Agenda<E>)
    where
        E: From<(Way, Signal)>,
    {
        let lane = &mut self.lanes[link];
        lane.bytes += bytes as u64;
        lane.waiting.push_back((frame, bytes));
        self.queue(link);
        self.start(agenda);
    }

    /// Queues for the card, where there is something to send and room on the link.
    fn queue(&mut self, link: usize) {
        let lane = &mut self.lanes[link];
        if !lane.is_ready && !lane.waiting.is_empty() && lane.carrying.len() < CARRIED_MAX {
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
            let Some((frame, bytes)) = lane.waiting.pop_front() else { continue };
            let card_s = bytes as f64 / self.bytes_per_s;
            let wait_s = lane.free.seconds_from(agenda.now());
            let left_s = card_s.max(wait_s + bytes as f64 / lane.bytes_per_s);
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

    #[test]
    fn a_slow_link_gets_what_it_can_take_and_the_others_share_the_rest() {
        // The card: 100 a second; the slow link takes 10, the two others 45 each.
        let all = arrivals(100.0, &[(10.0, 10), (100.0, 45), (100.0, 45)]);
        let last = |link: usize| all.iter().filter(|a| a.0 == link).map(|a| a.1).fold(0.0, f64::max);
        assert!((last(0) - 101.0).abs() < 2.0, "{}", last(0));
        assert!((last(1) - 101.0).abs() < 6.0 && (last(2) - 101.0).abs() < 6.0, "{} {}", last(1), last(2));
    }
}
