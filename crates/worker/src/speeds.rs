//! What a worker has measured of itself: each thing once a minute, however many sessions ask.
//!
//! Place in the flow: a session's greeting asks here for a kernel and for its speed; what is not known yet is
//! measured, in the ledger's turn.
//!
//! Invariants: a longer measurement is never replaced by a shorter one, one as long only after a minute, and never one that
//! was made while nobody else computed by one that was. What is remembered is bounded: a number for each kernel, element type
//! and count of threads, and a kernel for each element type. It is in memory only, and gone with the process.
//!
//! Deliberately absent: the measurements themselves, and the processors' quota, which may change meanwhile.

use bramble_kernel::{Choice, KernelError, Pick};
use bramble_matrix::DType;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Speed of some threads together, Gflop/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    /// With the kernel.
    pub(crate) gflops: f64,
    /// At most.
    pub(crate) peak_gflops: f64,
}

/// How much trouble a measurement takes; more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    /// The peak of one thread stands for the speed of all.
    Peak,
    /// One thread, for a moment, speaks for all.
    One,
    /// All threads at once.
    All,
    /// All threads at once, at jobs as large products have them.
    Jobs,
}

impl Effort {
    /// What a product of that many operations repays.
    pub(crate) fn for_product(flops: f64) -> Self {
        match flops {
            f if f < 1e8 => Self::Peak,
            f if f < 1e9 => Self::One,
            f if f < 3e10 => Self::All,
            _ => Self::Jobs,
        }
    }
}

/// What is measured: a kernel with a type and a number of threads.
type What<'a> = (&'a str, DType, usize);

/// Most speeds that are remembered: kernels over others have numbers in their names, and a primary may ask for any.
const REMEMBERED_MAX: usize = 256;

/// How long a measurement holds for who wants as much effort.
const FRESH: Duration = Duration::from_secs(60);

/// What a worker has measured of itself. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speeds {
    known: Arc<Mutex<Known>>,
}

/// What was measured with which effort, and when.
#[derive(Clone, Copy, Debug)]
struct Measured {
    effort: Effort,
    speed: Speed,
    at: Instant,
}

impl Measured {
    /// Whether it answers who asks for that effort. What was measured while the machine started, or did something else for a
    /// while, must not be held against it for ever: whoever wants as much effort has it measured again.
    fn answers(&self, effort: Effort, now: Instant) -> bool {
        self.effort > effort || self.effort == effort && now.duration_since(self.at) < FRESH
    }
}

#[derive(Debug, Default)]
struct Known {
    speeds: BTreeMap<(String, DType, usize), Measured>,
    /// What `auto` is for products of a type, and the operations of the largest that it was asked for.
    auto: BTreeMap<DType, (f64, Pick)>,
}

impl Speeds {
    /// A panic elsewhere leaves the entries whole: each change is one call.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The speed as it was measured with that effort or more; else it is measured, and remembered if `alone`: what
    /// was measured beside others who compute is not what this machine can do.
    pub(crate) fn speed(
        &self,
        what: What<'_>,
        effort: Effort,
        alone: bool,
        measure: impl FnOnce() -> Speed,
    ) -> Speed {
        self.speed_at(Instant::now(), what, effort, alone, measure)
    }

    fn speed_at(
        &self,
        now: Instant,
        what: What<'_>,
        effort: Effort,
        alone: bool,
        measure: impl FnOnce() -> Speed,
    ) -> Speed {
        let what = (what.0.to_owned(), what.1, what.2);
        let known = self.known().speeds.get(&what).copied();
        match known {
            // Beside others nothing better can be measured.
            Some(known) if known.answers(effort, now) || !alone && known.effort == effort => known.speed,
            _ => {
                let speed = measure();
                let mut known = self.known();
                let is_better = known.speeds.get(&what).is_none_or(|known| !known.answers(effort, now));
                let has_room = known.speeds.len() < REMEMBERED_MAX || known.speeds.contains_key(&what);
                if alone && is_better && has_room {
                    known.speeds.insert(what, Measured { effort, speed, at: now });
                }
                speed
            }
        }
    }

