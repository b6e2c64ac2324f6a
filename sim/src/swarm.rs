//! Trials by their seeds: what came of one, and the fewest faults with which it still goes wrong.
//!
//! Place in the flow: between the trials and those who run many of them, on as many threads as they like.
//!
//! Invariants: an outcome is a function of the scenario. A trial's panic is its outcome, and not the end of the others.

use crate::trial::{Scenario, Tried, try_out};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was tried.
    pub scenario: Scenario,
    /// What came of it, or what was violated.
    pub result: Result<Tried, String>,
}

/// Tries a scenario; a violation is a value.
pub fn outcome(scenario: Scenario) -> Outcome {
    let tried = catch_unwind(AssertUnwindSafe(|| try_out(&scenario)));
    let result = tried.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a text".to_owned())
    });
    Outcome { scenario, result }
}

/// The same with as few faults as still give a violation.
pub fn shrunk(failed: Outcome) -> Outcome {
    let mut failed = failed;
    let mut at = 0;
    while failed.result.is_err() && at < failed.scenario.faults.0.len() {
        let faults = failed.scenario.faults.without(at);
        let fewer = outcome(Scenario { faults, ..failed.scenario.clone() });
        match fewer.result {
            Err(_) => failed = fewer,
            Ok(_) => at += 1,
        }
    }
    failed
}
