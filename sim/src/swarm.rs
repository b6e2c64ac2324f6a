//! Running many trials: the outcome of one, and the fewest faults that still violate an invariant.
//!
//! Place in the flow: between trials and the tools that run many of them, on as many threads as they like.
//!
//! Invariants: an outcome is a function of the scenario. A panic in a trial is its outcome and does not end the other trials.

use crate::trial::{Scenario, TrialResult, run_trial};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcome of one trial.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The scenario.
    pub scenario: Scenario,
    /// Its result, or the violated invariant.
    pub result: Result<TrialResult, String>,
}

/// Runs a scenario and returns violations as values.
pub fn outcome(scenario: Scenario) -> Outcome {
    let tried = catch_unwind(AssertUnwindSafe(|| run_trial(&scenario)));
    let result = tried.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a text".to_owned())
    });
    Outcome { scenario, result }
}

/// Removes faults as long as the violation remains.
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
