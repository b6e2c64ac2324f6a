//! Trials that outlive deaths: the elimination starts again on the machines that are left.
//!
//! Place in the flow: `trial.rs` comes here after a death; `schedule::lu::LuSurvival` decides, as at the primary.
//!
//! Invariants: a run ends early only after one death more than it survives, and no machine takes part after its death. After the
//! last start every machine finishes, and the factors are those of the reference.
//!
//! Deliberately absent: sessions, memory, and the clock of the primary.

use super::result::LuRareEvents;
use super::ring::{Ring, RingRun};
use super::scenario::LuScenario;
use super::trial::{check_factors, check_solution, check_struck};
use crate::random::SeededRandom;
use bramble_schedule::lu::{LuAfterLoss, LuSurvival};

/// A trial after its first death.
pub(super) struct AfterDeath<'a> {
    pub(super) scenario: &'a LuScenario,
    pub(super) matrix: &'a [Vec<u64>],
    pub(super) expected: &'a [Vec<u64>],
    /// Seconds of a run without faults.
    pub(super) calm_s: f64,
}

impl AfterDeath<'_> {
    /// Starts again until no machine dies, or too many have died; the runs.
    pub(super) fn again(
        &self,
        first: usize,
        random: &mut SeededRandom,
        seen: &mut LuRareEvents,
        log: &mut Option<Vec<String>>,
    ) -> Vec<RingRun> {
        let names: Vec<String> = (1..=self.scenario.machines()).map(|at| format!("w{at}")).collect();
        let mut survival = LuSurvival::new(self.scenario.survives);
        let has_begun = survival.begins(names.iter().map(String::as_str));
        let is_enough = self.scenario.machines() > self.scenario.survives;
        assert!(has_begun == is_enough, "violation: begins with too few machines, or refuses enough");
        let (mut dead, mut runs) = (vec![first], Vec::new());
        // The primary refuses such a run before its start.
        while has_begun && let Some(last) = dead.last() {
            let may_go_on = dead.len() <= self.scenario.survives;
            match survival.lost(&names[*last], "it died", self.calm_s) {
                LuAfterLoss::Ends => {
                    assert!(!may_go_on, "violation: {} ends a run that survives it", names[*last]);
                    seen.after_deaths[2] += 1;
                    break;
                }
                LuAfterLoss::Again => {
                    assert!(may_go_on, "violation: {} deaths are survived", dead.len());
                }
            }
            let left: Vec<usize> = (0..names.len()).filter(|at| survival.takes_part(&names[*at])).collect();
            let lost = left.iter().find(|at| dead.contains(at));
            assert!(lost.is_none(), "violation: a machine takes part after its death");
            assert!(left.len() + dead.len() == names.len(), "violation: a living machine takes no part");
            let scenario = self.scenario.on(&left, random);
            if let Some(log) = log {
                log.push(format!("again: {scenario:?}"));
            }
            let mut ring = Ring::new(&scenario, self.matrix, random.next(), seen, log);
            ring.plan_faults(self.calm_s, &[]);
            let run = ring.run();
            seen.after_deaths[0] += 1;
            check_struck(&scenario, &run, self.expected, seen);
            let next = scenario.dies().filter(|at| run.is_gone[*at]).map(|at| left[at]);
            if next.is_none() {
                let all_finished = run.machines.iter().all(|machine| machine.is_finished());
                assert!(all_finished, "violation: the last start has not finished");
                check_factors(&run, self.expected);
                check_solution(&scenario, &run, self.matrix, random.next(), seen);
                seen.after_deaths[1] += 1;
            }
            runs.push(run);
            match next {
                Some(next) => dead.push(next),
                None => break,
            }
        }
        runs
    }
}
