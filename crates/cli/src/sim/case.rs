//! The case to simulate: a plan, the machines and the simulator's settings.
//!
//! Invariants: machines have the numbers that faults use: 0 is the primary, then the workers in the order of their
//! description. A worker whose first fault is `join` is absent at the start, so the plan is made without it.

use crate::args::SimArgs;
use crate::plan::{self, Machines};
use bramble_plan::{Decision, Machine, Plan, Problem};
use bramble_report::exit::Failure;
use bramble_sim::{FaultKind, FaultSite, Faults, SimFault, SimSetting};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most workers named in the error about a fault without effect.
const NAMED_MAX: usize = 4;

/// See the head of this file.
pub(super) struct SimCase {
    pub(super) decision: Decision,
    pub(super) machines: Vec<Machine>,
    pub(super) setting: SimSetting,
}

/// The workers that are absent at the start. An error if `text` contains no fault.
pub(super) fn joining(text: Option<&str>) -> Result<BTreeSet<usize>, Failure> {
    // Percentages cannot be resolved yet, and do not matter here: any total time will do.
    let faults =
        Faults::read_timed(text.unwrap_or_default(), Some(Duration::from_secs(1))).map_err(refused)?;
    if text.is_some() && faults.0.is_empty() {
        return Err(refused("names no fault; write one, such as kill:w1@50%, or leave the option out"));
    }
    let (mut seen, mut joining) = (BTreeSet::new(), BTreeSet::new());
    for fault in &faults.0 {
        if let FaultSite::Worker(worker) = fault.site
            && seen.insert(worker)
            && fault.kind == FaultKind::Join
        {
            joining.insert(worker);
        }
    }
    Ok(joining)
}

/// An error about `--faults`.
pub(super) fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("--faults: {why}"))
}

impl SimCase {
    pub(super) fn of(
        args: &SimArgs,
        problem: &Problem,
        machines: Machines,
        joining: &BTreeSet<usize>,
    ) -> Result<Self, Failure> {
        let all = machines.workers.clone();
        // Numbers of the machines that are present at the start.
        let mut there = vec![0];
        there.extend((1..=all.len()).filter(|number| !joining.contains(number)));
        let Machines { workers, watts, .. } = machines;
        let keeps = |number: usize| number == 0 || !joining.contains(&number);
        let present = Machines {
            workers: workers.into_iter().zip(1..).filter(|(_, n)| keeps(*n)).map(|(m, _)| m).collect(),
            watts: watts.into_iter().enumerate().filter(|(n, _)| keeps(*n)).map(|(_, w)| w).collect(),
            ..machines
        };
        let view = plan::view(&args.product, problem, present)?;
        let mut decision = view.decision;
        decision.plan.members.iter_mut().for_each(|member| member.machine = there[member.machine]);
        let mut numbered: Vec<Machine> = view.machines.iter().take(1).cloned().collect();
        numbered.extend(all);
        for (machine, number) in view.machines.iter().zip(&there) {
            numbered[*number] = machine.clone();
        }
        // The primary's own threads have no link; the rate of its network interface is a separate figure.
        numbered[0].link = None;
        let workers = numbered.len() - 1;
        let moves = match args.worker_move_ns[..] {
            [all] => vec![all; workers],
            ref each if each.is_empty() || each.len() == workers => each.to_vec(),
            ref each => {
                return Err(Failure::usage(format!(
                    "--worker-move-ns has {} numbers for {workers} workers; give one for all workers, or one each",
                    each.len()
                )));
            }
        };
        let setting = SimSetting {
            loop_s_per_byte: args.move_ns * 1e-9,
            moves_s_per_byte: std::iter::once(0.0).chain(moves.into_iter().map(|ns| ns * 1e-9)).collect(),
            steals: !args.no_steal,
            ..SimSetting::measured()
        };
        Ok(Self { decision, machines: numbered, setting })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.decision.plan
    }

    /// Refuses faults of workers that neither have a share of the plan nor join before the fault: they would have no
    /// effect.
    pub(super) fn check_parts(&self, faults: &Faults) -> Result<(), Failure> {
        let workers = self.workers();
        for (at, fault) in faults.0.iter().enumerate() {
            let FaultSite::Worker(worker) = fault.site else { continue };
            let brings = |other: &SimFault| {
                let is_coming = matches!(other.kind, FaultKind::Join | FaultKind::Restart);
                is_coming && other.site == fault.site && other.from <= fault.from
            };
            if workers.contains(&worker) || faults.0.iter().any(brings) {
                continue;
            }
            let way = match workers.iter().take(NAMED_MAX).map(|w| format!("w{w}")).collect::<Vec<_>>() {
                none if none.is_empty() => "--strategy reuse uses the workers, if there are any".to_owned(),
                some => format!(
                    "name a worker with a share, such as {}; or use --strategy reuse",
                    some.join(", ")
                ),
            };
            let name = self.name(worker);
            return Err(refused(format!(
                "fault {}, '{fault}': {name} has no share of this product, so the fault would have no effect; {way}",
                at + 1
            )));
        }
        Ok(())
    }

    /// Numbers of the workers with a share of the plan.
    pub(super) fn workers(&self) -> Vec<usize> {
        self.plan().members.iter().map(|m| m.machine).filter(|number| *number > 0).collect()
    }

    /// Number of jobs in a run.
    pub(super) fn jobs(&self) -> f64 {
        self.plan().predicted.machines.iter().map(|m| m.jobs as f64).sum()
    }

    /// A machine for messages: `w3 (pi3)`.
    pub(super) fn name(&self, number: usize) -> String {
        let name = &self.machines[number].name;
        if number == 0 { format!("the primary ({name})") } else { format!("w{number} ({name})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_whose_first_fault_is_to_join_is_absent_at_the_start() {
        let text = "join:w4@50%,kill:w2@1s,join:w2@3s,slow:w1@1s..2s/4";
        assert_eq!(joining(Some(text)).ok(), Some(BTreeSet::from([4])));
        assert_eq!(joining(None).ok(), Some(BTreeSet::new()));
        for empty in ["", " ", ",,"] {
            assert!(joining(Some(empty)).err().is_some_and(|e| e.text.contains("names no fault")));
        }
        let why = joining(Some("kill:w2@1s,nonsense")).err().map(|e| e.text);
        assert!(why.is_some_and(|why| why.starts_with("--faults: fault 2, 'nonsense'")));
    }
}
