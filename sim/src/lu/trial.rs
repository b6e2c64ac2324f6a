//! A trial of a factorisation: drawn from a seed, run without faults and then with its faults, its end checked.
//!
//! Place in the flow: the entry of the trials; `tests/lu.rs` and `examples/lu_trials` run thousands.
//!
//! Invariants: those of `rules.rs` after every event. At the end of a run in which no machine died, every machine has finished
//! and holds nothing; without a wrong element the factors and the checksums are those of the reference, with one exactly the
//! checksum of the machine that erred disagrees. A further right-hand side, which goes forward and back through the machines, is
//! solved: the matrix times the solution is that right-hand side.
//! After a death the primary stops the others, whose finished columns are right; then the elimination starts again on them, as
//! often as the run survives it (`survival.rs`).
//!
//! Deliberately absent: columns of a dead machine, which nothing restores.

use super::field::{product, reference, residue};
use super::result::{LuRareEvents, LuTrialResult};
use super::ring::{Ring, RingRun};
use super::scenario::{LuFault, LuScenario};
use super::survival::AfterDeath;
use crate::random::{SeededRandom, mixed};
use bramble_matrix::DType;
use bramble_schedule::lu::LuExchange;
use bramble_wire::message::{LuPass, LuRows};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the trial of a seed; panics if an invariant is violated.
pub fn run_lu_trial(seed: u64) -> LuTrialResult {
    run(seed, &mut None)
}

/// The same, with a violation as a value, and with the events as text if `is_told`: these also of a run with a violation.
pub fn lu_trial_outcome(seed: u64, is_told: bool) -> (Result<LuTrialResult, String>, Vec<String>) {
    let mut log = is_told.then(Vec::new);
    let result = catch_unwind(AssertUnwindSafe(|| run(seed, &mut log))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a text".to_owned())
    });
    (result, log.unwrap_or_default())
}

fn run(seed: u64, log: &mut Option<Vec<String>>) -> LuTrialResult {
    let mut random = SeededRandom::new(seed ^ 0x10fac);
    let scenario = LuScenario::drawn(&mut random);
    if let Some(log) = log {
        log.push(format!("{scenario:?}"));
    }
    let matrix = matrix(&scenario, &mut random);
    let expected = reference(matrix.clone(), scenario.order, scenario.width);
    let mut seen = LuRareEvents::default();
    if let Some(count) = scenario.machines().checked_sub(1).and_then(|at| seen.small_rings.get_mut(at)) {
        *count += 1;
    }
    let has_columns = |me: usize| scenario.owners.contains(&me);
    seen.without_columns += (0..scenario.machines()).filter(|me| !has_columns(*me)).count() as u64;
    let calm = Ring::new(&scenario, &matrix, random.next(), &mut seen, log).run();
    calm.machines.iter().for_each(|machine| machine.check_end());
    check_factors(&calm, &expected);
    check_solution(&scenario, &calm, &matrix, random.next(), &mut seen);
    let (hash, events, seconds) = (calm.hash, calm.events, calm.seconds);
    if scenario.faults.is_empty() {
        return LuTrialResult { hash, events, seconds, seen };
    }
    if let Some(log) = log {
        log.push("with faults".to_owned());
    }
    let mut ring = Ring::new(&scenario, &matrix, random.next(), &mut seen, log);
    let updates: Vec<u64> = calm.machines.iter().map(|machine| machine.updates).collect();
    ring.plan_faults(calm.seconds, &updates);
    let struck = ring.run();
    check_struck(&scenario, &struck, &expected, &mut seen);
    let (mut hash, mut events, mut seconds) =
        (hash ^ struck.hash.rotate_left(1), events + struck.events, struck.seconds);
    if let Some(dead) = scenario.dies().filter(|dead| struck.is_gone[*dead]) {
        let after =
            AfterDeath { scenario: &scenario, matrix: &matrix, expected: &expected, calm_s: calm.seconds };
        for run in after.again(dead, &mut random, &mut seen, log) {
            (hash, events, seconds) = (mixed(hash ^ run.hash), events + run.events, run.seconds);
        }
    }
    LuTrialResult { hash, events, seconds, seen }
}

