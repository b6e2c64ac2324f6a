//! Virtual time, and the queue of future events: by their times, or in an order that the caller chooses.
//!
//! Invariants: time never goes back; the order of simultaneous events is a function of the seed.

use crate::random::mixed;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Picoseconds since the start: 64 bits are 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualTime(u64);

impl VirtualTime {
    /// The time `seconds` later.
    pub(crate) fn after(self, seconds: f64) -> Self {
        Self(self.0.saturating_add((seconds * 1e12).round() as u64))
    }

    pub(crate) fn picoseconds(self) -> u64 {
        self.0
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0 as f64 * 1e-12
    }

    /// Seconds since `earlier`; 0 if that is later.
    pub(crate) fn seconds_from(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-12
    }

    pub(crate) fn duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0 / 1000)
    }
}

/// A future event and its time.
struct Entry<E> {
    time: VirtualTime,
    tie: u64,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (VirtualTime, u64, u64) {
        (self.time, self.tie, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap returns the greatest entry first, so the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Seconds that an event takes if the caller chooses the order.
const CHOSEN_EVENT_S: f64 = 1e-3;

/// The events that have not happened.
enum FutureEvents<E> {
    /// The earliest happens next.
    Timed(BinaryHeap<Entry<E>>),
    /// Any may happen next; their times do not count.
    Unordered(Vec<E>),
}

/// The queue of future events.
pub(crate) struct EventQueue<E> {
    future: FutureEvents<E>,
    now: VirtualTime,
    seed: u64,
    number: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { future: FutureEvents::Timed(BinaryHeap::new()), now: VirtualTime::default(), seed, number: 0 }
    }

    /// A queue from which `choose` takes events in any order.
    pub(crate) fn unordered() -> Self {
        Self { future: FutureEvents::Unordered(Vec::new()), now: VirtualTime::default(), seed: 0, number: 0 }
    }

    pub(crate) fn now(&self) -> VirtualTime {
        self.now
    }

    /// Schedules `event` in `seconds` from now.
    pub(crate) fn add(&mut self, seconds: f64, event: E) {
        self.number += 1;
        let tie = if self.seed == 0 { 0 } else { mixed(self.seed ^ self.number) };
        let time = self.now.after(seconds);
        match &mut self.future {
            FutureEvents::Timed(heap) => heap.push(Entry { time, tie, number: self.number, event }),
            FutureEvents::Unordered(events) => events.push(event),
        }
    }

    /// Whether no event is scheduled.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.future {
            FutureEvents::Timed(heap) => heap.is_empty(),
            FutureEvents::Unordered(events) => events.is_empty(),
        }
    }

    /// Removes the next event and advances the time to it. Of unordered events it is the one that was scheduled first.
    pub(crate) fn next(&mut self) -> Option<E> {
        match &mut self.future {
            FutureEvents::Timed(heap) => {
                let entry = heap.pop()?;
                self.now = entry.time;
                Some(entry.event)
            }
            FutureEvents::Unordered(events) if events.is_empty() => None,
            FutureEvents::Unordered(_) => Some(self.choose(0)),
        }
    }

    /// The unordered events.
    pub(crate) fn unordered_events(&self) -> &[E] {
        match &self.future {
            FutureEvents::Timed(_) => &[],
            FutureEvents::Unordered(events) => events,
        }
    }

    /// Removes the unordered event with this index.
    pub(crate) fn choose(&mut self, at: usize) -> E {
        self.pass(CHOSEN_EVENT_S);
        match &mut self.future {
            FutureEvents::Timed(_) => unreachable!("the events of this queue have an order"),
            FutureEvents::Unordered(events) => events.remove(at),
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, seconds: f64) {
        self.now = self.now.after(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<u32> {
        let mut event_queue = EventQueue::new(seed);
        for event in 0..20 {
            event_queue.add(if event < 10 { 2.0 } else { 1.0 }, event);
        }
        std::iter::from_fn(|| event_queue.next()).collect()
    }

    #[test]
    fn earlier_events_come_first_and_ties_are_a_function_of_the_seed() {
        assert_eq!(order(0), (10..20).chain(0..10).collect::<Vec<_>>());
        assert!(order(1)[..10].iter().all(|e| *e >= 10));
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
