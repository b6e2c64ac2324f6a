//! The values that all crates share: element types, shapes and half-open spans, conversions and functions of numbers, digests.
//!
//! Place in the flow: below every other crate that knows matrices. `plan` and `schedule` use this crate and no other that is
//! not pure, so that they cannot name a file, a socket, a thread, a clock or a hash map.
//!
//! Invariants: no `std` outside of tests, in this crate and in every crate that it depends on; the same arguments give the
//! same results, bit by bit, on every processor.
//!
//! Deliberately absent: elements and views, which need memory maps; errors of files.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod digest;
mod dtype;
pub mod float;
mod matrix_info;
pub mod number;
mod reduction;
mod shape;

pub use digest::{Digest128, Digester};
pub use dtype::DType;
pub use matrix_info::MatrixInfo;
pub use reduction::Reduction;
pub use shape::{Layout, Rect, Shape, SideTooLong, Span};
