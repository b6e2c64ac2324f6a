//! Errors that end a product; each message names the machine or the option, and the next step. Also `off_loop`, which runs slow
//! work on a thread of its own.

use bramble_matrix::MatrixError;
use bramble_plan::{LayoutError, PlanError};
use bramble_record::RecordError;

/// An error of a product.
#[derive(Debug, thiserror::Error)]
pub enum PrimaryError {
    /// A worker could not be reached, or broke the protocol before the product began.
    #[error("worker {name}: {why}")]
    Unreachable {
        /// The worker.
        name: String,
        /// Why, and the next step.
        why: String,
    },
    /// The product could not be finished.
    #[error("{0}")]
    Failed(String),
    /// C is wrong, and its wrong tiles cannot be recomputed.
    #[error("{0}")]
    Wrong(String),
    /// The file of an operand was modified during the product: C is useless, and no machine is to blame.
    #[error("{0}")]
    Changed(String),
    /// The user asked for the end; tiles that were complete are kept.
    #[error("ended as was asked")]
    Stopped,
    /// A matrix's file or memory failed.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A part of a placed matrix is on a machine that is lost: `Cluster::restore`, and multiply again.
    #[error("{0}")]
    PartLost(String),
    /// A matrix cannot be placed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No plan fits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operands cannot be multiplied as asked.
    #[error("{0}")]
    Operands(String),
}

impl From<RecordError> for PrimaryError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Journal(text) | RecordError::Interrupted(text) => Self::Failed(text),
            RecordError::Output(error) => Self::Matrix(error),
        }
    }
}

/// Runs slow work on a thread of its own, away from the event loop; `what` names it if that thread panics.
pub async fn off_loop<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PrimaryError> {
    let (done, result) = tokio::sync::oneshot::channel();
    // Not the runtime's pool: that panics where the system gives it no thread.
    let started = std::thread::Builder::new().name("off loop".to_owned()).spawn(move || {
        // Sending fails where the caller has been dropped.
        let _ = done.send(work());
    });
    let failed = |why: String| PrimaryError::Failed(format!("{what}: {why}"));
    started.map_err(|e| {
        failed(format!(
            "no thread can be started: {e}; allow more processes (ulimit -u) or memory (ulimit -v)"
        ))
    })?;
    result.await.map_err(|_| failed("its thread broke off".to_owned()))
}
