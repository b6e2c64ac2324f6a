//! The simulated runs of a case: one without faults, and one with given faults or many with random sets of faults.
//!
//! Place in the flow: between the arguments and the output. Random sets are simulated on all processors.
//!
//! Invariant: the results do not depend on the number of threads or on their timing.

use super::case::{check_parts, refused};
use crate::args::SimArgs;
use bramble_report::exit::Failure;
use bramble_report::quantity::seconds;
use bramble_report::sim::{FaultTrial, Runs, SimCase};
use bramble_sim::{Faults, SimReport, simulate_with};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Fault times that are given as percentages are rounded to this.
const ROUNDED_S: f64 = 1e-3;

/// The faults of the runs after the first.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FaultSets {
    Nothing,
    Faults(String),
    /// Random sets of faults: the first seed, and the number of sets.
    Seeds(u64, u32),
}

impl FaultSets {
    pub(super) fn of(args: &SimArgs, case: &SimCase) -> Result<Self, Failure> {
        match (&args.faults, args.seeds) {
            (Some(text), _) => Ok(Self::Faults(text.clone())),
            (None, Some(_)) if case.workers().is_empty() => Err(Failure::failed(format!(
                "--seeds: no worker has a share of this product, so none can fail ({}); --strategy reuse uses the \
                workers, if there are any",
                case.decision.sentence
            ))),
            (None, Some(seeds)) => Ok(Self::Seeds(args.seed, seeds)),
            (None, None) => Ok(Self::Nothing),
        }
    }

    /// The number of runs with faults.
    pub(super) fn runs(&self) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::Faults(_) => 1.0,
            Self::Seeds(_, seeds) => f64::from(*seeds),
        }
    }
}

/// Simulates all runs.
pub(super) fn all(case: &SimCase, wanted: &FaultSets) -> Result<Runs, Failure> {
    let run = |faults: &Faults| simulate_with(case.plan(), &case.machines, &case.setting, faults);
    let undisturbed = run(&Faults::default());
    let (mut disturbed, mut drawn) = (None, Vec::new());
    match wanted {
        FaultSets::Nothing => {}
        FaultSets::Faults(text) => {
            let whole = Duration::from_secs_f64(undisturbed.seconds);
            let faults = Faults::read_timed(text, Some(whole)).map_err(refused)?;
            faults.check_timed(case.machines.len() - 1).map_err(refused)?;
            check_parts(case, &faults)?;
            let report = run(&faults);
            check_times(&faults, &undisturbed, &report)?;
            disturbed = Some((faults, report));
        }
        FaultSets::Seeds(first, seeds) => {
            let workers = case.workers();
            drawn = on_all_processors(*seeds as usize, |at| {
                let seed = first.wrapping_add(at as u64);
                let faults = Faults::timed_of(seed, &workers, undisturbed.seconds);
                let SimReport { seconds, failed, losses, events, .. } = run(&faults);
                FaultTrial { seed, faults, seconds, failed, lost: losses.len(), events }
            });
        }
    }
    Ok(Runs { undisturbed, disturbed, drawn })
}

/// Refuses a fault that comes after the end of the product. The later of both ends counts, with and without faults: a
/// random set of faults that happens to shorten the product can then still be given as `--faults`.
fn check_times(faults: &Faults, undisturbed: &SimReport, report: &SimReport) -> Result<(), Failure> {
    let end_s = undisturbed.seconds.max(report.seconds);
    match faults.0.iter().enumerate().find(|(_, fault)| fault.from.as_secs_f64() > end_s + ROUNDED_S) {
        None => Ok(()),
        Some((at, fault)) => Err(refused(format!(
            "fault {}, '{fault}': the product ends after {}, so this fault would have no effect; name an earlier time",
            at + 1,
            seconds(end_s)
        ))),
    }
}

/// The results of `make(0)` to `make(count - 1)`, in this order, computed on all processors.
fn on_all_processors<T: Send>(count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(count);
    let (next, make) = (AtomicUsize::new(0), &make);
    let some = || {
        let numbers = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            (at < count).then_some(at)
        });
        numbers.map(|at| (at, make(at))).collect::<Vec<_>>()
    };
    let mut made: Vec<(usize, T)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        let joined = all.into_iter().map(|thread| match thread.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whoever_makes_them() {
        assert_eq!(on_all_processors(1000, |at| 3 * at), (0..1000).map(|at| 3 * at).collect::<Vec<_>>());
        assert!(on_all_processors(0, |at| at).is_empty());
    }
}
