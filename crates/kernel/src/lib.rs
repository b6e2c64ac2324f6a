//! Local matrix multiplication: `C = alpha * A * B + beta * C` on the calling thread.
//!
//! Place in the flow: the innermost crate. A worker or the primary cuts its share of C into tiles, and each of its
//! threads passes one tile at a time to a [`Kernel`].
//!
//! Invariants: a kernel uses exactly the calling thread, unless it was opened on several; it accesses no element of
//! C outside the given rectangle; `beta == 0` never reads C; integers wrap. `docs/kernel-contract.md` has the whole
//! contract, and the tests check every kernel against it.
//!
//! Deliberately absent: threads that outlive a call, files, plans, and any link-time need for a BLAS. Vector
//! instructions are chosen at run time, so one binary serves every machine of its architecture.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blas;
mod blocked;
mod combine;
mod contract;
mod error;
pub mod factors;
pub mod lu;
mod name;
mod parts;
mod peak;
mod pick;
mod prefetch;
mod rate;
mod reference;
mod simd;
mod strassen;
mod threads;

pub use blas::{keep_libraries_out, leave, quiet_blas_threads, survive_file_size_limit};
pub use blocked::multiply_unless_stopped;
pub use combine::{Sign, combine};
pub use contract::{AnyProduct, AnyUpdate, Kernel, KernelElement, PanelUpdate, Product};
pub use error::KernelError;
pub use name::{Choice, KernelName};
pub use parts::part;
pub use peak::peak;
pub use pick::{
    AutoPicks, COMPARISON_SECONDS_MAX, Pick, PickTerms, Workload, open, open_on, pick, pick_by_wall, pick_for,
};
pub use rate::{KernelClock, job_rate, rate};
pub use simd::bits_class;
pub use strassen::{cutoff, workspace_bytes};
pub use threads::{even, grid_mut};
