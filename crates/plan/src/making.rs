//! How the machines make a new array from others: where the result lies, and the steps of each machine.
//!
//! Place in the flow: the primary's shell describes the operands; the machines that will hold a part of the result get the steps
//! of that part (`Making::steps`). What a machine does not hold comes from the machine that does, or from the primary.
//!
//! Invariants: the steps of a part cover it. Those of a product cover, for each rectangle, the whole depth in rising order. No
//! step needs more of an operand than lies in one part, and blocks that travel have at most the bytes that are asked for, or are
//! one line. Depth is cut on the lattice only, so that products that are summed in pieces of `LATTICE` have the same bits
//! whatever the layout.
//!
//! Deliberately absent: partial sums. Each element of a result is summed at one machine, or by one after another (`pipeline.rs`).

mod pipeline;
mod progress;

pub use self::pipeline::{SumBlock, SumPipeline, SumStage};
pub use self::progress::UnmadePart;
use self::progress::UnmadeRegion;
use crate::layout::{
    ArrayLayout, LATTICE, LayoutError, PartHolder, PlacedPart, Placement, ShardAxis, ShardUnits,
};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{DType, Rect, Shape, Span};

/// What the elements of the result are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakingForm {
    /// αAB, or αAB + βC.
    Product,
    /// αX, or αX + βY.
    Sum,
}

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeOperand {
    /// Its shape as it is used: of a transposed array, that of the transpose.
    pub shape: Shape,
    /// Its parts, turned as it is; none if the primary has it. Machines are those of the result's layout.
    pub parts: Vec<PlacedPart>,
}

/// An array to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Making {
    /// Product or sum.
    pub form: MakingForm,
    /// Element type of operands and result.
    pub dtype: DType,
    /// A and B, or A, B and C; X, or X and Y.
    pub operands: Vec<MadeOperand>,
    /// The columns of A and rows of B that are multiplied; empty for a sum.
    pub depth: Span,
}

/// A part of the result, at its machine.
#[derive(Clone, Copy, Debug)]
pub struct PartOfMaking<'a> {
    /// Its machine.
    pub machine: usize,
    /// Its rectangles that are not complete.
    pub unmade: &'a UnmadePart,
}

/// Where a step finds a piece of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceSource {
    /// In this part, which the machine of the step holds.
    Here(usize),
    /// In this part, which another machine holds.
    There(usize),
    /// At the primary.
    Primary,
}

/// A piece of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadePiece {
    /// Number of the operand.
    pub operand: usize,
    /// The rectangle of the operand, as it is used.
    pub rect: Rect,
    /// Where it is.
    pub source: PieceSource,
}

/// A step: makes a rectangle of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakingStep {
    /// The rectangle.
    pub rect: Rect,
    /// The pieces: of A and B; of C, for the step before those; or of X and Y.
    pub pieces: Vec<MadePiece>,
    /// The columns of A and rows of B of a product; else empty.
    pub depth: Span,
    /// Whether the product is added to what earlier steps have made of the rectangle.
    pub adds: bool,
}

/// Blocks of fewer bytes in all go through the primary: machines would take longer to meet.
const LINKS_LEAST_BYTES: u64 = 1 << 20;

/// Whether machines should pass blocks of that many bytes to each other.
pub fn links_are_worth(bytes: u64) -> bool {
    bytes >= LINKS_LEAST_BYTES
}

/// Whether an operand of the primary that several machines need, `sent_bytes` in all, should be spread over them first, so that
/// it leaves the primary once and they pass the parts to each other.
pub fn spreading_is_worth(operand_bytes: u64, sent_bytes: u64) -> bool {
    let saved = sent_bytes.saturating_sub(operand_bytes);
    saved > operand_bytes / 2 && links_are_worth(saved)
}

/// Whether two machines, the receiver first, can pass blocks to each other.
type Linked<'a> = &'a dyn Fn(usize, usize) -> bool;

impl Making {
    /// Rows and columns of the result.
    pub fn shape(&self) -> Shape {
        match (self.form, &self.operands[..]) {
            (MakingForm::Product, [a, b, ..]) => Shape::new(a.shape.rows, b.shape.cols),
            (_, [x, ..]) => x.shape,
            (_, []) => Shape::new(0, 0),
        }
    }

