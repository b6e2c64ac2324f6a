//! What this worker tells a primary that asked: when its jobs ran, and what its processor time went to.
//!
//! Place in the flow: the session notes every task that has ended; batches leave with its other frames.
//!
//! Invariants: at most `LOG_WAITING_MAX` records wait here and `IN_LINK_MAX` batches in the link, or until the goodbye; what
//! comes on top is counted and forgotten. A recorder that is off keeps nothing.

use bramble_link::{Meter, Section, clock_ns};
use bramble_schedule::limits::{CLOCK_NS_MAX, LOG_RECORDS_MAX, LOG_WAITING_MAX};
use bramble_schedule::message::{IoReport, Kind, LogHead, WorkRecord};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Batches that may wait in the link.
const IN_LINK_MAX: usize = 2;

/// The records of one session.
pub(crate) struct Recorder {
    is_on: bool,
    /// This machine's clock at some moment, to say others in it.
    moment: (Instant, u64),
    waiting: VecDeque<WorkRecord>,
    dropped: u64,
    in_link: usize,
}

impl Recorder {
    pub(crate) fn new(is_on: bool) -> Self {
        let moment = (Instant::now(), clock_ns());
        Self { is_on, moment, waiting: VecDeque::new(), dropped: 0, in_link: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A moment on the clock that answers to pings have.
    pub(crate) fn clock_ns(&self, when: Instant) -> u64 {
        let (known, known_ns) = self.moment;
        let after = ns(when.saturating_duration_since(known));
        let before = ns(known.saturating_duration_since(when));
        known_ns.saturating_add(after).saturating_sub(before).min(CLOCK_NS_MAX)
    }

    /// Keeps a record.
    pub(crate) fn note(&mut self, record: WorkRecord) {
        if self.waiting.len() < LOG_WAITING_MAX {
            self.waiting.push_back(record);
        } else {
            self.dropped += 1;
        }
    }

    /// Whether as much waits as one message carries.
    pub(crate) fn is_batch(&self) -> bool {
        self.waiting.len() >= LOG_RECORDS_MAX
    }

    /// The head of the next message, if there is one and the link has room for it, or room does not matter.
    pub(crate) fn take(&mut self, at_any_rate: bool) -> Option<Vec<u8>> {
        if self.waiting.is_empty() || (self.in_link >= IN_LINK_MAX && !at_any_rate) {
            return None;
        }
        self.in_link += 1;
        let count = self.waiting.len().min(LOG_RECORDS_MAX);
        let records = self.waiting.drain(..count).collect();
        Some(LogHead { dropped: self.dropped, records }.encode())
    }

    /// The link has taken a frame.
    pub(crate) fn left(&mut self, kind: u8) {
        if kind == Kind::Log.code() {
            self.in_link = self.in_link.saturating_sub(1);
        }
    }
}

/// A span of time in nanoseconds.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A meter's account as the goodbye has it; zeros where it is off.
pub(crate) fn io_report(meter: &Meter) -> IoReport {
    let Some(spent) = meter.spent() else { return IoReport::default() };
    let us = |section| spent.of(section) / 1000;
    IoReport {
        sending_us: us(Section::Sending),
        receiving_us: us(Section::Receiving),
        encoding_us: us(Section::Encoding),
        scheduling_us: us(Section::Scheduling),
        cpu_us: spent.cpu_ns / 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_schedule::message::Work;

    fn record(matrix: u32) -> WorkRecord {
        WorkRecord {
            work: Work::Generate,
            returns: false,
            thread: 0,
            matrix,
            step: 0,
            start_ns: 1,
            took_ns: 1,
        }
    }

    #[test]
    fn batches_leave_in_order_as_the_link_takes_them_and_what_is_too_much_is_counted() {
        let mut recorder = Recorder::new(true);
        assert_eq!(recorder.take(true), None);
        let count = u32::try_from(LOG_WAITING_MAX).unwrap() + 5;
        (0..count).for_each(|matrix| recorder.note(record(matrix)));
        let mut seen = Vec::new();
        for _ in 0..IN_LINK_MAX {
            let log = LogHead::decode(&recorder.take(false).unwrap()).unwrap();
            assert_eq!((log.dropped, log.records.len()), (5, LOG_RECORDS_MAX));
            seen.extend(log.records);
        }
        assert_eq!(recorder.take(false), None);
        recorder.left(Kind::Credit.code());
        assert_eq!(recorder.take(false), None);
        recorder.left(Kind::Log.code());
        assert!(recorder.is_batch());
        while let Some(head) = recorder.take(true) {
            seen.extend(LogHead::decode(&head).unwrap().records);
        }
        assert_eq!(seen.len(), LOG_WAITING_MAX);
        assert!(seen.iter().zip(0..).all(|(record, matrix)| record.matrix == matrix));
    }

    #[test]
    fn moments_before_and_after_are_on_one_clock() {
        let recorder = Recorder::new(true);
        let (known, known_ns) = recorder.moment;
        let second = Duration::from_secs(1);
        assert_eq!(recorder.clock_ns(known + second), known_ns + 1_000_000_000);
        assert_eq!(recorder.clock_ns(known), known_ns);
    }
}
