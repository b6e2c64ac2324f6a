//! The running time of a process, from the readings of its clock.
//!
//! Place in the flow: a shell computes the time of every event for its state machine with this.
//!
//! Invariants: time never decreases. Between two readings at most the longest step passes, whatever the clock
//! shows. A process that was suspended (a busy disk, a sleeping laptop) or whose clock jumped received
//! nothing meanwhile, so no peer counts as silent for that time.
//!
//! Deliberately absent: reading a clock.

use core::time::Duration;

/// Longest step of the primary, which reads its clock ten times a second.
pub const PRIMARY_STEP: Duration = Duration::from_millis(500);
/// Longest step of a worker's session, which reads its clock every two seconds.
pub const WORKER_STEP: Duration = Duration::from_secs(4);
/// Longest step of the reader of a link between workers, which reads its clock every second.
pub const NEIGHBOUR_STEP: Duration = Duration::from_secs(2);

/// Running time of one end.
#[derive(Clone, Copy, Debug)]
pub struct StepClock {
    longest: Duration,
    passed: Duration,
    shown: Duration,
}

impl StepClock {
    /// A clock with steps of at most `longest`, for readings that count from now on.
    pub fn new(longest: Duration) -> Self {
        Self { longest, passed: Duration::ZERO, shown: Duration::ZERO }
    }

    /// The running time at this reading of the clock.
    pub fn advance_to(&mut self, shown: Duration) -> Duration {
        self.passed += shown.saturating_sub(self.shown).min(self.longest);
        self.shown = shown;
        self.passed
    }

    /// The running time at the last reading.
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
        let mut clock = StepClock::new(s(2));
        let passed = [1, 2, 60, 61, 61, 50, 51].map(|shown| clock.advance_to(s(shown)).as_secs());
        assert_eq!(passed, [1, 2, 4, 5, 5, 5, 6]);
        assert_eq!(clock.passed(), s(6));
    }
}
