//! The unit that runs a worker as a service: the file in `dist/`, carried by the program itself, so that a
//! machine needs nothing but the binary and the key.

use crate::exit::{Exit, Failure};

const UNIT: &str = include_str!("../../../dist/bramble-worker.service");

/// Prints the unit; installing it is the administrator's business.
pub(crate) fn print() -> Result<Exit, Failure> {
    crate::out(UNIT.as_bytes())
}