    /// The kernel for that choice, type and size of product. A comparison holds for all products of its type;
    /// that none was worth it, for smaller ones.
    pub(crate) fn pick(
        &self,
        choice: Choice,
        dtype: DType,
        flops: f64,
        pick: impl FnOnce(Choice, DType, f64) -> Result<Pick, KernelError>,
    ) -> Result<Pick, KernelError> {
        if choice != Choice::Auto {
            return pick(choice, dtype, flops);
        }
        let known = self.known().auto.get(&dtype).cloned();
        match known {
            Some((largest, known)) if flops <= largest || !known.rates.is_empty() => Ok(known),
            _ => {
                let picked = pick(choice, dtype, flops)?;
                self.known().auto.insert(dtype, (flops, picked.clone()));
                Ok(picked)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_kernel::KernelName;

    const WHAT: What<'static> = ("simd", DType::F64, 4);

    fn speed(gflops: f64) -> Speed {
        Speed { gflops, peak_gflops: 2.0 * gflops }
    }

    /// The speed that is given, where a measurement would give `measured`.
    fn asked(speeds: &Speeds, what: What<'_>, effort: Effort, alone: bool, measured: f64) -> f64 {
        speeds.speed(what, effort, alone, || speed(measured)).gflops
    }

    #[test]
    fn everything_is_measured_once() {
        let speeds = Speeds::default();
        assert_eq!(asked(&speeds, WHAT, Effort::All, true, 50.0), 50.0);
        let nothing = || panic!("it is known");
        assert_eq!(speeds.clone().speed(WHAT, Effort::All, true, nothing), speed(50.0));
        for other in [("blis", DType::F64, 4), ("simd", DType::F32, 4), ("simd", DType::F64, 3)] {
            assert_eq!(asked(&speeds, other, Effort::All, true, 7.0), 7.0, "{other:?}");
        }
    }

    #[test]
    fn a_longer_measurement_replaces_a_shorter_one_and_never_the_other_way() {
        let speeds = Speeds::default();
        let all = [Effort::Peak, Effort::One, Effort::All];
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
    fn what_is_measured_beside_others_is_not_remembered_and_what_is_known_is_used() {
        let speeds = Speeds::default();
        assert_eq!(asked(&speeds, WHAT, Effort::All, false, 20.0), 20.0);
        assert_eq!(asked(&speeds, WHAT, Effort::All, true, 50.0), 50.0);
        assert_eq!(asked(&speeds, WHAT, Effort::All, false, 21.0), 50.0);
    }

    #[test]
    fn what_was_measured_while_the_machine_started_is_measured_again() {
        let (speeds, began) = (Speeds::default(), Instant::now());
        let after = |seconds, effort, alone, measured| {
            let now = began + Duration::from_secs(seconds);
            speeds.speed_at(now, WHAT, effort, alone, || speed(measured)).gflops
        };
        assert_eq!(after(0, Effort::All, true, 5.0), 5.0);
        assert_eq!(after(59, Effort::All, true, 45.0), 5.0, "a minute is not over");
        assert_eq!(after(61, Effort::One, true, 45.0), 5.0, "a shorter measurement says less");
        assert_eq!(after(61, Effort::All, false, 2.0), 5.0, "beside others");
        assert_eq!(after(61, Effort::All, true, 45.0), 45.0);
        assert_eq!(after(62, Effort::All, true, 44.0), 45.0, "a minute from the last time");
    }

    #[test]
    fn names_without_end_are_not_all_remembered() {
        let speeds = Speeds::default();
        for cutoff in 0..2 * REMEMBERED_MAX {
            let name = format!("strassen:simd:{cutoff}");
            assert_eq!(asked(&speeds, (&name, DType::F64, 1), Effort::One, true, 5.0), 5.0);
        }
        assert_eq!(speeds.known().speeds.len(), REMEMBERED_MAX);
        assert_eq!(asked(&speeds, ("strassen:simd:0", DType::F64, 1), Effort::All, true, 6.0), 6.0);
        assert_eq!(asked(&speeds, ("strassen:simd:0", DType::F64, 1), Effort::All, true, 7.0), 6.0);
    }

    #[test]
    fn larger_products_repay_longer_measurements() {
        let efforts = [0.0, 99e6, 1e8, 999e6, 1e9, 29e9, 3e10, f64::MAX].map(Effort::for_product);
        use Effort::{All, Jobs, One, Peak};
        assert_eq!(efforts, [Peak, Peak, One, One, All, All, Jobs, Jobs]);
    }

    #[test]
    fn kernels_are_compared_once_and_a_comparison_holds_for_products_of_every_size() {
        let speeds = Speeds::default();
        let simd = bramble_kernel::pick(Choice::Named(KernelName::Simd), DType::F64, 0.0).unwrap();
        let compared = Pick { rates: vec![("simd".to_owned(), 9.0)], ..simd.clone() };
        let asked = |dtype, flops, gives: Option<&Pick>| {
            let picked = speeds.pick(Choice::Auto, dtype, flops, |_, _, _| Ok(gives.unwrap().clone()));
            picked.unwrap().rates.len()
        };
        // Not worth it for this one, nor for smaller ones; a larger one is another matter.
        assert_eq!(asked(DType::F64, 1e9, Some(&simd)), 0);
        assert_eq!(asked(DType::F64, 1e8, None), 0);
        assert_eq!(asked(DType::F64, 1e12, Some(&compared)), 1);
        assert_eq!(asked(DType::F64, 1e13, None), 1);
        assert_eq!(asked(DType::F64, 1.0, None), 1);
        assert_eq!(asked(DType::F32, 1.0, Some(&simd)), 0);
        // Who names a kernel gets it.
        let named = speeds.pick(Choice::Named(KernelName::Reference), DType::F64, 1.0, bramble_kernel::pick);
        assert_eq!(named.unwrap().kernel.name(), "reference");
    }
}
