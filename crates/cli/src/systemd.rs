//! The systemd unit of a worker. The program contains the file from `dist/`, so a machine needs only the binary and
//! the key.

use crate::exit::{Exit, Failure};

const UNIT: &str = include_str!("../../../dist/bramble-worker.service");

/// Prints the unit; the administrator installs it.
pub(crate) fn print() -> Result<Exit, Failure> {
    crate::out(UNIT.as_bytes())
}
