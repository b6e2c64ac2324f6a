//! The time that an end has run, from what its clock shows.
//!
//! Place in the flow: a shell asks at every event what time it is for its state machine.
//!
//! Invariants: never goes back; from one look to the next at most the longest step passes, whatever the clock shows. A process
//! that was held up (a busy disk, a suspended laptop), or whose clock has leapt, heard nobody meanwhile: so nobody was silent.
//!
//! Deliberately absent: reading a clock.

use std::time::Duration;

/// Longest step of the primary, which looks ten times a second.
pub const PRIMARY_STEP: Duration = Duration::from_millis(500);
/// Longest step of a worker's watch, which looks every two seconds.
pub const WORKER_STEP: Duration = Duration::from_secs(4);
/// Longest step of who listens to another worker, and looks every second.
pub const NEIGHBOUR_STEP: Duration = Duration::from_secs(2);

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    longest: Duration,
    passed: Duration,
    shown: Duration,
}

impl Clock {
    /// One that takes steps of at most that long; a clock that counts from now on is shown to it.
    pub fn new(longest: Duration) -> Self {
        Self { longest, passed: Duration::ZERO, shown: Duration::ZERO }
    }

    /// The time that has passed, when a clock shows this.
    pub fn look(&mut self, shown: Duration) -> Duration {
        self.passed += shown.saturating_sub(self.shown).min(self.longest);
        self.shown = shown;
        self.passed
    }

    /// What the last look found.
    pub fn passed(&self) -> Duration {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leap_is_one_step_and_nothing_passes_while_the_clock_stands_still_or_goes_back() {
        let s = Duration::from_secs;
        let mut clock = Clock::new(s(2));
        let passed = [1, 2, 60, 61, 61, 50, 51].map(|shown| clock.look(s(shown)).as_secs());
        assert_eq!(passed, [1, 2, 4, 5, 5, 5, 6]);
        assert_eq!(clock.passed(), s(6));
    }
}
