//! Vectors in huge pages.
//!
//! Place in the flow: the packed panels of a factorisation have columns that lie far apart, and are read and written across them.
//! With pages of 4 KiB, each column needs an address translation of its own, more of them than a processor keeps.
//!
//! Deliberately absent: memory maps, for which `output` gives the same advice; systems other than Linux.
#![allow(unsafe_code)] // A call that takes a range of memory.

/// Bytes from which huge pages are asked for: with 2 MiB a page, most of the memory is then in whole ones.
#[cfg(target_os = "linux")]
const LEAST: usize = 8 << 20;

/// Makes room for `len` elements. Room for more than the vector has is new memory, in huge pages where the system has them,
/// and the elements are dropped.
pub fn make_room_in_huge_pages<T>(memory: &mut Vec<T>, len: usize) {
    if memory.capacity() < len {
        // The old memory goes back first: both together may be more than there is.
        *memory = Vec::new();
        memory.reserve_exact(len);
        ask_for_huge_pages(memory.spare_capacity_mut());
    }
}

/// A hint that cannot fail.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages<T>(memory: &mut [T]) {
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr().addr();
    let (first, end) = (start.next_multiple_of(page), (start + size_of_val(memory)) / page * page);
    if end.saturating_sub(first) < LEAST {
        return;
    }
    let pages = memory.as_mut_ptr().cast::<u8>().wrapping_add(first - start);
    // SAFETY: whole pages inside of memory that is borrowed exclusively; the advice changes no contents. A system without large
    // pages refuses it, which changes nothing.
    let _ = unsafe { rustix::mm::madvise(pages.cast(), end - first, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages<T>(_memory: &mut [T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_room_stays_and_more_is_new() {
        let mut memory = vec![1.0f64; 10];
        make_room_in_huge_pages(&mut memory, 10);
        assert_eq!(memory, [1.0; 10]);
        for len in [11, 3_000_000] {
            make_room_in_huge_pages(&mut memory, len);
            assert!(memory.is_empty() && memory.capacity() >= len);
            memory.resize(len, 2.0);
        }
        assert!(memory.iter().all(|x| *x == 2.0));
        make_room_in_huge_pages(&mut memory, 5);
        assert_eq!(memory.len(), 3_000_000);
    }
}
