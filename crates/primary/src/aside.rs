//! Sums of later steps that wait for those before them, and their addition to C.
//!
//! Place in the flow: where k is cut, a result that is no beginning lands here instead of in C; the schedule says when
//! it is added.
//!
//! Invariants: a sum is added once and then forgotten; what is here at once is bounded by the plan
//! (`Prediction::primary_memory_bytes`).

use bramble_link::{Landing, Region};
use bramble_matrix::{Buffer, DType, Element, Lent, MatrixError, Rect, View};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;

/// Buffers that are kept for the next sums.
const SPARES: usize = 16;

/// Who sent it, and under which id.
type Key = (usize, u32);

/// The sums that were put aside.
#[derive(Default)]
pub(crate) struct Asides {
    sums: BTreeMap<Key, Buffer>,
    spare: Vec<Buffer>,
    bytes: usize,
    bytes_max: usize,
}

impl Asides {
    /// The buffer of a sum of `bytes` bytes, for its next lines.
    pub(crate) fn take(&mut self, key: Key, bytes: usize) -> Result<Buffer, MatrixError> {
        if let Some(buffer) = self.sums.remove(&key) {
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
        self.bytes += bytes;
        self.bytes_max = self.bytes_max.max(self.bytes);
        Ok(buffer)
    }

    /// Puts a buffer back.
    pub(crate) fn put(&mut self, key: Key, buffer: Buffer) {
        self.sums.insert(key, buffer);
    }

    /// Adds a sum to C. False where there is none.
    pub(crate) fn merge(&mut self, key: Key, mut c: Lent) -> bool {
        let Some(buffer) = self.sums.remove(&key) else { return false };
        match c.dtype() {
            DType::F32 => add::<f32>(&buffer, &mut c),
            DType::F64 => add::<f64>(&buffer, &mut c),
            DType::I32 => add::<i32>(&buffer, &mut c),
            DType::I64 => add::<i64>(&buffer, &mut c),
        }
        self.bytes -= buffer.bytes().len();
        if self.spare.len() < SPARES {
            self.spare.push(buffer);
        }
        true
    }

    /// Most bytes that were here at once.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// C += the sum, row by row.
fn add<T: Element>(sum: &Buffer, c: &mut Lent) {
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

/// Lines of a sum, as a link lands bytes in them.
pub(crate) struct AsideLines {
    pub(crate) buffer: Buffer,
    pub(crate) from: usize,
    pub(crate) len: usize,
}

impl Landing for AsideLines {
    fn len(&self) -> usize {
        self.len
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if offset < self.len && out.len() < max {
            let end = self.from + self.len;
            out.push(IoSliceMut::new(&mut self.buffer.bytes_mut()[self.from + offset..end]));
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.buffer)
    }
}

/// Copies lines that came by reference.
pub(crate) fn copy_lines(buffer: &mut Buffer, from: usize, region: &Region) -> bool {
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
