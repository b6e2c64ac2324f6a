//! Why an operation on arrays has failed.

use alloc::string::String;
use bramble_plan::LayoutError;

/// An error of an operation. `E`: an error of the shell that carries it out.
#[derive(Debug, PartialEq, Eq)]
pub enum ArrayError<E> {
    /// A part is on a machine that is lost: restore, and ask again.
    PartLost(String),
    /// The operands cannot be used as asked.
    Operands(String),
    /// A machine has refused, or has sent an answer of the wrong kind.
    Failed(String),
    /// An element is wrong.
    Wrong(String),
    /// The machines have no room.
    Layout(LayoutError),
    /// The shell has failed.
    Shell(E),
}

impl<E> From<LayoutError> for ArrayError<E> {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}
