//! Errors as exceptions of the package (`bramble/errors.py`).

use bramble_client::ClientError;
use bramble_plan::{LayoutError, PlanError};
use bramble_primary::PrimaryError;
use bramble_report::exit::{Exit, Failure};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// An exception of the package: `kind` is its class.
pub(crate) fn exception(py: Python<'_>, kind: &str, text: &str) -> PyErr {
    let made = py.import("bramble.errors").and_then(|errors| errors.getattr(kind)?.call1((text,)));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// The exception for a call that failed.
pub(crate) fn failed(py: Python<'_>, error: ClientError) -> PyErr {
    let kind = match &error {
        ClientError::Wrong(_) => "VerificationError",
        ClientError::Cluster(PrimaryError::Unreachable { .. }) => "Unreachable",
        ClientError::Cluster(PrimaryError::PartLost(_)) => "PartLost",
        ClientError::Cluster(
            PrimaryError::Layout(LayoutError::NoRoom(_))
            | PrimaryError::Plan(PlanError::NoRoom { .. } | PlanError::OwnerWithoutRoom { .. }),
        ) => "OutOfClusterMemory",
        ClientError::Here(failure) => return ended(py, failure),
        ClientError::Cluster(
            PrimaryError::Operands(_) | PrimaryError::Layout(_) | PrimaryError::Matrix(_),
        ) => {
            return PyValueError::new_err(Failure::from(error).text);
        }
        ClientError::Cluster(_) => "BrambleError",
    };
    exception(py, kind, &Failure::from(error).text)
}

/// The exception for a failure of the machines, or of the options that name them.
pub(crate) fn ended(py: Python<'_>, failure: &Failure) -> PyErr {
    match failure.exit {
        Exit::Usage => PyValueError::new_err(failure.text.clone()),
        Exit::Unreachable => exception(py, "Unreachable", &failure.text),
        Exit::Unverified => exception(py, "VerificationError", &failure.text),
        _ => exception(py, "BrambleError", &failure.text),
    }
}
