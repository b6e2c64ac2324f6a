//! Measurements that a worker has made of itself: each at most once a minute, however many sessions ask.
//!
//! Place in the flow: the greeting of a session asks here for a kernel and its speed; an unknown value is
//! measured, under the ledger's lock.
//!
//! Invariants: a longer measurement is never replaced by a shorter one, an equally long one is replaced only after a minute,
//! and a measurement on an idle machine never by one beside other sessions. Memory is bounded: one number for each kernel,
//! element type and count of threads, and one kernel for each element type. Nothing outlives the process.
//!
//! Deliberately absent: the measurements themselves, and the processor quota, which may change meanwhile.

use bramble_kernel::{AutoPicks, Choice, KernelError, KernelName, Pick, Workload};
use bramble_matrix::DType;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Speed of several threads together, Gflop/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    /// Measured with the kernel.
    pub(crate) gflops: f64,
    /// The hardware's peak.
    pub(crate) peak_gflops: f64,
}

/// Effort of a measurement; more is more accurate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProbeEffort {
    /// The peak of one thread stands for the speed of all.
    Peak,
    /// One thread, briefly, stands for all.
    One,
    /// All threads at once.
    All,
    /// All threads at once, with jobs as in large products.
    Jobs,
}

impl ProbeEffort {
    /// The effort that a product of that many operations is worth.
    pub(crate) fn for_product(flops: f64) -> Self {
        match flops {
            f if f < 1e8 => Self::Peak,
            f if f < 1e9 => Self::One,
            f if f < 3e10 => Self::All,
            _ => Self::Jobs,
        }
    }
}

/// Key of a measurement: kernel, element type, number of threads.
type What<'a> = (&'a str, DType, usize);

/// Most speeds that are remembered: kernel names contain numbers, and a primary may ask for any.
const REMEMBERED_MAX: usize = 256;

/// How long a measurement answers requests of equal effort.
const FRESH: Duration = Duration::from_secs(60);

/// A worker's measurements of itself. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speeds {
    known: Arc<Mutex<KnownSpeeds>>,
}

/// A measurement, its effort and its time.
#[derive(Clone, Copy, Debug)]
struct Measured {
    effort: ProbeEffort,
    speed: Speed,
    at: Instant,
}

impl Measured {
    /// Whether it answers a request of that effort. A measurement of the same effort expires: it may have been made while the
    /// machine started or was busy.
    fn answers(&self, effort: ProbeEffort, now: Instant) -> bool {
        self.effort > effort || self.effort == effort && now.duration_since(self.at) < FRESH
    }
}

#[derive(Debug, Default)]
struct KnownSpeeds {
    speeds: BTreeMap<(String, DType, usize), Measured>,
    auto: AutoPicks,
}

impl Speeds {
    /// A panic elsewhere leaves the entries consistent: each change is one call.
    fn known(&self) -> MutexGuard<'_, KnownSpeeds> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The speed, measured with that effort or more; otherwise it is measured now, and remembered if `alone`: a
    /// measurement beside other sessions does not show what this machine can do.
    pub(crate) fn speed(
        &self,
        what: What<'_>,
        effort: ProbeEffort,
        alone: bool,
        measure: impl FnOnce() -> Speed,
    ) -> Speed {
        self.speed_at(Instant::now(), what, effort, alone, measure)
    }

    fn speed_at(
        &self,
        now: Instant,
        what: What<'_>,
        effort: ProbeEffort,
        alone: bool,
        measure: impl FnOnce() -> Speed,
    ) -> Speed {
        if let Some(speed) = self.known_at(now, what, effort, alone) {
            return speed;
        }
        let (what, speed) = ((what.0.to_owned(), what.1, what.2), measure());
        let mut known = self.known();
        let is_better = known.speeds.get(&what).is_none_or(|known| !known.answers(effort, now));
        let has_room = known.speeds.len() < REMEMBERED_MAX || known.speeds.contains_key(&what);
        if alone && is_better && has_room {
            known.speeds.insert(what, Measured { effort, speed, at: now });
        }
        speed
    }

