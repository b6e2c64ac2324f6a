//! One direction: a ring of bytes in shared memory, with one writing and one reading end.
//!
//! Invariants: `written` and `taken` count bytes since the beginning and only grow. The writer changes `written`,
//! the reader `taken`, and each end trusts only its own copy of its counter. The peer's counter is checked at each
//! use: a value beyond the size of the ring ends the link. The bytes between `taken` and `written` belong to the
//! reader, all others to the writer. An end that is about to sleep stores the amount that it waits for, then checks
//! again; an end that advances a counter checks that amount afterwards. So at least one of the two sees the other's
//! store, and no wake-up is lost.
//!
//! Deliberately absent: sleeping and waking (the callers do it), and the meaning of the bytes.

use super::map::ShmMemory;
use crate::{LinkError, to_u64};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

/// Size of a ring: small enough to stay in a cache, so that its bytes need not go to memory and back, and large
/// enough for one end to continue while the other has no core. From 128 KiB to 1 MiB, the largest gave the best
/// throughput (1 MiB frames, two busy cores).
pub(super) const RING_BYTES: usize = 1 << 20;
/// An end tells the peer after this many bytes, so that both copy at the same time.
const PIECE_BYTES: usize = 64 << 10;
/// No end waits for more than this at once, so the peer always has enough room or bytes for it.
const TOGETHER_BYTES: usize = RING_BYTES / 2;

// Counters and flags that both ends access, each in its own cache lines: a change of one does not disturb the
// readers of another.
const WRITTEN: usize = 0;
const ENDED: usize = 8;
const TAKEN: usize = 128;
const REFUSED: usize = 136;
const READER_WAITS: usize = 256;
const WRITER_WAITS: usize = 384;
const CONTROL_BYTES: usize = 512;

/// Bytes before the rings: one page.
const FRONT_BYTES: usize = 4096;
/// Bytes of memory for both directions.
pub(super) const MEMORY_BYTES: usize = FRONT_BYTES + 2 * RING_BYTES;

const _: () = assert!(2 * CONTROL_BYTES <= FRONT_BYTES && RING_BYTES.is_power_of_two());
const _: () = assert!(PIECE_BYTES <= TOGETHER_BYTES);

/// The position of one direction in the memory.
struct RingPosition {
    memory: Rc<ShmMemory>,
    control: usize,
    bytes: usize,
}

impl RingPosition {
    fn new(memory: Rc<ShmMemory>, direction: usize) -> Self {
        Self { memory, control: direction * CONTROL_BYTES, bytes: FRONT_BYTES + direction * RING_BYTES }
    }

    fn read(&self, what: usize) -> u64 {
        self.memory.word(self.control + what).load(Ordering::Acquire)
    }

    fn publish(&self, what: usize, value: u64) {
        self.memory.word(self.control + what).store(value, Ordering::Release);
    }

    /// Bytes between the two counters, one of which is the peer's.
    fn between(written: u64, taken: u64) -> Result<usize, LinkError> {
        usize::try_from(written.wrapping_sub(taken)).ok().filter(|bytes| *bytes <= RING_BYTES).ok_or_else(
            || LinkError::Foreign(format!("its ring says {written} bytes written and {taken} taken")),
        )
    }

