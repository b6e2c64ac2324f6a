//! Records that a primary may ask this worker for: when its jobs ran, and processor time by section.
//!
//! Place in the flow: the session records every task that ends; batches are sent among its other frames.
//!
//! Invariants: at most `LOG_WAITING_MAX` records wait here and, before the goodbye, `IN_LINK_MAX` batches in the link; further
//! records are only counted. A recorder that is off keeps nothing.

use bramble_link::{Section, SectionMeter, clock_ns};
use bramble_wire::limits::{CLOCK_NS_MAX, LOG_RECORDS_MAX, LOG_WAITING_MAX};
use bramble_wire::message::{IoReport, Kind, LogHead, WorkRecord};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Batches that may wait in the link.
const IN_LINK_MAX: usize = 2;

/// The records of one session.
pub(crate) struct JobRecorder {
    is_on: bool,
    /// One moment as an `Instant` and on this machine's clock, to convert others.
    moment: (Instant, u64),
    waiting: VecDeque<WorkRecord>,
    dropped: u64,
    in_link: usize,
}

impl JobRecorder {
    pub(crate) fn new(is_on: bool) -> Self {
        let moment = (Instant::now(), clock_ns());
        Self { is_on, moment, waiting: VecDeque::new(), dropped: 0, in_link: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Converts a moment to the clock that pongs report.
    pub(crate) fn clock_ns(&self, when: Instant) -> u64 {
        let (known, known_ns) = self.moment;
        let after = ns(when.saturating_duration_since(known));
        let before = ns(known.saturating_duration_since(when));
        known_ns.saturating_add(after).saturating_sub(before).min(CLOCK_NS_MAX)
    }

    /// Adds a record.
    pub(crate) fn note(&mut self, record: WorkRecord) {
        if self.waiting.len() < LOG_WAITING_MAX {
            self.waiting.push_back(record);
        } else {
            self.dropped += 1;
        }
    }

    /// Whether a full message waits.
    pub(crate) fn is_batch(&self) -> bool {
        self.waiting.len() >= LOG_RECORDS_MAX
    }

    /// The head of the next message, if there is one and the link has room for it; `at_any_rate` ignores the room.
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

/// A duration in nanoseconds.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A meter's account for the goodbye; zeros if the meter is off.
pub(crate) fn io_report(meter: &SectionMeter) -> IoReport {
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
    use bramble_wire::message::Work;

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
    fn batches_are_sent_in_order_as_the_link_takes_them_and_dropped_records_are_counted() {
        let mut recorder = JobRecorder::new(true);
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
        let recorder = JobRecorder::new(true);
        let (known, known_ns) = recorder.moment;
        let second = Duration::from_secs(1);
        assert_eq!(recorder.clock_ns(known + second), known_ns + 1_000_000_000);
        assert_eq!(recorder.clock_ns(known), known_ns);
    }
}
