//! What can end a product. Each message names the machine or the option and the way out. And the one way to do what takes
//! long, with the error of a thread that fails.

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
    /// The file of an operand was written to during the product: C is useless, and no machine is to blame.
    #[error("{0}")]
    Changed(String),
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

/// Does what takes long on a thread of its own, away from the event loop; `what` names it where that thread fails.
pub(crate) async fn off_loop<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PrimaryError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| PrimaryError::Failed(format!("{what}: {e}")))
}
