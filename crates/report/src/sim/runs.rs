//! The results of the simulated runs of a case: one without faults, and one with given faults or many with random sets
//! of faults.

use super::SimCase;
use crate::times::Times;
use bramble_sim::{Faults, SimReport};

/// The result of one random set of faults.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultTrial {
    /// The seed of the set.
    pub seed: u64,
    /// The faults.
    pub faults: Faults,
    /// Virtual seconds to the end.
    pub seconds: f64,
    /// Why there is no C, if there is none.
    pub failed: Option<String>,
    /// Number of lost machines.
    pub lost: usize,
    /// Number of simulated events.
    pub events: u64,
}

/// The results of all runs.
pub struct Runs {
    /// The run without faults.
    pub undisturbed: SimReport,
    /// The given faults, and the run with them.
    pub disturbed: Option<(Faults, SimReport)>,
    /// By seed.
    pub drawn: Vec<FaultTrial>,
}

impl Runs {
    /// Virtual seconds and events of all runs together.
    pub fn simulated(&self) -> (f64, u64) {
        let reports = std::iter::once(&self.undisturbed).chain(self.disturbed.as_ref().map(|(_, run)| run));
        let both =
            reports.map(|r| (r.seconds, r.events)).chain(self.drawn.iter().map(|t| (t.seconds, t.events)));
        both.fold((0.0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Times of the random sets that completed; `None` if none did.
    pub fn times(&self) -> Option<Times> {
        let times: Vec<f64> = self.drawn.iter().filter(|t| t.failed.is_none()).map(|t| t.seconds).collect();
        (!times.is_empty()).then(|| Times::new(times))
    }

    /// The worst random set: the first one that fails, else the slowest.
    pub fn worst(&self) -> Option<&FaultTrial> {
        let cost = |tried: &FaultTrial| if tried.failed.is_some() { f64::INFINITY } else { tried.seconds };
        self.drawn.iter().rev().max_by(|a, b| cost(a).total_cmp(&cost(b)))
    }
}

/// The activity of one machine in a run, summed over its sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MachineActivity {
    /// The machine's number.
    pub(super) machine: usize,
    /// Its fraction of all operations, 0 to 1.
    pub(super) share: f64,
    /// Fraction of its threads' time spent computing, 0 to 1.
    pub(super) busy: f64,
    /// Bytes that the primary sent to it.
    pub(super) bytes_out: u64,
    /// Bytes that it returned.
    pub(super) bytes_back: u64,
    /// Bytes that it passed to other workers.
    pub(super) bytes_passed: u64,
    /// Most bytes of matrices that it held.
    pub(super) held_bytes_max: u64,
    /// Number of jobs.
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
}
