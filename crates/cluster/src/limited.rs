//! Rate limit for log lines that strangers can cause: a burst, then one line per interval with the number of
//! suppressed ones. So strangers cannot fill a disk or a terminal.
//!
//! Invariant: the time is an argument, so that tests need no clock.

use std::time::{Duration, Instant};

/// Decides when a line may be written.
pub struct Limited {
    at_once: u32,
    every: Duration,
    /// When a full burst of `at_once` lines is allowed again.
    calm: Option<Instant>,
    unsaid: u64,
}

impl Limited {
    /// A burst of `at_once` lines, and then one line in each `every`.
    pub fn new(at_once: u32, every: Duration) -> Self {
        Self { at_once, every, calm: None, unsaid: 0 }
    }

    /// The number of lines suppressed since the last one, if a line may be written now.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        let calm = self.calm.unwrap_or(now).max(now) + self.every;
        if calm > now + self.every * self.at_once {
            self.unsaid += 1;
            return None;
        }
        self.calm = Some(calm);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// The number of suppressed lines, as the end of a line.
pub fn before(unsaid: u64) -> String {
    match unsaid {
        0 => String::new(),
        1 => " (and one more before)".to_owned(),
        more => format!(" (and {more} more before)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_said_at_once_and_then_one_in_each_interval_with_the_number_of_the_others() {
        let every = Duration::from_secs(10);
        let mut limited = Limited::new(3, every);
        let start = Instant::now();
        let said: Vec<_> = (0..1000).map(|_| limited.next(start)).collect();
        assert_eq!(said[..4], [Some(0), Some(0), Some(0), None]);
        assert!(said[3..].iter().all(Option::is_none));
        assert_eq!(limited.next(start + every), Some(997));
        assert_eq!(limited.next(start + every), None);
        assert_eq!(limited.next(start + every * 100), Some(1));
    }
}
