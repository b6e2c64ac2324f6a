//! A panel: a block of columns of the matrix, from the diagonal down, factored by recursion on its columns (Toledo,
//! "Locality of reference in LU decomposition with partial pivoting", SIAM J. Matrix Anal. 18, 1997).
//!
//! Place in the flow: each step of a factorisation makes one, and all columns right of it are updated with it. With several
//! machines, its owner sends it to the others.
//!
//! Invariants: the columns are contiguous here, whatever the layout of the matrix: the search for a pivot and the products
//! then read memory in order. `pivots[i]` is at least `i`, and counts from the panel's first row.

use std::ops::Range;

use bramble_matrix::{View, ViewMut, make_room_in_huge_pages};

use super::rows::split_rows;
use super::triangle::solve_rows;
use super::{LuElement, Triangle, base, gather, scatter};
use crate::{Kernel, PanelUpdate, Product, part};

/// A factored panel: L below the diagonal, U on and above it, and the exchanges of rows.
#[derive(Clone, Debug)]
pub struct PackedPanel<T> {
    data: Vec<T>,
    rows: usize,
    pivots: Vec<usize>,
}

impl<T: LuElement> PackedPanel<T> {
    /// Factors a block of columns in place, and keeps a copy of the factors, in `memory` of an earlier panel if that is large
    /// enough. Panics if the block is wider than long: a bug of the caller.
    pub fn factor(kernel: &dyn Kernel, mut block: ViewMut<'_, T>, memory: Vec<T>) -> Self {
        let (rows, width) = (block.rows(), block.cols());
        assert!(width <= rows, "a panel is at least as long as wide");
        let mut data = memory;
        make_room_in_huge_pages(&mut data, rows * width);
        data.resize(rows * width, T::ZERO);
        gather(&mut block, &mut data, (1, rows));
        let mut pivots = vec![0; width];
        recurse(kernel, &mut data, rows, 0, &mut pivots);
        scatter(&data, (1, rows), &mut block);
        Self { data, rows, pivots }
    }

    /// A panel that another machine has factored: its elements by columns, and its exchanges of rows. `None` if the sizes
    /// disagree, or a row is exchanged with one before it or beyond the panel.
    pub fn received(data: Vec<T>, rows: usize, pivots: Vec<usize>) -> Option<Self> {
        let fits = pivots.len() <= rows && rows.checked_mul(pivots.len()) == Some(data.len());
        let are_rows = pivots.iter().enumerate().all(|(row, pivot)| (row..rows).contains(pivot));
        (fits && are_rows).then_some(Self { data, rows, pivots })
    }

    /// The elements of the factors, by columns.
    pub fn elements(&self) -> &[T] {
        &self.data
    }

    /// The memory, for another panel.
    pub fn into_memory(self) -> Vec<T> {
        self.data
    }

    /// Rows of the panel.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns that were eliminated.
    pub fn width(&self) -> usize {
        self.pivots.len()
    }

    /// For each column, the row with which its diagonal row was exchanged, counted from the panel's first row.
    pub fn pivots(&self) -> &[usize] {
        &self.pivots
    }

    /// The pivots themselves: the diagonal of U.
    pub fn diagonal(&self) -> impl Iterator<Item = T> {
        (0..self.width()).map(|j| self.data[j * self.rows + j])
    }

    /// Some rows of the factors.
    pub fn factors(&self, rows: Range<usize>) -> View<'_, T> {
        part(View::new(&self.data, self.rows, self.width(), 1, self.rows.max(1)), rows, 0..self.width())
    }

    /// Updates columns right of the panel: exchanges their rows, solves for their part of U, and subtracts L times that from
    /// the rows below. `columns` begins with the panel's first row; `scratch` is memory that the caller keeps.
    pub fn update(&self, kernel: &dyn Kernel, mut columns: ViewMut<'_, T>, scratch: &mut Vec<T>) {
        let (rows, square, width) = (self.rows, self.width(), columns.cols());
        assert_eq!(columns.rows(), rows, "columns as long as the panel");
        super::exchange_rows(&mut columns, &self.pivots);
        if kernel.update(T::any_update(PanelUpdate::new(self.factors(0..rows), columns.reborrow()))) {
            return;
        }
        scratch.clear();
        scratch.resize(square * width, T::ZERO);
        let [mut top, below] = split_rows(columns, square);
        gather(&mut top, scratch, (width, 1));
        solve_rows(kernel, Triangle::UnitLower, self.factors(0..square), scratch, width);
        scatter(scratch, (width, 1), &mut top);
        let u = View::row_major(scratch, square, width);
        let minus = T::ZERO.minus(T::ONE);
        kernel.multiply(T::any(Product::new(minus, self.factors(square..rows), u, T::ONE, below)));
    }
}

/// Contiguous columns that are factored.
struct Columns<'a, T> {
    data: &'a [T],
    pitch: usize,
}

impl<T: LuElement> Columns<'_, T> {
    /// Updates the columns in `right`; the rows from `top` on take part.
    fn apply(&self, kernel: &dyn Kernel, right: &mut [T], top: usize, pivots: &[usize]) {
        let count = pivots.len();
        let width = right.len().checked_div(self.pitch).unwrap_or(0);
        if width == 0 {
            return;
        }
        for column in right.chunks_exact_mut(self.pitch) {
            pivots.iter().enumerate().for_each(|(i, p)| column.swap(top + i, top + p));
        }
        let factors = View::new(self.data, self.pitch, count, 1, self.pitch);
        let end = top + count;
        let mut u = vec![T::ZERO; count * width];
        for (j, column) in right.chunks_exact(self.pitch).enumerate() {
            (0..count).for_each(|i| u[i * width + j] = column[top + i]);
        }
        solve_rows(kernel, Triangle::UnitLower, part(factors, top..end, 0..count), &mut u, width);
        for (j, column) in right.chunks_exact_mut(self.pitch).enumerate() {
            (0..count).for_each(|i| column[top + i] = u[i * width + j]);
        }
        let [_, below] = split_rows(ViewMut::new(right, self.pitch, width, 1, self.pitch), end);
        let (l, u) = (part(factors, end..self.pitch, 0..count), View::row_major(&u, count, width));
        kernel.multiply(T::any(Product::new(T::ZERO.minus(T::ONE), l, u, T::ONE, below)));
    }
}

/// Factors the columns in `panel`, of which the rows from `top` on take part; pivots count from there.
fn recurse<T: LuElement>(
    kernel: &dyn Kernel,
    panel: &mut [T],
    pitch: usize,
    top: usize,
    pivots: &mut [usize],
) {
    let width = pivots.len();
    if width <= base::WIDEST {
        if width > 0 {
            base::factor(&mut panel[top..], pitch - top, pitch, pivots);
        }
        return;
    }
    let half = (width / 2).next_multiple_of(base::WIDEST).min(width - 1);
    let (left, right) = panel.split_at_mut(half * pitch);
    let (first, second) = pivots.split_at_mut(half);
    recurse(kernel, left, pitch, top, first);
    Columns { data: left, pitch }.apply(kernel, right, top, first);
    let below = top + half;
    recurse(kernel, right, pitch, below, second);
    for column in left.chunks_exact_mut(pitch) {
        second.iter().enumerate().for_each(|(i, p)| column.swap(below + i, below + p));
    }
    second.iter_mut().for_each(|p| *p += half);
}
