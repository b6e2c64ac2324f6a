//! Simulated products as text and JSON, and what both are made from.
//!
//! Place in the flow: `bramble sim` makes a case, simulates its runs, and hands both to `text` or `json`.
//!
//! Invariant: machines have the numbers that faults use: 0 is the primary, then the workers in the order of their
//! description.
//!
//! Deliberately absent: the simulation itself (`bramble_sim`).

pub mod json;
pub mod lu;
mod runs;
pub mod text;

pub use runs::{FaultTrial, Runs};

use bramble_plan::{Decision, Machine, Plan};
use bramble_sim::SimSetting;

/// The case to simulate: a plan, the machines and the settings of the simulator.
pub struct SimCase {
    /// The plan, and why it is this one.
    pub decision: Decision,
    /// The machines by their numbers.
    pub machines: Vec<Machine>,
    /// The settings of the simulator.
    pub setting: SimSetting,
}

impl SimCase {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.decision.plan
    }

    /// Numbers of the workers with a share of the plan.
    pub fn workers(&self) -> Vec<usize> {
        self.plan().members.iter().map(|m| m.machine).filter(|number| *number > 0).collect()
    }

    /// Number of jobs in a run.
    pub fn jobs(&self) -> f64 {
        self.plan().predicted.machines.iter().map(|m| m.jobs as f64).sum()
    }

    /// A machine for messages: `w3 (pi3)`.
    pub fn name(&self, number: usize) -> String {
        let name = &self.machines[number].name;
        if number == 0 { format!("the primary ({name})") } else { format!("w{number} ({name})") }
    }
}

/// The time that the simulation itself took: elapsed, and of processors.
#[derive(Clone, Copy)]
pub struct SimulationTime {
    /// Elapsed seconds.
    pub seconds: f64,
    /// Seconds of processors.
    pub cpu_s: f64,
}