    /// The speed, if nothing has to be measured for it.
    pub(crate) fn known_speed(&self, what: What<'_>, effort: ProbeEffort, alone: bool) -> Option<Speed> {
        self.known_at(Instant::now(), what, effort, alone)
    }

    fn known_at(&self, now: Instant, what: What<'_>, effort: ProbeEffort, alone: bool) -> Option<Speed> {
        let known = self.known().speeds.get(&(what.0.to_owned(), what.1, what.2)).copied()?;
        // Beside other sessions a new measurement would be no better.
        (known.answers(effort, now) || !alone && known.effort == effort).then_some(known.speed)
    }

    /// Whether the kernel for a choice is known without comparing any, or opening a library.
    pub(crate) fn knows_pick(&self, work: Workload, choice: Choice, dtype: DType, flops: f64) -> bool {
        match choice {
            Choice::Auto => self.known().auto.known(work, dtype, flops).is_some(),
            Choice::Named(name) => matches!(name, KernelName::Simd | KernelName::Reference),
            Choice::Blocked { .. } | Choice::Strassen { .. } => false,
        }
    }

    /// The kernel for a workload, choice, type and number of operations.
    pub(crate) fn pick(
        &self,
        work: Workload,
        choice: Choice,
        dtype: DType,
        flops: f64,
        pick: impl FnOnce(Choice, DType, f64) -> Result<Pick, KernelError>,
    ) -> Result<Pick, KernelError> {
        if choice != Choice::Auto {
            return pick(choice, dtype, flops);
        }
        let known = self.known().auto.known(work, dtype, flops).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let picked = pick(choice, dtype, flops)?;
        self.known().auto.remember(work, dtype, flops, picked.clone());
        Ok(picked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: What<'static> = ("simd", DType::F64, 4);

    fn speed(gflops: f64) -> Speed {
        Speed { gflops, peak_gflops: 2.0 * gflops }
    }

    /// The speed that is returned if a measurement would give `measured`.
    fn asked(speeds: &Speeds, what: What<'_>, effort: ProbeEffort, alone: bool, measured: f64) -> f64 {
        speeds.speed(what, effort, alone, || speed(measured)).gflops
    }

    #[test]
    fn everything_is_measured_once() {
        let speeds = Speeds::default();
        assert_eq!(speeds.known_speed(WHAT, ProbeEffort::Peak, true), None);
        assert_eq!(asked(&speeds, WHAT, ProbeEffort::All, true, 50.0), 50.0);
        let nothing = || panic!("it is known");
        assert_eq!(speeds.clone().speed(WHAT, ProbeEffort::All, true, nothing), speed(50.0));
        assert_eq!(speeds.known_speed(WHAT, ProbeEffort::One, true), Some(speed(50.0)));
        assert_eq!(speeds.known_speed(WHAT, ProbeEffort::Jobs, true), None);
        for other in [("blis", DType::F64, 4), ("simd", DType::F32, 4), ("simd", DType::F64, 3)] {
            assert_eq!(asked(&speeds, other, ProbeEffort::All, true, 7.0), 7.0, "{other:?}");
        }
    }

    #[test]
    fn a_longer_measurement_replaces_a_shorter_one_and_never_the_other_way() {
        let speeds = Speeds::default();
        let all = [ProbeEffort::Peak, ProbeEffort::One, ProbeEffort::All];
        for (at, effort) in all.into_iter().enumerate() {
            let measured = 10.0 + at as f64;
            assert_eq!(asked(&speeds, WHAT, effort, true, measured), measured);
            for shorter in &all[..=at] {
                assert_eq!(
                    asked(&speeds, WHAT, *shorter, true, 99.0),
                    measured,
                    "{shorter:?} after {effort:?}"
                );
            }
        }
    }

    #[test]
    fn measurements_beside_other_sessions_are_not_remembered_but_known_ones_are_used() {
        let speeds = Speeds::default();
        assert_eq!(asked(&speeds, WHAT, ProbeEffort::All, false, 20.0), 20.0);
        assert_eq!(asked(&speeds, WHAT, ProbeEffort::All, true, 50.0), 50.0);
        assert_eq!(asked(&speeds, WHAT, ProbeEffort::All, false, 21.0), 50.0);
    }

    #[test]
    fn a_measurement_expires_after_a_minute() {
        let (speeds, began) = (Speeds::default(), Instant::now());
        let after = |seconds, effort, alone, measured| {
            let now = began + Duration::from_secs(seconds);
            speeds.speed_at(now, WHAT, effort, alone, || speed(measured)).gflops
        };
        assert_eq!(after(0, ProbeEffort::All, true, 5.0), 5.0);
        assert_eq!(after(59, ProbeEffort::All, true, 45.0), 5.0, "a minute is not over");
        assert_eq!(after(61, ProbeEffort::One, true, 45.0), 5.0, "a shorter measurement says less");
        assert_eq!(after(61, ProbeEffort::All, false, 2.0), 5.0, "beside others");
        assert_eq!(after(61, ProbeEffort::All, true, 45.0), 45.0);
        assert_eq!(after(62, ProbeEffort::All, true, 44.0), 45.0, "a minute from the last time");
    }

    #[test]
    fn the_number_of_remembered_speeds_is_limited() {
        let speeds = Speeds::default();
        for cutoff in 0..2 * REMEMBERED_MAX {
            let name = format!("strassen:simd:{cutoff}");
            assert_eq!(asked(&speeds, (&name, DType::F64, 1), ProbeEffort::One, true, 5.0), 5.0);
        }
        assert_eq!(speeds.known().speeds.len(), REMEMBERED_MAX);
        assert_eq!(asked(&speeds, ("strassen:simd:0", DType::F64, 1), ProbeEffort::All, true, 6.0), 6.0);
        assert_eq!(asked(&speeds, ("strassen:simd:0", DType::F64, 1), ProbeEffort::All, true, 7.0), 6.0);
    }

    #[test]
    fn larger_products_get_longer_measurements() {
        let efforts = [0.0, 99e6, 1e8, 999e6, 1e9, 29e9, 3e10, f64::MAX].map(ProbeEffort::for_product);
        use ProbeEffort::{All, Jobs, One, Peak};
        assert_eq!(efforts, [Peak, Peak, One, One, All, All, Jobs, Jobs]);
    }

    #[test]
    fn kernels_are_compared_once_and_a_comparison_holds_for_products_of_every_size() {
        let speeds = Speeds::default();
        let simd = bramble_kernel::pick(Choice::Named(KernelName::Simd), DType::F64, 0.0).unwrap();
        let compared = Pick { rates: vec![("simd".to_owned(), 9.0)], ..simd.clone() };
        let asked = |dtype, flops, gives: Option<&Pick>| {
            let gives = |_, _, _| Ok(gives.unwrap().clone());
            let picked = speeds.pick(Workload::Products, Choice::Auto, dtype, flops, gives);
            picked.unwrap().rates.len()
        };
        // Comparing was not worth it for this product, so neither for smaller ones; a larger one decides anew.
        assert_eq!(asked(DType::F64, 1e9, Some(&simd)), 0);
        assert_eq!(asked(DType::F64, 1e8, None), 0);
        assert_eq!(asked(DType::F64, 1e12, Some(&compared)), 1);
        assert_eq!(asked(DType::F64, 1e13, None), 1);
        assert_eq!(asked(DType::F64, 1.0, None), 1);
        assert_eq!(asked(DType::F32, 1.0, Some(&simd)), 0);
        // A named kernel is used without comparison.
        let reference = Choice::Named(KernelName::Reference);
        let named = speeds.pick(Workload::Products, reference, DType::F64, 1.0, bramble_kernel::pick);
        assert_eq!(named.unwrap().kernel.name(), "reference");
    }
}
