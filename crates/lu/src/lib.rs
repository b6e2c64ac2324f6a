//! LU factorisation with partial pivoting on the threads of one machine, and solutions of A X = B by it.
//!
//! Place in the flow: `load` reads a matrix into working memory, `factor` eliminates it in the order of `schedule::lu`,
//! `substitute` solves with the factors, and `quality` says how good the solution is. `hpl` and `mxp` generate the matrices
//! of the benchmarks HPL and HPL-MxP and apply their rules.
//!
//! Invariants: no step is skipped and no precision lowered unless `refine` or `mxp` is asked; every solution comes with its
//! backward error, computed from the matrix that was read, not from the factors; elements that are no numbers are refused before
//! the factorisation, with their place.
//!
//! `part` has the columns of one machine of several; the machines' shells carry panels between them.
//!
//! Deliberately absent: links, files, options, texts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod factor;
mod factors;
mod gmres;
pub mod hpl;
mod load;
pub mod mxp;
mod part;
mod probe;
mod quality;
mod refine;
mod substitute;
mod threads;
mod working;

pub use error::LuError;
pub use factor::{Elimination, LuOptions, block_columns, memory_bytes, worthwhile_threads};
pub use factors::{LuFactors, LuKernels, multiplied_back};
pub use gmres::{GmresSolution, KRYLOV_MAX};
pub use load::{MatrixNorms, load, norms};
pub use part::LuPart;
pub use probe::{LuProbe, probe, probe_tasks};
pub use quality::{Residual, accepted_error, factors_error, residual, rounded};
pub use refine::{ExactMatrix, MixedSystem, ReadMatrix, Refined, RoundedFactors, right_scales};
pub use working::WorkingMatrix;
