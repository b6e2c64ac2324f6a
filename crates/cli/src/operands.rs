//! Opens the operands that the command line names, converts and transposes them, and checks that their shapes fit.

use crate::args::OperandArgs;
use crate::stream;
use bramble_cluster::args::is_standard_stream;
use bramble_matrix::{Matrix, Shape};
use bramble_report::exit::Failure;
use std::ffi::OsStr;

/// Operands of the same element type.
pub(crate) struct OperandPair {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    /// If A and B had different types: a notice about the chosen type.
    pub(crate) promoted: Option<String>,
}

/// Opens A and B with the element type of `--dtype`, or else the type in which NumPy would multiply them. Files are
/// mapped, not read.
pub(crate) fn open(
    a: &OsStr,
    b: &OsStr,
    args: &OperandArgs,
    memory: Option<u64>,
) -> Result<OperandPair, Failure> {
    if is_standard_stream(a) && is_standard_stream(b) {
        return Err(Failure::usage("- -: standard input is one matrix; name a file for the other"));
    }
    let open = |spec: &OsStr, is_left: bool, transpose: bool| -> Result<Matrix, Failure> {
        let matrix = if is_standard_stream(spec) { stream::read(memory)? } else { Matrix::open(spec)? };
        Ok(matrix.as_operand(!is_left, args.dtype, transpose)?)
    };
    let (left, right) = (open(a, true, args.transpose_a)?, open(b, false, args.transpose_b)?);
    let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
    fit(&a, &b, args, &left, &right)?;
    let (one, two, dtype) = (left.dtype(), right.dtype(), left.promoted(&right));
    let told = || {
        let (one, two) = (left.stored_name(), right.stored_name());
        format!("{a} is {one} and {b} is {two}: multiplied as {dtype}, as NumPy does")
    };
    let promoted = (one != two).then(told);
    Ok(OperandPair { a: left.converted(dtype)?, b: right.converted(dtype)?, promoted })
}

fn fit(a_spec: &str, b_spec: &str, args: &OperandArgs, a: &Matrix, b: &Matrix) -> Result<(), Failure> {
    let (sa, sb) = (a.shape(), b.shape());
    let seen = |spec: &str, transposed: bool, shape: Shape| {
        format!("{spec} is {shape}{}", if transposed { " transposed" } else { "" })
    };
    if sa.cols != sb.rows {
        let hint = if sa.cols == sb.cols {
            "; did you mean --transpose-b?"
        } else if sa.rows == sb.rows {
            "; did you mean --transpose-a?"
        } else {
            ""
        };
        let (left, right) = (seen(a_spec, args.transpose_a, sa), seen(b_spec, args.transpose_b, sb));
        return Err(Failure::failed(format!(
            "{left} and {right}: the columns of the first must equal the rows of the second{hint}"
        )));
    }
    Ok(())
}
