//! Virtual time, and the queue of future events.
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

/// The queue of future events.
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    now: VirtualTime,
    seed: u64,
    number: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { heap: BinaryHeap::new(), now: VirtualTime::default(), seed, number: 0 }
    }

    pub(crate) fn now(&self) -> VirtualTime {
        self.now
    }

    /// Schedules `event` in `seconds` from now.
    pub(crate) fn add(&mut self, seconds: f64, event: E) {
        self.number += 1;
        let tie = if self.seed == 0 { 0 } else { mixed(self.seed ^ self.number) };
        self.heap.push(Entry { time: self.now.after(seconds), tie, number: self.number, event });
    }

    /// Whether no event is scheduled.
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Removes the next event and advances the time to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.time;
        Some(entry.event)
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
