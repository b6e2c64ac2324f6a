//! One product under a virtual clock: the real state machines of both ends, and simulated machines and links.
//!
//! Place in the flow: takes the place of the shells. What `schedule` says is to be sent takes time on a link, what it
//! says may run takes time on a thread, and what has happened goes back in. There are two modes (docs/simulator.md):
//!
//! - *timing* (`simulate`) tells how long a plan takes that the cost model can only estimate, on clusters that nobody has
//!   at hand. A job takes as long as its operations at its machine's speed, whatever its shape; matrices have no elements.
//!   With `simulate_with` machines are lost, stand still, get slow and come in;
//! - *trials* (`try_out`) are small products with elements, in which machines and links fail; `outcome` and `shrunk` are
//!   for those who run many.
//!
//! Invariants, asserted on every run: no worker holds more than its plan says, sums that are put aside never exceed
//! what was predicted, every tile of C is committed once; in trials those of `trial/check.rs`. The same arguments give the same
//! run, to the event.
//!
//! Deliberately absent: clocks, threads, sockets.
//!
//! Units: seconds and bytes at the door, picoseconds inside.

mod clock;
mod fault;
mod machine;
mod network;
mod random;
mod relay;
mod report;
mod setting;
mod swarm;
mod trial;
mod world;

pub use fault::{At, Fault, FaultError, FaultKind, Faults, Site};
pub use report::{Coming, Loss, MachineReport, Report};
pub use setting::{Pace, Setting};
pub use swarm::{Outcome, outcome, shrunk};
pub use trial::{Scenario, Seen, Tried, Values, try_out};
pub use world::{simulate, simulate_with};
