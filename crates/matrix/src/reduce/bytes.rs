//! The bytes of a reduced rectangle, as a worker sends them to the primary; and joining rectangles before that.
//!
//! Invariants: numbers are little-endian. How many bytes there are follows from the reduction, the rectangle and the element
//! type, so no length is sent. Bytes of any content give a reduction or nothing; columns lie in the rectangle.

use super::{
    EXPONENT_MAX, EXPONENT_MIN, Partial, Ranked, RectReduction, Reducer, Reducible, Reduction, SquareSum,
};
use crate::number::{to_u64, to_usize};
use crate::{MatrixError, Rect};

/// Bytes of a column.
const WORD_BYTES: u64 = 8;

impl<T: Reducible> RectReduction<T> {
    /// One rectangle from the rectangles that it consists of, merged in their order.
    pub fn joined(
        reduction: Reduction,
        rect: Rect,
        parts: impl IntoIterator<Item = Self>,
    ) -> Result<Self, MatrixError> {
        let mut reducer = Reducer::of_part(reduction, rect)?;
        parts.into_iter().for_each(|part| reducer.merge(part));
        Ok(Self { rect, partial: reducer.whole })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match &self.partial {
            Partial::Sums(sums) => bytes.extend_from_slice(bytemuck::cast_slice(sums)),
            Partial::Squares(squares) => {
                bytes.extend_from_slice(&i64::from(squares.exponent).to_le_bytes());
                bytes.extend_from_slice(&squares.sum.to_le_bytes());
            }
            Partial::Extreme(extreme) => {
                extreme.iter().for_each(|x| bytes.extend_from_slice(bytemuck::bytes_of(x)));
            }
            Partial::Top(rows) => {
                let all = || rows.iter().flatten();
                all().for_each(|(_, column)| bytes.extend_from_slice(&column.to_le_bytes()));
                all().for_each(|(x, _)| bytes.extend_from_slice(bytemuck::bytes_of(x)));
            }
        }
        bytes
    }

    /// The rectangle with these bytes; `None` if it has none such.
    pub fn from_bytes(reduction: Reduction, rect: Rect, bytes: &[u8]) -> Option<Self> {
        if to_u64(bytes.len()) != reduction.bytes_of(rect, T::DTYPE)
            || rect.rows.is_empty()
            || rect.cols.is_empty()
        {
            return None;
        }
        let partial = match reduction {
            Reduction::RowSum | Reduction::ColSum => Partial::Sums(bytemuck::pod_collect_to_vec(bytes)),
            Reduction::Norm => {
                let (exponent, sum) = bytes.split_at(size_of::<i64>());
                let exponent = i32::try_from(i64::from_le_bytes(exponent.try_into().ok()?)).ok()?;
                let exponent = Some(exponent).filter(|one| (EXPONENT_MIN..=EXPONENT_MAX).contains(one))?;
                Partial::Squares(SquareSum { exponent, sum: f64::from_le_bytes(sum.try_into().ok()?) })
            }
            Reduction::Max | Reduction::Min => Partial::Extreme(Some(bytemuck::pod_read_unaligned(bytes))),
            Reduction::TopK(count) => Partial::Top(ranked_rows(rect, count, bytes)?),
        };
        Some(Self { rect, partial })
    }
}

/// The largest elements of each row: all columns, then all elements.
fn ranked_rows<T: Reducible>(rect: Rect, count: u64, bytes: &[u8]) -> Option<Vec<Vec<Ranked<T>>>> {
    let each = usize::try_from(count.min(rect.cols.len())).ok()?;
    let rows = usize::try_from(rect.rows.len()).ok()?;
    let (columns, elements) = bytes.split_at(rows * each * to_usize(WORD_BYTES as u32));
    let columns: Vec<u64> = bytemuck::pod_collect_to_vec(columns);
    let elements: Vec<T> = bytemuck::pod_collect_to_vec(elements);
    if columns.iter().any(|column| !rect.cols.contains(*column)) {
        return None;
    }
    let row =
        |(elements, columns): (&[T], &[u64])| elements.iter().copied().zip(columns.iter().copied()).collect();
    Some(elements.chunks_exact(each).zip(columns.chunks_exact(each)).map(row).collect())
}
