//! Files that both ends of a link have mapped, so that a frame only needs a body's position in its file.
//!
//! Place in the flow: an end passes the descriptor of a file with the first frame that refers to it, in a message
//! over a socket beside the rings; the peer maps the file when that frame arrives.
//!
//! Invariants: the message is sent before the frame. Both ends number the files in the order in which they were
//! passed; a frame may name a known file, or the next one. An end maps at most `FILES_MAX` files, read-only, and
//! never more of a file than its length. A map stays as long as a region of it is in use.
//!
//! Deliberately absent: removing a map. A link serves one product, whose operands stay until its end.

use super::map::FileMap;
use crate::file_reference::FileReference;
use crate::frame::REFERENCE_BYTES;
use crate::local::descriptors;
use crate::{BodyOwner, LinkError, SharedRegion, to_u64};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Most files that one end passes; the operands of one product are far fewer.
const FILES_MAX: usize = 64;

/// The files of one end.
pub(super) struct Files {
    socket: OwnedFd,
    /// Files that were passed to the peer. They are kept open, so that no other file can be mistaken for one of
    /// them.
    given: RefCell<Vec<Arc<File>>>,
    /// Maps of the files that the peer has passed.
    taken: RefCell<Vec<Arc<FileMap>>>,
}

impl Files {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, given: RefCell::default(), taken: RefCell::default() }
    }

    /// The reference to a region of a file; passes the file to the peer if it is new.
    pub(super) fn refer(&self, region: &SharedRegion, file: &Arc<File>) -> io::Result<[u8; REFERENCE_BYTES]> {
        let mut given = self.given.borrow_mut();
        let at = match given.iter().position(|known| Arc::ptr_eq(known, file)) {
            Some(at) => at,
            None if given.len() < FILES_MAX => {
                let bytes = to_u64((*region.owner).as_ref().len());
                descriptors::put(&self.socket, &bytes.to_le_bytes(), &[file.as_fd()])?;
                given.push(file.clone());
                given.len() - 1
            }
            None => return Err(io::Error::other(format!("more than {FILES_MAX} files for one link"))),
        };
        // The number is below `FILES_MAX`.
        Ok(FileReference::to(region, u32::try_from(at).unwrap_or(u32::MAX)).encode())
    }

    /// The region that a reference names.
    pub(super) fn referred(&self, reference: &[u8; REFERENCE_BYTES]) -> Result<SharedRegion, LinkError> {
        let reference = FileReference::decode(reference)?;
        let at = usize::try_from(reference.file).unwrap_or(usize::MAX);
        let mut taken = self.taken.borrow_mut();
        if at == taken.len() && at < FILES_MAX {
            taken.push(Arc::new(self.next()?));
        }
        let Some(map) = taken.get(at) else {
            let what = format!("it refers to its file {at}, and has passed {} files", taken.len());
            return Err(LinkError::Foreign(what));
        };
        let map: BodyOwner = map.clone();
        reference.region(map)
    }

    /// Maps the next file that the peer has passed.
    fn next(&self) -> Result<FileMap, LinkError> {
        let mut bytes = [0; 8];
        let come = descriptors::get(&self.socket, &mut bytes);
        let (count, descriptors) =
            come.map_err(|e| LinkError::Foreign(format!("it refers to a file that it has not passed: {e}")))?;
        let [file] = descriptors::exactly(descriptors)
            .filter(|_| count == bytes.len())
            .ok_or_else(|| LinkError::Foreign("the descriptor that it passed is no file".to_owned()))?;
        FileMap::map(&file, u64::from_le_bytes(bytes)).map_err(|e| {
            let what = format!("cannot map an operand's file: {e}; --link pipe sends operands instead");
            LinkError::Broken(io::Error::new(e.kind(), what))
        })
    }
}

