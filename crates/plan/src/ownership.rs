//! Which part of a product each machine can compute, because its part of a placed operand lies there.
//!
//! Place in the flow: `ArrayLayout` tells where the parts of an array lie; this file turns that into parts of a
//! product. The plan gives each owner exactly its part (`decide_resident`), and the schedule moves no work to a
//! machine that could not do it.
//!
//! | operand | cut into | each owner computes |
//! |---|---|---|
//! | A | rows | rows of C |
//! | A | columns | steps of k: partial sums of all of C |
//! | B | rows | steps of k |
//! | B | columns | columns of C |
//! | A or B | replicas | anything |
//!
//! Invariants: the spans of a cut are in rising order, without gaps, and cover the side of the product. A machine
//! that took over a lost part has several.

use crate::cut::Cells3;
use crate::{ArrayLayout, Block, Grid, GridError, PlacedPart, Region, ShardAxis};
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// A side of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductSide {
    /// Rows of A and C.
    Rows,
    /// Columns of B and C.
    Cols,
    /// Columns of A, rows of B.
    Depth,
}

/// The part of a side that a machine owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedSpan {
    /// Number of the machine: 0 is the primary, then the workers.
    pub machine: usize,
    /// Its rows, columns, or part of k, in elements.
    pub span: Span,
}

/// Which part of a product each machine can compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// These machines, in rising order, have the whole operand.
    Replicas(Vec<usize>),
    /// Each machine has these spans of this side.
    Cut(ProductSide, Vec<OwnedSpan>),
}

/// A part of an array whose machine is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// Index of the part in the layout.
    pub part: usize,
}

