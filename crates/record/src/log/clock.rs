//! Estimates the offset between another machine's clock and the primary's.
//!
//! A question and its answer bound the offset: the machine read its clock after the question was asked and before the answer
//! arrived. The estimate assumes the middle; its uncertainty is half of the round trip, whatever the delay of each direction. The
//! shortest round trip gives the best sample.
//!
//! Invariant: the true offset at the time of a sample is within `offset_ns` ± `uncertainty_ns`. Two samples that contradict each
//! other show that the clocks run at different speeds; between them the drift is taken to be linear.

/// One measurement of another machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// When it was taken, on the primary's clock.
    pub at_ns: u64,
    /// The primary's clock minus the machine's clock.
    pub offset_ns: i64,
    /// Largest possible error of the offset.
    pub uncertainty_ns: u64,
}

impl ClockSample {
    /// From one answer: the question and the answer are timed on the primary's clock, `other_ns` is the machine's.
    pub fn of(asked_ns: u64, answered_ns: u64, other_ns: u64) -> Self {
        let trip_ns = answered_ns.saturating_sub(asked_ns);
        let middle_ns = asked_ns.saturating_add(trip_ns / 2);
        let offset = i128::from(middle_ns) - i128::from(other_ns);
        let offset_ns = i64::try_from(offset).unwrap_or(if offset > 0 { i64::MAX } else { i64::MIN });
        Self { at_ns: middle_ns, offset_ns, uncertainty_ns: trip_ns.div_ceil(2) }
    }

    /// The sample of the primary's own clock.
    pub fn own(at_ns: u64) -> Self {
        Self { at_ns, offset_ns: 0, uncertainty_ns: 0 }
    }

    /// The sample with the smaller uncertainty; both are of about the same time.
    pub fn more_accurate(one: Option<Self>, other: Self) -> Self {
        one.filter(|one| one.uncertainty_ns <= other.uncertainty_ns).unwrap_or(other)
    }
}

/// Correction at `at_ns` of times that were converted with the first sample's offset.
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
    fn only_contradicting_samples_correct_times() {
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
        assert_eq!(ClockSample::more_accurate(Some(long), short), short);
        assert_eq!(ClockSample::more_accurate(Some(short), long), short);
        assert_eq!(ClockSample::more_accurate(None, long), long);
    }
}
