//! `bramble solve` and `bramble lu`: opens the matrices that the command line names.

use crate::stream;
use bramble_cluster::args::is_standard_stream;
use bramble_matrix::Matrix;
use bramble_report::exit::{Exit, Failure};
use bramble_solve::{LuArgs, SolveArgs};
use std::ffi::OsStr;

/// Runs `solve`.
pub(crate) fn solve(args: &SolveArgs) -> Result<Exit, Failure> {
    if is_standard_stream(&args.a) && is_standard_stream(&args.b) {
        return Err(Failure::usage("- -: standard input is one matrix; name a file for the other"));
    }
    let (a, b) = (open(&args.a, args.memory())?, open(&args.b, args.memory())?);
    bramble_solve::solve(args, a, b)
}

/// Runs `lu`.
pub(crate) fn factor(args: &LuArgs) -> Result<Exit, Failure> {
    bramble_solve::factor(args, open(&args.a, args.memory())?)
}

fn open(spec: &OsStr, memory: Option<u64>) -> Result<Matrix, Failure> {
    if is_standard_stream(spec) { stream::read(memory) } else { Ok(Matrix::open(spec)?) }
}