impl Ownership {
    /// For an array that is the left operand, or transposed is. `number` gives the number in the plan of a machine of the
    /// layout, if it is still there.
    pub fn of_left(
        layout: &ArrayLayout,
        transposed: bool,
        number: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Self, MissingPart> {
        Self::of(layout, transposed, [ProductSide::Rows, ProductSide::Depth], number)
    }

    /// The same for the right operand.
    pub fn of_right(
        layout: &ArrayLayout,
        transposed: bool,
        number: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Self, MissingPart> {
        Self::of(layout, transposed, [ProductSide::Depth, ProductSide::Cols], number)
    }

    /// `sides`: the side of the product along the operand's rows, and along its columns.
    fn of(
        layout: &ArrayLayout,
        transposed: bool,
        sides: [ProductSide; 2],
        number: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Self, MissingPart> {
        let Some(axis) = layout.axis else {
            let mut machines: Vec<usize> =
                layout.parts.iter().filter_map(|part| number(part.machine)).collect();
            machines.sort_unstable();
            return if machines.is_empty() {
                Err(MissingPart { part: 0 })
            } else {
                Ok(Self::Replicas(machines))
            };
        };
        let is_along_rows = (axis == ShardAxis::Rows) != transposed;
        let side = if is_along_rows { sides[0] } else { sides[1] };
        let owned = |(at, part): (usize, &PlacedPart)| {
            let machine = number(part.machine).ok_or(MissingPart { part: at })?;
            let span = if axis == ShardAxis::Rows { part.rect.rows } else { part.rect.cols };
            Ok(OwnedSpan { machine, span })
        };
        let spans: Result<Vec<OwnedSpan>, MissingPart> = layout.parts.iter().enumerate().map(owned).collect();
        spans.map(|spans| Self::Cut(side, spans))
    }

    /// For a product whose two operands are both placed: what can be computed where both are. `None` if no machine has what
    /// another one lacks, so that one operand has to be placed anew.
    pub fn meet(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Replicas(some), Self::Replicas(others)) => {
                let both: Vec<usize> = some.into_iter().filter(|machine| others.contains(machine)).collect();
                (!both.is_empty()).then_some(Self::Replicas(both))
            }
            (Self::Replicas(machines), Self::Cut(side, spans))
            | (Self::Cut(side, spans), Self::Replicas(machines)) => {
                let are_there = spans.iter().all(|owned| machines.contains(&owned.machine));
                are_there.then_some(Self::Cut(side, spans))
            }
            (Self::Cut(side, spans), Self::Cut(other, others)) => {
                (side == other && spans == others).then_some(Self::Cut(side, spans))
            }
        }
    }

    /// The machines that own something.
    pub fn machines(&self) -> Vec<usize> {
        match self {
            Self::Replicas(machines) => machines.clone(),
            Self::Cut(_, spans) => {
                let mut machines: Vec<usize> = spans.iter().map(|owned| owned.machine).collect();
                machines.sort_unstable();
                machines.dedup();
                machines
            }
        }
    }

    /// Whether every owner can compute anything.
    pub fn is_replicated(&self) -> bool {
        matches!(self, Self::Replicas(_))
    }

    /// Whether a machine can compute these blocks.
    pub fn may_compute(&self, machine: usize, region: &Region, block: &Block) -> bool {
        match self {
            Self::Replicas(machines) => machines.contains(&machine),
            Self::Cut(side, spans) => {
                let needed = elements(*side, &region.grid, block.cells, block.steps);
                let mut owned = spans.iter().filter(|owned| owned.machine == machine);
                owned.any(|owned| owned.span.intersect(needed) == needed)
            }
        }
    }

    /// The grid with tiles and steps whose borders include those of the parts: along the cut side, the largest divisor of all
    /// borders that is at most the usual size.
    pub(crate) fn fit(&self, grid: Grid) -> Result<Grid, GridError> {
        let Self::Cut(side, spans) = self else { return Ok(grid) };
        let border = spans.iter().map(|owned| owned.span.start).fold(0, common_divisor);
        grid.with_borders(*side, border)
    }

    /// The cells and steps of these machines; `None` if each may have any.
    pub(crate) fn boxes(&self, machines: &[usize], region: &Region) -> Option<Vec<Vec<Cells3>>> {
        let Self::Cut(side, spans) = self else { return None };
        let of = |machine: &usize| {
            let owned = spans.iter().filter(|owned| owned.machine == *machine);
            owned.map(|owned| box_of(*side, region, owned.span)).collect()
        };
        Some(machines.iter().map(of).collect())
    }

    /// Checks that it belongs to a product of those sides.
    pub(crate) fn assert_covers(&self, [m, n, k]: [u64; 3], machines: usize) {
        assert!(self.machines().iter().all(|machine| *machine < machines), "an owner that is no machine");
        if let Self::Cut(side, spans) = self {
            let length = match side {
                ProductSide::Rows => m,
                ProductSide::Cols => n,
                ProductSide::Depth => k,
            };
            let reached = spans.iter().fold(0, |reached, owned| {
                assert_eq!(owned.span.start, reached, "parts of a placed operand have gaps");
                owned.span.end
            });
            assert_eq!(reached, length, "a placed operand has another size than the product");
        }
    }
}

/// The rows, columns or part of k that some cells and steps cover, in elements.
fn elements(side: ProductSide, grid: &Grid, cells: Rect, steps: Span) -> Span {
    let of = |span: Span, each: u64, whole: u64| {
        Span::new((span.start * each).min(whole), (span.end * each).min(whole))
    };
    match side {
        ProductSide::Rows => of(cells.rows, grid.tile_rows, grid.whole_rows()),
        ProductSide::Cols => of(cells.cols, grid.tile_cols, grid.whole_cols()),
        ProductSide::Depth => of(steps, grid.depth, grid.whole_depth()),
    }
}

/// The cells and steps of a span, whose ends are borders of the grid.
fn box_of(side: ProductSide, region: &Region, span: Span) -> Cells3 {
    let grid = &region.grid;
    let of = |each: u64| Span::new(span.start / each, span.end.div_ceil(each));
    let whole = Cells3::whole(region);
    let Rect { rows, cols } = whole.cells;
    match side {
        ProductSide::Rows => Cells3 { cells: Rect::new(of(grid.tile_rows), cols), ..whole },
        ProductSide::Cols => Cells3 { cells: Rect::new(rows, of(grid.tile_cols)), ..whole },
        ProductSide::Depth => Cells3 { steps: of(grid.depth), ..whole },
    }
}

/// The greatest common divisor; that of 0 and x is x.
fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests;
