//! Products whose depth is divided among machines: sums that pass from machine to machine.
//!
//! Place in the flow: if each machine holds the same lines of the depth of A and of B, as for Xᵀ Y with X and Y cut between rows,
//! the result is much smaller than the operands. Each block of it is summed at the first machine, passes to the next, which adds
//! its own lines, and so on; the last sum goes to the machine that holds the block. Several blocks are under way at once.
//!
//! Invariants: the stages cover the depth once, in rising order, so the bits are those of a sum at one machine. The blocks cover
//! the rectangles that are not complete once. Each machine holds the lines of its stage of both operands.
//!
//! Deliberately absent: products to which a C is added; sums in another order, which would keep all machines busy from the first
//! block on, with other bits for each number of machines.

use super::{MadeOperand, Making, MakingForm, PartOfMaking, contains, cuts};
use crate::layout::PlacedPart;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// Blocks for each stage, if they are not too small: of b blocks and s stages, machines compute in b of b + s rounds.
const BLOCKS_A_STAGE: u64 = 4;
/// Multiplications of a block at a stage, at least, unless the product has fewer: fewer take less time than a round's messages.
const BLOCK_WORK_LEAST: u64 = 1 << 20;

/// A machine that adds its lines of the depth to each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumStage {
    /// The machine.
    pub machine: usize,
    /// The lines.
    pub depth: Span,
}

/// A block of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumBlock {
    /// Index of its part among those to make.
    pub part: usize,
    /// The rectangle.
    pub rect: Rect,
}

/// The stages of a product, and the blocks that pass through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumPipeline {
    /// In the order of the depth.
    pub stages: Vec<SumStage>,
    /// In the order in which they begin.
    pub blocks: Vec<SumBlock>,
}

impl SumPipeline {
    /// Pairs of machines between which blocks pass, the receiver first.
    pub fn pairs(&self, parts: &[PartOfMaking<'_>]) -> Vec<(usize, usize)> {
        let steps = self.stages.windows(2).map(|two| (two[1].machine, two[0].machine));
        let last = self.stages.last().map(|stage| stage.machine);
        let home = parts.iter().filter_map(|part| Some((part.machine, last?)));
        steps.chain(home).filter(|(to, from)| to != from).collect()
    }

    /// The block that is at a stage in a round; the stage after the last takes it to its machine.
    pub fn block_at(&self, round: usize, stage: usize) -> Option<SumBlock> {
        self.blocks.get(round.checked_sub(stage)?).copied()
    }

    /// The rounds until the last block is at its machine.
    pub fn rounds(&self) -> usize {
        self.blocks.len() + self.stages.len()
    }
}

impl Making {
    /// The pipeline for parts of the result, if both operands are cut along the depth at the same machines and that lets at most
    /// half the bytes travel, and no rectangle is begun.
    pub fn pipeline(&self, parts: &[PartOfMaking<'_>], block_bytes: u64) -> Option<SumPipeline> {
        let (MakingForm::Product, [a, b]) = (self.form, &self.operands[..]) else { return None };
        let stages = stages(a, b, self.depth)?;
        let left: Vec<SumBlock> = parts
            .iter()
            .enumerate()
            .flat_map(|(part, one)| one.unmade.regions.iter().map(move |region| (part, region)))
            .map(|(part, region)| {
                let is_untouched = region.depth == 0 && !region.has_added;
                is_untouched.then_some(SumBlock { part, rect: region.rect })
            })
            .collect::<Option<_>>()?;
        let elements = |rect: Rect| rect.shape().elements().unwrap_or(u64::MAX);
        let all = left.iter().map(|block| elements(block.rect)).fold(0, u64::saturating_add);
        let size = self.dtype.size_bytes() as u64;
        let hops = stages.len() as u64;
        let passing = all.saturating_mul(size).saturating_mul(hops);
        let otherwise =
            parts.iter().map(|one| self.travel_to(*one, block_bytes)).fold(0, u64::saturating_add);
        if hops < 2 || passing.saturating_mul(2) > otherwise {
            return None;
        }
        let least = BLOCK_WORK_LEAST * hops / self.depth.len().max(1);
        let each = (all / (BLOCKS_A_STAGE * hops)).max(least).min(block_bytes / size).max(1);
        let blocks = left.into_iter().flat_map(|SumBlock { part, rect }| {
            let across = each.min(rect.cols.len()).max(1);
            let cols = cuts(rect.cols, Vec::new(), across);
            let rows = cuts(rect.rows, Vec::new(), (each / across).max(1));
            let places = rows.into_iter().flat_map(move |rows| {
                cols.clone().into_iter().map(move |cols| SumBlock { part, rect: Rect::new(rows, cols) })
            });
            places.collect::<Vec<_>>()
        });
        Some(SumPipeline { stages, blocks: blocks.collect() })
    }
}

/// The machines that hold the same lines of the depth of both operands; `None` if some lines lie at two machines.
fn stages(a: &MadeOperand, b: &MadeOperand, depth: Span) -> Option<Vec<SumStage>> {
    let borders = a.parts.iter().map(|part| part.rect.cols.start);
    let borders = borders.chain(b.parts.iter().map(|part| part.rect.rows.start)).collect();
    let mut stages: Vec<SumStage> = Vec::new();
    for lines in cuts(depth, borders, u64::MAX) {
        let of_a = Rect::new(Span::new(0, a.shape.rows), lines);
        let of_b = Rect::new(lines, Span::new(0, b.shape.cols));
        let holds = |parts: &[PlacedPart], machine: usize, rect: Rect| {
            parts.iter().any(|part| part.machine == machine && contains(part.rect, rect))
        };
        let holder = a
            .parts
            .iter()
            .find(|part| holds(&a.parts, part.machine, of_a) && holds(&b.parts, part.machine, of_b))?;
        match stages.last_mut().filter(|stage| stage.machine == holder.machine) {
            Some(stage) => stage.depth = Span::new(stage.depth.start, lines.end),
            None => stages.push(SumStage { machine: holder.machine, depth: lines }),
        }
    }
    Some(stages)
}
