//! What a product writes down while it runs: the journal, from which a later run resumes, and the event log, from which traces
//! are drawn.
//!
//! Place in the flow: the primary's shell reports what happens; `report` and the program read it afterwards.
//!
//! Invariants: writing never delays the product: a thread of its own waits for disks, and memory is bounded.
//!
//! Deliberately absent: when the journal is synced (`schedule`), its bytes (`wire`), and what the log means.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod journal;
pub mod log;

use bramble_matrix::MatrixError;

/// Why something could not be written down; the text names the file and the next step.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The journal's file failed.
    #[error("{0}")]
    Journal(String),
    /// An interrupted run left tiles that would be overwritten.
    #[error("{0}")]
    Interrupted(String),
    /// The output's file failed.
    #[error(transparent)]
    Output(#[from] MatrixError),
}
