//! Bytes both ways through memory that two processes have mapped.
//!
//! Place in the flow: below the frames of a link between processes of one machine. Each byte is copied in at one end and out
//! at the other; the system is called only to sleep and to wake. Bodies that lie in files are not copied: both ends map these
//! (`files`).
//!
//! Invariants: those of `map` and `ring`. An end that finds nothing to do looks a while longer where that would have been of
//! use lately (`patience`), then says that it sleeps and waits for its event; the other end writes to that only if it sleeps. The
//! end of the other process, in whatever way, closes `life`; what it had written whole is still read.
//!
//! Deliberately absent: names. The memory has none, so nothing is left of it when both processes are gone.

pub(crate) mod files;
mod map;
mod patience;
mod ring;

use crate::frame::REFERENCE_BYTES;
use crate::framed::Stream;
use crate::local::watch::watched;
use crate::{LinkError, Region};
use files::Files;
use map::Memory;
use patience::{Patience, has_spare_cores};
use ring::{MEMORY_BYTES, Reader, Writer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Which of the two ends one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Writes to the first ring.
    Left,
    /// Writes to the second.
    Right,
}

/// One end that is not open yet.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) side: Side,
    memory: OwnedFd,
    /// What wakes this end.
    own: OwnedFd,
    /// What wakes the other.
    other: OwnedFd,
    /// Closed when the other process is no more.
    life: OwnedFd,
    /// Where files are handed over.
    files: OwnedFd,
}

/// Both ends of new rings.
pub(crate) fn pair() -> io::Result<(Ends, Ends)> {
    let memory = map::create(MEMORY_BYTES)?;
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (left, right) = (event()?, event()?);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (left_life, right_life) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (left_files, right_files) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let descriptors = [memory.try_clone()?, left.try_clone()?, right.try_clone()?, left_life, left_files];
    let others = [memory, right, left, right_life, right_files];
    Ok((Ends::of(Side::Left, descriptors), Ends::of(Side::Right, others)))
}

impl Ends {
    /// From descriptors in the order of `descriptors`.
    pub(crate) fn of(side: Side, descriptors: [OwnedFd; 5]) -> Self {
        let [memory, own, other, life, files] = descriptors;
        Self { side, memory, own, other, life, files }
    }

    /// What another process needs to be this end.
    pub(crate) fn descriptors(&self) -> [&OwnedFd; 5] {
        [&self.memory, &self.own, &self.other, &self.life, &self.files]
    }
}

/// One end of two rings.
pub(crate) struct Rings {
    to: Writer,
    from: Reader,
    /// Told by the other end when this one sleeps. Nobody reads it: each writing is an event of its own.
    own: AsyncFd<OwnedFd>,
    other: OwnedFd,
    life: AsyncFd<OwnedFd>,
    /// The other process is no more.
    is_alone: Cell<bool>,
    files: Files,
    reading: Patience,
    writing: Patience,
}

impl Rings {
    pub(crate) fn open(ends: Ends) -> io::Result<Self> {
        let memory = Rc::new(Memory::map(&ends.memory, MEMORY_BYTES)?);
        let (to, from) = if ends.side == Side::Left { (0, 1) } else { (1, 0) };
        Ok(Self {
            to: Writer::new(memory.clone(), to),
            from: Reader::new(memory, from),
            own: watched(ends.own, Interest::READABLE)?,
            other: ends.other,
            life: watched(ends.life, Interest::READABLE)?,
            is_alone: Cell::new(false),
            files: Files::new(ends.files),
            reading: Patience::new(),
            writing: Patience::new(),
        })
    }

    /// Wakes the other end.
    fn wake(&self) {
        // It fails where the counter is full, and then the event has happened; or the other end is not there any more.
        let _ = rustix::io::write(&self.other, &1u64.to_ne_bytes());
    }

    /// Sleeps until the other end wakes this one, or is no more.
    async fn asleep(&self) -> io::Result<()> {
        tokio::select! {
            biased;
            woken = self.own.readable() => woken?.clear_ready(),
            ended = self.life.readable() => {
                ended?.retain_ready();
                self.is_alone.set(true);
            }
        }
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.to.is_refused() || self.to.room().map_or(true, |room| room >= bytes)
    }

    fn has_bytes(&self, bytes: usize) -> bool {
        self.from.there().map_or(true, |there| there >= bytes) || self.from.is_ended()
    }
}

impl Stream for Rings {
    const SUMS_BODIES: bool = false;
    const TURN_FRAMES: u32 = 8;
    const REFERS: bool = true;

    fn refer(&self, region: &Region) -> io::Result<Option<[u8; REFERENCE_BYTES]>> {
        region.file.as_ref().map(|file| self.files.refer(region, file)).transpose()
    }

    fn referred(&self, reference: &[u8; REFERENCE_BYTES]) -> Result<Region, LinkError> {
        self.files.referred(reference)
    }

    async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        loop {
            if self.to.is_refused() || self.is_alone.get() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let moved = self.to.write(slices, || self.wake()).map_err(io::Error::other)?;
            if moved > 0 || all == 0 {
                return Ok(moved);
            }
            if self.writing.pays(|| self.has_room(1), has_spare_cores).await {
                continue;
            }
            let wanted = self.to.sleeps(all);
            if !self.has_room(wanted) {
                self.asleep().await?;
            }
            self.to.is_awake();
            self.writing.slept(self.has_room(1));
        }
    }

    async fn read(&self, runs: &mut [IoSliceMut<'_>], sure: usize) -> io::Result<usize> {
        loop {
            // Looked at before the bytes: what was written before the end is there by now.
            let is_over = self.from.is_ended() || self.is_alone.get();
            let moved = self.from.read(runs, || self.wake()).map_err(io::Error::other)?;
            if moved > 0 || is_over {
                return Ok(moved);
            }
            if self.reading.pays(|| self.has_bytes(1), has_spare_cores).await {
                continue;
            }
            let wanted = self.from.sleeps(sure);
            if !self.has_bytes(wanted) {
                self.asleep().await?;
            }
            self.from.is_awake();
            self.reading.slept(self.has_bytes(1));
        }
    }

    async fn close(&self) -> io::Result<()> {
        self.sender_gone();
        Ok(())
    }

    fn written(&self) -> u64 {
        self.to.written()
    }

    /// Those that the other process has taken, as far as it says.
    fn acknowledged(&self) -> u64 {
        self.to.taken().min(self.to.written())
    }

    fn sender_gone(&self) {
        self.to.end();
        self.wake();
    }

    fn receiver_gone(&self) {
        self.from.refuse();
        self.wake();
    }
}
