//! Messages that make a part of an array at a worker, from parts that are there, and that move rectangles between workers.
//!
//! Place in the flow: as the messages of `placed.rs`, within a session. The primary opens the part with a `Make` that does
//! nothing else, and fills it with further ones. A `Fetch` brings an operand that another worker holds: this worker sends that
//! worker a get message, and takes its part messages as elements of a new array. The worker answers each make and each fetch
//! message with a placed message.
//!
//! Invariants: a step lies within its part, and both operands lie at the worker. The part is complete after its last step.
//!
//! Deliberately absent: whether the arrays are there, and the order of steps.

use super::placed::{read_rect, write_rect};
use super::{FieldReader, FieldWriter, PartSource, PutHead, ResidentView};
use crate::ProtocolError;
use alloc::format;
use alloc::vec::Vec;
use bramble_base::{DType, Rect, Shape};

/// Head of a make message. 170 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MakeHead {
    /// Names the step in its answer.
    pub number: u64,
    /// Number of the array.
    pub array: u64,
    /// Element type of the array and of the operands.
    pub dtype: DType,
    /// The whole part, a rectangle of the array.
    pub part: Rect,
    /// The rectangle that this step makes.
    pub rect: Rect,
    /// The new elements of the rectangle; `None` opens the part.
    pub step: Option<MakeStepForm>,
    /// Whether the part is complete then.
    pub is_last: bool,
}

/// What a rectangle becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MakeStepForm {
    /// αAB.
    Product {
        /// A.
        left: ResidentView,
        /// B.
        right: ResidentView,
        /// Columns of A and rows of B.
        depth: u64,
        /// α.
        alpha: f64,
        /// Whether the product is added to what the rectangle has.
        adds: bool,
    },
    /// αX.
    Scaled {
        /// X.
        x: ResidentView,
        /// α.
        alpha: f64,
    },
    /// αX + βY.
    Sum {
        /// X.
        x: ResidentView,
        /// α.
        alpha: f64,
        /// Y.
        y: ResidentView,
        /// β.
        beta: f64,
    },
}

/// How the fields of a step are encoded: code, views, depth, factors.
type StepFields = (u8, [Option<ResidentView>; 2], u64, [f64; 2]);

impl MakeStepForm {
    fn fields(&self) -> StepFields {
        match *self {
            Self::Product { left, right, depth, alpha, adds } => {
                (1 + u8::from(adds), [Some(left), Some(right)], depth, [alpha, 0.0])
            }
            Self::Scaled { x, alpha } => (3, [Some(x), None], 0, [alpha, 0.0]),
            Self::Sum { x, alpha, y, beta } => (4, [Some(x), Some(y)], 0, [alpha, beta]),
        }
    }
}

impl MakeHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let none = (0, [None, None], 0, [0.0, 0.0]);
        let (code, views, depth, factors) = self.step.as_ref().map_or(none, MakeStepForm::fields);
        let mut w = FieldWriter::default();
        w.u64(self.number);
        w.u64(self.array);
        w.u8(self.dtype.code());
        w.u8(code | (u8::from(self.is_last) << 7));
        write_rect(&mut w, self.part);
        write_rect(&mut w, self.rect);
        for view in views {
            match view {
                Some(view) => w.raw(&view.encode()),
                None => w.raw(&[0; ResidentView::BYTES]),
            }
        }
        w.u64(depth);
        factors.into_iter().for_each(|factor| w.f64(factor));
        w.finish()
    }

    /// Decodes and checks the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (number, array, dtype, code) = (r.u64()?, r.u64()?, DType::from_code(r.u8()?), r.u8()?);
        let (part, rect) = (read_rect(&mut r)?, read_rect(&mut r)?);
        let views = [r.array::<{ ResidentView::BYTES }>()?, r.array::<{ ResidentView::BYTES }>()?];
        let (depth, alpha, beta) = (r.u64()?, r.f64()?, r.f64()?);
        r.end()?;
        let wrong = || ProtocolError::new(format!("a step of an unknown form for array {array}"));
        let is_absent = |at: usize| views[at] == [0; ResidentView::BYTES];
        let view = |at: usize| ResidentView::decode(&views[at]);
        let no_beta = beta.to_bits() == 0;
        let step = match code & 0x7f {
            0 if is_absent(0) && is_absent(1) && depth == 0 && alpha.to_bits() == 0 && no_beta => None,
            adds @ (1 | 2) if (1..=Shape::SIDE_MAX).contains(&depth) && no_beta => {
                let (left, right) = (view(0)?, view(1)?);
                Some(MakeStepForm::Product { left, right, depth, alpha, adds: adds == 2 })
            }
            3 if is_absent(1) && depth == 0 && no_beta => Some(MakeStepForm::Scaled { x: view(0)?, alpha }),
            4 if depth == 0 => Some(MakeStepForm::Sum { x: view(0)?, alpha, y: view(1)?, beta }),
            _ => return Err(wrong()),
        };
        let is_last = code & 0x80 != 0;
        let dtype = dtype.ok_or_else(wrong)?;
        let is_inside =
            part.rows.intersect(rect.rows) == rect.rows && part.cols.intersect(rect.cols) == rect.cols;
        let opens_all = step.is_some() || rect == part && !is_last;
        if !is_inside || !opens_all || !alpha.is_finite() || !beta.is_finite() {
            return Err(ProtocolError::new(format!("a step outside the part of array {array}")));
        }
        if part.shape().bytes(dtype).is_none() {
            return Err(ProtocolError::new(format!("a part of {}", part.shape())));
        }
        Ok(Self { number, array, dtype, part, rect, step, is_last })
    }
}

/// Head of a fetch message: asks for a rectangle that another worker holds, as a new array. 53 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchHead {
    /// Number of the new array, whose only part is the rectangle.
    pub array: u64,
    /// Number of the worker that holds the rectangle, as in its introduction.
    pub peer: u32,
    /// Number of the array there.
    pub from: u64,
    /// Element type.
    pub dtype: DType,
    /// The rectangle.
    pub rect: Rect,
}

impl FetchHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        w.u32(self.peer);
        w.u64(self.from);
        w.u8(self.dtype.code());
        write_rect(&mut w, self.rect);
        w.finish()
    }

    /// Decodes and checks the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (array, peer, from) = (r.u64()?, r.u32()?, r.u64()?);
        let (dtype, rect) = (DType::from_code(r.u8()?), read_rect(&mut r)?);
        r.end()?;
        match dtype.filter(|dtype| rect.shape().bytes(*dtype).is_some()) {
            Some(dtype) => Ok(Self { array, peer, from, dtype, rect }),
            None => Err(ProtocolError::new(format!("a fetched part of {} of unknown type", rect.shape()))),
        }
    }

    /// The elements from `first` on, as if the primary had put them.
    pub fn put(&self, first: u64) -> PutHead {
        PutHead { array: self.array, part: self.rect, first, dtype: self.dtype, source: PartSource::Data }
    }
}
