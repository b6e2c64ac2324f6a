//! The kernels of LU factorisation with partial pivoting: a panel, triangular systems, and exchanges of rows.
//!
//! Place in the flow: beside the products; the crate `lu` calls them for each step of a factorisation, and passes the
//! [`Kernel`](crate::Kernel) that computes the products inside them.
//!
//! Invariants: as for products (`docs/kernel-contract.md`): any strides, only the elements of the written view are accessed,
//! and the calling thread computes unless the passed kernel has threads. The pivot of a column is its first element of largest
//! absolute value, so L has no element above 1 in absolute value.
//!
//! Deliberately absent: the order of the steps, threads, and integers, which have no quotients.

mod base;
mod compare;
mod element;
mod lines;
mod panel;
mod rows;
mod triangle;

pub(crate) use compare::{compare_updates, comparison_flops};
pub use element::LuElement;
pub use lines::{dot, dot_in_f64, subtract_multiple};
pub use panel::PackedPanel;
pub use rows::{exchange_rows, gather, round_rows, scatter};
#[cfg(target_arch = "x86_64")]
pub(crate) use triangle::{SMALL_TRIANGLE, upper_rows};
pub use triangle::{Triangle, solve_triangle};
