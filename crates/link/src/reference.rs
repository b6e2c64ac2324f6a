//! What goes in place of a body that lies in a file which both ends have mapped: where it lies.
//!
//! Place in the flow: the sender of frames asks its stream for one, the receiver has its stream say which bytes are meant.
//!
//! Invariants: 40 bytes, little-endian. One that names a byte outside of the map is refused, so a region that was made of one
//! is inside of its owner.
//!
//! Deliberately absent: the files, and how the other end comes by them (`shm::files`).

use crate::frame::REFERENCE_BYTES;
use crate::{LinkError, Region, SharedBytes, to_u64};

/// Where a body lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Number of the file, in the order in which they were handed over.
    pub(crate) file: u32,
    /// Bytes before the first run.
    start: u64,
    /// Bytes of a run.
    run_bytes: u64,
    /// From the start of one run to the start of the next.
    pitch_bytes: u64,
    /// Number of runs.
    runs: u64,
}

impl Reference {
    /// To a region of that file.
    pub(crate) fn to(region: &Region, file: u32) -> Self {
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

    /// Reads it.
    pub(crate) fn decode(bytes: &[u8; REFERENCE_BYTES]) -> Result<Self, LinkError> {
        let (words, _) = bytes.as_chunks::<8>();
        let [file, start, run_bytes, pitch_bytes, runs] =
            [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(words[at]));
        let Ok(file) = u32::try_from(file) else {
            return Err(LinkError::Foreign("a reserved byte of a reference is not 0".to_owned()));
        };
        Ok(Self { file, start, run_bytes, pitch_bytes, runs })
    }

    /// The bytes that are meant, of a map of that file.
    pub(crate) fn region(&self, owner: SharedBytes) -> Result<Region, LinkError> {
        let bytes = to_u64((*owner).as_ref().len());
        let before_last = self.runs.checked_sub(1).and_then(|runs| runs.checked_mul(self.pitch_bytes));
        let end = before_last.and_then(|at| at.checked_add(self.start)?.checked_add(self.run_bytes));
        let is_inside = self.run_bytes > 0
            && (self.runs == 1 || self.pitch_bytes >= self.run_bytes)
            && end.is_some_and(|end| end <= bytes);
        let numbers = [self.start, self.run_bytes, self.pitch_bytes, self.runs].map(usize::try_from);
        match numbers {
            [Ok(start), Ok(run_bytes), Ok(pitch_bytes), Ok(runs)] if is_inside => {
                Ok(Region::new(owner, start, run_bytes, pitch_bytes, runs))
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
            let reference = Reference { file, start, run_bytes, pitch_bytes, runs };
            prop_assert_eq!(Reference::decode(&reference.encode()).unwrap(), reference);
        }

        #[test]
        fn any_reference_is_inside_of_the_map_or_refused(numbers in [number(), number(), number(), number()]) {
            let [start, run_bytes, pitch_bytes, runs] = numbers;
            let owner: SharedBytes = Arc::new(vec![7u8; 64]);
            let reference = Reference { file: 0, start, run_bytes, pitch_bytes, runs };
            // By itself, in numbers that cannot overflow.
            let last = u128::from(start) + u128::from(runs.saturating_sub(1)) * u128::from(pitch_bytes);
            let fits = runs > 0 && run_bytes > 0 && last + u128::from(run_bytes) <= 64;
            match reference.region(owner) {
                Ok(region) => {
                    prop_assert!(fits);
                    // Panics where one is outside.
                    prop_assert!((0..region.runs).all(|i| region.run(i).iter().all(|byte| *byte == 7)));
                }
                Err(e) => prop_assert!(!fits || runs > 1 && pitch_bytes < run_bytes, "{}", e),
            }
        }
    }

    #[test]
    fn a_reserved_byte_is_refused() {
        let region = Region::whole(Arc::new(vec![1u8; 8]));
        let mut bytes = Reference::to(&region, 3).encode();
        bytes[5] = 1;
        assert!(matches!(Reference::decode(&bytes), Err(LinkError::Foreign(_))));
    }
}
