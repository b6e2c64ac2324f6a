//! Standard input as an operand, and standard output as the place of C.
//!
//! Invariants: C leaves only when it is complete and checked; nothing else is written to standard output then. What is
//! read is bounded by the memory that this machine may take.

use crate::args::MultiplyArgs;
use crate::exit::Failure;
use bramble_matrix::{Matrix, npy_header};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What the operand is called in messages.
const INPUT: &str = "standard input";

/// The most that is asked of the allocator at a time.
const GROWTH_BYTES: usize = 64 << 20;

/// Refuses what standard input and output cannot be.
pub(crate) fn check(args: &MultiplyArgs) -> Result<(), Failure> {
    if !args.is_streamed() {
        return Ok(());
    }
    let refused = |what: &str| Err(Failure::usage(format!("-o -: {what}")));
    if args.json {
        return refused("--json writes to standard output, too; write C to a file, or leave --json away");
    }
    if args.beta != 0.0 {
        return refused("--beta reads the old C from the output file; name a file");
    }
    if args.resume || args.restart {
        return refused("--resume and --restart are about a file; name one");
    }
    if io::stdout().is_terminal() {
        return refused("standard output is a terminal; name a file, or pipe it to a program");
    }
    Ok(())
}

/// Writes C as a `.npy` file.
pub(crate) fn write(c: &Matrix, bytes: &[u8]) -> Result<(), Failure> {
    let written = own(io::stdout().as_fd()).and_then(|mut to| {
        to.write_all(&npy_header(c.shape(), c.dtype()))?;
        to.write_all(bytes)
    });
    written.map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => {
            Failure::failed("standard output: whoever reads it ended before all of C was written")
        }
        _ => Failure::failed(format!("standard output: {e}; C is not complete there")),
    })
}

/// Reads the matrix that standard input is; `bytes_max` are taken at most, or what is free.
pub(crate) fn read(bytes_max: Option<u64>) -> Result<Matrix, Failure> {
    let failed = |what: String| Failure::failed(format!("{INPUT}: {what}"));
    if io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "-: {INPUT} is a terminal; pipe a .npy file to it, or name a file"
        )));
    }
    let bytes_max = bytes_max.unwrap_or_else(bramble_worker::available_memory);
    let mut input = own(io::stdin().as_fd()).map_err(|e| failed(e.to_string()))?;
    let mut all: Vec<u8> = Vec::new();
    loop {
        // Twice as much each time, but no more than is allowed: a pipe does not say how long it is.
        let room = all.len().clamp(64 << 10, GROWTH_BYTES);
        all.try_reserve(room).map_err(|_| {
            failed(format!(
                "more than {} bytes do not fit memory; save it as a file, which is not read as a whole",
                all.len()
            ))
        })?;
        let read = Read::by_ref(&mut input).take(room as u64).read_to_end(&mut all);
        let read = read.map_err(|e| failed(e.to_string()))?;
        if all.len() as u64 > bytes_max {
            return Err(failed(format!(
                "is larger than the {bytes_max} bytes of memory that may be taken; \
                 save it as a file, which is not read as a whole, or give more --memory"
            )));
        }
        if read == 0 {
            break;
        }
    }
    if all.is_empty() {
        return Err(failed("is empty; a .npy file was expected".to_owned()));
    }
    let dense_bytes_max = bytes_max.saturating_sub(all.len() as u64);
    Ok(Matrix::from_bytes(INPUT, Arc::new(all), Some(dense_bytes_max))?)
}

/// A descriptor without the buffer of the standard library, which looks for ends of lines.
fn own(descriptor: BorrowedFd<'_>) -> io::Result<File> {
    descriptor.try_clone_to_owned().map(File::from)
}
