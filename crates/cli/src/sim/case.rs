//! The case to simulate: a plan, the machines and the simulator's settings.
//!
//! Invariants: machines have the numbers that faults use: 0 is the primary, then the workers in the order of their
//! description. A worker whose first fault is `join` is absent at the start, so the plan is made without it.

use crate::args::SimArgs;
use crate::plan::{self, Machines};
use bramble_plan::{Machine, Problem};
use bramble_report::exit::Failure;
use bramble_report::sim::SimCase;
use bramble_sim::{FaultKind, FaultSite, Faults, SimFault, SimSetting};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most workers named in the error about a fault without effect.
const NAMED_MAX: usize = 4;

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

/// The case of these options and machines.
pub(super) fn make(
    args: &SimArgs,
    problem: &Problem,
    machines: Machines,
    joining: &BTreeSet<usize>,
) -> Result<SimCase, Failure> {
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
    Ok(SimCase { decision, machines: numbered, setting })
}

/// Refuses faults of workers that neither have a share of the plan nor join before the fault: they would have no
/// effect.
pub(super) fn check_parts(case: &SimCase, faults: &Faults) -> Result<(), Failure> {
    let workers = case.workers();
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
            some => {
                format!("name a worker with a share, such as {}; or use --strategy reuse", some.join(", "))
            }
        };
        let name = case.name(worker);
        return Err(refused(format!(
            "fault {}, '{fault}': {name} has no share of this product, so the fault would have no effect; {way}",
            at + 1
        )));
    }
    Ok(())
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
