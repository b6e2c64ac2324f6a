//! What the clock of an end shows: it may leap, and stand still for a while.
//!
//! Invariants: never goes back. What the schedule makes of it is the schedule's own (`bramble_schedule::clock`).

use crate::clock::Time;
use std::time::Duration;

/// One end's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// When it leapt, and how far.
    leaps: Vec<(Time, Duration)>,
    /// How much it has lost by standing still.
    lost: Duration,
    /// How many faults have it stand still, and since when.
    stands: u32,
    since: Time,
}

impl Watch {
    /// What it shows.
    pub(super) fn shows(&self, now: Time) -> Duration {
        let real = if self.stands > 0 { self.since } else { now };
        real.duration() + self.leapt_since(Time::default()) - self.lost
    }

    pub(super) fn leap(&mut self, now: Time, by: Duration) {
        self.leaps.push((now, by));
    }

    /// It stands still from now on, or goes on for one of those who had it stand.
    pub(super) fn stand(&mut self, now: Time, stands: bool) {
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

    /// How far it has leapt since then.
    pub(super) fn leapt_since(&self, then: Time) -> Duration {
        self.leaps.iter().filter(|(at, _)| *at >= then).map(|(_, by)| *by).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaps_and_stands_still_and_never_goes_back() {
        let (mut watch, s) = (Watch::default(), |s: f64| Time::default().after(s));
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
