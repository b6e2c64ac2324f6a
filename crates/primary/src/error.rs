//! What can end a product. Each message names the machine or the option and the way out.

use bramble_matrix::MatrixError;
use bramble_plan::PlanError;

/// An error of a product.
#[derive(Debug, thiserror::Error)]
pub enum PrimaryError {
    /// A worker could not be reached or did not behave as one before the product began.
    #[error("worker {name}: {why}")]
    Unreachable {
        /// Which.
        name: String,
        /// Why, and the way out.
        why: String,
    },
    /// The product could not be finished.
    #[error("{0}")]
    Failed(String),
    /// C is wrong, and what is wrong in it cannot be made again.
    #[error("{0}")]
    Wrong(String),
    /// The user wanted it to end, and what was complete is kept.
    #[error("ended as was asked")]
    Stopped,
    /// A file, or memory.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// No plan fits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operands cannot be multiplied as asked.
    #[error("{0}")]
    Operands(String),
}
