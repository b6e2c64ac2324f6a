//! Standard input as an operand, and standard output as the destination of C.
//!
//! Invariants: C is written only when it is complete and verified, and standard output then gets nothing else. The
//! size of an operand on standard input is limited by the memory that this process may take.

use crate::args::MultiplyArgs;
use bramble_matrix::{Matrix, MatrixDescription, describe_bytes, npy_header};
use bramble_report::exit::Failure;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The name of the operand in messages.
const INPUT: &str = "standard input";

/// The buffer grows by at most this much at a time.
const GROWTH_BYTES: usize = 64 << 20;

/// Refuses options that do not work with C on standard output.
pub(crate) fn check(args: &MultiplyArgs) -> Result<(), Failure> {
    if !args.is_streamed() {
        return Ok(());
    }
    let refused = |what: &str| Err(Failure::usage(format!("-o -: {what}")));
    if args.json {
        return refused("--json writes to standard output, too; write C to a file, or leave --json out");
    }
    if args.beta != 0.0 {
        return refused("--beta reads the old C from the output file; name a file");
    }
    if args.journal.resume || args.journal.restart {
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
            Failure::failed("standard output: the reader closed it before all of C was written")
        }
        _ => Failure::failed(format!("standard output: {e}; C is incomplete there")),
    })
}

/// Reads a matrix from standard input, into at most `bytes_max` of memory, or into all free memory.
pub(crate) fn read(bytes_max: Option<u64>) -> Result<Matrix, Failure> {
    let bytes_max = bytes_max.unwrap_or_else(bramble_worker::available_memory);
    let all = read_all(bytes_max)?;
    let holds_tensors = |all: &[MatrixDescription]| all.iter().any(|one| one.format == "safetensors");
    if describe_bytes(INPUT, &all).is_ok_and(|all| holds_tensors(&all)) {
        return Err(Failure::failed(format!(
            "{INPUT}: is a .safetensors file, and one of its tensors has to be named; save it as a file, and \
             name FILE.safetensors:TENSOR"
        )));
    }
    let dense_bytes_max = bytes_max.saturating_sub(all.len() as u64);
    Ok(Matrix::from_bytes(INPUT, Arc::new(all), Some(dense_bytes_max))?)
}

/// Describes the file on standard input.
pub(crate) fn describe() -> Result<Vec<MatrixDescription>, Failure> {
    Ok(describe_bytes(INPUT, &read_all(bramble_worker::available_memory())?)?)
}

/// Reads standard input to its end.
fn read_all(bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let failed = |what: String| Failure::failed(format!("{INPUT}: {what}"));
    if io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "-: {INPUT} is a terminal; pipe a .npy file to it, or name a file"
        )));
    }
    let mut input = own(io::stdin().as_fd()).map_err(|e| failed(e.to_string()))?;
    let mut all: Vec<u8> = Vec::new();
    loop {
        // The length of a pipe is unknown, so the buffer doubles, within limits.
        let room = all.len().clamp(64 << 10, GROWTH_BYTES);
        all.try_reserve(room).map_err(|_| {
            failed(format!(
                "more than {} bytes do not fit in memory; save it as a file, which is mapped and not read as a whole",
                all.len()
            ))
        })?;
        let read = Read::by_ref(&mut input).take(room as u64).read_to_end(&mut all);
        let read = read.map_err(|e| failed(e.to_string()))?;
        if all.len() as u64 > bytes_max {
            return Err(failed(format!(
                "is larger than the {bytes_max} bytes of memory that may be used; save it as a file, which is mapped \
                and not read as a whole, or give more --memory"
            )));
        }
        if read == 0 {
            break;
        }
    }
    if all.is_empty() {
        return Err(failed("is empty; a .npy file was expected".to_owned()));
    }
    Ok(all)
}

/// The descriptor without the standard library's buffer, which scans for line ends.
fn own(descriptor: BorrowedFd<'_>) -> io::Result<File> {
    descriptor.try_clone_to_owned().map(File::from)
}
