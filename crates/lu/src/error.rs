//! Why a matrix cannot be factored or a system not be solved.

use bramble_matrix::{DType, MatrixError, Shape};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum LuError {
    /// The matrix cannot be read, or there is too little memory.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// An element of the input is infinite or NaN.
    #[error("{name}: the element in row {row}, column {col} is {value}; a system needs finite numbers")]
    NotFinite {
        /// The matrix.
        name: String,
        /// Its row, from 0.
        row: u64,
        /// Its column, from 0.
        col: u64,
        /// `NaN`, `inf` or `-inf`.
        value: f64,
    },
    /// A pivot is 0.
    #[error(
        "the matrix is singular: column {column} (counted from 0) is a combination of the columns before it, so no unique \
         solution exists"
    )]
    Singular {
        /// The column, from 0.
        column: usize,
    },
    /// Elements grew beyond the range of the type during elimination.
    #[error(
        "elements exceeded the range of {dtype} at column {column} (counted from 0) of the elimination; scale the matrix{hint}"
    )]
    Overflow {
        /// The column, from 0.
        column: usize,
        /// The element type.
        dtype: &'static str,
        /// Another way, if there is one.
        hint: &'static str,
    },
    /// The factors are at workers, and these do not answer any more.
    #[error("the workers that have the factors do not answer any more")]
    FactorsGone,
    /// The matrix is not square.
    #[error("{name} is {shape}: a system needs as many rows as columns")]
    NotSquare {
        /// The matrix.
        name: String,
        /// Its shape.
        shape: Shape,
    },
}

impl LuError {
    /// The first column in which an elimination in f64 found no pivot, or left the range; `None` if there is none.
    pub fn of_pivots(zero: Option<usize>, overflow: Option<usize>) -> Option<Self> {
        let first = |column: Option<usize>| column.unwrap_or(usize::MAX);
        match (zero, overflow) {
            (None, None) => None,
            (zero, Some(column)) if column < first(zero) => {
                Some(Self::Overflow { column, dtype: DType::F64.name(), hint: "" })
            }
            (zero, _) => Some(Self::Singular { column: first(zero) }),
        }
    }
}
