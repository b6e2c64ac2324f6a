//! The placed matrices (*arrays*) of a cluster: which machine holds which part, and what the operands of a product are.
//!
//! Place in the flow: `placing.rs` fills this registry; it tells a product the operands that are read in place, and
//! the share of each machine (`Ownership`).
//!
//! Invariants: a part is recorded when its machine has confirmed it. The number of a part is never used twice. The source of an
//! array stays: a lost part is put again from it, and products are verified against it.
//!
//! Deliberately absent: sending parts.

use super::putting::Held;
use super::{MakeSubject, PartReport, PutReport};
use crate::inspector::{LazySketch, OperandSketch};
use crate::product::{ProductOperand, Request};
use bramble_matrix::{Digest128, Matrix, Rect, Shape};
use bramble_plan::{ArrayLayout, Ownership, PlacedPart};
use bramble_sessions::PrimaryError;
use bramble_verify::{KnownSums, LazyLines, SourceExpression};
use bramble_wire::message::ResidentView;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Names a placed matrix of a cluster. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrayId(u64);

/// A placed matrix as an operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedOperand {
    /// The matrix.
    pub array: ArrayId,
    /// Whether the operand is its transpose.
    pub transposed: bool,
}

/// A part that its machine holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedPart {
    /// Its number at its machine. Replicas of an array share one.
    pub(crate) number: u64,
    /// Its digest, as the machine computed it.
    pub(crate) digest: Digest128,
}

/// A placed matrix.
pub(crate) struct PlacedArray {
    /// Where its elements come from. Of an array that was made it has no elements.
    pub(crate) source: Matrix,
    pub(crate) layout: ArrayLayout,
    /// Number and digest of each part of the layout, in its order.
    pub(crate) parts: Vec<RecordedPart>,
    /// The connection of each machine of the layout, by its number.
    pub(crate) holders: Vec<u64>,
    /// Sketches of the matrix and of its transpose, for the check of products.
    pub(crate) sketches: [Arc<LazySketch>; 2],
    /// The sums of the rows of the matrix and of its transpose, for the check of reductions.
    pub(crate) lines: [LazyLines; 2],
    /// The array as an expression of matrices that this process can read.
    pub(crate) expression: Arc<SourceExpression>,
    /// The operation that made it; `None` for an array that was put.
    pub(crate) made: Option<Rc<MakeSubject>>,
}

impl PlacedArray {
    /// A matrix that this process can read, and whose parts are on the machines with these connections.
    pub(crate) fn put(source: Matrix, layout: ArrayLayout, held: Vec<Held>, holders: Vec<u64>) -> Self {
        let (parts, recorded) = held.into_iter().unzip();
        let lines: [LazyLines; 2] = Default::default();
        Self {
            expression: Arc::new(SourceExpression::Leaf(source.clone(), Some(lines.clone()))),
            source,
            layout: ArrayLayout { parts, ..layout },
            parts: recorded,
            holders,
            sketches: Default::default(),
            lines,
            made: None,
        }
    }

    /// Where it lies, for the user. `names` are those of the machines of its layout.
    pub(crate) fn report(
        &self,
        names: &[String],
        lost: Vec<String>,
        bytes_sent: u64,
        seconds: f64,
    ) -> PutReport {
        let ArrayLayout { shape, dtype, axis, .. } = self.layout;
        let part = |part: &PlacedPart| PartReport {
            machine: names[part.machine].clone(),
            rect: part.rect,
            bytes: part.rect.shape().bytes(dtype).unwrap_or(u64::MAX),
        };
        let parts = self.layout.parts.iter().map(part).collect();
        PutReport { shape, dtype, axis, parts, lost, bytes_sent, seconds }
    }

    /// The array has passed its check: these are the sums of its rows and columns.
    pub(crate) fn passed(&mut self, lines: [Arc<KnownSums>; 2]) {
        self.expression = Arc::new(self.expression.passed(lines));
    }

    /// The error if the machine of a part is lost.
    pub(crate) fn lost(&self, part: usize) -> PrimaryError {
        let shape = self.layout.shape;
        let rect = self.layout.parts.get(part).map_or_else(|| shape.rect(), |part| part.rect);
        PrimaryError::PartLost(format!(
            "{} of the placed matrix {} was on a machine that is lost",
            place_of(rect, shape),
            self.source.name()
        ))
    }

    /// The connection of a part's machine.
    pub(crate) fn holder(&self, part: &PlacedPart) -> u64 {
        self.holders[part.machine]
    }

    /// The machine of the layout with that connection; a new one if it has none.
    pub(crate) fn machine_of(&mut self, connection: u64) -> usize {
        let known = self.holders.iter().position(|holder| *holder == connection);
        known.unwrap_or_else(|| {
            self.holders.push(connection);
            self.holders.len() - 1
        })
    }

