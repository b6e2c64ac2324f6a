//! One product under a virtual clock: the real state machines of both ends, and simulated machines and links.
//!
//! Place in the flow: takes the place of the shells. What `schedule` says is to be sent takes time on a link, what it
//! says may run takes time on a thread, and what has happened goes back in. It tells how long a plan takes that the
//! cost model can only estimate, on clusters that nobody has at hand.
//!
//! Invariants, asserted on every run: no worker holds more than its plan says, sums that are put aside never exceed
//! what was predicted, every tile of C is committed once. The same arguments give the same run, to the event.
//!
//! Deliberately absent: elements of matrices, clocks, threads, sockets, faults. A job takes as long as its operations
//! at its machine's speed, whatever its shape.
//!
//! Units: seconds and bytes at the door, picoseconds inside.

mod clock;
mod machine;
mod network;
mod relay;
mod report;
mod setting;
mod world;

pub use report::{MachineReport, Report};
pub use setting::{Pace, Setting};
pub use world::simulate;
