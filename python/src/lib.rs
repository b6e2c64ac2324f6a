//! `_bramble`, the module behind the Python package `bramble`: products in this process, and open clusters.
//!
//! Place in the flow: the package (`python/bramble/`) checks shapes and types as NumPy does, and calls this module with matrices
//! of two dimensions; this module calls `kernel` for products in this process and `client` for those on a cluster.
//!
//! Invariants: importing it starts no thread and opens no library; the interpreter is released while anything is computed or
//! awaited; a matrix that Python passes in is read in place, and stays alive until the last reader is done.
//!
//! Deliberately absent: NumPy (arrays come and go through the buffer protocol), and anything that plans or moves matrices.

mod arguments;
mod cluster;
mod event_loop;
mod factors;
mod failure;
mod here;
mod long_call;
mod lu;
mod memory;
mod operand;
mod report;
mod system;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Products in this process, and open clusters. Private: use the package `bramble`.
#[pymodule(gil_used = false)]
mod _bramble {
    #[pymodule_export]
    use super::cluster::ClusterHandle;
    #[pymodule_export]
    use super::here::{default_threads, multiply};
    #[pymodule_export]
    use super::lu::Lu;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::operand::{NamedSource, Placed};
    #[pymodule_export]
    use super::{guest, main, run_as};
}

/// Runs the command line `words`, of which the first is the program's name, and ends the process.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>) {
    let code = py.detach(|| bramble_cli::run(words));
    bramble_kernel::leave(code)
}

/// States the words that run this program as a process of its own.
#[pyfunction]
fn run_as(words: Vec<OsString>) {
    bramble_cluster::program::run_as(words);
}

/// This process belongs to the user's program: Bramble opens no BLAS library in it.
#[pyfunction]
fn guest() {
    bramble_kernel::keep_libraries_out();
}
