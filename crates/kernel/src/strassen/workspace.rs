//! The memory for the temporary sums of a product: its size and its allocation.
//!
//! Invariants: the size follows from the product's sizes; the memory is allocated once, before the first sum, and
//! kept for the thread's life, so that the jobs of a large product do not allocate it again and again.
#![allow(unsafe_code)] // One memory serves four element types.

use std::cell::Cell;

use bramble_matrix::{DType, Winograd};

use crate::KernelElement;

/// The most that any product needs: one of the largest piece, added to C, in the widest type.
pub(crate) const WORKSPACE_BYTES: usize = 8 * {
    let edge = Winograd::PIECE as usize;
    elements([edge, edge, edge], Winograd::LEVELS_MAX, true)
};

/// Bytes of workspace of one product m × n, k deep (the first is m, then n, then k), with that cut-off; `adds`: whether
/// it is added to C, beta ≠ 0.
pub fn workspace_bytes([m, n, k]: [usize; 3], dtype: DType, cutoff: u64, adds: bool) -> usize {
    let adds = adds || k as u64 > Winograd::PIECE;
    let [m, n, k] = [m, n, k].map(|side| Winograd::longest(side as u64));
    let levels = Winograd { cutoff }.levels(m, n, k);
    let even = |side: u64| (side >> levels << levels) as usize;
    elements([even(m), even(n), even(k)], levels, adds) * dtype.size_bytes()
}

/// Elements of workspace for an even core of m × n, k deep. With levels below: two quarters where the product is put, and
/// four where it is added, at the first level only.
pub(super) const fn elements([m, n, k]: [usize; 3], levels: u32, adds: bool) -> usize {
    if levels == 0 {
        return 0;
    }
    let (m, n, k) = (m / 2, n / 2, k / 2);
    let here = match (adds, k > n) {
        (true, _) => m * k + k * n + 2 * m * n,
        (false, true) => m * k + k * n,
        (false, false) => m * n + k * n,
    };
    here + elements([m, n, k], levels - 1, false)
}

thread_local! {
    static KEPT: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with memory for that many elements, with arbitrary contents.
pub(super) fn with<T: KernelElement>(elements: usize, work: impl FnOnce(&mut [T])) {
    const { assert!(size_of::<T>() <= 8 && align_of::<T>() <= align_of::<u64>()) };
    let mut kept = KEPT.take();
    let words = (elements * size_of::<T>()).div_ceil(size_of::<u64>());
    if kept.len() < words {
        // Replaced, not grown: the old contents are not needed, and should not exist beside the new memory.
        drop(kept);
        kept = vec![0; words];
    }
    // SAFETY: the words are initialised, enough and aligned; each bit pattern is a value of the four element types.
    let room = unsafe { std::slice::from_raw_parts_mut(kept.as_mut_ptr().cast::<T>(), elements) };
    work(room);
    KEPT.set(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_for_square_products_is_as_the_sources_have_it() {
        let n = 1024;
        // Two temporaries: n²/2 + n²/8 + n²/32, towards 2 n²/3. Added: n² + n²/8 + n²/32.
        assert_eq!(elements([n; 3], 3, false), n * n / 2 + n * n / 8 + n * n / 32);
        assert_eq!(elements([n; 3], 3, true), n * n + n * n / 8 + n * n / 32);
        assert_eq!(elements([n; 3], 0, true), 0);
    }

    #[test]
    fn no_product_needs_more_than_is_said() {
        for size in [[4096; 3], [8192; 3], [4097, 100_000, 9000], [1 << 40, 4096, 4096]] {
            assert!(workspace_bytes(size, DType::F64, 1, true) <= WORKSPACE_BYTES, "{size:?}");
        }
        assert_eq!(workspace_bytes([4096; 3], DType::F64, 512, true), WORKSPACE_BYTES);
        assert_eq!(workspace_bytes([1023; 3], DType::F64, 512, true), 0, "too small for a level");
    }

    #[test]
    fn memory_is_kept_for_the_next_product() {
        let place = |elements: usize| {
            let mut place = 0;
            with(elements, |work: &mut [f32]| place = work.as_ptr() as usize);
            place
        };
        let first = place(1000);
        assert_eq!((place(1000), place(10)), (first, first));
    }
}
