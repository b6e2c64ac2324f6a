//! Matrices as this project sees them: element types, shapes and half-open spans, views, the files that
//! hold them, generators, and the check of a finished product.
//!
//! Place in the flow: the first room and the last. Operands enter here (`source`) and the finished C
//! leaves here (`output`), after `verify` has looked at it.
//!
//! Invariants: every size that comes from a file or a user is multiplied with overflow checks before
//! memory is taken; a file is mapped, never read whole; a rectangle of the output is lent to one holder
//! at a time.
//!
//! Deliberately absent: sockets, threads that outlive a call, plans. This room depends on no other.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(target_endian = "big")]
compile_error!("elements in files and on the wire are little-endian and used where they lie");

mod digest;
mod dtype;
mod element;
mod error;
mod file;
mod generate;
mod heap;
mod memory;
pub mod number;
mod output;
mod replace;
mod shape;
mod source;
pub mod verify;
mod view;
mod winograd;

pub use digest::{Digest128, Digester};
pub use dtype::{DType, Element};
pub use error::MatrixError;
pub use file::{Change, Described, Order, describe, npy_header};
pub use generate::Generator;
pub use heap::give_back_free_memory;
pub use memory::{Buffer, Lines, SharedBytes};
pub use output::{Lent, Output, Sealed, Unfinished};
pub use replace::{Destination, Place, Replacement};
pub use shape::{Layout, Rect, Shape, Span};
pub use source::Matrix;
pub use verify::{
    Check, Effort, Fault, Scaling, TileLevels, Unverified, Verdict, largest_element, part_is_wrong, scaling,
    verify, wrong_tiles,
};
pub use view::{View, ViewMut};
pub use winograd::Winograd;
