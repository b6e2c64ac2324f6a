//! The share of each machine in a reduction: each reduces the part of a placed matrix, or of a product with one, that it holds.
//!
//! Place in the flow: `ArrayLayout` tells where the parts are; the primary's shell asks each machine for the shares that it gets
//! here, and merges the answers. The other operand of a product travels in blocks (`travel_blocks`).
//!
//! Invariants: the shares cover the reduced matrix, each element once. A share's machine holds all that it reads of the placed
//! operand. A block is at least one line, whatever the memory.
//!
//! Deliberately absent: sums over the depth. A part that is cut along it has partial products only, which no reduction of its
//! own elements would serve.

use crate::layout::{apportion, known_speeds};
use crate::{ArrayLayout, MissingPart, PartHolder, ProductSide, ShardAxis};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// Bytes of a block: large enough for the kernel, small enough that the first is there soon.
const BLOCK_BYTES: u64 = 32 << 20;
/// A block takes at most this fraction of the memory that its machine has left: two are there at once, beside results.
const BLOCK_PART: u64 = 8;

/// What a placed matrix is to the reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReducedRole {
    /// It is reduced itself.
    Itself,
    /// The left operand of the product that is reduced.
    Left,
    /// The right operand.
    Right,
}

/// The share of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceShare {
    /// Index into the machines of the layout.
    pub machine: usize,
    /// Index of the part in the layout.
    pub part: usize,
    /// The rectangle of the placed operand, transposed if the operand is, that the machine reads.
    pub operand: Rect,
}

/// Why a reduction cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceObjection {
    /// A part's machine is not there.
    Missing(MissingPart),
    /// The parts are cut along the depth of the product.
    CutDepth,
}

impl ArrayLayout {
    /// The shares of a reduction of the array, or of its transpose, or of a product with that. `holders` are the machines of
    /// the layout; one that is not there has no memory.
    pub fn reduce_shares(
        &self,
        transposed: bool,
        role: ReducedRole,
        holders: &[PartHolder],
    ) -> Result<Vec<ReduceShare>, ReduceObjection> {
        let is_there = |machine: usize| holders.get(machine).is_some_and(|holder| holder.memory_bytes > 0);
        if let Some(part) = self.missing(&is_there).first() {
            return Err(ReduceObjection::Missing(MissingPart { part: *part }));
        }
        let oriented = |rect: Rect| if transposed { rect.transposed() } else { rect };
        let Some(axis) = self.axis else { return Ok(self.replica_shares(transposed, role, holders)) };
        let side =
            if (axis == ShardAxis::Rows) != transposed { ProductSide::Rows } else { ProductSide::Cols };
        let serves = match role {
            ReducedRole::Itself => true,
            ReducedRole::Left => side == ProductSide::Rows,
            ReducedRole::Right => side == ProductSide::Cols,
        };
        if !serves {
            return Err(ReduceObjection::CutDepth);
        }
        let share = |(part, placed): (usize, &crate::PlacedPart)| ReduceShare {
            machine: placed.machine,
            part,
            operand: oriented(placed.rect),
        };
        Ok(self.parts.iter().enumerate().map(share).collect())
    }

    /// Replicas share the rows, of a right operand the columns, in proportion to the speeds of their machines.
    fn replica_shares(
        &self,
        transposed: bool,
        role: ReducedRole,
        holders: &[PartHolder],
    ) -> Vec<ReduceShare> {
        let whole = if transposed { self.shape.rect().transposed() } else { self.shape.rect() };
        let is_by_cols = role == ReducedRole::Right;
        let length = if is_by_cols { whole.cols.len() } else { whole.rows.len() };
        let mut room = vec![0; holders.len()];
        for part in &self.parts {
            if holders[part.machine].memory_bytes > 0 {
                room[part.machine] = length;
            }
        }
        let counts = apportion(length, &known_speeds(holders), &room).unwrap_or_default();
        let mut first = 0;
        let mut shares = Vec::new();
        for (part, placed) in self.parts.iter().enumerate() {
            let count = counts.get(placed.machine).copied().unwrap_or(0);
            if count == 0 {
                continue;
            }
            let span = Span::new(first, first + count);
            let operand = if is_by_cols { Rect::new(whole.rows, span) } else { Rect::new(span, whole.cols) };
            shares.push(ReduceShare { machine: placed.machine, part, operand });
            first += count;
        }
        shares
    }
}

/// Which operand of a product may be read where it lies, the better choice first: of two placed operands the larger one, since
/// the other one travels. The sides are the elements of a placed operand, `None` for one that is not placed.
pub fn product_roles(left: Option<u64>, right: Option<u64>) -> Vec<ReducedRole> {
    let both = match left > right {
        true => [(left, ReducedRole::Left), (right, ReducedRole::Right)],
        false => [(right, ReducedRole::Right), (left, ReducedRole::Left)],
    };
    both.into_iter().filter(|(elements, _)| elements.is_some()).map(|(_, role)| role).collect()
}

