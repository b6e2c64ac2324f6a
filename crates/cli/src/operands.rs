//! The operands as the command line names them: opened, converted, transposed, and checked to fit each other.

use crate::args::{OperandArgs, is_standard_stream};
use crate::exit::Failure;
use crate::stream;
use bramble_matrix::{Matrix, Shape};
use std::ffi::OsStr;

/// Operands of one type.
pub(crate) struct Pair {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    /// Where A and B had two types: a sentence for the user about the type that was chosen.
    pub(crate) promoted: Option<String>,
}

/// A and B, of one type: that of `--dtype`, or the one in which NumPy would multiply them. Files are mapped, not read.
pub(crate) fn open(a: &OsStr, b: &OsStr, args: &OperandArgs, memory: Option<u64>) -> Result<Pair, Failure> {
    if is_standard_stream(a) && is_standard_stream(b) {
        return Err(Failure::usage("- -: standard input is one matrix; name a file for the other"));
    }
    let open = |spec: &OsStr, is_left: bool, transpose: bool| -> Result<Matrix, Failure> {
        let matrix = if is_standard_stream(spec) { stream::read(memory)? } else { Matrix::open(spec)? };
        // As NumPy's matmul has it: of one dimension, A is a row and B a column.
        let matrix = if matrix.is_vector() && !is_left { matrix.transposed() } else { matrix };
        let matrix = match args.dtype {
            Some(dtype) if dtype != matrix.dtype() => matrix.converted(dtype)?,
            _ => matrix,
        };
        Ok(if transpose { matrix.transposed() } else { matrix })
    };
    let (left, right) = (open(a, true, args.transpose_a)?, open(b, false, args.transpose_b)?);
    let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
    fit(&a, &b, args, &left, &right)?;
    let (one, two, dtype) = (left.dtype(), right.dtype(), left.promoted(&right));
    let told = || format!("{a} is {one} and {b} is {two}: multiplied as {dtype}, as NumPy does");
    let promoted = (one != two).then(told);
    Ok(Pair { a: left.converted(dtype)?, b: right.converted(dtype)?, promoted })
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
