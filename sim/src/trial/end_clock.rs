//! The clock of an end: faults may make it jump, or stop for a while.
//!
//! Invariants: it never goes back. The schedule corrects it by its own rules (`bramble_schedule::clock`).

use crate::clock::VirtualTime;
use std::time::Duration;

/// The clock of one end.
#[derive(Clone, Debug, Default)]
pub(super) struct EndClock {
    /// Jumps: when, and how far.
    leaps: Vec<(VirtualTime, Duration)>,
    /// Time lost while it was stopped.
    lost: Duration,
    /// How many faults stop it, and since when.
    stands: u32,
    since: VirtualTime,
}

impl EndClock {
    /// The time that it shows.
    pub(super) fn shows(&self, now: VirtualTime) -> Duration {
        let real = if self.stands > 0 { self.since } else { now };
        real.duration() + self.leapt_since(VirtualTime::default()) - self.lost
    }

    pub(super) fn leap(&mut self, now: VirtualTime, by: Duration) {
        self.leaps.push((now, by));
    }

    /// A fault stops it, or ends.
    pub(super) fn stand(&mut self, now: VirtualTime, stands: bool) {
        if stands {
            self.since = if self.stands == 0 { now } else { self.since };
            self.stands += 1;
        } else {
            self.stands = self.stands.saturating_sub(1);
            self.lost +=
                if self.stands == 0 { now.duration() - self.since.duration() } else { Duration::ZERO };
        }
    }

    pub(super) fn stands(&self) -> bool {
        self.stands > 0
    }

    /// The sum of jumps since then.
    pub(super) fn leapt_since(&self, then: VirtualTime) -> Duration {
        self.leaps.iter().filter(|(at, _)| *at >= then).map(|(_, by)| *by).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_jumps_and_stops_and_never_goes_back() {
        let (mut watch, s) = (EndClock::default(), |s: f64| VirtualTime::default().after(s));
        watch.leap(s(1.0), Duration::from_secs(9));
        assert_eq!(watch.shows(s(2.0)), Duration::from_secs(11));
        watch.stand(s(2.0), true);
        watch.stand(s(3.0), true);
        watch.stand(s(4.0), false);
        assert_eq!(watch.shows(s(4.5)), Duration::from_secs(11));
        watch.stand(s(5.0), false);
        assert_eq!(watch.shows(s(6.0)), Duration::from_secs(12));
        assert_eq!(watch.leapt_since(s(1.5)), Duration::ZERO);
    }
}