/// The blocks in which the other operand travels: lines of `line_bytes`, to machines of which the one with the least memory has
/// `memory_bytes` left.
pub fn travel_blocks(lines: u64, line_bytes: u64, memory_bytes: u64) -> Vec<Span> {
    let each = (BLOCK_BYTES.min(memory_bytes / BLOCK_PART) / line_bytes.max(1)).max(1);
    let count = lines.div_ceil(each);
    (0..count).map(|at| Span::new(lines * at / count, lines * (at + 1) / count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Placement, ShardUnits};
    use alloc::string::String;
    use bramble_base::{DType, Shape};
    use proptest::prelude::*;

    fn holders(speeds: &[f64]) -> Vec<PartHolder> {
        let one =
            |gflops: &f64| PartHolder { name: String::from("w"), gflops: *gflops, memory_bytes: 1 << 40 };
        speeds.iter().map(one).collect()
    }

    proptest! {
        /// Shares lie in their parts, and cover the operand once, whatever the cut, the role and the speeds.
        #[test]
        fn shares_cover_the_operand(
            rows in 1u64..3000, cols in 1u64..3000, transposed in any::<bool>(), cut in 0usize..3, role in 0usize..3,
            speeds in proptest::collection::vec(0.1f64..9.0, 1..6), gone in 0usize..8,
        ) {
            let mut all = holders(&speeds);
            let shard = |axis| Placement::Shard(axis, ShardUnits::BySpeed);
            let placement = [Placement::Replicate, shard(ShardAxis::Rows), shard(ShardAxis::Cols)][cut].clone();
            let layout = ArrayLayout::new(Shape::new(rows, cols), DType::F32, &placement, &all).unwrap();
            let role = [ReducedRole::Itself, ReducedRole::Left, ReducedRole::Right][role];
            if let Some(holder) = all.get_mut(gone) {
                holder.memory_bytes = 0;
            }
            let whole = if transposed { layout.shape.rect().transposed() } else { layout.shape.rect() };
            match layout.reduce_shares(transposed, role, &all) {
                Err(ReduceObjection::Missing(missing)) => {
                    prop_assert_eq!(all[layout.parts[missing.part].machine].memory_bytes, 0);
                }
                Err(ReduceObjection::CutDepth) => prop_assert!(cut > 0 && role != ReducedRole::Itself),
                Ok(shares) => {
                    let mut elements = 0;
                    for share in &shares {
                        let stored = if transposed { share.operand.transposed() } else { share.operand };
                        let held = layout.parts[share.part];
                        prop_assert_eq!((share.machine, held.rect.rows.intersect(stored.rows)), (held.machine, stored.rows));
                        prop_assert_eq!(held.rect.cols.intersect(stored.cols), stored.cols);
                        prop_assert!(all[share.machine].memory_bytes > 0);
                        let side = if role == ReducedRole::Left { share.operand.cols } else { whole.cols };
                        prop_assert_eq!(side, whole.cols, "a left operand has all its columns");
                        prop_assert!(role != ReducedRole::Right || share.operand.rows == whole.rows);
                        elements += share.operand.shape().elements().unwrap();
                    }
                    for (at, one) in shares.iter().enumerate() {
                        for other in &shares[..at] {
                            let common = one.operand.rows.intersect(other.operand.rows).len()
                                * one.operand.cols.intersect(other.operand.cols).len();
                            prop_assert_eq!(common, 0);
                        }
                    }
                    prop_assert_eq!(Some(elements), layout.shape.elements());
                }
            }
        }

        #[test]
        fn the_larger_placed_operand_stays(left in proptest::option::of(0u64..9), right in proptest::option::of(0u64..9)) {
            let of = |role: &ReducedRole| if *role == ReducedRole::Left { left } else { right };
            let sizes: Vec<Option<u64>> = product_roles(left, right).iter().map(of).collect();
            prop_assert_eq!(sizes.len(), usize::from(left.is_some()) + usize::from(right.is_some()));
            prop_assert!(sizes.iter().all(Option::is_some) && sizes.is_sorted_by(|a, b| a >= b));
        }

        #[test]
        fn blocks_are_all_lines_in_order(lines in 0u64..100_000, line_bytes in 1u64..1 << 26, memory in 0u64..1 << 34) {
            let blocks = travel_blocks(lines, line_bytes, memory);
            let mut next = 0;
            for block in &blocks {
                prop_assert_eq!(block.start, next);
                prop_assert!(block.len() == 1 || block.len() * line_bytes <= BLOCK_BYTES.min(memory / BLOCK_PART));
                next = block.end;
            }
            prop_assert_eq!(next, lines);
            prop_assert!(blocks.iter().all(|block| !block.is_empty()));
        }
    }
}
