//! Exit codes, which are a contract with scripts, and failures that carry one.

use bramble_matrix::MatrixError;
use bramble_plan::{LayoutError, PlanError};
use bramble_primary::PrimaryError;
use bramble_record::RecordError;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done as asked.
    Done,
    /// Failed.
    Failed,
    /// The command line is invalid, or its options contradict each other.
    Usage,
    /// Done, but machines were lost, missing or wrong.
    Degraded,
    /// C is wrong and was not kept.
    Unverified,
    /// A worker could not be reached.
    Unreachable,
    /// Done, and no error was found, but part of C could not be verified.
    Partial,
    /// SIGINT.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// SIGHUP: the terminal was closed.
    HungUp,
}

impl Exit {
    /// The code of the process.
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Degraded => 3,
            Self::Unverified => 4,
            Self::Unreachable => 5,
            Self::Partial => 6,
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// The message for a run that a signal ended.
    pub fn signal(self) -> Option<&'static str> {
        match self {
            Self::HungUp => Some("ended because its terminal was closed (SIGHUP)"),
            Self::Interrupted => Some("interrupted by a signal (SIGINT)"),
            Self::Terminated => Some("terminated by a signal (SIGTERM)"),
            Self::Done
            | Self::Failed
            | Self::Usage
            | Self::Degraded
            | Self::Unverified
            | Self::Unreachable
            | Self::Partial => None,
        }
    }
}

/// An error: its one-line message and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The message.
    pub text: String,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, text: text.into() }
    }

    /// A wrong use: exit code 2.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, text: text.into() }
    }

    /// A worker that cannot be reached: exit code 5.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self { exit: Exit::Unreachable, text: text.into() }
    }
}

impl From<MatrixError> for Failure {
    fn from(e: MatrixError) -> Self {
        let exit = if matches!(e, MatrixError::Description { .. }) { Exit::Usage } else { Exit::Failed };
        Self { exit, text: e.to_string() }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Interrupted(text) => Self::usage(text),
            other => PrimaryError::from(other).into(),
        }
    }
}

impl From<PrimaryError> for Failure {
    fn from(e: PrimaryError) -> Self {
        let exit = match e {
            PrimaryError::Unreachable { .. } => Exit::Unreachable,
            PrimaryError::Plan(
                PlanError::Grid(_)
                | PlanError::Refused { .. }
                | PlanError::Credits { .. }
                | PlanError::CutsBetweenTiles { .. },
            )
            | PrimaryError::Layout(LayoutError::Units { .. }) => Exit::Usage,
            PrimaryError::Wrong(_) => Exit::Unverified,
            PrimaryError::Stopped => Exit::Interrupted,
            PrimaryError::Failed(_)
            | PrimaryError::Changed(_)
            | PrimaryError::Matrix(_)
            | PrimaryError::Plan(_)
            | PrimaryError::PartLost(_)
            | PrimaryError::Layout(_)
            | PrimaryError::Operands(_) => Exit::Failed,
        };
        Self { exit, text: e.to_string() }
    }
}
