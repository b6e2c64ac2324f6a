//! What a plan has to know of a matrix: its name, shape and element type, and who has its elements.
//!
//! Place in the flow: `matrix` implements it for matrices in files, in memory and from generators; the simulator for its own.
//!
//! Deliberately absent: elements.

use crate::{DType, Shape};

/// A matrix as plans and messages see it.
pub trait MatrixInfo: Clone {
    /// Its name in messages.
    fn name(&self) -> &str;
    /// Rows and columns.
    fn shape(&self) -> Shape;
    /// Element type.
    fn dtype(&self) -> DType;
    /// Whether only other machines have its elements.
    fn is_remote(&self) -> bool;
    /// Whether its elements are computed from a short description.
    fn is_generated(&self) -> bool;
    /// The transposed matrix.
    fn turned(self) -> Self;
}
