//! The systemd unit of a worker. The program contains the file from `dist/`, so a machine needs only the binary and
//! the key.

use bramble_report::exit::{Exit, Failure};

const UNIT: &str = include_str!("../../../dist/bramble-worker.service");

/// Prints the unit; the administrator installs it.
pub(crate) fn print() -> Result<Exit, Failure> {
    bramble_report::out(UNIT.as_bytes())
}
