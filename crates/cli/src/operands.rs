//! The operands as the command line names them: opened, converted, transposed, and checked to fit each other.

use crate::args::{OperandArgs, is_standard_stream};
use crate::exit::Failure;
use crate::stream;
use bramble_matrix::{DType, Matrix, Shape};
use std::ffi::OsStr;

/// A and B. Files are mapped, not read.
pub(crate) fn open(
    a: &OsStr,
    b: &OsStr,
    args: &OperandArgs,
    memory: Option<u64>,
) -> Result<(Matrix, Matrix), Failure> {
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
    fit(&a.to_string_lossy(), &b.to_string_lossy(), args, &left, &right)?;
    Ok((left, right))
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
    if a.dtype() != b.dtype() {
        let (da, db) = (a.dtype(), b.dtype());
        let widest = match (da, db) {
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            (DType::I64, DType::F32) | (DType::F32, DType::I64) => DType::F64,
            (DType::I32, DType::F32) | (DType::F32, DType::I32) => DType::F64,
            _ => DType::I64,
        };
        let which = if da == widest { b_spec } else { a_spec };
        return Err(Failure::failed(format!(
            "{a_spec} is {da} and {b_spec} is {db}: convert {which} with --dtype {widest}"
        )));
    }
    Ok(())
}