    /// Replaces a part by others; without others, the part is dropped.
    pub(crate) fn replace(&mut self, part: usize, by: Vec<(PlacedPart, RecordedPart)>) {
        let (parts, recorded): (Vec<_>, Vec<_>) = by.into_iter().unzip();
        self.layout.parts.splice(part..=part, parts);
        self.parts.splice(part..=part, recorded);
    }

    /// Drops the replicas of machines that are gone.
    pub(crate) fn keep_replicas(&mut self, is_there: &dyn Fn(u64) -> bool) {
        let recorded = std::mem::take(&mut self.parts);
        let all = std::mem::take(&mut self.layout.parts).into_iter().zip(recorded);
        (self.layout.parts, self.parts) = all.filter(|(part, _)| is_there(self.holder(part))).unzip();
    }

    /// The connections of all machines with a part, and the numbers of their parts.
    pub(crate) fn numbers(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut numbers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (part, recorded) in self.layout.parts.iter().zip(&self.parts) {
            numbers.entry(self.holder(part)).or_default().push(recorded.number);
        }
        numbers
    }
}

/// All placed matrices of a cluster.
#[derive(Default)]
pub(crate) struct PlacedArrays {
    arrays: BTreeMap<ArrayId, PlacedArray>,
    /// The last number of an array or a part.
    last: u64,
}

impl PlacedArrays {
    /// A number that no array and no part has had.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records an array.
    pub(crate) fn add(&mut self, array: PlacedArray) -> ArrayId {
        let id = ArrayId(self.number());
        self.arrays.insert(id, array);
        id
    }

    pub(crate) fn get(&self, id: ArrayId) -> Result<&PlacedArray, PrimaryError> {
        self.arrays.get(&id).ok_or_else(|| {
            PrimaryError::Operands("a placed matrix that was freed is used: place it again".to_owned())
        })
    }

    pub(crate) fn get_mut(&mut self, id: ArrayId) -> Option<&mut PlacedArray> {
        self.arrays.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: ArrayId) -> Option<PlacedArray> {
        self.arrays.remove(&id)
    }

    /// The number of arrays.
    pub(crate) fn len(&self) -> usize {
        self.arrays.len()
    }

    /// The names of all arrays.
    pub(crate) fn ids(&self) -> Vec<ArrayId> {
        self.arrays.keys().copied().collect()
    }
}

/// The operands of a product that are read where they lie.
#[derive(Clone, Copy)]
pub(crate) struct ResidentOperands {
    pub(crate) left: Option<PlacedOperand>,
    pub(crate) right: Option<PlacedOperand>,
}

impl ResidentOperands {
    /// Those of a request; `None` if neither is. Of two that do not lie together, the larger one is read in place,
    /// and the smaller one is sent from its source.
    pub(crate) fn of(request: &Request, arrays: &PlacedArrays) -> Result<Option<Self>, PrimaryError> {
        fits(&request.a, arrays)?;
        fits(&request.b, arrays)?;
        let both = Self { left: request.a.placed, right: request.b.placed };
        let connections: Vec<u64> = both.connections(arrays)?.into_iter().collect();
        let (left, right) = match (both.left, both.right) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) if both.ownership(arrays, &connections)?.is_none() => {
                let elements = |operand: &ProductOperand| operand.matrix.shape().elements();
                let keeps_left = elements(&request.a) > elements(&request.b);
                (both.left.filter(|_| keeps_left), both.right.filter(|_| !keeps_left))
            }
            both => both,
        };
        Ok(Some(Self { left, right }))
    }

    /// The connections of all machines that hold a part of these operands.
    fn connections(&self, arrays: &PlacedArrays) -> Result<BTreeSet<u64>, PrimaryError> {
        let mut connections = BTreeSet::new();
        for operand in [self.left, self.right].into_iter().flatten() {
            connections.extend(arrays.get(operand.array)?.numbers().into_keys());
        }
        Ok(connections)
    }

    /// Which part of the product each machine can compute; `machines` are their connections. `None` if the operands do not lie
    /// together. An error if a part's machine is not among them.
    pub(crate) fn ownership(
        &self,
        arrays: &PlacedArrays,
        machines: &[u64],
    ) -> Result<Option<Ownership>, PrimaryError> {
        let of = |operand: Option<PlacedOperand>, is_left: bool| {
            let Some(PlacedOperand { array, transposed }) = operand else { return Ok(None) };
            let array = arrays.get(array)?;
            let number = |machine: usize| machines.iter().position(|known| *known == array.holders[machine]);
            let ownership = if is_left {
                Ownership::of_left(&array.layout, transposed, &number)
            } else {
                Ownership::of_right(&array.layout, transposed, &number)
            };
            let lost = |missing: bramble_plan::MissingPart| array.lost(missing.part);
            ownership.map(Some).map_err(lost)
        };
        Ok(match (of(self.left, true)?, of(self.right, false)?) {
            (Some(left), Some(right)) => left.meet(right),
            (one, other) => one.or(other),
        })
    }

    /// The same without regard to lost machines, to know the size of tiles before any machine is asked.
    pub(crate) fn expected_ownership(&self, arrays: &PlacedArrays) -> Result<Ownership, PrimaryError> {
        let connections: Vec<u64> = self.connections(arrays)?.into_iter().collect();
        let ownership = self.ownership(arrays, &connections)?;
        ownership.ok_or_else(|| PrimaryError::Operands("two placed matrices do not lie together".to_owned()))
    }

    /// The panels of the left and of the right operand.
    pub(crate) fn panels(&self, arrays: &PlacedArrays) -> Result<[Option<ResidentPanels>; 2], PrimaryError> {
        let of = |operand: Option<PlacedOperand>| -> Result<Option<ResidentPanels>, PrimaryError> {
            let Some(PlacedOperand { array, transposed }) = operand else { return Ok(None) };
            let array = arrays.get(array)?;
            let parts = array.layout.parts.iter().zip(&array.parts);
            let parts = parts.map(|(part, recorded)| (part.rect, recorded.number)).collect();
            Ok(Some(ResidentPanels { parts, transposed }))
        };
        Ok([of(self.left)?, of(self.right)?])
    }
}

