//! The operands as the command line names them: opened, converted, transposed, and checked to fit each other.

use crate::args::OperandArgs;
use crate::exit::Failure;
use bramble_matrix::{Matrix, Shape};

/// Operands of one type.
pub(crate) struct Pair {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    /// Where A and B had two types: a sentence for the user about the type that was chosen.
    pub(crate) promoted: Option<String>,
}

/// A and B, of one type: that of `--dtype`, or the one in which NumPy would multiply them. Files are mapped, not read.
pub(crate) fn open(a: &str, b: &str, args: &OperandArgs) -> Result<Pair, Failure> {
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
