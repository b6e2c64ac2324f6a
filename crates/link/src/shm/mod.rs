//! Bytes in both directions through memory that two processes have mapped.
//!
//! Place in the flow: below the frames of a link between processes of one machine. One end copies each byte into
//! the ring and the other copies it out; system calls only sleep and wake. Bodies in files are not copied: both
//! ends map the file (`files`).
//!
//! Invariants: those of `map` and `ring`. An end without work polls for a while if that has been useful lately
//! (`spin`), then announces that it sleeps and waits for its event; the peer writes to that event only if it
//! sleeps. The end of the peer process, in whatever way, closes `life`; bytes that it had written completely can
//! still be read.
//!
//! Deliberately absent: names. The memory has no name, so nothing of it remains when both processes have ended.

pub(crate) mod files;
mod map;
mod ring;
mod spin;

use crate::frame::REFERENCE_BYTES;
use crate::framed::Stream;
use crate::local::watch::watched;
use crate::{LinkError, SharedRegion};
use files::Files;
use map::ShmMemory;
use ring::{MEMORY_BYTES, RingReader, RingWriter};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spin::{SpinPolicy, has_spare_cores};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Which of the two ends an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmSide {
    /// Writes to the first ring.
    Left,
    /// Writes to the second ring.
    Right,
}

/// One end that is not open yet.
#[derive(Debug)]
pub(crate) struct ShmEndpoint {
    pub(crate) side: ShmSide,
    memory: OwnedFd,
    /// The event that wakes this end.
    own: OwnedFd,
    /// The event that wakes the peer.
    other: OwnedFd,
    /// Closed when the peer process ends.
    life: OwnedFd,
    /// The socket that passes files.
    files: OwnedFd,
}

/// Both ends of new rings.
pub(crate) fn pair() -> io::Result<(ShmEndpoint, ShmEndpoint)> {
    let memory = map::create(MEMORY_BYTES)?;
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (left, right) = (event()?, event()?);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (left_life, right_life) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (left_files, right_files) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let descriptors = [memory.try_clone()?, left.try_clone()?, right.try_clone()?, left_life, left_files];
    let others = [memory, right, left, right_life, right_files];
    Ok((ShmEndpoint::of(ShmSide::Left, descriptors), ShmEndpoint::of(ShmSide::Right, others)))
}

impl ShmEndpoint {
    /// From descriptors in the order of `descriptors`.
    pub(crate) fn of(side: ShmSide, descriptors: [OwnedFd; 5]) -> Self {
        let [memory, own, other, life, files] = descriptors;
        Self { side, memory, own, other, life, files }
    }

    /// The descriptors that another process needs to be this end.
    pub(crate) fn descriptors(&self) -> [&OwnedFd; 5] {
        [&self.memory, &self.own, &self.other, &self.life, &self.files]
    }
}

/// One end of two rings.
pub(crate) struct Rings {
    to: RingWriter,
    from: RingReader,
    /// The peer writes to it while this end sleeps. The value is never read: each write is an event
    /// (edge-triggered).
    own: AsyncFd<OwnedFd>,
    other: OwnedFd,
    life: AsyncFd<OwnedFd>,
    /// The peer process has ended.
    is_alone: Cell<bool>,
    files: Files,
    reading: SpinPolicy,
    writing: SpinPolicy,
}

impl Rings {
    pub(crate) fn open(ends: ShmEndpoint) -> io::Result<Self> {
        let memory = Rc::new(ShmMemory::map(&ends.memory, MEMORY_BYTES)?);
        let (to, from) = if ends.side == ShmSide::Left { (0, 1) } else { (1, 0) };
        Ok(Self {
            to: RingWriter::new(memory.clone(), to),
            from: RingReader::new(memory, from),
            own: watched(ends.own, Interest::READABLE)?,
            other: ends.other,
            life: watched(ends.life, Interest::READABLE)?,
            is_alone: Cell::new(false),
            files: Files::new(ends.files),
            reading: SpinPolicy::new(),
            writing: SpinPolicy::new(),
        })
    }

    /// Wakes the peer.
    fn wake(&self) {
        // It fails if the counter is full, and then the event is already set; or if the peer has ended.
        let _ = rustix::io::write(&self.other, &1u64.to_ne_bytes());
    }

    /// Sleeps until the peer wakes this end, or ends.
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

    fn refer(&self, region: &SharedRegion) -> io::Result<Option<[u8; REFERENCE_BYTES]>> {
        region.file.as_ref().map(|file| self.files.refer(region, file)).transpose()
    }

    fn referred(&self, reference: &[u8; REFERENCE_BYTES]) -> Result<SharedRegion, LinkError> {
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
            // Read this before the bytes: then all bytes that were written before the end are visible.
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

    /// Bytes that the peer process has read, according to its counter.
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