/// The sketch of a placed operand, the right one if both are.
pub(crate) fn sketch_of(request: &Request, arrays: &PlacedArrays) -> Option<OperandSketch> {
    let (operand, is_of_left) = match (request.b.placed, request.a.placed) {
        (Some(right), _) => (right, false),
        (None, left) => (left?, true),
    };
    let array = arrays.get(operand.array).ok()?;
    // For a left operand it is the sketch of Aᵀ.
    let is_turned = operand.transposed != is_of_left;
    Some(OperandSketch { sketch: array.sketches[usize::from(is_turned)].clone(), is_of_left })
}

/// Checks that an operand is the array that it claims to be.
pub(super) fn fits(operand: &ProductOperand, arrays: &PlacedArrays) -> Result<(), PrimaryError> {
    let Some(PlacedOperand { array, transposed }) = operand.placed else { return Ok(()) };
    let ArrayLayout { shape, dtype, .. } = arrays.get(array)?.layout;
    let shape = if transposed { shape.transposed() } else { shape };
    let (of, name) = (&operand.matrix, operand.matrix.name());
    if of.dtype() != dtype {
        return Err(PrimaryError::Operands(format!(
            "{name} is placed as {dtype} and multiplied as {}: place it with --dtype {}",
            of.dtype(),
            of.dtype()
        )));
    }
    if of.shape() != shape {
        return Err(PrimaryError::Operands(format!(
            "{name} is placed as {shape} and used as {}",
            of.shape()
        )));
    }
    Ok(())
}

/// The parts of an operand, as the messages with its panels name them.
pub(crate) struct ResidentPanels {
    /// Rectangles of the array as stored, and their numbers.
    parts: Vec<(Rect, u64)>,
    transposed: bool,
}

impl ResidentPanels {
    /// The body that names a rectangle of the operand; `None` unless it lies in one part.
    pub(crate) fn view(&self, rect: Rect) -> Option<ResidentView> {
        let stored = if self.transposed { rect.transposed() } else { rect };
        let is_in = |part: &Rect| {
            part.rows.intersect(stored.rows) == stored.rows && part.cols.intersect(stored.cols) == stored.cols
        };
        let (_, number) = self.parts.iter().find(|(part, _)| is_in(part))?;
        Some(ResidentView::of(*number, self.transposed, rect))
    }
}

/// `rows 0 to 255` or `columns 256 to 511`, or both, of a matrix of that shape.
pub(crate) fn place_of(rect: Rect, shape: Shape) -> String {
    let span = |what: &str, span: bramble_matrix::Span| {
        format!("{what} {} to {}", span.start, span.end.saturating_sub(1))
    };
    match (rect.rows.len() == shape.rows, rect.cols.len() == shape.cols) {
        (true, true) => "all".to_owned(),
        (false, true) => span("rows", rect.rows),
        (true, false) => span("columns", rect.cols),
        (false, false) => format!("{} and {}", span("rows", rect.rows), span("columns", rect.cols)),
    }
}