    /// Where the result lies: as is asked; or else, of the cuts of the operands and one by speed, the one for which the
    /// fewest bytes travel.
    pub fn layout(
        &self,
        placement: Option<&Placement>,
        holders: &[PartHolder],
        block_bytes: u64,
    ) -> Result<ArrayLayout, LayoutError> {
        let (shape, dtype) = (self.shape(), self.dtype);
        if let Some(placement) = placement {
            return ArrayLayout::new(shape, dtype, placement, holders);
        }
        let longer = if shape.rows > shape.cols { ShardAxis::Rows } else { ShardAxis::Cols };
        let by_speed = Placement::Shard(longer, ShardUnits::BySpeed);
        let fresh = ArrayLayout::new(shape, dtype, &by_speed, holders);
        let has_room = |layout: &ArrayLayout| {
            (0..holders.len()).all(|machine| {
                let own = layout.parts.iter().filter(|part| part.machine == machine);
                own.map(|part| layout.part_bytes(part)).fold(0, u64::saturating_add)
                    <= holders[machine].memory_bytes
            })
        };
        let mut candidates: Vec<ArrayLayout> = self.inherited().into_iter().filter(has_room).collect();
        match fresh {
            Ok(fresh) => candidates.push(fresh),
            Err(e) if candidates.is_empty() => return Err(e),
            Err(_) => {}
        }
        let travel = |layout: &ArrayLayout| {
            let of = |part: &PlacedPart| {
                let unmade = &UnmadePart::all_of(part.rect);
                self.travel_to(PartOfMaking { machine: part.machine, unmade }, block_bytes)
            };
            layout.parts.iter().map(of).fold(0, u64::saturating_add)
        };
        // The first of equals.
        let least = candidates
            .into_iter()
            .map(|layout| (travel(&layout), layout))
            .reduce(|best, next| if next.0 < best.0 { next } else { best });
        least.map(|(_, layout)| layout).ok_or(LayoutError::Shape(shape))
    }

    /// The layouts that the cuts of the operands suggest.
    fn inherited(&self) -> Vec<ArrayLayout> {
        let shape = self.shape();
        let layout =
            |axis: Option<ShardAxis>, parts: &[PlacedPart], rect: &dyn Fn(Rect) -> Rect| ArrayLayout {
                shape,
                dtype: self.dtype,
                axis,
                parts: parts.iter().map(|part| PlacedPart { rect: rect(part.rect), ..*part }).collect(),
            };
        let all = shape.rect();
        let mut found = Vec::new();
        for (at, operand) in self.operands.iter().enumerate() {
            let cut = operand.cut();
            found.extend(match (self.form, at, cut) {
                (_, _, OperandCut::None) | (MakingForm::Product, _, OperandCut::Replicas) => None,
                (MakingForm::Sum, _, OperandCut::Replicas) => Some(layout(None, &operand.parts, &|_| all)),
                (MakingForm::Sum, _, OperandCut::Along(axis)) => {
                    Some(layout(Some(axis), &operand.parts, &|rect| rect))
                }
                (MakingForm::Product, 0, OperandCut::Along(ShardAxis::Rows)) => {
                    Some(layout(Some(ShardAxis::Rows), &operand.parts, &|rect| {
                        Rect::new(rect.rows, all.cols)
                    }))
                }
                (MakingForm::Product, 1, OperandCut::Along(ShardAxis::Cols)) => {
                    Some(layout(Some(ShardAxis::Cols), &operand.parts, &|rect| {
                        Rect::new(all.rows, rect.cols)
                    }))
                }
                (MakingForm::Product, 2, OperandCut::Along(axis)) => {
                    Some(layout(Some(axis), &operand.parts, &|rect| rect))
                }
                (MakingForm::Product, _, OperandCut::Along(_)) => None,
            });
        }
        found
    }

    /// An array to be made as a whole.
    pub fn new(form: MakingForm, dtype: DType, operands: Vec<MadeOperand>) -> Self {
        let depth = match form {
            MakingForm::Product => operands.first().map_or(0, |a| a.shape.cols),
            MakingForm::Sum => 0,
        };
        Self { form, dtype, operands, depth: Span::new(0, depth) }
    }

    /// The steps that make a part of the result at its machine.
    pub fn steps(&self, part: &PlacedPart, linked: Linked<'_>, block_bytes: u64) -> Vec<MakingStep> {
        self.steps_left(part.machine, &UnmadePart::all_of(part.rect), linked, block_bytes)
    }

    /// The steps that are left of a part at a machine.
    pub fn steps_left(
        &self,
        machine: usize,
        unmade: &UnmadePart,
        linked: Linked<'_>,
        block_bytes: u64,
    ) -> Vec<MakingStep> {
        let most = (block_bytes / self.dtype.size_bytes() as u64).max(1);
        let at = |region: &UnmadeRegion| PlacedPart { machine, rect: region.rect };
        let regions = unmade.regions.iter();
        match (self.form, &self.operands[..]) {
            (MakingForm::Product, [a, b, added @ ..]) => {
                let without = regions.clone().filter(|region| !region.has_added);
                let mut steps: Vec<MakingStep> =
                    without.flat_map(|region| sum_steps(added, 2, &at(region), linked, most)).collect();
                let product = regions.flat_map(|region| {
                    product_steps([a, b], &at(region), self.left_of(region), linked, most)
                });
                steps.extend(product.map(|step| MakingStep { adds: step.adds || !added.is_empty(), ..step }));
                steps
            }
            _ => regions.flat_map(|region| sum_steps(&self.operands, 0, &at(region), linked, most)).collect(),
        }
    }

