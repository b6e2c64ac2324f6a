//! Memory that two processes have mapped: words that both may change at any time, and bytes that one copies in and
//! the other copies out; and files that both read.
//!
//! Invariants: the memory keeps its size while it is mapped, because it is sealed against shrinking; every access
//! is inside of it. No reference to its bytes ever exists, only references to its atomic words. A file is mapped
//! read-only.
//!
//! Deliberately absent: the rules for which end may access which bytes at which time (`ring`). A process that
//! breaks them changes the bytes that the peer copies out, and nothing else: every byte value is valid. Also
//! absent: protection against a file that shrinks while it is mapped: the system then ends each process that reads
//! the missing part with SIGBUS, as with any map.
#![allow(unsafe_code)] // Memory that another process writes has no owner that the compiler could know.

use crate::to_u64;
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// New anonymous memory (memfd), filled with zeros, sealed against shrinking and growing.
pub(super) fn create(bytes: usize) -> io::Result<OwnedFd> {
    let file = memfd_create("bramble", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, to_u64(bytes))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A read-only map of a file that the peer has passed.
pub(super) struct FileMap {
    start: NonNull<u8>,
    bytes: usize,
}

impl FileMap {
    /// Maps the first `bytes` bytes of a file; an error if it has fewer.
    pub(super) fn map(file: &impl AsFd, bytes: u64) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        let about = fstat(file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(invalid("it is no regular file".to_owned()));
        }
        let there = u64::try_from(about.st_size).unwrap_or_default();
        if bytes == 0 || bytes > there {
            return Err(invalid(format!("it has {there} bytes, not {bytes}: it was cut short")));
        }
        let bytes = usize::try_from(bytes).map_err(|_| ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address that the system chooses touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::InvalidData)?;
        Ok(Self { start, bytes })
    }
}

// SAFETY: the map cannot be written through, and any thread may unmap it.
unsafe impl Send for FileMap {}
// SAFETY: the same; a shared map can only be read.
unsafe impl Sync for FileMap {}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as `self`. Elements are plain numbers, for which
        // every bit pattern is valid. Another program that writes the file meanwhile can at worst mix old and new
        // elements: the same rule as for the map of this file in `matrix`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: as for `ShmMemory`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The shared memory in the address space of this process.
pub(super) struct ShmMemory {
    start: NonNull<u8>,
    bytes: usize,
}

impl ShmMemory {
    /// Maps the memory, if it has this size and is sealed to it.
    pub(super) fn map(file: &impl AsFd, bytes: usize) -> io::Result<Self> {
        let keeps = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !keeps || u64::try_from(fstat(file)?.st_size) != Ok(to_u64(bytes)) {
            let what = "the memory that was given is none of a link of this version";
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::InvalidData)?;
        Ok(Self { start, bytes })
    }

    /// The word at byte `at`. Panics if it is outside or unaligned: a bug of the caller.
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        let word = size_of::<AtomicU64>();
        assert!(at.is_multiple_of(word) && self.has(at, word), "no word at {at} of {}", self.bytes);
        // SAFETY: the word is inside of the mapping, which lives as long as `self`, and aligned, because the
        // mapping begins on a page. Both processes access it only atomically, and every bit pattern is valid.
        unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Copies bytes in, from byte `at` on. Panics if they do not fit: a bug of the caller.
    pub(super) fn copy_in(&self, at: usize, from: &[u8]) {
        assert!(self.has(at, from.len()), "{} bytes at {at} of {}", from.len(), self.bytes);
        // SAFETY: the target is inside of the mapping. `from` is memory of this process outside of the mapping, so
        // they do not overlap. The bytes are accessed only by such copies. `ring` prevents the peer from copying
        // the same bytes out meanwhile; if the peer breaks that rule, it gets old or new bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) }
    }

    /// Copies bytes out, from byte `at` on. Panics if they are outside: a bug of the caller.
    pub(super) fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(self.has(at, to.len()), "{} bytes at {at} of {}", to.len(), self.bytes);
        // SAFETY: as in `copy_in`, in the other direction: a concurrent write of the peer only decides which bytes
        // arrive in `to`, which is exclusive memory of this process, and every byte value is valid.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
    }

    fn has(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for ShmMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, once, and words are borrowed from `self` only. An error would mean
        // that it is not mapped, and then there is nothing to do.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
