//! What a child process receives from its parent: its identity, and its endpoints of the connections to the other
//! ends.
//!
//! Invariants: messages and descriptors come over a socket that only parent and child have; there is no address or
//! name that another process could use. The parent sends everything before it starts the child, so the child never
//! waits. The bytes are checked, although they come from the same program.

use super::LinkName;
use super::half::Half;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The message that accompanies a socket.
const SOCKET: [u8; 1] = *b"s";

/// The identity of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) link: LinkName,
    pub(crate) rank: usize,
    pub(crate) ends: usize,
}

/// Sends identity and endpoints to a child, the endpoints in the order of the other ends' ranks.
pub(crate) fn give(to: &UnixStream, who: Identity, halves: Vec<Half>) -> io::Result<()> {
    let mut to = to;
    to.write_all(&encode(who))?;
    halves.into_iter().try_for_each(|half| half.give(to))
}

/// Receives identity and endpoints from the parent.
pub(crate) fn take(from: &UnixStream) -> io::Result<(Identity, Vec<Half>)> {
    let (mut from, mut bytes) = (from, [0; 4]);
    from.read_exact(&mut bytes)?;
    let who = decode(&bytes).ok_or_else(|| io::Error::other("the parent process sent no valid identity"))?;
    let halves = (1..who.ends).map(|_| Half::take(who.link, from)).collect::<io::Result<_>>()?;
    Ok((who, halves))
}

/// Sends a socket.
pub(super) fn give_socket(to: &UnixStream, socket: &OwnedFd) -> io::Result<()> {
    let borrowed = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&borrowed)), "there is room for one");
    sendmsg(to, &[IoSlice::new(&SOCKET)], &mut beside, SendFlags::empty())?;
    Ok(())
}

/// Receives a socket.
pub(super) fn take_socket(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut beside, RecvFlags::empty())?;
    let sockets = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let socket = sockets.last().filter(|_| byte == SOCKET);
    socket.ok_or_else(|| io::Error::other("the parent process sent no socket"))
}

fn encode(who: Identity) -> [u8; 4] {
    let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let link = LinkName::ALL.iter().position(|link| *link == who.link).unwrap_or_default();
    [b'e', small(link), small(who.rank), small(who.ends)]
}

fn decode([mark, link, rank, ends]: &[u8; 4]) -> Option<Identity> {
    let link = *LinkName::ALL.get(usize::from(*link))?;
    (*mark == b'e' && rank < ends).then(|| Identity {
        link,
        rank: usize::from(*rank),
        ends: usize::from(*ends),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn identity_and_endpoints_arrive() {
        let is_of_processes = |link: &LinkName| link.is_made_here() && *link != LinkName::Thread;
        for link in LinkName::ALL.iter().copied().filter(is_of_processes) {
            let (parent, child) = UnixStream::pair().unwrap();
            let who = Identity { link, rank: 2, ends: 3 };
            let (kept, given): (Vec<_>, Vec<_>) = (0..2).map(|_| Half::pair(link).unwrap()).unzip();
            give(&parent, who, given).unwrap();
            let (got, halves) = take(&child).unwrap();
            assert_eq!((got, halves.len(), kept.len()), (who, 2, 2));
            drop(parent);
            assert!(take(&child).is_err());
        }
    }

    #[test]
    fn a_socket_is_the_same_at_the_other_side() {
        let (parent, child) = UnixStream::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        give_socket(&parent, &far.into()).unwrap();
        let mut far = UnixStream::from(take_socket(&child).unwrap());
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        (&parent).write_all(b"s").unwrap();
        assert!(take_socket(&child).is_err());
    }

    #[test]
    fn nonsense_is_no_identity() {
        for bad in [[b'e', 9, 0, 2], [b'e', 1, 2, 2], [b'f', 1, 1, 2]] {
            assert_eq!(decode(&bad), None);
        }
    }
}
