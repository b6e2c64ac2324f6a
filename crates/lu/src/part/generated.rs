//! Columns that a machine generates, and their products with a vector.
//!
//! Place in the flow: a worker of `bench hpl` generates its columns before the elimination. For HPL-MxP it generates them again
//! after that, in f64, for each product that the iteration needs: the elimination has left the factors in their place.
//!
//! Invariants: any machine generates the same elements. A product needs no other memory than a piece of the columns.
//!
//! Source: Lu, Matheson, Sedova et al., "Climbing the Summit and pushing the frontier of mixed precision benchmarks at extreme
//! scale", SC 2022, generate the matrix again for each residual.

use super::LuPart;
use crate::{hpl, mxp};
use bramble_kernel::lu::{LuElement, scatter};
use bramble_kernel::{Kernel, Product};
use bramble_matrix::{View, ViewMut};
use bramble_wire::message::LuOrigin;
use std::ops::Range;
use std::sync::PoisonError;

/// Columns that are generated at a time.
const PIECE_COLUMNS: usize = 64;
/// Rows of them: a piece stays in a second-level cache.
const PIECE_ROWS: usize = 256;

impl<T: LuElement> LuPart<T> {
    /// Generates one of this machine's blocks of the system that the workers generate.
    pub fn generate(&self, block: usize) {
        let Some(own) = self.own(block) else { return };
        match self.begin.origin {
            LuOrigin::Sent => {}
            LuOrigin::Hpl => self.generate_hpl(block, own),
            LuOrigin::HplMxp if block < self.begin.panels() => self.generate_mxp(block, own),
            LuOrigin::HplMxp => {
                let b: Vec<T> = mxp::right_hand_side(self.begin.order).into_iter().map(T::from_f64).collect();
                own.for_each(|column| self.put(&b, 0, column..column + 1));
            }
        }
    }

    fn generate_hpl(&self, block: usize, own: Range<usize>) {
        let order = self.begin.order;
        let mut elements = Vec::new();
        for (first, column) in self.begin.columns(block).zip(own.clone()).step_by(PIECE_COLUMNS) {
            let width = PIECE_COLUMNS.min(own.end - column);
            elements.resize(order * width, 0.0);
            hpl::fill(order, first, &mut elements);
            let rounded: Vec<T> = elements.iter().map(|x| T::from_f64(*x)).collect();
            self.put(&rounded, 0, column..column + width);
        }
    }

    fn generate_mxp(&self, block: usize, own: Range<usize>) {
        let columns = self.begin.columns(block);
        let diagonal = mxp::diagonal(self.begin.order, columns.clone());
        let rows = 0..self.begin.order;
        mxp_pieces(self.begin.order, rows, columns.clone(), &diagonal, |some, first, elements| {
            let rounded: Vec<T> = elements.iter().map(|x| T::from_f64(*x)).collect();
            let column = own.start + (some.start - columns.start);
            self.put(&rounded, first, column..column + some.len());
        });
        self.diagonals.lock().unwrap_or_else(PoisonError::into_inner).insert(block, diagonal);
    }

    /// Puts elements in rows into columns here, from row `first` on.
    fn put(&self, elements: &[T], first: usize, columns: Range<usize>) {
        let width = columns.len();
        let mut lease = self.working.lease(first..first + elements.len() / width, columns);
        scatter(elements, (width, 1), &mut lease.view_mut::<T>());
    }

    /// This machine's part of A X, in f64, for some rows of A and the `width` columns of `x`, which has all rows: the sum over
    /// its own columns of A, which are those of HPL-MxP. `None` if they are others, or `x` or A has other rows.
    pub fn multiply(
        &self,
        kernel: &dyn Kernel,
        rows: Range<usize>,
        x: &[f64],
        width: usize,
    ) -> Option<Vec<f64>> {
        let order = self.begin.order;
        let fits = width > 0 && x.len() == order * width && rows.start <= rows.end && rows.end <= order;
        if !fits || self.begin.origin != LuOrigin::HplMxp {
            return None;
        }
        let diagonals = self.diagonals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut sum = vec![0.0; rows.len() * width];
        for (block, diagonal) in &diagonals {
            mxp_pieces(order, rows.clone(), self.begin.columns(*block), diagonal, |some, first, elements| {
                let (here, of_x) = (first - rows.start, some.start * width..some.end * width);
                let a = View::row_major(elements, elements.len() / some.len(), some.len());
                let target = &mut sum[here * width..(here + a.rows()) * width];
                let (x, c) = (
                    View::row_major(&x[of_x], some.len(), width),
                    ViewMut::row_major(target, a.rows(), width),
                );
                kernel.multiply(Product::new(1.0, a, x, 1.0, c).into());
            });
        }
        Some(sum)
    }
}

/// Generates rows of adjacent columns in pieces: calls `each` with the columns of a piece, its first row, and its elements in
/// rows.
fn mxp_pieces(
    order: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    diagonal: &[f64],
    mut each: impl FnMut(Range<usize>, usize, &[f64]),
) {
    let mut elements = Vec::new();
    for column in columns.clone().step_by(PIECE_COLUMNS) {
        let some = column..columns.end.min(column + PIECE_COLUMNS);
        let of_some = &diagonal[some.start - columns.start..][..some.len()];
        for first in rows.clone().step_by(PIECE_ROWS) {
            let band = first..rows.end.min(first + PIECE_ROWS);
            elements.resize(band.len() * some.len(), 0.0);
            mxp::fill_columns(order, band, some.clone(), of_some, &mut elements);
            each(some.clone(), first, &elements);
        }
    }
}