    /// Bytes that come to the machine of a part, if all machines are linked.
    fn travel_to(&self, part: PartOfMaking<'_>, block_bytes: u64) -> u64 {
        travel_bytes(&self.steps_left(part.machine, part.unmade, &|_, _| true, block_bytes), self.dtype)
    }

    /// The lines of the depth that a region still needs.
    fn left_of(&self, region: &UnmadeRegion) -> Span {
        Span::new(region.depth.max(self.depth.start), self.depth.end)
    }
}

impl Making {
    /// How an operand is spread: between the lines of its depth, so that each step of a product needs one part.
    pub fn spread(&self, operand: usize, holders: &[PartHolder]) -> Result<ArrayLayout, LayoutError> {
        let axis = match (self.form, operand) {
            (MakingForm::Product, 0) => ShardAxis::Cols,
            _ => ShardAxis::Rows,
        };
        let units = holders.iter().map(|holder| u64::from(holder.memory_bytes > 0)).collect();
        let placement = Placement::Shard(axis, ShardUnits::Stated(units));
        ArrayLayout::new(self.operands[operand].shape, self.dtype, &placement, holders)
    }
}

/// How the parts of an operand lie.
enum OperandCut {
    /// It has none.
    None,
    Replicas,
    Along(ShardAxis),
}

impl MadeOperand {
    fn cut(&self) -> OperandCut {
        let whole = self.shape.rect();
        match self.parts.first() {
            None => OperandCut::None,
            // A single part that is the whole array counts as a cut, not as a replica.
            Some(first) if first.rect == whole && self.parts.len() > 1 => OperandCut::Replicas,
            Some(first) if first.rect.cols == whole.cols => OperandCut::Along(ShardAxis::Rows),
            Some(_) => OperandCut::Along(ShardAxis::Cols),
        }
    }

    /// Where a machine finds a region of the operand.
    fn way(&self, machine: usize, region: Rect, linked: Linked<'_>) -> Way {
        let own = |(_, part): &(usize, &PlacedPart)| part.machine == machine && contains(part.rect, region);
        if let Some((part, _)) = self.parts.iter().enumerate().find(own) {
            return Way::Here(part);
        }
        let is_reached = |part: &PlacedPart| part.machine == machine || linked(machine, part.machine);
        let needed = self.parts.iter().filter(|part| common(part.rect, region).is_some());
        if !self.parts.is_empty() && needed.clone().all(is_reached) { Way::Parts } else { Way::Primary }
    }

    /// The source of a piece, which lies in one part unless the primary has it.
    fn piece(&self, operand: usize, way: &Way, machine: usize, rect: Rect) -> MadePiece {
        let source = match way {
            Way::Here(part) => PieceSource::Here(*part),
            Way::Primary => PieceSource::Primary,
            Way::Parts => {
                let mut holding = self.parts.iter().enumerate().filter(|(_, part)| contains(part.rect, rect));
                let own = holding.clone().find(|(_, part)| part.machine == machine);
                match (own, holding.next()) {
                    (Some((part, _)), _) => PieceSource::Here(part),
                    (None, Some((part, _))) => PieceSource::There(part),
                    (None, None) => PieceSource::Primary,
                }
            }
        };
        MadePiece { operand, rect, source }
    }

    /// Where a side of the region has to be cut, so that each piece lies in one part.
    fn borders(&self, way: &Way, side: fn(Rect) -> Span) -> Vec<u64> {
        match way {
            Way::Parts => self.parts.iter().map(|part| side(part.rect).start).collect(),
            Way::Here(_) | Way::Primary => Vec::new(),
        }
    }
}

/// How a machine gets an operand.
enum Way {
    /// All that it needs is in this part, which it holds.
    Here(usize),
    /// Pieces of it are here, and others at other machines.
    Parts,
    /// From the primary.
    Primary,
}

impl Way {
    fn may_travel(&self) -> bool {
        !matches!(self, Self::Here(_))
    }
}

