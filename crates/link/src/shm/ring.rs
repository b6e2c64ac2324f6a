//! One direction: a ring of bytes in shared memory, with one end that writes and one that reads.
//!
//! Invariants: `written` and `taken` count bytes since the beginning and only grow; the writer changes the first, the reader
//! the second, and each trusts only what it remembers of its own. What the other end claims is checked each time it is
//! looked at: more than the ring holds ends the link. Between `taken` and `written` the bytes are the reader's, all others the
//! writer's. An end that is about to sleep says how much it waits for, then looks again; an end that moves the ring on looks
//! at that afterwards: one of the two sees the other.
//!
//! Deliberately absent: sleeping and waking (the callers do), and any meaning of the bytes.

use super::map::Memory;
use crate::{LinkError, to_u64};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a ring: few enough to stay in a cache, so that they are not written to memory and read back, and enough for one end
/// to go on while the other has no core. Of 128 KiB to 1 MiB the largest carried most (1 MiB frames, two busy cores).
pub(super) const RING_BYTES: usize = 1 << 20;
/// After so many bytes the other end is told of them, so that both copy at the same time.
const PIECE_BYTES: usize = 64 << 10;
/// Nobody waits for more together, so that the other end always has room, or bytes, for as much.
const TOGETHER_BYTES: usize = RING_BYTES / 2;

// What both ends look at, each part in lines of its own: an end that changes one disturbs no reader of another.
const WRITTEN: usize = 0;
const ENDED: usize = 8;
const TAKEN: usize = 128;
const REFUSED: usize = 136;
const READER_WAITS: usize = 256;
const WRITER_WAITS: usize = 384;
const CONTROL_BYTES: usize = 512;

/// Bytes of memory before the rings: a page.
const FRONT_BYTES: usize = 4096;
/// Bytes of memory for both directions.
pub(super) const MEMORY_BYTES: usize = FRONT_BYTES + 2 * RING_BYTES;

const _: () = assert!(2 * CONTROL_BYTES <= FRONT_BYTES && RING_BYTES.is_power_of_two());
const _: () = assert!(PIECE_BYTES <= TOGETHER_BYTES);

/// Where a direction lies.
struct Place {
    memory: Rc<Memory>,
    control: usize,
    bytes: usize,
}

impl Place {
    fn new(memory: Rc<Memory>, direction: usize) -> Self {
        Self { memory, control: direction * CONTROL_BYTES, bytes: FRONT_BYTES + direction * RING_BYTES }
    }

    fn read(&self, what: usize) -> u64 {
        self.memory.word(self.control + what).load(Ordering::Acquire)
    }

    fn publish(&self, what: usize, value: u64) {
        self.memory.word(self.control + what).store(value, Ordering::Release);
    }

    /// Bytes between two counts, of which one is the other end's.
    fn between(written: u64, taken: u64) -> Result<usize, LinkError> {
        usize::try_from(written.wrapping_sub(taken)).ok().filter(|bytes| *bytes <= RING_BYTES).ok_or_else(
            || LinkError::Foreign(format!("its ring says {written} bytes written and {taken} taken")),
        )
    }

