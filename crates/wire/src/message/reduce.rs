//! Messages that reduce a part of a placed matrix, or of a product with one, where it lies.
//!
//! Place in the flow: as the messages of `placed.rs`. The primary asks with one `Reduce` for each part, and the worker
//! answers with `Reduced` frames, or with a placed message that refuses.
//!
//! Invariants: both operands lie at the worker as parts of arrays. The answer's bytes are those of the crate `matrix`
//! (`RectReduction`), whose number follows from the question.
//!
//! Deliberately absent: what the reductions are, and whether the arrays are there.

use super::placed::{read_rect, write_rect};
use super::{FieldReader, FieldWriter, ResidentView};
use crate::ProtocolError;
use alloc::format;
use alloc::vec::Vec;
use bramble_base::{DType, Rect, Shape};

/// Head of a reduce message. 131 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReduceHead {
    /// Names the question in its answer.
    pub number: u64,
    /// Which reduction, as `bramble_matrix::Reduction` numbers it.
    pub reduction: u8,
    /// Of topk, the number of largest elements.
    pub count: u64,
    /// Element type of the operands.
    pub dtype: DType,
    /// The rectangle of the whole matrix that is reduced here.
    pub rect: Rect,
    /// The matrix that is reduced; or the left operand of the product that is.
    pub left: ResidentView,
    /// That product's other side.
    pub right: Option<ReducedFactor>,
}

/// The right side of a product that is reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReducedFactor {
    /// The right operand.
    pub view: ResidentView,
    /// Columns of the left and rows of the right operand, at least 1.
    pub depth: u64,
    /// The factor of the product.
    pub alpha: f64,
}

impl ReduceHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.number);
        w.u8(self.reduction);
        w.u64(self.count);
        w.u8(self.dtype.code());
        write_rect(&mut w, self.rect);
        w.raw(&self.left.encode());
        match self.right {
            Some(right) => {
                w.raw(&right.view.encode());
                w.u64(right.depth);
                w.f64(right.alpha);
            }
            None => w.raw(&[0; ResidentView::BYTES + 16]),
        }
        w.u8(u8::from(self.right.is_some()));
        w.finish()
    }

    /// Decodes and checks the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (number, reduction, count) = (r.u64()?, r.u8()?, r.u64()?);
        let dtype = DType::from_code(r.u8()?);
        let rect = read_rect(&mut r)?;
        let left = ResidentView::decode(&r.array::<{ ResidentView::BYTES }>()?)?;
        let (view, depth, alpha) = (r.array::<{ ResidentView::BYTES }>()?, r.u64()?, r.f64()?);
        let is_product = r.u8()?;
        r.end()?;
        let Some(dtype) = dtype else { return Err(ProtocolError::new("a reduction of unknown elements")) };
        let right = match is_product {
            0 if view == [0; ResidentView::BYTES] && depth == 0 && alpha.to_bits() == 0 => None,
            1 if (1..=Shape::SIDE_MAX).contains(&depth) && alpha.is_finite() => {
                Some(ReducedFactor { view: ResidentView::decode(&view)?, depth, alpha })
            }
            _ => return Err(ProtocolError::new(format!("a reduction of a product of depth {depth}"))),
        };
        Ok(Self { number, reduction, count, dtype, rect, left, right })
    }

    /// The operands of a rectangle within this one, each with its shape; without a right one, the elements of the rectangle.
    pub fn operands(&self, rect: Rect) -> ((ResidentView, Shape), Option<(ResidentView, Shape)>) {
        let rows = rect.rows.start.saturating_sub(self.rect.rows.start);
        let cols = rect.cols.start.saturating_sub(self.rect.cols.start);
        let (m, n) = (rect.rows.len(), rect.cols.len());
        match self.right {
            None => ((self.left.moved(rows, cols), Shape::new(m, n)), None),
            Some(right) => (
                (self.left.moved(rows, 0), Shape::new(m, right.depth)),
                Some((right.view.moved(0, cols), Shape::new(right.depth, n))),
            ),
        }
    }
}

/// Head of a reduced message: bytes of the answer. 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReducedHead {
    /// The number of the question.
    pub number: u64,
    /// The body's first byte.
    pub first: u64,
    /// Bytes of the whole answer.
    pub total: u64,
}

impl ReducedHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.number);
        w.u64(self.first);
        w.u64(self.total);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let reduced = Self { number: r.u64()?, first: r.u64()?, total: r.u64()? };
        r.end()?;
        if reduced.first >= reduced.total {
            return Err(ProtocolError::new("a part of a reduction beyond its end"));
        }
        Ok(reduced)
    }
}
