//! The error of a call on an open cluster.

use bramble_matrix::MatrixError;
use bramble_primary::PrimaryError;
use bramble_report::exit::{Exit, Failure};

/// Why a call failed.
#[derive(Debug)]
pub enum ClientError {
    /// The machines or the matrices.
    Cluster(PrimaryError),
    /// A result is wrong, and was not kept.
    Wrong(String),
    /// This machine, or the options of the cluster.
    Here(Failure),
}

impl From<PrimaryError> for ClientError {
    fn from(error: PrimaryError) -> Self {
        match error {
            PrimaryError::Wrong(text) => Self::Wrong(text),
            other => Self::Cluster(other),
        }
    }
}

impl From<MatrixError> for ClientError {
    fn from(error: MatrixError) -> Self {
        Self::Cluster(error.into())
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        Self::Here(failure)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Cluster(error) => error.into(),
            ClientError::Wrong(text) => Self { exit: Exit::Unverified, text },
            ClientError::Here(failure) => failure,
        }
    }
}