    /// Says that an end is about to sleep until there is that much; 0 that it is awake.
    fn waits(&self, who: usize, bytes: usize) {
        self.memory.word(self.control + who).store(to_u64(bytes), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the other end sleeps and waits for no more than that; it is awake afterwards.
    fn wakes(&self, who: usize, bytes: usize) -> bool {
        fence(Ordering::SeqCst);
        let word = self.memory.word(self.control + who);
        let wanted = word.load(Ordering::Relaxed);
        wanted != 0 && wanted <= to_u64(bytes) && word.swap(0, Ordering::Relaxed) != 0
    }

    /// Where in the memory a count points to, and how many bytes come before the ring begins anew.
    fn at(&self, count: u64) -> (usize, usize) {
        // Both fit: the remainder is less than the ring.
        let offset = usize::try_from(count % to_u64(RING_BYTES)).unwrap_or_default();
        (self.bytes + offset, RING_BYTES - offset)
    }
}

/// The end that writes.
pub(super) struct Writer {
    place: Place,
    written: Cell<u64>,
}

impl Writer {
    pub(super) fn new(memory: Rc<Memory>, direction: usize) -> Self {
        Self { place: Place::new(memory, direction), written: Cell::new(0) }
    }

    /// Bytes written since the beginning.
    pub(super) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Those that the reader has taken.
    pub(super) fn taken(&self) -> u64 {
        self.place.read(TAKEN)
    }

    /// Whether the reader is no more.
    pub(super) fn is_refused(&self) -> bool {
        self.place.read(REFUSED) != 0
    }

    /// Bytes that there is room for.
    pub(super) fn room(&self) -> Result<usize, LinkError> {
        Place::between(self.written.get(), self.taken()).map(|used| RING_BYTES - used)
    }

    /// Writes as many bytes as there is room for, also such as comes meanwhile; calls `wake` where the reader waits for them.
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

    /// Tells the reader of bytes.
    fn tell(&self, bytes: usize, wake: &impl Fn()) {
        if bytes == 0 {
            return;
        }
        self.place.publish(WRITTEN, self.written.get());
        let there = Place::between(self.written.get(), self.taken()).unwrap_or(RING_BYTES);
        if self.place.wakes(READER_WAITS, there) {
            wake();
        }
    }

    /// Says that this end is about to sleep until so many bytes, or half the ring, have room; gives how many.
    pub(super) fn sleeps(&self, bytes: usize) -> usize {
        let wanted = bytes.clamp(1, TOGETHER_BYTES);
        self.place.waits(WRITER_WAITS, wanted);
        wanted
    }

    /// Says that it does not.
    pub(super) fn is_awake(&self) {
        self.place.waits(WRITER_WAITS, 0);
    }

    /// Says that nothing more will come.
    pub(super) fn end(&self) {
        self.place.publish(ENDED, 1);
    }
}

/// The end that reads.
pub(super) struct Reader {
    place: Place,
    taken: Cell<u64>,
}

impl Reader {
    pub(super) fn new(memory: Rc<Memory>, direction: usize) -> Self {
        Self { place: Place::new(memory, direction), taken: Cell::new(0) }
    }

    /// Bytes that are there.
    pub(super) fn there(&self) -> Result<usize, LinkError> {
        Place::between(self.place.read(WRITTEN), self.taken.get())
    }

    /// Whether nothing more will come than what is there by now.
    pub(super) fn is_ended(&self) -> bool {
        self.place.read(ENDED) != 0
    }

    /// Reads as many bytes as are there, also such as come meanwhile; calls `wake` where the writer waits for the room.
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

    /// Tells the writer of room.
    fn tell(&self, bytes: usize, wake: &impl Fn()) -> Result<(), LinkError> {
        if bytes > 0 {
            self.place.publish(TAKEN, self.taken.get());
            if self.place.wakes(WRITER_WAITS, RING_BYTES - self.there()?) {
                wake();
            }
        }
        Ok(())
    }

    /// Says that this end is about to sleep until so many bytes, or half the ring, are there; gives how many.
    pub(super) fn sleeps(&self, bytes: usize) -> usize {
        let wanted = bytes.clamp(1, TOGETHER_BYTES);
        self.place.waits(READER_WAITS, wanted);
        wanted
    }

    /// Says that it does not.
    pub(super) fn is_awake(&self) {
        self.place.waits(READER_WAITS, 0);
    }

    /// Says that nothing more will be read.
    pub(super) fn refuse(&self) {
        self.place.publish(REFUSED, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::{Memory, create};
    use super::*;
    use proptest::prelude::*;

    fn ends() -> (Rc<Memory>, Writer, Reader) {
        let memory = Rc::new(Memory::map(&create(MEMORY_BYTES).unwrap(), MEMORY_BYTES).unwrap());
        (memory.clone(), Writer::new(memory.clone(), 1), Reader::new(memory, 1))
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
