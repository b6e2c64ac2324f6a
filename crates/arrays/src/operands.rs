//! Placed matrices as operands: of products, and of operations that make or reduce arrays.
//!
//! Place in the flow: a product asks which of its operands it reads in place, and which share each machine then has
//! (`Ownership`).
//!
//! Invariant: an operand that is read in place has, for each rectangle of the product's tiles, a machine that holds it as a
//! whole.
//!
//! Deliberately absent: the plan of a product.

use crate::{ArrayError, ArrayId, PlacedArrays};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use bramble_base::{MatrixInfo, Rect};
use bramble_plan::{ArrayLayout, MissingPart, Ownership};
use bramble_wire::message::ResidentView;

/// A placed matrix as an operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedOperand {
    /// The matrix.
    pub array: ArrayId,
    /// Whether the operand is its transpose.
    pub transposed: bool,
}

/// An operand: a matrix of the shell, and the array that it is, if machines hold its elements.
#[derive(Clone)]
pub struct ArrayOperand<X> {
    /// The matrix.
    pub matrix: X,
    /// The placed matrix that it is.
    pub placed: Option<PlacedOperand>,
}

impl<X> From<X> for ArrayOperand<X> {
    fn from(matrix: X) -> Self {
        Self { matrix, placed: None }
    }
}

impl<X: MatrixInfo> ArrayOperand<X> {
    /// Checks that the operand is the array that it claims to be.
    pub(crate) fn fits<K, E>(&self, arrays: &PlacedArrays<X, K>) -> Result<(), ArrayError<E>> {
        let Some(PlacedOperand { array, transposed }) = self.placed else { return Ok(()) };
        let ArrayLayout { shape, dtype, .. } = arrays.get(array)?.layout;
        let shape = if transposed { shape.transposed() } else { shape };
        let (of, name) = (&self.matrix, self.matrix.name());
        if of.dtype() != dtype {
            return Err(ArrayError::Operands(format!(
                "{name} is placed as {dtype} and multiplied as {}: place it with --dtype {}",
                of.dtype(),
                of.dtype()
            )));
        }
        if of.shape() != shape {
            return Err(ArrayError::Operands(format!(
                "{name} is placed as {shape} and used as {}",
                of.shape()
            )));
        }
        Ok(())
    }
}

/// The operands of a product that are read where they lie.
#[derive(Clone, Copy, Debug)]
pub struct ResidentOperands {
    /// A, if it is.
    pub left: Option<PlacedOperand>,
    /// B, if it is.
    pub right: Option<PlacedOperand>,
}

impl ResidentOperands {
    /// Those of a product AB; `None` if neither is placed. Of two that do not lie together, the larger one is read in place, and
    /// the smaller one is sent from its source.
    pub fn of<X: MatrixInfo, K, E>(
        [a, b]: [&ArrayOperand<X>; 2],
        arrays: &PlacedArrays<X, K>,
    ) -> Result<Option<Self>, ArrayError<E>> {
        a.fits(arrays)?;
        b.fits(arrays)?;
        let both = Self { left: a.placed, right: b.placed };
        let connections: Vec<u64> = both.connections(arrays)?.into_iter().collect();
        let (left, right) = match (both.left, both.right) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) if both.ownership(arrays, &connections)?.is_none() => {
                let elements = |operand: &ArrayOperand<X>| operand.matrix.shape().elements();
                let keeps_left = elements(a) > elements(b);
                (both.left.filter(|_| keeps_left), both.right.filter(|_| !keeps_left))
            }
            both => both,
        };
        Ok(Some(Self { left, right }))
    }

    /// The connections of all machines that hold a part of these operands.
    pub fn connections<X, K, E>(&self, arrays: &PlacedArrays<X, K>) -> Result<BTreeSet<u64>, ArrayError<E>> {
        let mut connections = BTreeSet::new();
        for operand in [self.left, self.right].into_iter().flatten() {
            connections.extend(arrays.get(operand.array)?.numbers().into_keys());
        }
        Ok(connections)
    }

    /// Which part of the product each machine can compute; `machines` are their connections. `None` if the operands do not lie
    /// together. An error if a part's machine is not among them.
    pub fn ownership<X, K, E>(
        &self,
        arrays: &PlacedArrays<X, K>,
        machines: &[u64],
    ) -> Result<Option<Ownership>, ArrayError<E>> {
        let of = |operand: Option<PlacedOperand>, is_left: bool| {
            let Some(PlacedOperand { array, transposed }) = operand else { return Ok(None) };
            let array = arrays.get(array)?;
            let number = |machine: usize| machines.iter().position(|known| *known == array.holders[machine]);
            let ownership = if is_left {
                Ownership::of_left(&array.layout, transposed, &number)
            } else {
                Ownership::of_right(&array.layout, transposed, &number)
            };
            ownership.map(Some).map_err(|missing: MissingPart| array.lost(missing.part))
        };
        Ok(match (of(self.left, true)?, of(self.right, false)?) {
            (Some(left), Some(right)) => left.meet(right),
            (one, other) => one.or(other),
        })
    }

    /// The same without regard to lost machines, to know the size of tiles before any machine is asked.
    pub fn expected_ownership<X, K, E>(
        &self,
        arrays: &PlacedArrays<X, K>,
    ) -> Result<Ownership, ArrayError<E>> {
        let connections: Vec<u64> = self.connections(arrays)?.into_iter().collect();
        let ownership = self.ownership(arrays, &connections)?;
        ownership.ok_or_else(|| ArrayError::Operands("two placed matrices do not lie together".to_owned()))
    }

    /// The panels of the left and of the right operand.
    pub fn panels<X, K, E>(
        &self,
        arrays: &PlacedArrays<X, K>,
    ) -> Result<[Option<ResidentPanels>; 2], ArrayError<E>> {
        let of = |operand: Option<PlacedOperand>| -> Result<Option<ResidentPanels>, ArrayError<E>> {
            let Some(PlacedOperand { array, transposed }) = operand else { return Ok(None) };
            let array = arrays.get(array)?;
            let parts = array.layout.parts.iter().zip(&array.parts);
            let parts = parts.map(|(part, recorded)| (part.rect, recorded.number)).collect();
            Ok(Some(ResidentPanels { parts, transposed }))
        };
        Ok([of(self.left)?, of(self.right)?])
    }
}

/// The parts of an operand, as the messages with its panels name them.
#[derive(Clone, Debug)]
pub struct ResidentPanels {
    /// Rectangles of the array as stored, and their numbers.
    parts: Vec<(Rect, u64)>,
    transposed: bool,
}

impl ResidentPanels {
    /// The body that names a rectangle of the operand; `None` unless it lies in one part.
    pub fn view(&self, rect: Rect) -> Option<ResidentView> {
        let stored = if self.transposed { rect.transposed() } else { rect };
        let is_in = |part: &Rect| {
            part.rows.intersect(stored.rows) == stored.rows && part.cols.intersect(stored.cols) == stored.cols
        };
        let (_, number) = self.parts.iter().find(|(part, _)| is_in(part))?;
        Some(ResidentView::of(*number, self.transposed, rect))
    }
}
