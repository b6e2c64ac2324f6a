//! How far the clock of another machine is from the primary's.
//!
//! A question and its answer bound it: the other clock was read after the question was asked and before the answer was
//! there. The middle is the estimate, half of the round trip its uncertainty, whatever the ways took. The shortest round
//! trip says most.
//!
//! Invariant: the true offset at the time of a sample is within `offset_ns` ± `uncertainty_ns`. Between two samples that
//! contradict each other clocks run at different speeds, and what lies between is taken to change evenly.

/// One look at another clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// When, on the primary's clock.
    pub at_ns: u64,
    /// The primary's clock minus the other.
    pub offset_ns: i64,
    /// How wrong that may be.
    pub uncertainty_ns: u64,
}

impl ClockSample {
    /// What an answer says: asked and answered on the primary's clock, read on the other.
    pub(crate) fn of(asked_ns: u64, answered_ns: u64, other_ns: u64) -> Self {
        let trip_ns = answered_ns.saturating_sub(asked_ns);
        let middle_ns = asked_ns.saturating_add(trip_ns / 2);
        let offset = i128::from(middle_ns) - i128::from(other_ns);
        let offset_ns = i64::try_from(offset).unwrap_or(if offset > 0 { i64::MAX } else { i64::MIN });
        Self { at_ns: middle_ns, offset_ns, uncertainty_ns: trip_ns.div_ceil(2) }
    }

    /// The clock of this very machine.
    pub(crate) fn same(at_ns: u64) -> Self {
        Self { at_ns, offset_ns: 0, uncertainty_ns: 0 }
    }

    /// The better one of two of about the same time.
    pub(crate) fn better(one: Option<Self>, other: Self) -> Self {
        one.filter(|one| one.uncertainty_ns <= other.uncertainty_ns).unwrap_or(other)
    }
}

/// What has to be added at `at_ns` to times that the first sample's offset was used for.
pub(super) fn drift_ns(clocks: [Option<ClockSample>; 2], at_ns: u64) -> i64 {
    let [Some(first), Some(last)] = clocks else { return 0 };
    let change = i128::from(last.offset_ns) - i128::from(first.offset_ns);
    let doubt = u128::from(first.uncertainty_ns) + u128::from(last.uncertainty_ns);
    let span = last.at_ns.saturating_sub(first.at_ns);
    if change.unsigned_abs() <= doubt || span == 0 {
        return 0;
    }
    let into = at_ns.clamp(first.at_ns, last.at_ns) - first.at_ns;
    i64::try_from(change * i128::from(into) / i128::from(span)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_uncertainty(
            asked in 0u64..1 << 40, there in 0u64..1 << 30, back in 0u64..1 << 30, offset in -(1i64 << 40)..1 << 40,
        ) {
            let read = asked + there;
            let Some(other) = read.checked_add_signed(-offset) else { return Ok(()) };
            let sample = ClockSample::of(asked, read + back, other);
            prop_assert!(sample.offset_ns.abs_diff(offset) <= sample.uncertainty_ns, "{sample:?}");
        }
    }

    #[test]
    fn only_samples_that_contradict_each_other_move_anything() {
        let sample = |at_ns, offset_ns| Some(ClockSample { at_ns, offset_ns, uncertainty_ns: 10 });
        assert_eq!(drift_ns([sample(0, 5), sample(1000, 25)], 500), 0);
        assert_eq!(drift_ns([sample(0, 5), None], 500), 0);
        let apart = [sample(100, 5), sample(1100, 105)];
        assert_eq!([0, 100, 600, 1100, 5000].map(|t| drift_ns(apart, t)), [0, 0, 50, 100, 100]);
        let back = [sample(100, 5), sample(1100, -95)];
        assert_eq!(drift_ns(back, 600), -50);
    }

    #[test]
    fn the_shorter_round_trip_is_better() {
        let (long, short) = (ClockSample::of(0, 1000, 500), ClockSample::of(2000, 2100, 9));
        assert_eq!(ClockSample::better(Some(long), short), short);
        assert_eq!(ClockSample::better(Some(short), long), short);
        assert_eq!(ClockSample::better(None, long), long);
    }
}
