//! Bodies of frames: memory to read from, and memory to receive into.
//!
//! A region is runs of bytes at a fixed pitch, the shape of a rectangle within a larger matrix.

use crate::checksum;
use std::any::Any;
use std::fs::File;
use std::io::IoSliceMut;
use std::sync::{Arc, OnceLock};

/// The owner of shared bytes.
pub type BodyOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// `runs` runs of `run_bytes` bytes each, `pitch_bytes` apart, the first at `start`.
#[derive(Clone)]
pub struct SharedRegion {
    /// The owner of the bytes.
    pub owner: BodyOwner,
    /// Offset of the first run.
    pub start: usize,
    /// Length of a run.
    pub run_bytes: usize,
    /// From the start of one run to the start of the next.
    pub pitch_bytes: usize,
    /// Number of runs.
    pub runs: usize,
    /// The file that all of the owner's bytes are a map of, if a link may pass the file by reference instead of
    /// sending the bytes.
    pub file: Option<Arc<File>>,
    /// CRC-32C of the bytes once it was computed. Clones share it, so a body that goes to several receivers is read
    /// for it once.
    checksum: Arc<OnceLock<u32>>,
}

impl SharedRegion {
    /// `runs` runs of `run_bytes` bytes each, `pitch_bytes` apart, the first at `start`.
    pub fn new(owner: BodyOwner, start: usize, run_bytes: usize, pitch_bytes: usize, runs: usize) -> Self {
        Self { owner, start, run_bytes, pitch_bytes, runs, file: None, checksum: Arc::default() }
    }

    /// All bytes of an owner.
    pub fn whole(owner: BodyOwner) -> Self {
        let run_bytes = (*owner).as_ref().len();
        Self::new(owner, 0, run_bytes, run_bytes, 1)
    }

    /// The same bytes with the file whose map, from the file's start, is their owner. A receiver may read the file
    /// instead, so its bytes must not change.
    pub fn of_file(self, file: Arc<File>) -> Self {
        Self { file: Some(file), ..self }
    }

    /// CRC-32C of the bytes, computed by the first call.
    pub fn checksum(&self) -> u32 {
        *self.checksum.get_or_init(|| (0..self.runs).fold(0, |sum, i| checksum::append(sum, self.run(i))))
    }

    /// Whether the checksum has been computed.
    pub(crate) fn is_summed(&self) -> bool {
        self.checksum.get().is_some()
    }

    /// Total bytes.
    pub fn len(&self) -> usize {
        self.run_bytes * self.runs
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same bytes in as few runs as possible: runs without gaps are merged.
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

impl std::fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedRegion({} x {} bytes)", self.runs, self.run_bytes)
    }
}

/// Exclusive memory that receives a body.
pub trait Landing: Send + Any {
    /// Its size in bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends the writable runs from byte `offset` on, at most `max` of them.
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>);
    /// Whether a library that cannot be told to stop writing may hold this memory after the receiver has ended.
    /// True for memory of its own; false for a part of a larger object, which must be free for other uses by then.
    fn may_outlive_its_reader(&self) -> bool {
        false
    }
    /// The concrete type behind the trait, for the code that created it.
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

/// A landing that discards the bytes (for a probe of the link's speed).
#[derive(Debug)]
pub struct DiscardedBody {
    len: usize,
    scratch: Vec<u8>,
}

impl DiscardedBody {
    /// Receives `len` bytes and discards them.
    pub fn new(len: usize) -> Self {
        Self { len, scratch: vec![0; len.min(64 * 1024)] }
    }
}

impl Landing for DiscardedBody {
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

/// The body of a frame that is sent.
pub enum Body {
    /// No body.
    Empty,
    /// Bytes that the sender reads from this memory.
    Shared(SharedRegion),
    /// Memory that the peer may write and then returns; only on links that share memory.
    Leased(Box<dyn Landing>),
}

impl Body {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Shared(region) => region.len(),
            Self::Leased(landing) => landing.len(),
        }
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of runs of memory.
    pub(crate) fn runs(&self) -> usize {
        match self {
            Self::Shared(region) => region.runs,
            Self::Empty | Self::Leased(_) => 0,
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
            let region = SharedRegion::new(Arc::new(bytes.clone()), start, run_bytes, pitch_bytes, runs);
            prop_assert_eq!(region.checksum(), want);
        }
    }
}
