//! Local matrix multiplication: `C = alpha * A * B + beta * C` on the calling thread.
//!
//! Place in the flow: the innermost room. A worker or the primary cuts its share of C into tiles, and each
//! of its threads hands one tile at a time to a [`Kernel`].
//!
//! Invariants: a kernel uses exactly the thread that calls it, unless it was opened on several; it touches no
//! element of C outside the rectangle that it was lent; `beta == 0` never reads C; integers wrap.
//! `docs/kernel-contract.md` has the whole contract, and the tests hold every kernel to it.
//!
//! Deliberately absent: threads that outlive a call, files, plans, and any link-time need for a BLAS. Vector
//! instructions are chosen at run time, so one binary serves every machine of its architecture.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accumulate;
mod blas;
mod blocked;
mod combine;
mod contract;
mod error;
pub mod factors;
mod name;
mod parts;
mod peak;
mod pick;
mod rate;
mod reference;
mod simd;
mod strassen;
mod threads;

pub use accumulate::{Accumulated, Accumulator, AtomicElement, Job, Share, Way};
pub use blas::{leave, quiet_blas_threads};
pub use combine::{Sign, combine};
pub use contract::{AnyProduct, Kernel, KernelElement, Product};
pub use error::KernelError;
pub use name::{Choice, KernelName};
pub use peak::peak;
pub use pick::{Pick, open, open_on, pick};
pub use rate::{Clock, job_rate, rate};
pub use simd::bits_class;
pub use strassen::{cutoff, workspace_bytes};
