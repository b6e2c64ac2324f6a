//! LU on a ring of machines: trials with elements and faults, and runs in modelled time.
//!
//! Place in the flow: the state machine `schedule::lu::LuNode` decides, as at a worker; this module replaces the workers' shells.
//!
//! | file | purpose |
//! |---|---|
//! | `scenario.rs` | what is drawn from a seed: sizes, owners, machines, links, faults |
//! | `field.rs` | exact elimination, and the reference |
//! | `machine.rs` `ring.rs` | a machine with its elements; the ring under a virtual clock |
//! | `rules.rs` | the rules that are checked after every event |
//! | `trial.rs` `result.rs` | a trial, and what it has come to |
//! | `survival.rs` | runs that start again after a death |
//! | `timing.rs` `timed_machine.rs` `report.rs` | a run in modelled time, without elements |
//!
//! Invariant: the same seed gives the same trial, and the same plan the same run, event by event.
//!
//! Deliberately absent: sessions, how columns come to the machines, how right-hand sides travel.

mod field;
mod machine;
mod report;
mod result;
mod ring;
mod rules;
mod scenario;
mod survival;
mod timed_machine;
mod timing;
mod trial;

pub use report::{LuSimMachine, LuSimReport, LuThreadTime, LuWait};
pub use result::{LuRareEvents, LuTrialResult};
pub use timing::{LuSimSystem, lu_sim_events, simulate_lu};
pub use trial::{lu_trial_outcome, run_lu_trial};
