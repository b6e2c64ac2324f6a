//! Parts whose elements arrive, or are generated.
//!
//! Place in the flow: `held.rs` opens such a part, and completes it.
//!
//! Invariant: elements land in the part's own buffer, which is out while they do.
//!
//! Deliberately absent: parts that this worker makes from others (`making.rs`).

use super::out_of_order;
use crate::ledger::HoldGrant;
use bramble_link::Landing;
use bramble_matrix::{Buffer, DType, Digest128, Digester, Generator, Layout, Rect, Span};
use bramble_wire::ProtocolError;
use bramble_wire::message::{Generated, PutHead};
use std::any::Any;
use std::io::IoSliceMut;

/// A part whose elements are arriving.
pub(super) struct ArrivingPart {
    pub(super) part: Rect,
    pub(super) dtype: DType,
    /// `None` while bytes land in it, or while it is being filled.
    pub(super) buffer: Option<Buffer>,
    /// The element that comes next.
    pub(super) next: u64,
    /// Whether another worker sends it; then it was opened before its first element.
    pub(super) is_fetched: bool,
    pub(super) digester: Digester,
    pub(super) grant: HoldGrant,
}

/// A part to be generated.
pub(crate) struct FillPart {
    array: u64,
    generator: Generator,
    /// The rectangle of the generated matrix.
    rect: Rect,
    dtype: DType,
    buffer: Buffer,
    digester: Digester,
}

/// A part that was generated.
pub(crate) struct FilledPart {
    pub(super) array: u64,
    pub(super) buffer: Buffer,
    pub(super) digest: Digest128,
}

impl FillPart {
    /// Generates the elements, on any thread.
    pub(crate) fn run(mut self) -> FilledPart {
        self.generator.fill(self.rect, self.dtype, Layout::RowMajor, self.buffer.bytes_mut());
        self.digester.update(self.buffer.bytes());
        FilledPart { array: self.array, digest: self.digester.digest(), buffer: self.buffer }
    }
}

impl ArrivingPart {
    /// The work to generate the part from its description.
    pub(super) fn fill(&mut self, put: &PutHead, description: &[u8]) -> Result<FillPart, ProtocolError> {
        let generated = Generated::decode(description)?;
        let unknown = || ProtocolError::new(format!("array {} has an unknown generator", put.array));
        let generator = Generator::from_bytes(&generated.generator).ok_or_else(unknown)?;
        let span = |from: u64, len: u64| Some(Span::new(from, from.checked_add(len)?));
        let shape = put.part.shape();
        let (Some(rows), Some(cols)) = (span(generated.row, shape.rows), span(generated.col, shape.cols))
        else {
            return Err(ProtocolError::new(format!("array {} lies outside its generator", put.array)));
        };
        let buffer = self.buffer.take().ok_or_else(|| out_of_order(put))?;
        let (array, rect, dtype, digester) =
            (put.array, Rect::new(rows, cols), self.dtype, self.digester.clone());
        Ok(FillPart { array, generator, rect, dtype, buffer, digester })
    }
}

/// The memory for the body of a put message: a stretch of the part's buffer.
pub(super) struct PartLanding {
    pub(super) buffer: Buffer,
    pub(super) from: usize,
    pub(super) len: usize,
}

impl Landing for PartLanding {
    fn len(&self) -> usize {
        self.len
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, _max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if offset < self.len {
            let end = self.from + self.len;
            out.push(IoSliceMut::new(&mut self.buffer.bytes_mut()[self.from + offset..end]));
        }
    }
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
