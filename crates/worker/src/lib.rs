//! The machine shell of a worker: memory, threads and links around the schedule's worker state.
//!
//! Place in the flow: at the far end of a link. Frames come in, matrices land in the store, compute threads
//! run jobs, tiles go back as soon as they are ready.
//!
//! Invariants: no more memory than the grant; one pinned compute thread a core, all taking jobs greedily
//! from one queue; nothing is allocated for matrices once buffers of the sizes in use exist; nothing is
//! written to disk.
//!
//! Deliberately absent: plans, files, and any decision about what to compute. The primary's shell is not
//! known here; the two meet on the wire.

mod ledger;
mod machine;
mod meetings;
mod memory;
mod pool;
mod quota;
mod record;
mod serve;
mod session;
mod speeds;

pub use bramble_schedule::limits;
pub use ledger::Ledger;
pub use machine::{Config, available_memory, default_threads, host_name};
pub use meetings::Meetings;
pub use pool::pinnable_cores;
pub use serve::{DOOR, join, listen};
pub use session::{Served, WorkerError, serve_arrival, serve_link};
