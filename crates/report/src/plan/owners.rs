//! Which machine computes which part of C and k, in elements, for the picture and the JSON object of a plan.
//!
//! Invariants: every (row, column, k) has exactly one owner, since every (tile, step) is in exactly one block.
//! Machines are identified by their member index in the plan.

use bramble_matrix::{Rect, Span};
use bramble_plan::{Plan, Region, Share};

/// Looks up the owner of an element at a depth.
pub(crate) struct Owners<'a> {
    plan: &'a Plan,
    /// The owned pieces of each region; consecutive shares of one member along k are merged into one piece.
    regions: Vec<Vec<Piece>>,
}

#[derive(Clone, Copy)]
struct Piece {
    cells: Rect,
    steps: Span,
    member: usize,
}

impl<'a> Owners<'a> {
    pub(crate) fn of(plan: &'a Plan) -> Self {
        let mut regions = vec![Vec::<Piece>::new(); plan.regions.len()];
        for (number, member) in plan.members.iter().enumerate() {
            for share in &member.shares {
                let pieces = &mut regions[share.region];
                match pieces.last_mut() {
                    Some(last)
                        if last.member == number
                            && last.cells == share.cells
                            && last.steps.end == share.steps.start =>
                    {
                        last.steps.end = share.steps.end;
                    }
                    _ => pieces.push(Piece { cells: share.cells, steps: share.steps, member: number }),
                }
            }
        }
        Self { plan, regions }
    }

    /// The member that multiplies for C(row, col) at depth k.
    pub(crate) fn at(&self, row: u64, col: u64, k: u64) -> Option<usize> {
        self.plan.regions.iter().zip(&self.regions).find_map(|(region, pieces)| {
            let (i, j, step) = place(region, row, col, k)?;
            let holds =
                |p: &&Piece| p.cells.rows.contains(i) && p.cells.cols.contains(j) && p.steps.contains(step);
            pieces.iter().find(holds).map(|p| p.member)
        })
    }

    /// The spans of k, in steps of the first region, within which no owner changes.
    pub(crate) fn layers(&self) -> Vec<Span> {
        let Some(pieces) = self.regions.first() else { return Vec::new() };
        let mut cuts: Vec<u64> = pieces.iter().flat_map(|p| [p.steps.start, p.steps.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| Span::new(w[0], w[1])).collect()
    }

    /// A depth k inside a layer.
    pub(crate) fn k_of(&self, layer: Span) -> u64 {
        self.plan.regions.first().map_or(0, |r| r.a_panel(0, layer.start, 0, 0).cols.start)
    }
}

/// The cell and the step of an element and a depth; `None` outside the region.
fn place(region: &Region, row: u64, col: u64, k: u64) -> Option<(u64, u64, u64)> {
    let (row, col) = (row.checked_sub(region.row)?, col.checked_sub(region.col)?);
    let grid = &region.grid;
    let (rows, cols, depth) = (grid.whole_rows(), grid.whole_cols(), grid.whole_depth());
    if row >= rows * region.q() || col >= cols * region.q() {
        return None;
    }
    let step = if k >= depth * region.q() { grid.steps() } else { k % depth / grid.depth };
    Some((row % rows / grid.tile_rows, col % cols / grid.tile_cols, step))
}

/// A box of elements: a rectangle of C, and a part of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnedBox {
    pub(crate) rows: Span,
    pub(crate) cols: Span,
    pub(crate) k: Span,
}

/// The boxes of a share: one, or, with levels of Strassen's method, one for each tile of its cells.
pub(crate) fn parts(region: &Region, share: &Share) -> impl Iterator<Item = OwnedBox> {
    let (region, cells, depths) = (*region, share.cells, depths(region, share.steps));
    let (last_row, last_col) = (cells.rows.end.saturating_sub(1), cells.cols.end.saturating_sub(1));
    let places = (0..region.q()).flat_map(move |u| (0..region.q()).map(move |v| (u, v)));
    let places = places.take(if cells.rows.is_empty() || cells.cols.is_empty() { 0 } else { usize::MAX });
    places.flat_map(move |(u, v)| {
        let first = region.tile(cells.rows.start, cells.cols.start, u, v);
        let last = region.tile(last_row, last_col, u, v);
        let rows = Span::new(first.rows.start, last.rows.end);
        let cols = Span::new(first.cols.start, last.cols.end);
        depths.clone().into_iter().map(move |k| OwnedBox { rows, cols, k })
    })
}

/// The spans of k that a span of steps covers.
fn depths(region: &Region, steps: Span) -> Vec<Span> {
    let grid = &region.grid;
    let (part, all) = (grid.whole_depth(), grid.steps());
    let mut spans: Vec<Span> = if steps.start == 0 && steps.end >= all {
        vec![Span::new(0, part * region.q())]
    } else if steps.start < all {
        let end = grid.step_span(steps.end.min(all) - 1).end;
        let start = grid.step_span(steps.start).start;
        (0..region.q()).map(|w| Span::new(w * part + start, w * part + end)).collect()
    } else {
        Vec::new()
    };
    if region.rim > 0 && steps.end > all {
        let rim = Span::new(part * region.q(), part * region.q() + region.rim);
        match spans.last_mut() {
            Some(last) if last.end == rim.start => last.end = rim.end,
            _ => spans.push(rim),
        }
    }
    spans.retain(|s| !s.is_empty());
    spans
}

#[cfg(test)]
pub(crate) mod tests;
