//! Matrices: elements, views, matrix files, generators, and the output file.
//!
//! Place in the flow: the first and the last crate that a product uses. Operands enter through `source`, and the
//! finished C leaves through `output` after the crate `verify` has checked it.
//!
//! Invariants: every size from a file or a user is multiplied with overflow checks before memory is allocated; a
//! file is mapped, never read whole; a rectangle of the output is leased to one holder at a time.
//!
//! Deliberately absent: sockets, threads that outlive a call, plans. Of the workspace, this crate depends on `base` only,
//! and re-exports it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(target_endian = "big")]
compile_error!("elements in files and on the wire are little-endian and used where they lie");

mod arithmetic;
mod digest;
mod element;
mod error;
mod file;
mod generate;
mod heap;
mod memory;
mod output;
mod pages;
mod reduce;
mod replace;
mod source;
mod view;
mod winograd;

pub use arithmetic::Element;
pub use bramble_base::{
    DType, Digest128, Digester, Layout, MatrixInfo, Rect, Reduction, Shape, Span, number,
};
pub use error::MatrixError;
pub use file::{
    Change, MatrixDescription, StorageOrder, describe, describe_bytes, npy_header, npy_header_of,
};
pub use generate::Generator;
pub use heap::give_back_free_memory;
pub use memory::{Buffer, Lines, SharedBytes};
pub use output::{Output, ResultMemory, Sealed, TileLease, Unfinished};
pub use pages::make_room_in_huge_pages;
pub use reduce::{RectReduction, ReducedMatrix, Reducer, Reducible};
pub use replace::{FilePlace, OutputTarget, Replacement};
pub use source::Matrix;
pub use view::{View, ViewMut};
pub use winograd::Winograd;
