//! Passing an endpoint to a new process: descriptors in a message over its standard input (`SCM_RIGHTS`).
//!
//! Invariants: the descriptors travel in the message and not in the inherited table, so they never need to be open
//! across exec; only the socket becomes standard input. The message is in the socket before the process starts, so
//! the process never waits for it. After the start no other process has these descriptors.
//!
//! Deliberately absent: other versions of this program. Both processes run the same program; a message of another
//! one is refused.

use super::{Endpoint, Parts};
use crate::shm::{self, ShmSide};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The message, except for its last byte, which tells what the descriptors are.
const MESSAGE: [u8; 8] = *b"bramble1";
/// Most descriptors of one endpoint.
const DESCRIPTORS_MAX: usize = 5;

const PIPE: u8 = 0;
const SHM_LEFT: u8 = 1;
const SHM_RIGHT: u8 = 2;

/// A socket that contains the endpoint, to become the standard input of a process.
pub(super) fn give(endpoint: Endpoint) -> io::Result<OwnedFd> {
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    send(&endpoint, &here)?;
    Ok(there)
}

/// Puts an endpoint into a socket. Its descriptors are closed in this process when the caller drops it.
pub(super) fn send(endpoint: &Endpoint, socket: &impl AsFd) -> io::Result<()> {
    let (what, descriptors) = match &endpoint.parts {
        Parts::Pipe { read, write } => (PIPE, vec![read.as_fd(), write.as_fd()]),
        Parts::Shm(ends) => {
            let what = if ends.side == ShmSide::Left { SHM_LEFT } else { SHM_RIGHT };
            (what, ends.descriptors().map(AsFd::as_fd).to_vec())
        }
    };
    let message = [&MESSAGE[..], &[what]].concat();
    put(socket, &message, &descriptors)
}

/// Sends a few bytes with descriptors over a Unix socket.
pub(crate) fn put(socket: &impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "more descriptors than expected");
    // A closed socket gives an error, not a signal.
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent < message.len() { Err(ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// Receives the waiting message: its length, and its descriptors.
pub(crate) fn get(socket: &impl AsFd, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(message)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            descriptors.extend(some);
        }
    }
    Ok((got.bytes, descriptors))
}

/// Receives the endpoint that waits in a socket.
pub(super) fn take(socket: &impl AsFd) -> io::Result<Endpoint> {
    take_from(socket.as_fd()).map_err(|e| {
        let what = format!("standard input is not the socket of a bramble that started this process: {e}");
        io::Error::new(e.kind(), what)
    })
}

fn take_from(socket: BorrowedFd<'_>) -> io::Result<Endpoint> {
    let mut message = [0; MESSAGE.len() + 1];
    let (count, descriptors) = get(&socket, &mut message)?;
    let [front @ .., what] = message;
    let refused =
        || io::Error::new(ErrorKind::InvalidData, "the message is not from this version of bramble");
    if count != message.len() || front != MESSAGE {
        return Err(refused());
    }
    let parts = match what {
        PIPE => {
            let [read, write] = exactly(descriptors).ok_or_else(refused)?;
            Parts::Pipe { read, write }
        }
        SHM_LEFT | SHM_RIGHT => {
            let side = if what == SHM_LEFT { ShmSide::Left } else { ShmSide::Right };
            Parts::Shm(shm::ShmEndpoint::of(side, exactly(descriptors).ok_or_else(refused)?))
        }
        _ => return Err(refused()),
    };
    Ok(Endpoint { parts })
}

/// All descriptors, if their number is `N`.
pub(crate) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Option<[OwnedFd; N]> {
    descriptors.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::super::{LocalKind, local_pair};
    use super::*;
    use crate::{Body, Frame, LinkError, NoBodies};
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    #[tokio::test]
    async fn an_endpoint_that_was_handed_over_is_the_other_end() {
        for kind in [LocalKind::Pipe, LocalKind::Shm] {
            let (here, there) = local_pair(kind).unwrap();
            let socket = give(there).unwrap();
            let there = take(&socket).unwrap();
            assert!(take(&socket).is_err(), "it can be taken once");
            assert_eq!(there.kind(), kind);
            let (mut here, mut there) = (here.open("there").unwrap(), there.open("here").unwrap());
            here.sender.send(Frame::new(5, vec![1, 2], Body::Empty)).await.unwrap();
            assert_eq!(there.receiver.receive(&mut NoBodies).await.unwrap().head, vec![1, 2]);
            drop(there);
            assert!(matches!(here.receiver.receive(&mut NoBodies).await, Err(LinkError::Closed)));
        }
    }

    #[tokio::test]
    async fn one_that_nobody_takes_is_a_closed_link() {
        for kind in [LocalKind::Pipe, LocalKind::Shm] {
            let (here, there) = local_pair(kind).unwrap();
            drop(give(there).unwrap());
            let mut here = here.open("there").unwrap();
            assert!(matches!(here.receiver.receive(&mut NoBodies).await, Err(LinkError::Closed)), "{kind}");
        }
    }

    #[test]
    fn other_standard_inputs_are_refused_at_once() {
        let (silent, other) = UnixStream::pair().unwrap();
        assert!(take(&silent).is_err());
        io::Write::write_all(&mut &other, b"bramble10").unwrap();
        assert!(take(&silent).unwrap_err().to_string().contains("standard input"));
        assert!(take(&File::open("/dev/null").unwrap()).is_err());
    }
}
