//! Borrowed rectangles of typed elements with any two strides: the operands and results of kernels.
//!
//! Invariant: every element `(i, j)` with `i < rows` and `j < cols` is inside the memory of the view, at `i *
//! row_stride + j * col_stride`. A `ViewMut` is the only access to its elements for its lifetime; its elements may
//! interleave in memory with those of other views (tiles of one matrix), which is why it has a pointer and not a
//! slice.
#![allow(unsafe_code)] // A tile of a mapped matrix interleaves with its neighbours; no safe slice says that.

use std::marker::PhantomData;

/// A readable rectangle. Strides count elements.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// Elements from the first to the last of a strided rectangle, or `None` on overflow.
fn extent(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    let last_row = (rows - 1).checked_mul(row_stride)?;
    let last_col = (cols - 1).checked_mul(col_stride)?;
    last_row.checked_add(last_col)?.checked_add(1)
}

impl<'a, T> View<'a, T> {
    /// A view of `rows` × `cols` elements of `data`. Panics if `data` is too short: a bug of the caller.
    pub fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        let need = extent(rows, cols, row_stride, col_stride);
        assert!(need.is_some_and(|n| n <= data.len()), "a view of {rows}x{cols} exceeds its memory");
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// A view of contiguous rows.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols, 1)
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            data: self.data,
        }
    }

    /// Element (i, j). Panics outside.
    #[inline]
    pub fn at(&self, i: usize, j: usize) -> T
    where
        T: Copy,
    {
        assert!(i < self.rows && j < self.cols);
        self.data[i * self.row_stride + j * self.col_stride]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }
    /// Pointer to element (0, 0).
    pub fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
    /// The memory behind the view, from element (0, 0).
    pub fn data(&self) -> &'a [T] {
        self.data
    }
}

/// A writable rectangle. Strides count elements.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    _lifetime: PhantomData<&'a mut T>,
}

// SAFETY: a `ViewMut` is exclusive access to its elements, like `&mut [T]`.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}

impl<'a, T> ViewMut<'a, T> {
    /// A view of `rows` × `cols` elements of `data`. Panics if `data` is too short, or if two index pairs would
    /// name one element.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        let need = extent(rows, cols, row_stride, col_stride);
        assert!(need.is_some_and(|n| n <= data.len()), "a view of {rows}x{cols} exceeds its memory");
        // SAFETY: `data` is exclusive for 'a and long enough, as just checked.
        unsafe { Self::from_raw(data.as_mut_ptr(), rows, cols, row_stride, col_stride) }
    }

    /// A view of contiguous rows.
    pub fn row_major(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols, 1)
    }

    /// A view of raw memory. Panics if two index pairs would name one element.
    ///
    /// # Safety
    /// For the lifetime `'a` every element of the rectangle must be valid, and nothing else may access it.
    pub unsafe fn from_raw(
        data: *mut T,
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Self {
        let distinct = rows <= 1
            || cols <= 1
            || extent(1, cols, 0, col_stride).is_some_and(|line| line <= row_stride && col_stride > 0)
            || extent(rows, 1, row_stride, 0).is_some_and(|line| line <= col_stride && row_stride > 0);
        let steps = (rows <= 1 || row_stride > 0) && (cols <= 1 || col_stride > 0);
        let empty = rows == 0 || cols == 0;
        assert!(empty || distinct && steps, "elements of a writable view must not coincide");
        Self { data, rows, cols, row_stride, col_stride, _lifetime: PhantomData }
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// A shorter borrow of the same view.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { _lifetime: PhantomData, ..*self }
    }

    /// Element (i, j). Panics outside.
    #[inline]
    pub fn at_mut(&mut self, i: usize, j: usize) -> &mut T {
        assert!(i < self.rows && j < self.cols);
        // SAFETY: inside the rectangle, to which the type has exclusive access.
        unsafe { &mut *self.data.add(i * self.row_stride + j * self.col_stride) }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }
    /// Pointer to element (0, 0).
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_views_read_the_same_elements() {
        let data: Vec<i32> = (0..6).collect();
        let v = View::row_major(&data, 2, 3);
        for i in 0..2 {
            for j in 0..3 {
                assert_eq!(v.at(i, j), v.transposed().at(j, i));
            }
        }
    }

    #[test]
    fn an_empty_view_may_have_any_strides() {
        assert_eq!(ViewMut::row_major(&mut [0u8; 0], 5, 0).rows(), 5);
    }

    #[test]
    #[should_panic(expected = "exceeds its memory")]
    fn a_view_longer_than_its_memory_is_refused() {
        View::new(&[0u8; 5], 2, 3, 3, 1);
    }

    #[test]
    #[should_panic(expected = "must not coincide")]
    fn a_writable_view_with_coinciding_elements_is_refused() {
        ViewMut::new(&mut [0u8; 50], 3, 3, 1, 1);
    }
}
