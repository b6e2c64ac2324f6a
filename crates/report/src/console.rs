//! Standard output and standard error of the program.
//!
//! Invariants: results go to stdout, everything else to stderr; a closed pipe is no error.

use crate::exit::{Exit, Failure};

/// Writes to stdout. A closed pipe is not an error: its reader has read enough.
pub fn out(bytes: &[u8]) -> Result<Exit, Failure> {
    use std::io::{ErrorKind, Write};
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(format!("standard output: {e}"))),
        _ => Ok(Exit::Done),
    }
}

/// Writes the report of a verb: to stdout, or to stderr if the result itself goes to stdout.
pub fn tell(bytes: &[u8], is_result_on_stdout: bool) -> Result<(), Failure> {
    use std::io::Write;
    if is_result_on_stdout {
        let _ = std::io::stderr().write_all(bytes);
        return Ok(());
    }
    out(bytes).map(drop)
}

/// Writes a line to stderr. An error is ignored, since there is no place to report it.
pub fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}
