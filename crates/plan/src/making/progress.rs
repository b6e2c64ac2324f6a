//! The rectangles of a part that are not complete, and how far they are.
//!
//! Place in the flow: a part whose making was cut short stays at its machine; the steps that its machine has answered are told to
//! `advance`, and `Making::steps_left` makes the others, also if the operands lie elsewhere by then.
//!
//! Invariants: the regions are disjoint, and every element outside them is complete. All elements of a region have come equally
//! far, and each element still gets its depth in rising order, cut on the lattice: its bits do not depend on where a making was
//! cut short.
//!
//! Deliberately absent: which steps were answered.

use super::{MakingStep, common, contains};
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// A rectangle whose elements have come equally far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnmadeRegion {
    pub(super) rect: Rect,
    /// The next line of the depth of a product.
    pub(super) depth: u64,
    /// Whether it has βC already.
    pub(super) has_added: bool,
}

/// The rectangles of a part that are not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmadePart {
    pub(super) regions: Vec<UnmadeRegion>,
}

impl UnmadePart {
    /// A part of which nothing was made.
    pub fn all_of(rect: Rect) -> Self {
        Self { regions: Vec::from([UnmadeRegion { rect, depth: 0, has_added: false }]) }
    }

    /// Whether the part is complete.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The same within a rectangle only.
    pub fn within(&self, rect: Rect) -> Self {
        let inside =
            |region: &UnmadeRegion| Some(UnmadeRegion { rect: common(region.rect, rect)?, ..*region });
        Self { regions: self.regions.iter().filter_map(inside).collect() }
    }

    /// Whether all of it lies within a rectangle.
    pub fn is_within(&self, rect: Rect) -> bool {
        self.regions.iter().all(|region| contains(rect, region.rect))
    }

    /// A step was done; `depth` is the end of that of the product, 0 for a sum.
    pub fn advance(&mut self, step: &MakingStep, depth: u64) {
        let holds = |region: &UnmadeRegion| common(region.rect, step.rect) == Some(step.rect);
        let Some(at) = self.regions.iter().position(holds) else { return };
        let before = self.regions.remove(at);
        let is_complete = step.depth.end >= depth;
        let after = if step.depth.is_empty() {
            UnmadeRegion { rect: step.rect, has_added: true, ..before }
        } else {
            UnmadeRegion { rect: step.rect, depth: step.depth.end, ..before }
        };
        let rest = around(before.rect, step.rect).into_iter().map(|rect| UnmadeRegion { rect, ..before });
        let new = (!is_complete).then_some(after).into_iter().chain(rest);
        self.regions.splice(at..at, new);
        while self.join_two() {}
    }

    /// Joins two regions that have come equally far and are a rectangle together; false if there are none.
    fn join_two(&mut self) -> bool {
        for at in 0..self.regions.len() {
            for other in at + 1..self.regions.len() {
                let (one, two) = (self.regions[at], self.regions[other]);
                let is_equal = (one.depth, one.has_added) == (two.depth, two.has_added);
                if let Some(rect) = joined(one.rect, two.rect).filter(|_| is_equal) {
                    self.regions[at].rect = rect;
                    self.regions.remove(other);
                    return true;
                }
            }
        }
        false
    }
}

/// The rectangles around an inner one: above, left, right and below.
fn around(outer: Rect, inner: Rect) -> Vec<Rect> {
    let Rect { rows, cols } = inner;
    let all = [
        Rect::new(Span::new(outer.rows.start, rows.start), outer.cols),
        Rect::new(rows, Span::new(outer.cols.start, cols.start)),
        Rect::new(rows, Span::new(cols.end, outer.cols.end)),
        Rect::new(Span::new(rows.end, outer.rows.end), outer.cols),
    ];
    all.into_iter().filter(|rect| !rect.rows.is_empty() && !rect.cols.is_empty()).collect()
}

/// The rectangle that two of them are together.
fn joined(one: Rect, other: Rect) -> Option<Rect> {
    let joint = |a: Span, b: Span| match (a.end == b.start, b.end == a.start) {
        (true, _) => Some(Span::new(a.start, b.end)),
        (_, true) => Some(Span::new(b.start, a.end)),
        _ => None,
    };
    if one.rows == other.rows {
        return Some(Rect::new(one.rows, joint(one.cols, other.cols)?));
    }
    if one.cols == other.cols {
        return Some(Rect::new(joint(one.rows, other.rows)?, one.cols));
    }
    None
}