/// The steps of a product of some lines of the depth.
fn product_steps(
    [a, b]: [&MadeOperand; 2],
    part: &PlacedPart,
    depth: Span,
    linked: Linked<'_>,
    most: u64,
) -> Vec<MakingStep> {
    let Rect { rows, cols } = part.rect;
    let way_a = a.way(part.machine, Rect::new(rows, depth), linked);
    let way_b = b.way(part.machine, Rect::new(depth, cols), linked);
    // Blocks that travel: as deep as they may be, and if that is less than the lattice, less wide.
    let wide = most / LATTICE.min(depth.len()).max(1);
    let limit =
        |way: &Way, side: Span| if way.may_travel() { wide.clamp(1, side.len().max(1)) } else { side.len() };
    let (down, across) = (limit(&way_a, rows), limit(&way_b, cols));
    let deep = |way: &Way, side: u64| if way.may_travel() { most / side.max(1) } else { u64::MAX };
    let deepest = deep(&way_a, down).min(deep(&way_b, across));
    let each = (deepest / LATTICE).max(1).saturating_mul(LATTICE);
    let row_cuts = cuts(rows, a.borders(&way_a, |rect| rect.rows), down);
    let col_cuts = cuts(cols, b.borders(&way_b, |rect| rect.cols), across);
    let mut borders = a.borders(&way_a, |rect| rect.cols);
    borders.extend(b.borders(&way_b, |rect| rect.rows));
    let depth_cuts = cuts(depth, borders, each);
    let mut steps = Vec::new();
    for rows in &row_cuts {
        for cols in &col_cuts {
            for depth in &depth_cuts {
                let left = a.piece(0, &way_a, part.machine, Rect::new(*rows, *depth));
                let right = b.piece(1, &way_b, part.machine, Rect::new(*depth, *cols));
                let (rect, adds) = (Rect::new(*rows, *cols), depth.start > 0);
                steps.push(MakingStep { rect, pieces: vec![left, right], depth: *depth, adds });
            }
        }
    }
    steps
}

/// The steps of a sum of operands, of which the first has that number.
fn sum_steps(
    operands: &[MadeOperand],
    first: usize,
    part: &PlacedPart,
    linked: Linked<'_>,
    most: u64,
) -> Vec<MakingStep> {
    if operands.is_empty() {
        return Vec::new();
    }
    let Rect { rows, cols } = part.rect;
    let ways: Vec<Way> =
        operands.iter().map(|operand| operand.way(part.machine, part.rect, linked)).collect();
    let all = |side: fn(Rect) -> Span| -> Vec<u64> {
        operands.iter().zip(&ways).flat_map(|(operand, way)| operand.borders(way, side)).collect()
    };
    let travels = ways.iter().any(Way::may_travel);
    let across = if travels { most.min(cols.len()).max(1) } else { cols.len() };
    let down = if travels { (most / across).clamp(1, rows.len().max(1)) } else { rows.len() };
    let (row_cuts, col_cuts) =
        (cuts(rows, all(|rect| rect.rows), down), cuts(cols, all(|rect| rect.cols), across));
    let places = row_cuts.iter().flat_map(|rows| col_cuts.iter().map(|cols| Rect::new(*rows, *cols)));
    let step = |rect: Rect| {
        let piece = |(at, (operand, way)): (usize, (&MadeOperand, &Way))| {
            operand.piece(first + at, way, part.machine, rect)
        };
        let pieces = operands.iter().zip(&ways).enumerate().map(piece);
        MakingStep { rect, pieces: pieces.collect(), depth: Span::new(0, 0), adds: false }
    };
    places.map(step).collect()
}

/// A span, cut at the borders within it and into pieces of at most `each`.
fn cuts(span: Span, mut borders: Vec<u64>, each: u64) -> Vec<Span> {
    borders.retain(|border| *border > span.start && *border < span.end);
    borders.push(span.end);
    borders.sort_unstable();
    borders.dedup();
    let (mut found, mut from) = (Vec::new(), span.start);
    for border in borders {
        while from < border {
            let to = from.saturating_add(each.max(1)).min(border);
            found.push(Span::new(from, to));
            from = to;
        }
    }
    found
}

fn contains(outer: Rect, inner: Rect) -> bool {
    common(outer, inner) == Some(inner)
}

fn common(one: Rect, other: Rect) -> Option<Rect> {
    let both = Rect::new(one.rows.intersect(other.rows), one.cols.intersect(other.cols));
    (!both.rows.is_empty() && !both.cols.is_empty()).then_some(both)
}

/// Bytes that come to the machine of the steps.
pub fn travel_bytes(steps: &[MakingStep], dtype: DType) -> u64 {
    let pieces = steps.iter().flat_map(|step| &step.pieces);
    let travelling = pieces.filter(|piece| !matches!(piece.source, PieceSource::Here(_)));
    let bytes = travelling.map(|piece| piece.rect.shape().bytes(dtype).unwrap_or(u64::MAX));
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
