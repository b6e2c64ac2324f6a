//! Messages that place a matrix (*array*) on a worker, fetch it back and free it.
//!
//! Place in the flow: between the products of a connection. The primary sends a part in `Put` frames and the worker
//! answers the last of them with `Placed`. Panels of later products then name the part (`ResidentView`) instead of
//! bringing its elements. `Get` fetches a rectangle back in `Part` frames, and a free message (the array's number
//! alone) drops the part.
//!
//! Invariants: an array's number is chosen by the primary and is never used again in the connection. Elements are by
//! rows, as stored; views transpose. A frame carries consecutive elements, so that rows of any length fit.
//!
//! Deliberately absent: whether the numbers belong to an array that is there.

use super::{FieldReader, FieldWriter};
use crate::ProtocolError;
use crate::limits::CHUNK_BYTES_MAX;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::number::{to_u64, to_usize};
use bramble_base::{DType, Digest128, Layout, Rect, Shape, Span};

/// Body of a matrix that is a view into a part of an array: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentView {
    /// Number of the array.
    pub array: u64,
    /// Whether the matrix is the transpose of its rectangle of the array; then it is by columns.
    pub transposed: bool,
    /// First row of the rectangle, in the array as stored.
    pub row: u64,
    /// First column.
    pub col: u64,
}

impl ResidentView {
    /// Bytes of the body.
    pub const BYTES: usize = 32;

    /// The view of a rectangle of an operand that is the array, or its transpose.
    pub fn of(array: u64, transposed: bool, rect: Rect) -> Self {
        let stored = if transposed { rect.transposed() } else { rect };
        Self { array, transposed, row: stored.rows.start, col: stored.cols.start }
    }

    /// The rectangle of the array that a matrix of this shape views; `None` if it ends beyond all arrays.
    pub fn rect(&self, shape: Shape) -> Option<Rect> {
        let stored = if self.transposed { shape.transposed() } else { shape };
        Some(Rect::new(span(self.row, stored.rows)?, span(self.col, stored.cols)?))
    }

    /// The view of a matrix that begins some rows and columns later.
    pub fn moved(self, rows: u64, cols: u64) -> Self {
        let (down, across) = if self.transposed { (cols, rows) } else { (rows, cols) };
        Self { row: self.row.saturating_add(down), col: self.col.saturating_add(across), ..self }
    }

    /// The layout that the matrix has.
    pub fn layout(&self) -> Layout {
        if self.transposed { Layout::ColMajor } else { Layout::RowMajor }
    }

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        w.u8(u8::from(self.transposed));
        w.raw(&[0; 7]);
        w.u64(self.row);
        w.u64(self.col);
        w.finish()
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(body);
        let (array, transposed, reserved) = (r.u64()?, r.u8()?, r.array::<7>()?);
        let (row, col) = (r.u64()?, r.u64()?);
        r.end()?;
        let ([0 | 1], [0, 0, 0, 0, 0, 0, 0]) = ([transposed], reserved) else {
            return Err(ProtocolError::new("a view of unknown kind"));
        };
        Ok(Self { array, transposed: transposed == 1, row, col })
    }
}

/// Where the elements of a part come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSource {
    /// The body has them.
    Data,
    /// The worker generates all of them: the body is a `Generated`.
    Generated,
}

/// Head of a put message: elements of the part of an array that a worker shall hold. 50 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutHead {
    /// Number of the array.
    pub array: u64,
    /// The whole part, a rectangle of the array.
    pub part: Rect,
    /// The body's first element, counted by rows of the part.
    pub first: u64,
    /// Element type.
    pub dtype: DType,
    /// Where the elements come from.
    pub source: PartSource,
}

impl PutHead {
    /// Bytes of the head.
    pub const BYTES: usize = 50;

    /// Elements of the whole part.
    pub fn elements(&self) -> u64 {
        self.part.shape().elements().unwrap_or(u64::MAX)
    }

    /// Bytes of the whole part.
    pub fn part_bytes(&self) -> u64 {
        self.part.shape().bytes(self.dtype).unwrap_or(u64::MAX)
    }

    /// The first element after this frame, if its body has that many bytes. An error unless the body fits the head.
    pub fn next(&self, body_bytes: usize) -> Result<u64, ProtocolError> {
        let size = self.dtype.size_bytes();
        match self.source {
            PartSource::Generated if body_bytes == super::Generated::BYTES => Ok(self.elements()),
            PartSource::Data if body_bytes > 0 && body_bytes.is_multiple_of(size) => {
                let next =
                    self.first.checked_add(to_u64(body_bytes / size)).filter(|next| *next <= self.elements());
                next.ok_or_else(|| {
                    ProtocolError::new(format!("elements beyond the part of array {}", self.array))
                })
            }
            PartSource::Data | PartSource::Generated => Err(ProtocolError::new(format!(
                "a part of array {} came with {body_bytes} bytes",
                self.array
            ))),
        }
    }

    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        write_rect(&mut w, self.part);
        w.u64(self.first);
        w.u8(self.dtype.code());
        w.u8(match self.source {
            PartSource::Data => 0,
            PartSource::Generated => 1,
        });
        w.finish()
    }

    /// Decodes and checks the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (array, part, first) = (r.u64()?, read_rect(&mut r)?, r.u64()?);
        let (dtype, source) = (DType::from_code(r.u8()?), r.u8()?);
        r.end()?;
        let source = match source {
            0 => Some(PartSource::Data),
            1 => Some(PartSource::Generated),
            _ => None,
        };
        let (Some(dtype), Some(source)) = (dtype, source) else {
            return Err(ProtocolError::new("a part of unknown kind"));
        };
        let put = Self { array, part, first, dtype, source };
        let begins = first == 0 || source == PartSource::Data && first < put.elements();
        if put.part.shape().bytes(dtype).is_none() || !begins {
            let shape = part.shape();
            return Err(ProtocolError::new(format!("a part of {shape} from its element {first} on")));
        }
        Ok(put)
    }
}