    /// Announces that an end is about to sleep until that many bytes are available; 0 announces that it is awake.
    fn waits(&self, who: usize, bytes: usize) {
        self.memory.word(self.control + who).store(to_u64(bytes), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the peer sleeps and waits for at most that many bytes; marks it as awake.
    fn wakes(&self, who: usize, bytes: usize) -> bool {
        fence(Ordering::SeqCst);
        let word = self.memory.word(self.control + who);
        let wanted = word.load(Ordering::Relaxed);
        wanted != 0 && wanted <= to_u64(bytes) && word.swap(0, Ordering::Relaxed) != 0
    }

    /// The offset in the ring for a count, and the bytes from there to the end of the ring.
    fn at(&self, count: u64) -> (usize, usize) {
        // Both fit: the remainder is less than the ring.
        let offset = usize::try_from(count % to_u64(RING_BYTES)).unwrap_or_default();
        (self.bytes + offset, RING_BYTES - offset)
    }
}

/// The writing end.
pub(super) struct RingWriter {
    place: RingPosition,
    written: Cell<u64>,
}

impl RingWriter {
    pub(super) fn new(memory: Rc<ShmMemory>, direction: usize) -> Self {
        Self { place: RingPosition::new(memory, direction), written: Cell::new(0) }
    }

    /// Bytes written since the beginning.
    pub(super) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Bytes that the reader has taken.
    pub(super) fn taken(&self) -> u64 {
        self.place.read(TAKEN)
    }

    /// Whether the reader has ended.
    pub(super) fn is_refused(&self) -> bool {
        self.place.read(REFUSED) != 0
    }

    /// Free bytes in the ring.
    pub(super) fn room(&self) -> Result<usize, LinkError> {
        RingPosition::between(self.written.get(), self.taken()).map(|used| RING_BYTES - used)
    }

    /// Writes as many bytes as fit, including room that is freed meanwhile; calls `wake` if the reader waits for
    /// them.
    pub(super) fn write(&self, slices: &[IoSlice<'_>], wake: impl Fn()) -> Result<usize, LinkError> {
        let (mut room, mut done, mut untold) = (self.room()?, 0, 0);
        'slices: for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                if room == 0 {
                    self.tell(std::mem::take(&mut untold), &wake);
                    room = self.room()?;
                    if room == 0 {
                        break 'slices;
                    }
                }
                let (at, before_end) = self.place.at(self.written.get());
                let part = rest.len().min(room).min(before_end).min(PIECE_BYTES - untold);
                let (now, later) = rest.split_at(part);
                self.place.memory.copy_in(at, now);
                self.written.set(self.written.get().wrapping_add(to_u64(part)));
                (rest, room, done, untold) = (later, room - part, done + part, untold + part);
                if untold == PIECE_BYTES {
                    self.tell(std::mem::take(&mut untold), &wake);
                }
            }
        }
        self.tell(untold, &wake);
        Ok(done)
    }

    /// Publishes written bytes to the reader.
    fn tell(&self, bytes: usize, wake: &impl Fn()) {
        if bytes == 0 {
            return;
        }
        self.place.publish(WRITTEN, self.written.get());
        let there = RingPosition::between(self.written.get(), self.taken()).unwrap_or(RING_BYTES);
        if self.place.wakes(READER_WAITS, there) {
            wake();
        }
    }

    /// Announces that this end is about to sleep until `bytes` bytes, or half the ring, are free; returns that
    /// number.
    pub(super) fn sleeps(&self, bytes: usize) -> usize {
        let wanted = bytes.clamp(1, TOGETHER_BYTES);
        self.place.waits(WRITER_WAITS, wanted);
        wanted
    }

    /// Announces that this end is awake.
    pub(super) fn is_awake(&self) {
        self.place.waits(WRITER_WAITS, 0);
    }

    /// Announces that no more bytes will come.
    pub(super) fn end(&self) {
        self.place.publish(ENDED, 1);
    }
}

/// The reading end.
pub(super) struct RingReader {
    place: RingPosition,
    taken: Cell<u64>,
}

impl RingReader {
    pub(super) fn new(memory: Rc<ShmMemory>, direction: usize) -> Self {
        Self { place: RingPosition::new(memory, direction), taken: Cell::new(0) }
    }

    /// Bytes available to read.
    pub(super) fn there(&self) -> Result<usize, LinkError> {
        RingPosition::between(self.place.read(WRITTEN), self.taken.get())
    }

    /// Whether the writer has ended; the available bytes are then the last ones.
    pub(super) fn is_ended(&self) -> bool {
        self.place.read(ENDED) != 0
    }

    /// Reads as many bytes as are available, including bytes that arrive meanwhile; calls `wake` if the writer
    /// waits for the room.
    pub(super) fn read(&self, runs: &mut [IoSliceMut<'_>], wake: impl Fn()) -> Result<usize, LinkError> {
        let (mut there, mut done, mut untold) = (self.there()?, 0, 0);
        'runs: for run in runs {
            let mut filled = 0;
            while filled < run.len() {
                if there == 0 {
                    self.tell(std::mem::take(&mut untold), &wake)?;
                    there = self.there()?;
                    if there == 0 {
                        break 'runs;
                    }
                }
                let (at, before_end) = self.place.at(self.taken.get());
                let part = (run.len() - filled).min(there).min(before_end).min(PIECE_BYTES - untold);
                self.place.memory.copy_out(at, &mut run[filled..filled + part]);
                self.taken.set(self.taken.get().wrapping_add(to_u64(part)));
                (filled, there, done, untold) = (filled + part, there - part, done + part, untold + part);
                if untold == PIECE_BYTES {
                    self.tell(std::mem::take(&mut untold), &wake)?;
                }
            }
        }
        self.tell(untold, &wake)?;
        Ok(done)
    }

    /// Publishes freed bytes to the writer.
    fn tell(&self, bytes: usize, wake: &impl Fn()) -> Result<(), LinkError> {
        if bytes > 0 {
            self.place.publish(TAKEN, self.taken.get());
            if self.place.wakes(WRITER_WAITS, RING_BYTES - self.there()?) {
                wake();
            }
        }
        Ok(())
    }

