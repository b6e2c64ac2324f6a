//! Reductions of a matrix: their names, the numbers that messages give them, and the bytes of their results.
//!
//! Place in the flow: `matrix` reduces elements; the primary asks machines for reductions by number.
//!
//! Invariant: how many bytes a reduced rectangle has follows from the reduction, the rectangle and the element type.

use crate::number::to_u64;
use crate::{DType, Rect, Shape};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// Bytes of a column, of a sum, and of an exponent.
const WORD_BYTES: u64 = 8;

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum of each row: a column.
    RowSum,
    /// The sum of each column: a row.
    ColSum,
    /// The square root of the sum of all squares.
    Norm,
    /// The largest element.
    Max,
    /// The smallest element.
    Min,
    /// The largest elements of each row, as many as stated, in descending order: their columns, and they themselves.
    TopK(u64),
}

impl Reduction {
    /// Why a matrix of that shape has no such reduction; `None` if it has.
    pub fn refusal(self, shape: Shape) -> Option<String> {
        match self {
            Self::Max | Self::Min if shape.elements() == Some(0) => {
                Some(format!("is {shape}, and a matrix without elements has no extreme"))
            }
            Self::TopK(0) => Some("topk needs a count of at least 1".to_owned()),
            Self::TopK(k) if k > shape.cols => Some(format!(
                "is {shape}: its rows have fewer than {k} elements; ask for at most {}",
                shape.cols
            )),
            _ => None,
        }
    }

    /// Its number and the count of topk, as messages have them.
    pub fn code(self) -> (u8, u64) {
        match self {
            Self::RowSum => (1, 0),
            Self::ColSum => (2, 0),
            Self::Norm => (3, 0),
            Self::Max => (4, 0),
            Self::Min => (5, 0),
            Self::TopK(count) => (6, count),
        }
    }

    /// The reduction with that number; `None` if there is none.
    pub fn from_code(code: u8, count: u64) -> Option<Self> {
        let reduction = match code {
            1 => Self::RowSum,
            2 => Self::ColSum,
            3 => Self::Norm,
            4 => Self::Max,
            5 => Self::Min,
            6 if count > 0 => Self::TopK(count),
            _ => return None,
        };
        (reduction.code() == (code, count)).then_some(reduction)
    }

    /// Bytes of a reduced rectangle.
    pub fn bytes_of(self, rect: Rect, dtype: DType) -> u64 {
        let (rows, cols, size) = (rect.rows.len(), rect.cols.len(), to_u64(dtype.size_bytes()));
        match self {
            Self::RowSum => rows.saturating_mul(WORD_BYTES),
            Self::ColSum => cols.saturating_mul(WORD_BYTES),
            Self::Norm => 2 * WORD_BYTES,
            Self::Max | Self::Min => size,
            Self::TopK(count) => rows.saturating_mul(count.min(cols)).saturating_mul(WORD_BYTES + size),
        }
    }
}