/// Head of a placed message: the worker holds its part, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedHead {
    /// Number of the array.
    pub array: u64,
    /// What became of the part.
    pub outcome: PutOutcome,
}

/// What became of a part that was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The worker holds it.
    Held {
        /// Memory that it takes there.
        bytes: u64,
        /// Digest of the part: of its shape and its elements by rows.
        digest: Digest128,
    },
    /// The worker has no memory for it, and holds nothing of it.
    Refused(String),
}

impl PlacedHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        match &self.outcome {
            PutOutcome::Held { bytes, digest } => {
                w.u8(1);
                w.u64(*bytes);
                w.raw(&digest.0);
            }
            PutOutcome::Refused(why) => {
                w.u8(0);
                w.text(why);
            }
        }
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (array, is_held) = (r.u64()?, r.u8()?);
        let outcome = match is_held {
            0 => PutOutcome::Refused(r.text()?),
            1 => PutOutcome::Held { bytes: r.u64()?, digest: Digest128(r.array()?) },
            _ => return Err(ProtocolError::new("a part that is neither held nor refused")),
        };
        r.end()?;
        Ok(Self { array, outcome })
    }
}

/// Head of a get message: asks for a rectangle of an array, which lies in the worker's part. 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetHead {
    /// Number of the array.
    pub array: u64,
    /// The rectangle.
    pub rect: Rect,
}

impl GetHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        write_rect(&mut w, self.rect);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let get = Self { array: r.u64()?, rect: read_rect(&mut r)? };
        r.end()?;
        Ok(get)
    }
}

/// Head of a part message: elements of the rectangle that a get message asked for, in order. 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// Number of the array.
    pub array: u64,
    /// The body's first element, counted by rows of the rectangle.
    pub first: u64,
}

impl PartHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.array);
        w.u64(self.first);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let part = Self { array: r.u64()?, first: r.u64()? };
        r.end()?;
        Ok(part)
    }
}

/// The body of one put or part message: a rectangle whose elements are consecutive by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPiece {
    /// Its first element, counted by rows of the whole rectangle.
    pub first: u64,
    /// The piece: whole rows of the rectangle, or a part of one row.
    pub rect: Rect,
}

/// The pieces in which a rectangle is sent: as many whole rows as a frame carries or, if a row is longer than that,
/// parts of rows.
pub fn part_pieces(rect: Rect, dtype: DType) -> impl Iterator<Item = PartPiece> {
    let (rows, cols) = (rect.rows.len(), rect.cols.len());
    let most = to_u64(CHUNK_BYTES_MAX / dtype.size_bytes());
    let (down, across) = if cols <= most { ((most / cols.max(1)).max(1), cols.max(1)) } else { (1, most) };
    let is_empty = rows == 0 || cols == 0;
    let steps = |end: u64, by: u64| (0..end).step_by(to_usize(u32::try_from(by).unwrap_or(u32::MAX)));
    steps(if is_empty { 0 } else { rows }, down).flat_map(move |i| {
        steps(cols, across).map(move |j| {
            let part = |span: Span, from: u64, count: u64| {
                Span::new(span.start + from, (span.start + from + count).min(span.end))
            };
            let rect = Rect::new(part(rect.rows, i, down), part(rect.cols, j, across));
            PartPiece { first: i * cols + j, rect }
        })
    })
}

pub(super) fn write_rect(w: &mut FieldWriter, rect: Rect) {
    for x in [rect.rows.start, rect.rows.len(), rect.cols.start, rect.cols.len()] {
        w.u64(x);
    }
}

/// A rectangle with elements, within the longest sides.
pub(super) fn read_rect(r: &mut FieldReader<'_>) -> Result<Rect, ProtocolError> {
    let (row, rows, col, cols) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let side =
        |from: u64, len: u64| span(from, len).filter(|side| !side.is_empty() && side.end <= Shape::SIDE_MAX);
    match (side(row, rows), side(col, cols)) {
        (Some(rows), Some(cols)) => Ok(Rect::new(rows, cols)),
        _ => Err(ProtocolError::new(format!("a part of {rows}x{cols} from row {row} and column {col} on"))),
    }
}

fn span(from: u64, len: u64) -> Option<Span> {
    Some(Span::new(from, from.checked_add(len)?))
}