    /// Announces that this end is about to sleep until `bytes` bytes, or half the ring, are available; returns that
    /// number.
    pub(super) fn sleeps(&self, bytes: usize) -> usize {
        let wanted = bytes.clamp(1, TOGETHER_BYTES);
        self.place.waits(READER_WAITS, wanted);
        wanted
    }

    /// Announces that this end is awake.
    pub(super) fn is_awake(&self) {
        self.place.waits(READER_WAITS, 0);
    }

    /// Announces that this end reads no more.
    pub(super) fn refuse(&self) {
        self.place.publish(REFUSED, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::{ShmMemory, create};
    use super::*;
    use proptest::prelude::*;

    fn ends() -> (Rc<ShmMemory>, RingWriter, RingReader) {
        let memory = Rc::new(ShmMemory::map(&create(MEMORY_BYTES).unwrap(), MEMORY_BYTES).unwrap());
        (memory.clone(), RingWriter::new(memory.clone(), 1), RingReader::new(memory, 1))
    }

    fn two_sizes() -> impl Strategy<Value = (usize, usize)> {
        (1..3 * PIECE_BYTES, 1..3 * PIECE_BYTES)
    }

    proptest! {
        #[test]
        fn bytes_come_out_as_they_went_in(sizes in prop::collection::vec(two_sizes(), 1..60)) {
            let (_, writer, reader) = ends();
            let (mut wrote, mut read) = (0usize, 0usize);
            let byte = |i: usize| u8::try_from((i / 7 + i) % 251).unwrap();
            for (to_write, to_read) in sizes {
                let bytes: Vec<u8> = (wrote..wrote + to_write).map(byte).collect();
                let (one, other) = bytes.split_at(to_write / 3);
                wrote += writer.write(&[IoSlice::new(one), IoSlice::new(other)], || {}).unwrap();
                prop_assert!(wrote - read <= RING_BYTES);
                let mut got = vec![0; to_read];
                let (one, other) = got.split_at_mut(to_read / 2);
                let count = reader.read(&mut [IoSliceMut::new(one), IoSliceMut::new(other)], || {}).unwrap();
                prop_assert_eq!(count, to_read.min(wrote - read));
                for (i, got) in got[..count].iter().enumerate() {
                    prop_assert_eq!(*got, byte(read + i));
                }
                read += count;
            }
        }

        #[test]
        fn any_counts_of_the_other_end_are_bytes_or_an_error(written in any::<u64>(), taken in any::<u64>()) {
            let (memory, writer, reader) = ends();
            memory.word(CONTROL_BYTES + WRITTEN).store(written, Ordering::Relaxed);
            memory.word(CONTROL_BYTES + TAKEN).store(taken, Ordering::Relaxed);
            let mut to = vec![0; RING_BYTES + 1];
            let got = reader.read(&mut [IoSliceMut::new(&mut to)], || {});
            let is_foreign = matches!(got, Err(LinkError::Foreign(_)));
            prop_assert_eq!(is_foreign, written > to_u64(RING_BYTES));
            memory.word(CONTROL_BYTES + TAKEN).store(taken, Ordering::Relaxed);
            let got = writer.write(&[IoSlice::new(&[7; 9])], || {});
            prop_assert_eq!(got.is_err(), taken.wrapping_neg() > to_u64(RING_BYTES));
        }
    }

    #[test]
    fn whoever_sleeps_is_woken_once_and_when_there_is_enough() {
        let (_, writer, reader) = ends();
        let woken = Cell::new(0);
        let wake = || woken.set(woken.get() + 1);
        assert_eq!(reader.sleeps(100), 100);
        writer.write(&[IoSlice::new(&[1; 99])], wake).unwrap();
        assert_eq!(woken.get(), 0);
        writer.write(&[IoSlice::new(&[1; 1])], wake).unwrap();
        writer.write(&[IoSlice::new(&[1; 300])], wake).unwrap();
        assert_eq!(woken.replace(0), 1);
        writer.write(&[IoSlice::new(&vec![1; 2 * RING_BYTES])], wake).unwrap();
        assert_eq!((writer.room().unwrap(), writer.sleeps(usize::MAX)), (0, TOGETHER_BYTES));
        reader.read(&mut [IoSliceMut::new(&mut vec![0; TOGETHER_BYTES - 1])], wake).unwrap();
        assert_eq!(woken.get(), 0);
        reader.read(&mut [IoSliceMut::new(&mut [0; 1])], wake).unwrap();
        reader.read(&mut [IoSliceMut::new(&mut [0; 1])], wake).unwrap();
        assert_eq!(woken.get(), 1);
    }
}
