//! What the processor time of a thread that moves frames goes to.
//!
//! Place in the flow: around the waits for links and around what the shells do between them. One meter a session at a
//! worker, one a product at the primary; the account goes into the reports of both.
//!
//! Invariants: a moment counts for one section, the innermost. A future counts while it is polled, not while it waits.
//! A meter that is off reads no clock: reading the time of a thread is a system call, 0.2 to 1 microsecond, which frames of a
//! few bytes would feel.
//!
//! Units: nanoseconds.

use crate::{Body, Frame};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::future::{Future, poll_fn};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Gives bytes to the system, encrypted if need be.
    Sending,
    /// Takes bytes from it, with decryption and checksums.
    Receiving,
    /// Makes heads and bodies, and checksums of bodies that leave.
    Encoding,
    /// Decides: a state machine.
    Scheduling,
}

/// The account of one thread, as far as one session or product goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// By section, in their order.
    pub sections_ns: [u64; 4],
    /// All that the thread had since the meter was made, inside of sections and outside.
    pub cpu_ns: u64,
}

impl Spent {
    /// Time in one section.
    pub fn of(&self, section: Section) -> u64 {
        self.sections_ns[index(section)]
    }
}

/// Counts one thread's time by sections. It has to stay on its thread.
#[derive(Debug)]
pub struct Meter {
    is_on: bool,
    began_ns: u64,
    current: Cell<Option<Section>>,
    /// When `current` was entered.
    since_ns: Cell<u64>,
    spent_ns: [Cell<u64>; 4],
}

impl Meter {
    /// A meter that counts from now on, or never does.
    pub fn new(is_on: bool) -> Self {
        let began_ns = if is_on { thread_cpu_ns() } else { 0 };
        let (current, since_ns) = (Cell::new(None), Cell::new(0));
        Self { is_on, began_ns, current, since_ns, spent_ns: Default::default() }
    }

    /// Does something in a section.
    pub fn within<T>(&self, section: Section, what: impl FnOnce() -> T) -> T {
        if !self.is_on {
            return what();
        }
        let outer = self.switch(Some(section));
        let result = what();
        self.switch(outer);
        result
    }

    /// Waits for something that is done in a section.
    pub async fn timed<F: Future>(&self, section: Section, what: F) -> F::Output {
        let mut what = std::pin::pin!(what);
        poll_fn(|context| self.within(section, || what.as_mut().poll(context))).await
    }

    /// Computes the checksum that sending a frame over a link that moves bytes will need, where that is to be counted
    /// apart from sending. So with an account sums are made before there is room for their bodies, not when there is.
    pub fn seal(&self, frame: &Frame) {
        if self.is_on
            && let Body::Shared(region) = &frame.body
        {
            self.within(Section::Encoding, || region.checksum());
        }
    }

    /// The account so far; `None` where it is off.
    pub fn spent(&self) -> Option<Spent> {
        let cpu_ns = || thread_cpu_ns().saturating_sub(self.began_ns);
        self.is_on.then(|| Spent { sections_ns: self.spent_ns.each_ref().map(Cell::get), cpu_ns: cpu_ns() })
    }

    /// Enters another section, or none; gives the one that was left.
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

/// Processor time that the calling thread has had.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// A clock of this machine that never goes back; its zero means nothing.
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
    use crate::Region;
    use std::hint::black_box;
    use std::sync::Arc;

    /// Uses the processor for at least so long.
    fn burn(ns: u64) {
        let from = thread_cpu_ns();
        while thread_cpu_ns() < from + ns {
            black_box((0..100u64).sum::<u64>());
        }
    }

    #[test]
    fn a_moment_counts_for_the_innermost_section() {
        let meter = Meter::new(true);
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
        let meter = Meter::new(true);
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
        let meter = Meter::new(false);
        meter.within(Section::Sending, || burn(100_000));
        assert_eq!((meter.spent(), meter.spent_ns[0].get()), (None, 0));
        let frame = Frame::new(3, Vec::new(), Body::Shared(Region::whole(Arc::new(vec![1u8; 9]))));
        meter.seal(&frame);
    }
}
