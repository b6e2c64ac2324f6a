//! Bytes in both directions over two pipes.
//!
//! Invariants: a write takes the bytes directly from their memory, and a read puts them directly into theirs, in
//! one system call each. A direction ends when its writer is closed: by `close`, with the sender, or with its
//! process; bytes that were written before can still be read.
//!
//! Deliberately absent: moving pages instead of copying them (`vmsplice`): the sender's memory would have to stay
//! unchanged until the peer has read it, and the sender is not told when that is.

use super::watch::watched;
use crate::framed::Stream;
use crate::to_u64;
use rustix::io::{Errno, ioctl_fionbio, ioctl_fionread};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Size to ask for: the most that Linux grants an unprivileged process.
const PIPE_BYTES: usize = 1 << 20;

/// Reading and writing end of a pipe.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe only costs more system calls.
    let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
    Ok((read, write))
}

/// One end of two pipes.
pub(crate) struct Pipes {
    read: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    write: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    written: Cell<u64>,
}

impl Pipes {
    pub(super) fn open(read: OwnedFd, write: OwnedFd) -> io::Result<Self> {
        for end in [&read, &write] {
            ioctl_fionbio(end, true)?;
        }
        let read = watched(read, Interest::READABLE)?;
        let write = watched(write, Interest::WRITABLE)?;
        let open = |end| RefCell::new(Some(Rc::new(end)));
        Ok(Self { read: open(read), write: open(write), written: Cell::new(0) })
    }
}

impl Stream for Pipes {
    const SUMS_BODIES: bool = false;
    const TURN_FRAMES: u32 = 8;

    async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(pipe) = self.write.borrow().clone() else { return Err(ErrorKind::BrokenPipe.into()) };
        let all = slices.iter().map(|slice| slice.len()).sum();
        loop {
            match at_once(&pipe, Interest::WRITABLE, all, |pipe| rustix::io::writev(pipe, slices)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.written.set(self.written.get() + to_u64(bytes));
                    return Ok(bytes);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => drop(pipe.writable().await?),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    async fn read(&self, runs: &mut [IoSliceMut<'_>], _sure: usize) -> io::Result<usize> {
        let Some(pipe) = self.read.borrow().clone() else { return Ok(0) };
        let room = runs.iter().map(|run| run.len()).sum();
        loop {
            match at_once(&pipe, Interest::READABLE, room, |pipe| rustix::io::readv(pipe, runs)) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => drop(pipe.readable().await?),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    async fn close(&self) -> io::Result<()> {
        self.sender_gone();
        Ok(())
    }

    fn written(&self) -> u64 {
        self.written.get()
    }

    /// Bytes that the peer process has read.
    fn acknowledged(&self) -> u64 {
        let write = self.write.borrow();
        let waiting = write.as_ref().map_or(0, |pipe| ioctl_fionread(pipe.get_ref()).unwrap_or(0));
        self.written().saturating_sub(waiting)
    }

    fn sender_gone(&self) {
        self.write.take();
    }

    fn receiver_gone(&self) {
        self.read.take();
    }
}

/// One system call, if the event loop takes the pipe for ready; `whole` is the result that leaves it ready. After a
/// shorter one the event loop takes it for exhausted until the system reports a change, and the next call waits at
/// once.
fn at_once(
    pipe: &AsyncFd<OwnedFd>,
    interest: Interest,
    whole: usize,
    call: impl FnOnce(&OwnedFd) -> Result<usize, Errno>,
) -> io::Result<usize> {
    let mut part = None;
    let result = pipe.try_io(interest, |pipe| {
        let moved = call(pipe)?;
        if 0 < moved && moved < whole {
            part = Some(moved);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(moved)
    });
    part.map_or(result, Ok)
}
