//! The operands as the command line names them: opened, converted, transposed, and checked to fit each other.

use crate::args::OperandArgs;
use crate::exit::Failure;
use bramble_matrix::{DType, Matrix, Shape};

/// A and B. Files are mapped, not read.
pub(crate) fn open(a: &str, b: &str, args: &OperandArgs) -> Result<(Matrix, Matrix), Failure> {
    let open = |spec: &str, transpose: bool| -> Result<Matrix, Failure> {
        let matrix = Matrix::open(spec)?;
        let matrix = match args.dtype {
            Some(dtype) if dtype != matrix.dtype() => matrix.converted(dtype)?,
            _ => matrix,
        };
        Ok(if transpose { matrix.transposed() } else { matrix })
    };
    let (left, right) = (open(a, args.transpose_a)?, open(b, args.transpose_b)?);
    fit(a, b, args, &left, &right)?;
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
