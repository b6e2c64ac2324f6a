//! The worker's shell: memory, threads and links around the schedule's state machine of the worker.
//!
//! Place in the flow: at the worker's end of a link. Frames come in, matrices land in the store, compute threads
//! run jobs, tiles are sent back as soon as they are finished.
//!
//! Invariants: no more memory than the grant; one pinned compute thread for each core, all taking jobs greedily
//! from one queue; no allocation for matrices once buffers of the sizes in use exist; nothing is
//! written to disk.
//!
//! Deliberately absent: plans, files, and any decision about what to compute. This crate does not know the primary's
//! shell; the two meet on the wire.

mod held;
mod job_recorder;
mod ledger;
mod machine;
mod memory;
mod pool;
mod quota;
mod serve;
mod session;
mod speeds;
mod tickets;

pub use bramble_wire::limits;
pub use ledger::SessionLedger;
pub use machine::{Config, available_memory, default_threads, host_name};
pub use pool::pinnable_cores;
pub use serve::{DOOR, join, listen};
pub use session::{Served, WorkerError, serve_arrival, serve_link};
pub use tickets::NeighbourTickets;
