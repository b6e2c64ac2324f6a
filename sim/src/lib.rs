//! Simulates one product under a virtual clock: the real state machines of primary and workers, simulated machines and links.
//!
//! Place in the flow: replaces the shells. A message that `schedule` sends takes time on a link, a job takes time
//! on a thread, and both then become events. There are two modes (docs/simulator.md):
//!
//! - *timing* (`simulate`) predicts the time of a plan, including effects that the cost model only estimates, for clusters of any
//!   kind. A job takes the time of its operations at its machine's speed, whatever its shape; matrices have no elements.
//!   With `simulate_with` machines are lost, are suspended, slow down and join;
//! - *trials* (`run_trial`) run small products with elements, in which machines and links fail; `outcome` and `shrunk` serve
//!   runs of many trials.
//!
//! Invariants, asserted on every run: no worker holds more memory than its plan allows, partial sums never exceed
//! the prediction, every tile of C is committed once; in trials also those of `trial/check.rs`. The same arguments give the same
//! run, event by event.
//!
//! Deliberately absent: clocks, threads, sockets.
//!
//! Units: seconds and bytes in the interface, picoseconds inside.

mod arrays;
mod clock;
mod fault;
mod jobs_ahead;
mod lu;
mod machine;
mod network;
mod participants;
mod primary_shell;
mod random;
mod relay;
mod report;
mod setting;
mod swarm;
mod trial;
mod world;

pub use arrays::{
    ArrayRareEvents, ArraySequenceResult, RestoredEvents, array_sequence_outcome, run_array_sequence,
};
pub use fault::{FaultError, FaultKind, FaultSite, Faults, LinkEnd, SimFault};
pub use lu::{
    LuRareEvents, LuSimMachine, LuSimReport, LuSimSystem, LuThreadTime, LuTrialResult, LuWait, lu_sim_events,
    lu_trial_outcome, run_lu_trial, simulate_lu,
};
pub use report::{SimJoin, SimLoss, SimMachineReport, SimReport};
pub use setting::{SimRates, SimSetting};
pub use swarm::{Outcome, outcome, shrunk};
pub use trial::{
    ChosenOrder, OrderSetting, PLACED_SEEDS, RareEvents, Scenario, TrialResult, Values, run_trial,
};
pub use world::{simulate, simulate_with};
