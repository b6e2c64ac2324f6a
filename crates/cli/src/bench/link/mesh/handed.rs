//! What a process that is an end gets from its parent: who it is, and its halves of what connects it with the others.
//!
//! Invariants: it comes in one message over a socket that only parent and child have, with the descriptors beside it; there is
//! no address and no name that anyone else could use. The bytes are checked, though they come from this very program.

use super::LinkName;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors in a message: of the most ends that there may be.
const DESCRIPTORS_MAX: usize = 128;

/// Who an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) link: LinkName,
    pub(crate) rank: usize,
    pub(crate) ends: usize,
}

/// Gives it to a child.
pub(crate) fn give(to: &UnixStream, who: Identity, halves: &[OwnedFd]) -> io::Result<()> {
    let bytes = encode(who);
    let borrowed: Vec<BorrowedFd<'_>> = halves.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other(format!("more than {DESCRIPTORS_MAX} descriptors for one process")));
    }
    let sent = sendmsg(to, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Takes it from the parent.
pub(crate) fn take(from: &UnixStream) -> io::Result<(Identity, Vec<OwnedFd>)> {
    let mut bytes = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::empty())?;
    let mut halves = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            halves.extend(descriptors);
        }
    }
    let who = decode(&bytes).filter(|_| got.bytes == bytes.len());
    who.map(|who| (who, halves)).ok_or_else(|| io::Error::other("the parent process did not say who this is"))
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
    use std::io::{Read, Write};

    #[test]
    fn who_it_is_and_what_connects_it_arrive() {
        let (parent, child) = UnixStream::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let who = Identity { link: LinkName::Tcp, rank: 3, ends: 8 };
        give(&parent, who, &[far.into()]).unwrap();
        let (got, mut halves) = take(&child).unwrap();
        assert_eq!((got, halves.len()), (who, 1));
        let mut far = UnixStream::from(halves.remove(0));
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        drop(parent);
        assert!(take(&child).is_err());
        for bad in [[b'e', 9, 0, 2], [b'e', 1, 2, 2], [b'f', 1, 1, 2]] {
            assert_eq!(decode(&bad), None);
        }
    }
}
