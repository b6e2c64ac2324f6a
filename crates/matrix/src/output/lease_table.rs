//! The table of leased rectangles of the output.
//!
//! Place in the flow: `lease` asks it before it gives access to memory; the table is what makes that access
//! exclusive.
//!
//! Invariants: no two rectangles in it overlap. A rectangle without elements is never in it.
//!
//! Method: the matrix is divided into at most 64 × 64 cells, and each leased rectangle is listed in every cell that
//! it touches. Two overlapping rectangles have a cell in common, so only the lists of the new rectangle's cells are
//! searched: a few entries each, even with thousands of leases.

use crate::{Rect, Shape, Span};
use std::ops::RangeInclusive;

/// Most cells in each direction.
const CELLS: u64 = 64;

/// The leased rectangles.
pub(super) struct LeaseTable {
    shape: Shape,
    /// Rows and columns of a cell.
    cell: (u64, u64),
    /// Lists of leased rectangles, row of cells by row of cells.
    cells: Vec<Vec<Rect>>,
    count: usize,
}

impl LeaseTable {
    pub(super) fn new(shape: Shape) -> Self {
        let cell = (shape.rows.div_ceil(CELLS).max(1), shape.cols.div_ceil(CELLS).max(1));
        Self { shape, cell, cells: vec![Vec::new(); (CELLS * CELLS) as usize], count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Enters a rectangle, or returns the conflicting one. Panics if it is outside the matrix.
    pub(super) fn take(&mut self, rect: Rect) -> Result<(), Rect> {
        assert!(rect.fits(self.shape), "{rect} is outside the output of {}", self.shape);
        for cell in self.touched(rect) {
            if let Some(other) = self.cells[cell].iter().find(|other| !rect.disjoint(**other)) {
                return Err(*other);
            }
        }
        self.touched(rect).for_each(|cell| self.cells[cell].push(rect));
        self.count += usize::from(!is_empty(rect));
        Ok(())
    }

    /// Removes a rectangle.
    pub(super) fn give_back(&mut self, rect: Rect) {
        for cell in self.touched(rect) {
            if let Some(at) = self.cells[cell].iter().position(|other| *other == rect) {
                self.cells[cell].swap_remove(at);
            }
        }
        self.count -= usize::from(!is_empty(rect));
    }

    /// The cells that a rectangle inside the matrix touches.
    fn touched(&self, rect: Rect) -> impl Iterator<Item = usize> + use<> {
        let cols = cells_of(rect.cols, self.cell.1);
        let rows = if is_empty(rect) { None } else { Some(cells_of(rect.rows, self.cell.0)) };
        let rows = rows.into_iter().flatten();
        rows.flat_map(move |row| cols.clone().map(move |col| (row * CELLS + col) as usize))
    }
}

fn is_empty(rect: Rect) -> bool {
    rect.rows.is_empty() || rect.cols.is_empty()
}

fn cells_of(span: Span, cell: u64) -> RangeInclusive<u64> {
    span.start / cell..=span.end.saturating_sub(1) / cell
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rect(rows: (u64, u64), cols: (u64, u64)) -> Rect {
        Rect::new(Span::new(rows.0, rows.0 + rows.1), Span::new(cols.0, cols.0 + cols.1))
    }

    proptest! {
        #[test]
        fn it_says_what_comparing_with_every_rectangle_says(
            (rows, cols) in (1u64..300, 1u64..300),
            steps in prop::collection::vec(((0u64..300, 0u64..60), (0u64..300, 0u64..60), any::<bool>()), 1..60),
        ) {
            let mut table = LeaseTable::new(Shape::new(rows, cols));
            let mut lent: Vec<Rect> = Vec::new();
            for (r, c, give_back) in steps {
                if give_back && !lent.is_empty() {
                    table.give_back(lent.swap_remove(0));
                    continue;
                }
                let (r0, c0) = (r.0.min(rows), c.0.min(cols));
                let new = rect((r0, r.1.min(rows - r0)), (c0, c.1.min(cols - c0)));
                let free = lent.iter().all(|other| other.disjoint(new));
                prop_assert_eq!(table.take(new).is_ok(), free);
                if free {
                    lent.push(new);
                }
                let real = lent.iter().filter(|r| !is_empty(**r)).count();
                prop_assert_eq!(table.count(), real);
            }
        }
    }
}
