//! For how long another worker has been silent, and whether that is too long.
//!
//! Place in the flow: whoever reads a link with another worker looks every `NEIGHBOUR_BEAT`, at the bytes that have come. The
//! other end sends something at least that often: lines, or a ping, which nobody answers.
//!
//! Invariants: any byte is a sign of life, also one of a frame that is not whole. Whoever does not read, because lines have to
//! wait for their announcement, hears nothing, and takes nobody for silent. Time in which this process stood still does not
//! count.
//!
//! Deliberately absent: reading a clock, and what is done about it.

use crate::clock::{Clock, NEIGHBOUR_STEP};
use crate::limits::NEIGHBOUR_SILENCE_MAX;
use std::time::Duration;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Silence {
    clock: Clock,
    /// Bytes that had come when that was last looked at.
    came: u64,
    /// When that was not what it had been before, or nobody read.
    heard: Duration,
}

impl Silence {
    /// Of somebody who was just heard, when the clock counts from now on, and so many bytes have come.
    pub fn new(came: u64) -> Self {
        Self { clock: Clock::new(NEIGHBOUR_STEP), came, heard: Duration::ZERO }
    }

    /// When the clock shows this and so many bytes have come; `reads` is false where this end leaves in the link what has come.
    /// How long the silence has been, if that is too long.
    pub fn look(&mut self, shown: Duration, came: u64, reads: bool) -> Option<Duration> {
        let now = self.clock.look(shown);
        if std::mem::replace(&mut self.came, came) != came || !reads {
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
    fn who_says_something_in_time_is_not_silent_and_who_does_not_is() {
        let mut silence = Silence::new(7);
        let max = NEIGHBOUR_SILENCE_MAX.as_secs();
        assert!((1..max).all(|at| silence.look(S(at), 7, true).is_none()));
        assert_eq!(silence.look(S(max), 8, true), None);
        assert!((max + 1..2 * max).all(|at| silence.look(S(at), 8, true).is_none()));
        assert_eq!(silence.look(S(2 * max), 8, true), Some(NEIGHBOUR_SILENCE_MAX));
    }

    #[test]
    fn who_is_not_read_is_not_silent_nor_is_anybody_while_this_process_stands_still() {
        let mut silence = Silence::new(0);
        assert!((1..100).all(|at| silence.look(S(at), 0, at % 9 != 0).is_none()));
        assert_eq!(silence.look(S(1000), 0, true), None);
    }
}
