//! Results that do not land in C: sums of later steps that wait for those before them, and tiles that are to replace a sum
//! that is in C.
//!
//! Place in the flow: where k is cut, a result that is no beginning lands here instead of in C; the schedule says when
//! it is added. A tile that goes on from a sum in C is *staged* here until it is whole: a link that breaks in the middle of
//! it then leaves the sum as it was, for another machine to go on from.
//!
//! Invariants: a sum is added once and then forgotten; sums that are here at once are bounded by the plan
//! (`Prediction::primary_memory_bytes`), staged tiles by what the workers hold. Of a machine that is lost only what was
//! whole stays.

use bramble_link::{Landing, Region};
use bramble_matrix::{Buffer, DType, Element, Lent, MatrixError, Rect, View};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;

/// Buffers that are kept for the next sums.
const SPARES: usize = 16;

/// Who sent it, and under which id.
type Key = (usize, u32);

/// One result that does not land in C.
struct Aside {
    /// `None` while a link lands lines in it.
    buffer: Option<Buffer>,
    bytes: usize,
    is_staged: bool,
    is_whole: bool,
}

/// The results that were put aside.
#[derive(Default)]
pub(crate) struct Asides {
    all: BTreeMap<Key, Aside>,
    spare: Vec<Buffer>,
    /// Of sums.
    bytes: usize,
    bytes_max: usize,
}

impl Asides {
    /// The buffer of a result of `bytes` bytes, for its next lines.
    pub(crate) fn take(&mut self, key: Key, bytes: usize, is_staged: bool) -> Result<Buffer, MatrixError> {
        if let Some(buffer) = self.all.get_mut(&key).and_then(|aside| aside.buffer.take()) {
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
        self.all.insert(key, Aside { buffer: None, bytes, is_staged, is_whole: false });
        Ok(buffer)
    }

    /// Puts a buffer back. `is_whole` says that its last lines are there.
    pub(crate) fn put(&mut self, key: Key, buffer: Buffer, is_whole: bool) {
        if let Some(aside) = self.all.get_mut(&key) {
            aside.buffer = Some(buffer);
            aside.is_whole |= is_whole;
        }
    }

    /// Adds a sum to C. False where there is none.
    pub(crate) fn merge(&mut self, key: Key, mut c: Lent) -> bool {
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

    /// Copies a staged tile into C. False where there is none.
    pub(crate) fn store(&mut self, key: Key, mut c: Lent) -> bool {
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

    /// A machine is lost: what of it is not whole is forgotten. Sums that are whole wait on.
    pub(crate) fn lost(&mut self, peer: usize) {
        let of_it = |key: &Key, aside: &Aside| key.0 == peer && !aside.is_whole;
        let gone: Vec<Key> =
            self.all.iter().filter(|(key, aside)| of_it(key, aside)).map(|(key, _)| *key).collect();
        for key in gone {
            if let Some(buffer) = self.remove(key) {
                self.keep_spare(buffer);
            }
        }
    }

    fn remove(&mut self, key: Key) -> Option<Buffer> {
        let aside = self.all.remove(&key)?;
        self.bytes -= if aside.is_staged { 0 } else { aside.bytes };
        aside.buffer
    }

    fn keep_spare(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARES {
            self.spare.push(buffer);
        }
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
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.buffer)
    }
}

/// Lines that nobody needs: C has them already.
pub(crate) struct Nowhere(pub(crate) Vec<u8>);

impl Landing for Nowhere {
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
