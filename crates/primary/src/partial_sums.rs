//! Results that do not land in C at once: partial sums of later steps, which wait for earlier ones, and staged tiles, which will
//! replace a sum in C.
//!
//! Place in the flow: where k is cut, a partial sum that is not the first lands here; the schedule says when to add it. A
//! tile that continues a sum in C is *staged* here until it is whole: if its link breaks in the middle, the sum in C is
//! intact and another machine can continue it.
//!
//! Invariants: a partial sum is added once and then freed. The plan bounds the bytes of partial sums that are here at once
//! (`Prediction::primary_memory_bytes`), the workers' memory those of staged tiles. Only whole results outlive their machine.

use bramble_link::{Landing, SharedRegion};
use bramble_matrix::{Buffer, DType, Element, MatrixError, Rect, TileLease, View};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;

/// Freed buffers that are kept for reuse.
const SPARES: usize = 16;

/// The peer that sent the result, and the result's id at that peer.
type Key = (usize, u32);

/// One result that does not land in C at once.
struct PendingResult {
    /// `None` while rows land in it.
    buffer: Option<Buffer>,
    bytes: usize,
    is_staged: bool,
    is_whole: bool,
}

/// All such results.
#[derive(Default)]
pub(crate) struct PendingResults {
    all: BTreeMap<Key, PendingResult>,
    spare: Vec<Buffer>,
    /// Bytes of partial sums; staged tiles are not counted.
    bytes: usize,
    bytes_max: usize,
}

impl PendingResults {
    /// The buffer of a result of `bytes` bytes, for its next rows.
    pub(crate) fn take(&mut self, key: Key, bytes: usize, is_staged: bool) -> Result<Buffer, MatrixError> {
        if let Some(buffer) = self.all.get_mut(&key).and_then(|result| result.buffer.take()) {
            return Ok(buffer);
        }
        let fits = self.spare.iter().position(|b| b.capacity() == bytes.next_multiple_of(64));
        let buffer = match fits {
            Some(at) => {
                let mut buffer = self.spare.swap_remove(at);
                buffer.set_len(bytes);
                buffer
            }
            None => Buffer::zeroed(bytes)?,
        };
        if !is_staged {
            self.bytes += bytes;
            self.bytes_max = self.bytes_max.max(self.bytes);
        }
        self.all.insert(key, PendingResult { buffer: None, bytes, is_staged, is_whole: false });
        Ok(buffer)
    }

    /// Puts a buffer back after a landing. `is_whole`: the result's last rows are in it.
    pub(crate) fn put(&mut self, key: Key, buffer: Buffer, is_whole: bool) {
        if let Some(result) = self.all.get_mut(&key) {
            result.buffer = Some(buffer);
            result.is_whole |= is_whole;
        }
    }

    /// Adds a partial sum to C. False if there is none of that key.
    pub(crate) fn merge(&mut self, key: Key, mut c: TileLease) -> bool {
        let Some(buffer) = self.remove(key) else { return false };
        match c.dtype() {
            DType::F32 => add::<f32>(&buffer, &mut c),
            DType::F64 => add::<f64>(&buffer, &mut c),
            DType::I32 => add::<i32>(&buffer, &mut c),
            DType::I64 => add::<i64>(&buffer, &mut c),
        }
        self.keep_spare(buffer);
        true
    }

    /// Copies a staged tile into C. False if there is none of that key.
    pub(crate) fn store(&mut self, key: Key, mut c: TileLease) -> bool {
        let Some(buffer) = self.remove(key) else { return false };
        let line = c.line_bytes().max(1);
        let mut lines = buffer.bytes().chunks_exact(line);
        let all = c.lines();
        for (to, from) in c.lines_mut(0..all).zip(&mut lines) {
            to.copy_from_slice(from);
        }
        self.keep_spare(buffer);
        true
    }

    /// Frees the results of a lost machine that are not whole. Whole partial sums keep waiting.
    pub(crate) fn lost(&mut self, peer: usize) {
        let of_it = |key: &Key, result: &PendingResult| key.0 == peer && !result.is_whole;
        let gone: Vec<Key> =
            self.all.iter().filter(|(key, result)| of_it(key, result)).map(|(key, _)| *key).collect();
        for key in gone {
            if let Some(buffer) = self.remove(key) {
                self.keep_spare(buffer);
            }
        }
    }

    fn remove(&mut self, key: Key) -> Option<Buffer> {
        let result = self.all.remove(&key)?;
        self.bytes -= if result.is_staged { 0 } else { result.bytes };
        result.buffer
    }

    fn keep_spare(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARES {
            self.spare.push(buffer);
        }
    }

    /// Most bytes of partial sums that were held at once.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// C += the partial sum, row by row.
fn add<T: Element>(sum: &Buffer, c: &mut TileLease) {
    let (rows, cols) = (c.lines(), c.line_bytes() / size_of::<T>().max(1));
    let sum = View::row_major(sum.elements::<T>(), rows, cols);
    let mut view = c.view_mut::<T>();
    for i in 0..rows {
        for j in 0..cols {
            let element = view.at_mut(i, j);
            *element = element.plus(sum.at(i, j));
        }
    }
}

/// Rows of a result, as the memory in which a link lands them.
pub(crate) struct PendingRows {
    pub(crate) buffer: Buffer,
    pub(crate) from: usize,
    pub(crate) len: usize,
}

impl Landing for PendingRows {
    fn len(&self) -> usize {
        self.len
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if offset < self.len && out.len() < max {
            let end = self.from + self.len;
            out.push(IoSliceMut::new(&mut self.buffer.bytes_mut()[self.from + offset..end]));
        }
    }
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.buffer)
    }
}

/// Rows that are received and discarded: C has them already.
pub(crate) struct DiscardedRows(pub(crate) Vec<u8>);

impl Landing for DiscardedRows {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if max > out.len()
            && let Some(rest) = self.0.get_mut(offset..).filter(|rest| !rest.is_empty())
        {
            out.push(IoSliceMut::new(rest));
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Copies rows that arrived by reference.
pub(crate) fn copy_lines(buffer: &mut Buffer, from: usize, region: &SharedRegion) -> bool {
    let mut at = from;
    for run in 0..region.runs {
        let bytes = region.run(run);
        let Some(place) = buffer.bytes_mut().get_mut(at..at + bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        at += bytes.len();
    }
    true
}

/// Bytes of a rectangle of C.
pub(crate) fn bytes_of(rect: Rect, dtype: DType) -> Option<usize> {
    usize::try_from(rect.shape().bytes(dtype)?).ok()
}
