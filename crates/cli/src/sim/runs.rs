//! The simulated runs of a case: one without faults, and one with given faults or many with random sets of faults.
//!
//! Place in the flow: between the arguments and the output. Random sets are simulated on all processors.
//!
//! Invariant: the results do not depend on the number of threads or on their timing.

use super::case::{SimCase, refused};
use crate::args::SimArgs;
use bramble_report::exit::Failure;
use bramble_report::quantity::seconds;
use bramble_report::times::Times;
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

/// The result of one random set of faults.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FaultTrial {
    pub(super) seed: u64,
    pub(super) faults: Faults,
    pub(super) seconds: f64,
    pub(super) failed: Option<String>,
    pub(super) lost: usize,
    events: u64,
}

/// /// The results of all runs.
pub(super) struct Runs {
    pub(super) undisturbed: SimReport,
    pub(super) disturbed: Option<(Faults, SimReport)>,
    /// By seed.
    pub(super) drawn: Vec<FaultTrial>,
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

/// /// Simulates all runs.
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
            case.check_parts(&faults)?;
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

impl Runs {
    /// Virtual seconds and events of all runs together.
    pub(super) fn simulated(&self) -> (f64, u64) {
        let reports = std::iter::once(&self.undisturbed).chain(self.disturbed.as_ref().map(|(_, run)| run));
        let both =
            reports.map(|r| (r.seconds, r.events)).chain(self.drawn.iter().map(|t| (t.seconds, t.events)));
        both.fold((0.0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Times of the random sets that completed; `None` if none did.
    pub(super) fn times(&self) -> Option<Times> {
        let times: Vec<f64> = self.drawn.iter().filter(|t| t.failed.is_none()).map(|t| t.seconds).collect();
        (!times.is_empty()).then(|| Times::new(times))
    }

    /// The worst random set: the first one that fails, else the slowest.
    pub(super) fn worst(&self) -> Option<&FaultTrial> {
        let cost = |tried: &FaultTrial| if tried.failed.is_some() { f64::INFINITY } else { tried.seconds };
        self.drawn.iter().rev().max_by(|a, b| cost(a).total_cmp(&cost(b)))
    }
}

/// The activity of one machine in a run, summed over its sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MachineActivity {
    /// /// The machine's number.
    pub(super) machine: usize,
    /// Its fraction of all operations, 0 to 1.
    pub(super) share: f64,
    /// Fraction of its threads' time spent computing, 0 to 1.
    pub(super) busy: f64,
    pub(super) bytes_out: u64,
    pub(super) bytes_back: u64,
    pub(super) bytes_passed: u64,
    pub(super) held_bytes_max: u64,
    pub(super) jobs: u64,
}

/// The machines that computed or were sent anything in a run, by number.
pub(super) fn parts(case: &SimCase, report: &SimReport) -> Vec<MachineActivity> {
    let mut parts: Vec<MachineActivity> = (0..case.machines.len())
        .map(|machine| MachineActivity { machine, ..MachineActivity::default() })
        .collect();
    let all = report.flops().max(1.0);
    for session in &report.machines {
        let part = &mut parts[session.machine];
        let threads = f64::from(case.machines[session.machine].threads.max(1));
        part.share += session.flops / all;
        part.busy += session.busy_s / (threads * report.seconds.max(1e-12));
        part.bytes_out += session.bytes_out;
        part.bytes_back += session.bytes_back;
        part.bytes_passed += session.bytes_passed;
        part.held_bytes_max = part.held_bytes_max.max(session.held_bytes_max);
        part.jobs += session.jobs;
    }
    parts.retain(|part| part.jobs > 0 || part.bytes_out > 0);
    parts
}

/// Fraction of all machines' thread time spent computing, 0 to 1.
pub(super) fn busy(case: &SimCase, parts: &[MachineActivity]) -> f64 {
    let threads = |part: &MachineActivity| f64::from(case.machines[part.machine].threads.max(1));
    let all: f64 = parts.iter().map(threads).sum();
    parts.iter().map(|part| part.busy * threads(part)).sum::<f64>() / all.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(seed: u64, seconds: f64, failed: Option<&str>) -> FaultTrial {
        let failed = failed.map(str::to_owned);
        FaultTrial { seed, faults: Faults::default(), seconds, failed, lost: 0, events: 1 }
    }

    fn runs(drawn: Vec<FaultTrial>) -> Runs {
        let undisturbed = SimReport {
            seconds: 1.0,
            failed: None,
            losses: Vec::new(),
            joins: Vec::new(),
            machines: Vec::new(),
            moved: Vec::new(),
            loop_busy_s: 0.0,
            partial_sum_bytes_max: 0,
            tiles: 0,
            jobs: 0,
            events: 1,
        };
        Runs { undisturbed, disturbed: None, drawn }
    }

    #[test]
    fn the_worst_set_is_one_without_a_result_or_the_slowest_and_the_first_of_equals() {
        let slow = vec![tried(0, 2.0, None), tried(1, 5.0, None), tried(2, 5.0, None), tried(3, 3.0, None)];
        let all = runs(slow.clone());
        assert_eq!(all.worst().map(|t| t.seed), Some(1));
        assert_eq!(all.times(), Some(Times::new(vec![2.0, 3.0, 5.0, 5.0])));
        assert_eq!(all.simulated(), (16.0, 5));
        let with_one = runs(slow.into_iter().chain([tried(4, 0.1, Some("no memory"))]).collect());
        assert_eq!(with_one.worst().map(|t| t.seed), Some(4));
        assert_eq!(with_one.times(), all.times(), "there is no time of a product that fails");
        assert_eq!(runs(Vec::new()).times(), None);
    }

    #[test]
    fn results_are_in_order_whoever_makes_them() {
        assert_eq!(on_all_processors(1000, |at| 3 * at), (0..1000).map(|at| 3 * at).collect::<Vec<_>>());
        assert!(on_all_processors(0, |at| at).is_empty());
    }
}
