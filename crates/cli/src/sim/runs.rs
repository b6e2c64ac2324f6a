//! The runs of a case: undisturbed, with the faults that are asked for, or with many sets that are drawn.
//!
//! Place in the flow: between the arguments and what is shown. Sets that are drawn are tried on all processors.
//!
//! Invariant: what comes out does not depend on how many threads there are, or on which was first.

use super::case::{Case, refused};
use crate::args::SimArgs;
use crate::exit::Failure;
use crate::quantity::seconds;
use crate::times::Times;
use bramble_sim::{Faults, Report, simulate_with};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Times of faults that are parts of a product are rounded to this.
const ROUNDED_S: f64 = 1e-3;

/// What goes wrong in the runs after the first.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    Nothing,
    Faults(String),
    /// So many sets, from a seed on.
    Seeds(u64, u32),
}

/// What came of a set of faults that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tried {
    pub(super) seed: u64,
    pub(super) faults: Faults,
    pub(super) seconds: f64,
    pub(super) failed: Option<String>,
    pub(super) lost: usize,
    events: u64,
}

/// All of them.
pub(super) struct Runs {
    pub(super) undisturbed: Report,
    pub(super) disturbed: Option<(Faults, Report)>,
    /// By seed.
    pub(super) drawn: Vec<Tried>,
}

impl Wanted {
    pub(super) fn of(args: &SimArgs, case: &Case) -> Result<Self, Failure> {
        match (&args.faults, args.seeds) {
            (Some(text), _) => Ok(Self::Faults(text.clone())),
            (None, Some(_)) if case.workers().is_empty() => Err(Failure::failed(format!(
                "--seeds: no worker has a part in this product, so none can fail ({}); --strategy reuse uses the workers, if \
                 there are any",
                case.decision.sentence
            ))),
            (None, Some(seeds)) => Ok(Self::Seeds(args.seed, seeds)),
            (None, None) => Ok(Self::Nothing),
        }
    }

    /// How many runs that is.
    pub(super) fn runs(&self) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::Faults(_) => 1.0,
            Self::Seeds(_, seeds) => f64::from(*seeds),
        }
    }
}

/// Does them all.
pub(super) fn all(case: &Case, wanted: &Wanted) -> Result<Runs, Failure> {
    let run = |faults: &Faults| simulate_with(case.plan(), &case.machines, &case.setting, faults);
    let undisturbed = run(&Faults::default());
    let (mut disturbed, mut drawn) = (None, Vec::new());
    match wanted {
        Wanted::Nothing => {}
        Wanted::Faults(text) => {
            let whole = Duration::from_secs_f64(undisturbed.seconds);
            let faults = Faults::read_timed(text, Some(whole)).map_err(refused)?;
            faults.check_timed(case.machines.len() - 1).map_err(refused)?;
            case.check_parts(&faults)?;
            let report = run(&faults);
            check_times(&faults, &undisturbed, &report)?;
            disturbed = Some((faults, report));
        }
        Wanted::Seeds(first, seeds) => {
            let workers = case.workers();
            drawn = on_all_processors(*seeds as usize, |at| {
                let seed = first.wrapping_add(at as u64);
                let faults = Faults::timed_of(seed, &workers, undisturbed.seconds);
                let Report { seconds, failed, losses, events, .. } = run(&faults);
                Tried { seed, faults, seconds, failed, lost: losses.len(), events }
            });
        }
    }
    Ok(Runs { undisturbed, disturbed, drawn })
}

/// Refuses a fault that is so late that C is there before. One that comes in the time of the undisturbed product is none: where
/// others make the product shorter, it is too late, and the text of a set that was drawn can be used again.
fn check_times(faults: &Faults, undisturbed: &Report, report: &Report) -> Result<(), Failure> {
    let end_s = undisturbed.seconds.max(report.seconds);
    match faults.0.iter().enumerate().find(|(_, fault)| fault.from.as_secs_f64() > end_s + ROUNDED_S) {
        None => Ok(()),
        Some((at, fault)) => Err(refused(format!(
            "fault {}, '{fault}': the product ends after {}, so this would not happen; name an earlier time",
            at + 1,
            seconds(end_s)
        ))),
    }
}

/// What `make` gives for each of 0..count, in this order.
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
    /// Virtual seconds and events of all runs.
    pub(super) fn simulated(&self) -> (f64, u64) {
        let reports = std::iter::once(&self.undisturbed).chain(self.disturbed.as_ref().map(|(_, run)| run));
        let both =
            reports.map(|r| (r.seconds, r.events)).chain(self.drawn.iter().map(|t| (t.seconds, t.events)));
        both.fold((0.0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Of the sets that were drawn; `None` where none ended with C.
    pub(super) fn times(&self) -> Option<Times> {
        let times: Vec<f64> = self.drawn.iter().filter(|t| t.failed.is_none()).map(|t| t.seconds).collect();
        (!times.is_empty()).then(|| Times::new(times))
    }

    /// The set that costs most: one that ends without C, else the slowest.
    pub(super) fn worst(&self) -> Option<&Tried> {
        let cost = |tried: &Tried| if tried.failed.is_some() { f64::INFINITY } else { tried.seconds };
        self.drawn.iter().rev().max_by(|a, b| cost(a).total_cmp(&cost(b)))
    }
}

/// What one machine did in a run, in all of its sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Its number.
    pub(super) machine: usize,
    /// Of all operations that were done, 0 to 1.
    pub(super) share: f64,
    /// Of its threads' time, 0 to 1.
    pub(super) busy: f64,
    pub(super) bytes_out: u64,
    pub(super) bytes_back: u64,
    pub(super) bytes_passed: u64,
    pub(super) held_bytes_max: u64,
    pub(super) jobs: u64,
}

/// The machines of a run, by their numbers; those that did nothing and were sent nothing are left out.
pub(super) fn parts(case: &Case, report: &Report) -> Vec<Part> {
    let mut parts: Vec<Part> =
        (0..case.machines.len()).map(|machine| Part { machine, ..Part::default() }).collect();
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

/// Of the time of the threads of all machines that took part, 0 to 1.
pub(super) fn busy(case: &Case, parts: &[Part]) -> f64 {
    let threads = |part: &Part| f64::from(case.machines[part.machine].threads.max(1));
    let all: f64 = parts.iter().map(threads).sum();
    parts.iter().map(|part| part.busy * threads(part)).sum::<f64>() / all.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(seed: u64, seconds: f64, failed: Option<&str>) -> Tried {
        let failed = failed.map(str::to_owned);
        Tried { seed, faults: Faults::default(), seconds, failed, lost: 0, events: 1 }
    }

    fn runs(drawn: Vec<Tried>) -> Runs {
        let undisturbed = Report {
            seconds: 1.0,
            failed: None,
            losses: Vec::new(),
            comings: Vec::new(),
            machines: Vec::new(),
            moved: Vec::new(),
            loop_busy_s: 0.0,
            aside_bytes_max: 0,
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
