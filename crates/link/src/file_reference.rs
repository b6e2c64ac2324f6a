//! The reference that is sent in place of a body in a file which both ends have mapped: the body's position in the
//! file.
//!
//! Place in the flow: the sender of frames has its stream make one, and the receiver has its stream resolve it.
//!
//! Invariants: 40 bytes, little-endian. A reference to a byte outside of the map is refused, so a resolved region
//! is inside of its owner.
//!
//! Deliberately absent: the files, and how they are passed to the peer (`shm::files`).

use crate::frame::REFERENCE_BYTES;
use crate::{BodyOwner, LinkError, SharedRegion, to_u64};

/// The position of a body in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileReference {
    /// Number of the file, in the order in which the sender passed the files.
    pub(crate) file: u32,
    /// Offset of the first run.
    start: u64,
    /// Bytes of a run.
    run_bytes: u64,
    /// From the start of one run to the start of the next.
    pitch_bytes: u64,
    /// Number of runs.
    runs: u64,
}

impl FileReference {
    /// A reference to a region of that file.
    pub(crate) fn to(region: &SharedRegion, file: u32) -> Self {
        Self {
            file,
            start: to_u64(region.start),
            run_bytes: to_u64(region.run_bytes),
            pitch_bytes: to_u64(region.pitch_bytes),
            runs: to_u64(region.runs),
        }
    }

    /// The bytes on the wire.
    pub(crate) fn encode(&self) -> [u8; REFERENCE_BYTES] {
        let mut out = [0; REFERENCE_BYTES];
        out[..4].copy_from_slice(&self.file.to_le_bytes());
        let numbers = [self.start, self.run_bytes, self.pitch_bytes, self.runs];
        for (place, number) in out[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// Parses a reference.
    pub(crate) fn decode(bytes: &[u8; REFERENCE_BYTES]) -> Result<Self, LinkError> {
        let (words, _) = bytes.as_chunks::<8>();
        let [file, start, run_bytes, pitch_bytes, runs] =
            [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(words[at]));
        let Ok(file) = u32::try_from(file) else {
            return Err(LinkError::Foreign("a reserved byte of a reference is not 0".to_owned()));
        };
        Ok(Self { file, start, run_bytes, pitch_bytes, runs })
    }

    /// The region that the reference names, in a map of that file.
    pub(crate) fn region(&self, owner: BodyOwner) -> Result<SharedRegion, LinkError> {
        let bytes = to_u64((*owner).as_ref().len());
        let before_last = self.runs.checked_sub(1).and_then(|runs| runs.checked_mul(self.pitch_bytes));
        let end = before_last.and_then(|at| at.checked_add(self.start)?.checked_add(self.run_bytes));
        let is_inside = self.run_bytes > 0
            && (self.runs == 1 || self.pitch_bytes >= self.run_bytes)
            && end.is_some_and(|end| end <= bytes);
        let numbers = [self.start, self.run_bytes, self.pitch_bytes, self.runs].map(usize::try_from);
        match numbers {
            [Ok(start), Ok(run_bytes), Ok(pitch_bytes), Ok(runs)] if is_inside => {
                Ok(SharedRegion::new(owner, start, run_bytes, pitch_bytes, runs))
            }
            _ => {
                let Self { start, run_bytes, pitch_bytes, runs, .. } = self;
                let what = format!(
                    "{runs} runs of {run_bytes} bytes, each {pitch_bytes} after the one before, from byte {start} on of a \
                     file of {bytes}"
                );
                Err(LinkError::Foreign(what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..70, any::<u64>(), u64::MAX - 70..=u64::MAX]
    }

    proptest! {
        #[test]
        fn references_round_trip(file in any::<u32>(), numbers in any::<[u64; 4]>()) {
            let [start, run_bytes, pitch_bytes, runs] = numbers;
            let reference = FileReference { file, start, run_bytes, pitch_bytes, runs };
            prop_assert_eq!(FileReference::decode(&reference.encode()).unwrap(), reference);
        }

        #[test]
        fn any_reference_is_inside_of_the_map_or_refused(numbers in [number(), number(), number(), number()]) {
            let [start, run_bytes, pitch_bytes, runs] = numbers;
            let owner: BodyOwner = Arc::new(vec![7u8; 64]);
            let reference = FileReference { file: 0, start, run_bytes, pitch_bytes, runs };
            // Independent computation, in numbers that cannot overflow.
            let last = u128::from(start) + u128::from(runs.saturating_sub(1)) * u128::from(pitch_bytes);
            let fits = runs > 0 && run_bytes > 0 && last + u128::from(run_bytes) <= 64;
            match reference.region(owner) {
                Ok(region) => {
                    prop_assert!(fits);
                    // Panics if a run is outside.
                    prop_assert!((0..region.runs).all(|i| region.run(i).iter().all(|byte| *byte == 7)));
                }
                Err(e) => prop_assert!(!fits || runs > 1 && pitch_bytes < run_bytes, "{}", e),
            }
        }
    }

    #[test]
    fn a_reserved_byte_is_refused() {
        let region = SharedRegion::whole(Arc::new(vec![1u8; 8]));
        let mut bytes = FileReference::to(&region, 3).encode();
        bytes[5] = 1;
        assert!(matches!(FileReference::decode(&bytes), Err(LinkError::Foreign(_))));
    }
}
