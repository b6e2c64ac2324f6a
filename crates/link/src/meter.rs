//! Where the CPU time of a thread that moves frames goes.
//!
//! Place in the flow: around the waits for links and the work between them in the shells. A worker has one meter
//! per session, the primary one per product; both report the totals.
//!
//! Invariants: every moment counts for one section, the innermost. A future counts while it is polled, not while it
//! waits. A meter that is off reads no clock: to read the CPU time of a thread is a system call of 0.2 to 1
//! microsecond, which would slow down small frames.
//!
//! Units: nanoseconds.

use crate::{Body, Frame};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::future::{Future, poll_fn};

/// The kinds of work that are measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Passes bytes to the system, including encryption.
    Sending,
    /// Takes bytes from the system, including decryption and checksums.
    Receiving,
    /// Builds heads and bodies, and computes checksums of bodies that are sent.
    Encoding,
    /// Runs a state machine.
    Scheduling,
}

/// The CPU time of one thread, for one session or product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time per section, in the order of `Section`.
    pub sections_ns: [u64; 4],
    /// The thread's CPU time since the meter was made, inside and outside of sections.
    pub cpu_ns: u64,
}

impl Spent {
    /// Time in one section.
    pub fn of(&self, section: Section) -> u64 {
        self.sections_ns[index(section)]
    }
}

/// Measures one thread's CPU time by section. It must stay on its thread.
#[derive(Debug)]
pub struct SectionMeter {
    is_on: bool,
    began_ns: u64,
    current: Cell<Option<Section>>,
    /// The time at which `current` was entered.
    since_ns: Cell<u64>,
    spent_ns: [Cell<u64>; 4],
}

impl SectionMeter {
    /// A meter that starts now, or is off.
    pub fn new(is_on: bool) -> Self {
        let began_ns = if is_on { thread_cpu_ns() } else { 0 };
        let (current, since_ns) = (Cell::new(None), Cell::new(0));
        Self { is_on, began_ns, current, since_ns, spent_ns: Default::default() }
    }

    /// Runs a function in a section.
    pub fn within<T>(&self, section: Section, what: impl FnOnce() -> T) -> T {
        if !self.is_on {
            return what();
        }
        let outer = self.switch(Some(section));
        let result = what();
        self.switch(outer);
        result
    }

    /// Awaits a future in a section.
    pub async fn timed<F: Future>(&self, section: Section, what: F) -> F::Output {
        let mut what = std::pin::pin!(what);
        poll_fn(|context| self.within(section, || what.as_mut().poll(context))).await
    }

    /// Computes the checksum that a link which moves bytes will need for the frame, so that it counts as `Encoding`
    /// and not as `Sending`. With a meter, checksums are therefore computed before there is room for the body, not
    /// after.
    pub fn seal(&self, frame: &Frame) {
        if self.is_on
            && let Body::Shared(region) = &frame.body
        {
            self.within(Section::Encoding, || region.checksum());
        }
    }

    /// The totals so far; `None` if the meter is off.
    pub fn spent(&self) -> Option<Spent> {
        let cpu_ns = || thread_cpu_ns().saturating_sub(self.began_ns);
        self.is_on.then(|| Spent { sections_ns: self.spent_ns.each_ref().map(Cell::get), cpu_ns: cpu_ns() })
    }

    /// Enters another section, or none; returns the previous one.
    fn switch(&self, to: Option<Section>) -> Option<Section> {
        let now_ns = thread_cpu_ns();
        let from = self.current.replace(to);
        let since_ns = self.since_ns.replace(now_ns);
        if let Some(section) = from {
            let spent = &self.spent_ns[index(section)];
            spent.set(spent.get().saturating_add(now_ns.saturating_sub(since_ns)));
        }
        from
    }
}

fn index(section: Section) -> usize {
    match section {
        Section::Sending => 0,
        Section::Receiving => 1,
        Section::Encoding => 2,
        Section::Scheduling => 3,
    }
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// A monotonic clock; its zero point has no meaning.
pub fn clock_ns() -> u64 {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    let part = |x: i64| u64::try_from(x).unwrap_or(0);
    part(t.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(t.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedRegion;
    use std::hint::black_box;
    use std::sync::Arc;

    /// Uses the CPU for at least this long.
    fn burn(ns: u64) {
        let from = thread_cpu_ns();
        while thread_cpu_ns() < from + ns {
            black_box((0..100u64).sum::<u64>());
        }
    }

    #[test]
    fn a_moment_counts_for_the_innermost_section() {
        let meter = SectionMeter::new(true);
        meter.within(Section::Receiving, || {
            burn(2_000_000);
            meter.within(Section::Scheduling, || burn(3_000_000));
        });
        burn(1_000_000);
        let spent = meter.spent().unwrap();
        assert!(spent.of(Section::Receiving) >= 2_000_000 && spent.of(Section::Scheduling) >= 3_000_000);
        assert_eq!((spent.of(Section::Sending), spent.of(Section::Encoding)), (0, 0));
        let sections: u64 = spent.sections_ns.iter().sum();
        assert!(sections + 1_000_000 <= spent.cpu_ns, "{sections} of {}", spent.cpu_ns);
    }

    #[tokio::test]
    async fn a_future_counts_while_it_is_polled() {
        let meter = SectionMeter::new(true);
        let slow = async {
            burn(1_000_000);
            tokio::task::yield_now().await;
            meter.within(Section::Encoding, || burn(1_000_000));
            7
        };
        assert_eq!(meter.timed(Section::Sending, slow).await, 7);
        let spent = meter.spent().unwrap();
        assert!(spent.of(Section::Sending) >= 1_000_000 && spent.of(Section::Encoding) >= 1_000_000);
        assert_eq!(meter.current.get(), None);
    }

    #[test]
    fn a_meter_that_is_off_counts_nothing_and_makes_no_checksum() {
        let meter = SectionMeter::new(false);
        meter.within(Section::Sending, || burn(100_000));
        assert_eq!((meter.spent(), meter.spent_ns[0].get()), (None, 0));
        let frame = Frame::new(3, Vec::new(), Body::Shared(SharedRegion::whole(Arc::new(vec![1u8; 9]))));
        meter.seal(&frame);
    }
}
