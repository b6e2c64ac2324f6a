//! Detects that another worker has been silent for too long.
//!
//! Place in the flow: the reader of a link to another worker checks the count of received bytes every
//! `NEIGHBOUR_BEAT`. The sender transmits something at least that often: lines, or a heartbeat without an
//! answer.
//!
//! Invariants: any received byte shows that the sender is alive, even in an incomplete frame. While the
//! reader deliberately does not read, because lines have to wait for their announcement, the sender does not
//! count as silent. Time in which this process was suspended does not count.
//!
//! Deliberately absent: reading a clock, and the reaction to silence.

use crate::clock::{NEIGHBOUR_STEP, StepClock};
use bramble_wire::limits::NEIGHBOUR_SILENCE_MAX;
use core::time::Duration;

/// Silence of one other worker.
#[derive(Clone, Debug)]
pub struct Silence {
    clock: StepClock,
    /// Received bytes at the last check.
    came: u64,
    /// Time of the last check at which bytes had arrived, or this end was not reading.
    heard: Duration,
}

impl Silence {
    /// Begins after a sign of life, with a clock that counts from now on and the number of bytes received so
    /// far.
    pub fn new(came: u64) -> Self {
        Self { clock: StepClock::new(NEIGHBOUR_STEP), came, heard: Duration::ZERO }
    }

    /// Checks at time `shown`, with `came` bytes received; `reads` is false if this end leaves arrived bytes
    /// in the link. Returns the duration of the silence if it is too long.
    pub fn check(&mut self, shown: Duration, came: u64, reads: bool) -> Option<Duration> {
        let now = self.clock.advance_to(shown);
        if core::mem::replace(&mut self.came, came) != came || !reads {
            self.heard = now;
        }
        Some(now.saturating_sub(self.heard)).filter(|silence| *silence >= NEIGHBOUR_SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_worker_that_sends_in_time_is_not_silent_and_one_that_does_not_is() {
        let mut silence = Silence::new(7);
        let max = NEIGHBOUR_SILENCE_MAX.as_secs();
        assert!((1..max).all(|at| silence.check(S(at), 7, true).is_none()));
        assert_eq!(silence.check(S(max), 8, true), None);
        assert!((max + 1..2 * max).all(|at| silence.check(S(at), 8, true).is_none()));
        assert_eq!(silence.check(S(2 * max), 8, true), Some(NEIGHBOUR_SILENCE_MAX));
    }

    #[test]
    fn a_link_that_is_not_read_is_not_silent_nor_is_any_while_this_process_is_suspended() {
        let mut silence = Silence::new(0);
        assert!((1..100).all(|at| silence.check(S(at), 0, at % 9 != 0).is_none()));
        assert_eq!(silence.check(S(1000), 0, true), None);
    }
}
