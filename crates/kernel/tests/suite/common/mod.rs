//! Operands of the kernels' tests: every layout, reproducible numbers.
#![allow(dead_code)] // Each test program uses its part.

use bramble_kernel::KernelElement;
use bramble_matrix::{View, ViewMut};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row after row.
    Rows,
    /// Column after column.
    Cols,
    /// Rows with a gap after each.
    PaddedRows,
    /// Columns with a gap after each.
    PaddedCols,
    /// No stride is 1.
    Spread,
}

impl Layout {
    pub(crate) const ALL: [Self; 5] =
        [Self::Rows, Self::Cols, Self::PaddedRows, Self::PaddedCols, Self::Spread];

    /// A layout that differs.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Rows => Self::Cols,
            Self::Cols => Self::Rows,
            Self::PaddedRows => Self::PaddedCols,
            Self::PaddedCols => Self::PaddedRows,
            Self::Spread => Self::Rows,
        }
    }

    /// Row stride and column stride.
    pub(crate) fn strides(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Self::Rows => (cols.max(1), 1),
            Self::Cols => (1, rows.max(1)),
            Self::PaddedRows => (cols + 5, 1),
            Self::PaddedCols => (1, rows + 3),
            Self::Spread => (2 * cols * 3 + 1, 3),
        }
    }
}

/// `len` reproducible numbers: floats in [-1, 1), integers that use every bit.
pub(crate) fn noise<T: KernelElement>(len: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state ^ (state >> 33)) as i64;
        if T::DTYPE.is_float() {
            T::from_f64((bits >> 11) as f64 / (1u64 << 52) as f64)
        } else {
            T::from_i64(bits)
        }
    };
    (0..len).map(|_| next()).collect()
}

/// A matrix and its layout. Memory between its elements has a value of its own.
#[derive(Clone, Debug)]
pub(crate) struct Operand<T> {
    pub(crate) data: Vec<T>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) layout: Layout,
}

impl<T: KernelElement> Operand<T> {
    /// A matrix of noise; the numbers of an element do not depend on the layout.
    pub(crate) fn noise(rows: usize, cols: usize, layout: Layout, seed: u64) -> Self {
        let mut made = Self::filled(rows, cols, layout, T::from_i64(77));
        let values = noise::<T>(rows * cols, seed);
        for i in 0..rows {
            for j in 0..cols {
                *made.view_mut().at_mut(i, j) = values[i * cols + j];
            }
        }
        made
    }

    /// All memory of one value, gaps included.
    pub(crate) fn filled(rows: usize, cols: usize, layout: Layout, value: T) -> Self {
        let (rs, cs) = layout.strides(rows, cols);
        Self { data: vec![value; rows * rs.max(1) + cols * cs.max(1) + 8], rows, cols, layout }
    }

    pub(crate) fn view(&self) -> View<'_, T> {
        let (rs, cs) = self.layout.strides(self.rows, self.cols);
        View::new(&self.data, self.rows, self.cols, rs, cs)
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_, T> {
        let (rs, cs) = self.layout.strides(self.rows, self.cols);
        ViewMut::new(&mut self.data, self.rows, self.cols, rs, cs)
    }

    /// For each place of the memory, whether an element lies there.
    pub(crate) fn elements(&self) -> Vec<bool> {
        let (rs, cs) = self.layout.strides(self.rows, self.cols);
        let mut marks = vec![false; self.data.len()];
        (0..self.rows).for_each(|i| (0..self.cols).for_each(|j| marks[i * rs + j * cs] = true));
        marks
    }
}

/// What the tests need of floats beside `Element`.
pub(crate) trait Float: KernelElement {
    /// Unit roundoff.
    const UNIT: f64;
    fn nan() -> Self;
    /// `self * y + z`, rounded once.
    fn fused(self, y: Self, z: Self) -> Self;
}

impl Float for f32 {
    const UNIT: f64 = Self::EPSILON as f64 / 2.0;
    fn nan() -> Self {
        Self::NAN
    }
    fn fused(self, y: Self, z: Self) -> Self {
        self.mul_add(y, z)
    }
}

impl Float for f64 {
    const UNIT: Self = Self::EPSILON / 2.0;
    fn nan() -> Self {
        Self::NAN
    }
    fn fused(self, y: Self, z: Self) -> Self {
        self.mul_add(y, z)
    }
}