/// A file without a name, with these bytes.
#[cfg(test)]
pub(crate) fn in_a_file(bytes: &[u8]) -> Arc<File> {
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memory);
    io::Write::write_all(&mut file, bytes).unwrap();
    Arc::new(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Seek, Write};

    fn ends() -> (Files, Files) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Files::new(a), Files::new(b))
    }

    fn file(bytes: &[u8]) -> (Arc<File>, BodyOwner) {
        (in_a_file(bytes), Arc::new(bytes.to_vec()))
    }

    #[test]
    fn a_file_is_handed_over_once_and_read_where_it_lies() {
        let (here, there) = ends();
        let (one, bytes) = file(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let (other, others) = file(&[9; 4]);
        let region = SharedRegion::new(bytes, 1, 2, 3, 2);
        let first = here.refer(&region, &one).unwrap();
        let second = here.refer(&SharedRegion::whole(others), &other).unwrap();
        let again = here.refer(&region, &one).unwrap();
        assert_eq!(first, again);
        let got = there.referred(&first).unwrap();
        assert_eq!((got.run(0), got.run(1)), (&[2u8, 3][..], &[5u8, 6][..]));
        assert_eq!(there.referred(&second).unwrap().run(0), &[9; 4]);
        assert_eq!(there.referred(&again).unwrap().run(1), &[5, 6]);
        // The map is of the file itself, not of a copy.
        let mut file = &*one;
        file.rewind().unwrap();
        file.write_all(&[70]).unwrap();
        let whole = there
            .referred(&FileReference::to(&SharedRegion::whole(Arc::new(vec![0u8; 8])), 0).encode())
            .unwrap();
        assert_eq!(whole.run(0), &[70, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((here.given.borrow().len(), there.taken.borrow().len()), (2, 2));
        drop(there);
        assert_eq!(got.run(0), &[2, 3], "a region keeps the map");
    }

    #[test]
    fn files_that_are_not_there_or_too_short_and_other_descriptors_are_refused() {
        let reference = |file, bytes: usize| {
            FileReference::to(&SharedRegion::whole(Arc::new(vec![0u8; bytes])), file).encode()
        };
        let (_here, there) = ends();
        for file in [0, 1, 63, 64, u32::MAX] {
            assert!(matches!(there.referred(&reference(file, 1)), Err(LinkError::Foreign(_))), "{file}");
        }
        let (here, there) = ends();
        let (short, _) = file(&[1; 100]);
        here.refer(&SharedRegion::whole(Arc::new(vec![0u8; 101])), &short).unwrap();
        assert!(
            matches!(there.referred(&reference(0, 1)), Err(LinkError::Broken(_))),
            "a file that was cut short"
        );
        let (here, there) = ends();
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        descriptors::put(&here.socket, &8u64.to_le_bytes(), &[socket.as_fd()]).unwrap();
        assert!(matches!(there.referred(&reference(0, 1)), Err(LinkError::Broken(_))), "a socket");
        let (here, there) = ends();
        descriptors::put(&here.socket, &[1, 2, 3], &[short.as_fd()]).unwrap();
        assert!(
            matches!(there.referred(&reference(0, 1)), Err(LinkError::Foreign(_))),
            "a length of 3 bytes"
        );
        let (here, there) = ends();
        let (good, bytes) = file(&[5; 10]);
        here.refer(&SharedRegion::whole(bytes), &good).unwrap();
        assert!(
            matches!(there.referred(&reference(0, 11)), Err(LinkError::Foreign(_))),
            "more than the file has"
        );
        assert_eq!(there.referred(&reference(0, 10)).unwrap().run(0), &[5; 10]);
    }

    #[test]
    fn there_is_an_end_to_files() {
        let (here, there) = ends();
        let files: Vec<_> = (0..=FILES_MAX).map(|i| file(&[u8::try_from(i).unwrap()])).collect();
        for (at, (file, bytes)) in files.iter().enumerate().take(FILES_MAX) {
            let reference = here.refer(&SharedRegion::whole(bytes.clone()), file).unwrap();
            assert_eq!(usize::from(there.referred(&reference).unwrap().run(0)[0]), at);
        }
        let (file, bytes) = &files[FILES_MAX];
        assert!(here.refer(&SharedRegion::whole(bytes.clone()), file).is_err());
    }
}