/// The elements of the system. Copies of columns make it singular.
fn matrix(scenario: &LuScenario, random: &mut SeededRandom) -> Vec<Vec<u64>> {
    let column = |random: &mut SeededRandom| (0..scenario.order).map(|_| residue(random.next())).collect();
    let mut columns: Vec<Vec<u64>> = (0..scenario.columns()).map(|_| column(random)).collect();
    for at in scenario.copies.iter().filter(|at| **at > 0) {
        columns[*at] = columns[at - 1].clone();
    }
    columns
}

/// The factors of the machines that have finished are the reference's, and so are their checksums.
pub(super) fn check_factors(run: &RingRun, expected: &[Vec<u64>]) {
    for (at, machine) in run.machines.iter().enumerate().filter(|(_, machine)| machine.is_finished()) {
        for (first, columns) in machine.factors() {
            let is_right = columns.iter().zip(&expected[first..]).all(|(found, expected)| found == expected);
            assert!(is_right, "violation: w{} has finished with wrong columns from {first} on", at + 1);
        }
        assert!(machine.sums_agree(), "violation: the checksum of w{} is wrong", at + 1);
    }
}

/// A right-hand side that was not in the columns goes through the machines; unless the matrix is singular, it is solved.
pub(super) fn check_solution(
    scenario: &LuScenario,
    run: &RingRun,
    matrix: &[Vec<u64>],
    seed: u64,
    seen: &mut LuRareEvents,
) {
    let mut factors: Vec<(usize, &Vec<Vec<u64>>)> = run.machines.iter().flat_map(|m| m.factors()).collect();
    factors.sort_unstable_by_key(|(first, _)| *first);
    let eliminated =
        factors.iter().flat_map(|(first, columns)| (*first..).zip(*columns)).take(scenario.order);
    if eliminated.into_iter().any(|(at, column)| column[at] == 0) {
        return;
    }
    let mut random = SeededRandom::new(seed);
    let b: Vec<u64> = (0..scenario.order).map(|_| residue(random.next())).collect();
    let begin = scenario.begin(*random.one_of(&[DType::F32, DType::F64]));
    let mut x = b.clone();
    for pass in [LuPass::Forward, LuPass::Back] {
        for visit in LuExchange::all(&begin, pass) {
            seen.visits += 1;
            let head = LuRows {
                pass,
                blocks: visit.blocks.clone(),
                width: 1,
                total: visit.rows.len(),
                first: 0,
                rows: visit.rows.len(),
            };
            let known = LuRows::decode(&head.encode()).ok().and_then(|head| {
                LuExchange::of(&begin, head.pass, head.blocks).filter(|visit| visit.rows.len() == head.total)
            });
            assert_eq!(known.as_ref(), Some(&visit), "violation: a machine refuses a visit");
            run.machines[visit.owner].solve(&visit, &mut x[visit.rows.clone()]);
        }
    }
    assert!(product(&matrix[..scenario.order], &x) == b, "violation: a right-hand side is solved wrongly");
}

pub(super) fn check_struck(
    scenario: &LuScenario,
    run: &RingRun,
    expected: &[Vec<u64>],
    seen: &mut LuRareEvents,
) {
    let dead = run.is_gone.iter().any(|is_gone| *is_gone);
    if dead {
        let all_out = run.machines.iter().zip(&run.is_gone).all(|(m, is_gone)| *is_gone || m.is_finished());
        assert!(all_out, "violation: a machine goes on after the end of the run");
        check_factors(run, expected);
        return;
    }
    run.machines.iter().for_each(|machine| machine.check_end());
    let erring = scenario.faults.iter().find_map(|fault| match fault {
        LuFault::Errs { machine, .. } => Some(*machine),
        _ => None,
    });
    // A machine may do its updates in fewer tasks than without faults, or has none: then no update errs.
    let erring = erring.filter(|at| run.machines[*at].has_erred());
    let Some(erring) = erring else { return check_factors(run, expected) };
    for (at, machine) in run.machines.iter().enumerate() {
        let is_as_it_should = machine.sums_agree() != (at == erring);
        assert!(is_as_it_should, "violation: w{} erred, and the checksum of w{}", erring + 1, at + 1);
    }
    seen.wrong_found[0] += 1;
}
