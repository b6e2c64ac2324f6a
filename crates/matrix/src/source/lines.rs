//! A matrix in the memory of another program, whose lines may lie apart.

use super::{Mapped, Matrix, Store};
use crate::error::check_sides;
use crate::{DType, Layout, MatrixError, Shape, SharedBytes};

impl Matrix {
    /// A matrix whose lines start `pitch_bytes` apart, the first at `start` in `owner`. An error if they leave the owner,
    /// overlap, or are not aligned for the element type.
    pub fn from_lines(
        name: impl Into<String>,
        (owner, start, pitch_bytes): (SharedBytes, usize, usize),
        shape: Shape,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, MatrixError> {
        let name = name.into();
        if shape.bytes(dtype).is_none() {
            return Err(MatrixError::TooLarge { name, shape, dtype });
        }
        check_sides(shape, &name)?;
        let memory = (*owner).as_ref();
        let (lines, line) = layout.lines(shape);
        let (size, line_bytes) = (dtype.size_bytes() as u64, line.saturating_mul(dtype.size_bytes() as u64));
        let pitch = pitch_bytes as u64;
        let end = lines.checked_sub(1).filter(|_| line > 0).map_or(Some(0), |before| {
            before.checked_mul(pitch)?.checked_add(line_bytes)?.checked_add(start as u64)
        });
        let is_aligned = line_bytes == 0
            || (memory.as_ptr().addr().wrapping_add(start) as u64).is_multiple_of(size)
                && (lines <= 1 || pitch.is_multiple_of(size));
        let is_apart = lines <= 1 || pitch >= line_bytes;
        if !is_aligned || !is_apart || end.is_none_or(|end| end > memory.len() as u64) {
            let what =
                format!("{lines} lines of {line_bytes} bytes, {pitch} bytes apart, do not lie in its memory");
            return Err(MatrixError::format(name, what));
        }
        let store = Store::Bytes { owner, start, pitch_bytes };
        Ok(Self { name, shape, layout, dtype, is_vector: false, mapped: Mapped::default(), store })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Rect, Span};
    use std::sync::Arc;

    fn of(pitch: usize, shape: Shape, layout: Layout) -> Result<Matrix, MatrixError> {
        let mut owner = Buffer::zeroed(12 * 8)?;
        owner.elements_mut::<f64>().iter_mut().zip(0..).for_each(|(element, at)| *element = f64::from(at));
        Matrix::from_lines("m", (Arc::new(owner), 0, pitch), shape, DType::F64, layout)
    }

    #[test]
    fn lines_apart_are_read_without_what_lies_between() {
        for layout in [Layout::RowMajor, Layout::ColMajor] {
            let shape = Shape::new(3, 3);
            let matrix = of(32, shape, layout).unwrap();
            let whole = matrix.block(Rect::new(Span::new(0, 3), Span::new(0, 3))).unwrap();
            assert_eq!(whole.elements::<f64>(), [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0]);
            let lines = matrix.lines(shape.rect()).unwrap();
            assert_eq!(lines.line(2).len(), 24);
        }
    }

    #[test]
    fn lines_beyond_the_memory_or_over_each_other_are_refused() {
        let refused = |pitch, rows, cols| of(pitch, Shape::new(rows, cols), Layout::RowMajor).is_err();
        assert!(!refused(32, 3, 4) && !refused(8, 12, 1) && !refused(0, 1, 12));
        assert!(refused(32, 4, 3), "the fourth line begins at the end");
        assert!(refused(32, 3, 5), "the last line ends beyond it");
        assert!(refused(16, 3, 3), "lines overlap");
        assert!(refused(28, 3, 3), "the second line is not aligned");
        assert!(refused(usize::MAX / 8 * 8, 3, 3), "the distance overflows");
        assert!(!refused(0, 3, 0) && !refused(0, 0, 3), "matrices without elements need none");
    }
}
