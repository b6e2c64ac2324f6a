//! Bodies of frames: memory that is read where it lies, and memory that is written where it will be used.
//!
//! A region is runs of bytes at a fixed pitch: what a rectangle of a larger matrix is, without knowing so.

use crate::checksum;
use std::any::Any;
use std::fs::File;
use std::io::IoSliceMut;
use std::sync::{Arc, OnceLock};

/// Bytes that several holders may read.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// `runs` runs of `run_bytes` bytes each, `pitch_bytes` apart, the first at `start`.
#[derive(Clone)]
pub struct Region {
    /// Whose bytes they are.
    pub owner: SharedBytes,
    /// Offset of the first run.
    pub start: usize,
    /// Length of a run.
    pub run_bytes: usize,
    /// From the start of one run to the start of the next.
    pub pitch_bytes: usize,
    /// Number of runs.
    pub runs: usize,
    /// The file that the owner's bytes are a map of, all of it, where a link may hand that over instead of the bytes.
    pub file: Option<Arc<File>>,
    /// CRC-32C of the bytes once somebody has needed it; clones share it, so that a body that goes to
    /// several receivers is read for it once.
    checksum: Arc<OnceLock<u32>>,
}

impl Region {
    /// `runs` runs of `run_bytes` bytes each, `pitch_bytes` apart, the first at `start`.
    pub fn new(owner: SharedBytes, start: usize, run_bytes: usize, pitch_bytes: usize, runs: usize) -> Self {
        Self { owner, start, run_bytes, pitch_bytes, runs, file: None, checksum: Arc::default() }
    }

    /// All of some bytes.
    pub fn whole(owner: SharedBytes) -> Self {
        let run_bytes = (*owner).as_ref().len();
        Self::new(owner, 0, run_bytes, run_bytes, 1)
    }

    /// The same bytes, of which it is said that their owner is a map of that file from its beginning on. Whoever reads them may
    /// read the file: its bytes have to stay as they are.
    pub fn of_file(self, file: Arc<File>) -> Self {
        Self { file: Some(file), ..self }
    }

    /// CRC-32C of the bytes, computed at the first call.
    pub fn checksum(&self) -> u32 {
        *self.checksum.get_or_init(|| (0..self.runs).fold(0, |sum, i| checksum::append(sum, self.run(i))))
    }

    /// Whether somebody has computed it.
    pub(crate) fn is_summed(&self) -> bool {
        self.checksum.get().is_some()
    }

    /// Total bytes.
    pub fn len(&self) -> usize {
        self.run_bytes * self.runs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same bytes in as few runs as possible: runs without gaps between them are one.
    pub fn merged(self) -> Self {
        if self.pitch_bytes == self.run_bytes && self.runs > 1 {
            let run_bytes = self.run_bytes * self.runs;
            return Self { run_bytes, pitch_bytes: run_bytes, runs: 1, ..self };
        }
        self
    }

    /// Run `i`.
    pub fn run(&self, i: usize) -> &[u8] {
        let from = self.start + i * self.pitch_bytes;
        &(*self.owner).as_ref()[from..from + self.run_bytes]
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} x {} bytes)", self.runs, self.run_bytes)
    }
}

/// Exclusive memory that a body is written to.
pub trait Landing: Send + Any {
    /// Its size in bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends the writable runs from byte `offset` on, at most `max` of them.
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>);
    /// Whether it may be held after its reader has ended, by a library that cannot be told to stop writing to it: memory of its
    /// own. A place in something larger has to be free for others by then.
    fn may_outlive_its_reader(&self) -> bool {
        false
    }
    /// For the holder, who knows what it really is.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

impl std::fmt::Debug for dyn Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Landing({} bytes)", self.len())
    }
}

impl Landing for Vec<u8> {
    fn len(&self) -> usize {
        Self::len(self)
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, _max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if offset < Self::len(self) {
            out.push(IoSliceMut::new(&mut self[offset..]));
        }
    }
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// A landing for bytes that nobody keeps (a probe of the link's speed).
#[derive(Debug)]
pub struct Vacant {
    len: usize,
    scratch: Vec<u8>,
}

impl Vacant {
    /// Takes `len` bytes and forgets them.
    pub fn new(len: usize) -> Self {
        Self { len, scratch: vec![0; len.min(64 * 1024)] }
    }
}

impl Landing for Vacant {
    fn len(&self) -> usize {
        self.len
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, _max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        let left = (self.len - offset.min(self.len)).min(self.scratch.len());
        if left > 0 {
            out.push(IoSliceMut::new(&mut self.scratch[..left]));
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// What a frame carries beside its head.
pub enum Body {
    /// Nothing.
    Empty,
    /// Bytes to be read where they lie.
    Shared(Region),
    /// Memory that the other end may write and gives back; only on links that share memory.
    Lent(Box<dyn Landing>),
}

impl Body {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Shared(region) => region.len(),
            Self::Lent(landing) => landing.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pieces of memory.
    pub(crate) fn runs(&self) -> usize {
        match self {
            Self::Shared(region) => region.runs,
            Self::Empty | Self::Lent(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_region_has_the_sum_of_its_runs_one_after_another(
            run_bytes in 0usize..3000,
            gap in 0usize..3000,
            runs in 0usize..40,
            start in 0usize..100,
        ) {
            let pitch_bytes = run_bytes + gap;
            let len = start + pitch_bytes * runs.saturating_sub(1) + run_bytes;
            let bytes: Vec<u8> =
                (0u32..).take(len).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
            let lines = (0..runs).flat_map(|i| &bytes[start + i * pitch_bytes..][..run_bytes]);
            let want = crc32c::crc32c(&lines.copied().collect::<Vec<u8>>());
            let region = Region::new(Arc::new(bytes.clone()), start, run_bytes, pitch_bytes, runs);
            prop_assert_eq!(region.checksum(), want);
        }
    }
}
