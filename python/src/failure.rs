//! Errors as exceptions of the package (`bramble/errors.py`), with advice that a Python program can follow.

use bramble_client::ClientError;
use bramble_matrix::MatrixError;
use bramble_plan::{GridError, LayoutError, PlanError};
use bramble_primary::PrimaryError;
use bramble_report::exit::{Exit, Failure};
use pyo3::exceptions::{PyMemoryError, PyValueError};
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
    let error = match error {
        ClientError::Here(failure) => return ended(py, &failure),
        ClientError::Cluster(PrimaryError::Matrix(error)) => return unreadable(error),
        other => other,
    };
    let kind = match &error {
        ClientError::Wrong(_) => "VerificationError",
        ClientError::Cluster(PrimaryError::Unreachable { .. }) => "Unreachable",
        ClientError::Cluster(PrimaryError::PartLost(_)) => "PartLost",
        ClientError::Cluster(
            PrimaryError::Layout(LayoutError::NoRoom(_))
            | PrimaryError::Plan(PlanError::NoRoom { .. } | PlanError::OwnerWithoutRoom { .. }),
        ) => "OutOfClusterMemory",
        ClientError::Cluster(PrimaryError::Operands(_) | PrimaryError::Layout(_)) => {
            return PyValueError::new_err(text(error));
        }
        ClientError::Cluster(_) | ClientError::Here(_) => "BrambleError",
    };
    exception(py, kind, &text(error))
}

/// The message, which names no option that only the command has.
fn text(error: ClientError) -> String {
    let ClientError::Cluster(PrimaryError::Plan(plan)) = &error else {
        return Failure::from(error)
            .text
            .replace("shard=0", "bramble.Shard(0)")
            .replace("shard=1", "bramble.Shard(1)")
            .replace("--survive ", "survive=");
    };
    match plan {
        PlanError::NoRoom { strategy, need_bytes, have_bytes } => format!(
            "no machine has room for one block of {strategy}: {need_bytes} bytes are needed, the most that one offers is \
             {have_bytes}; free other arrays, or give the workers more memory"
        ),
        PlanError::OwnerWithoutRoom { name, need_bytes, have_bytes } => format!(
            "{name} holds a part of an operand, and one block of its share needs {need_bytes} bytes more, of which it has \
             {have_bytes}; free other arrays, or give the workers more memory"
        ),
        PlanError::CutsBetweenTiles { tile_rows, tile_cols, depth } => format!(
            "reproducible: the parts of an operand are cut between the borders of tiles of {tile_rows} x {tile_cols} and steps \
             of {depth}, on which the bits depend; place it anew with other units, or open the cluster without reproducible=True"
        ),
        PlanError::Grid(GridError::TooMany { m, n, k, .. }) => format!(
            "{m} x {n} x {k} are more products of tiles than can be planned; multiply parts of the operands"
        ),
        PlanError::Grid(GridError::TooManySteps { k, depth }) => format!(
            "k = {k} in steps of {depth} are more steps than can be planned; multiply parts of the operands"
        ),
        _ => Failure::from(error).text,
    }
}

/// The exception for a matrix that this process cannot read or hold: of the system if that refused, as `open` raises it.
pub(crate) fn unreadable(error: MatrixError) -> PyErr {
    let text = error.to_string();
    match error {
        MatrixError::Io { source, .. } => std::io::Error::new(source.kind(), text).into(),
        MatrixError::OutOfMemory { .. } => PyMemoryError::new_err(text),
        _ => PyValueError::new_err(text),
    }
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
