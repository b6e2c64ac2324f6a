//! Register tiles: the innermost loops of integer products.
//!
//! Place in the flow: [`super::integer`] packs blocks of A and B into panels and calls a tile for each pair.
//!
//! Invariant: a tile reads k groups of each panel and writes its `MR * NR` sums, row after row; nothing else.
//!
//! Deliberately absent: edges and strides; packing has removed both.
#![allow(unsafe_code)] // Panels are read through pointers, and vector instructions need a promise.

use std::marker::PhantomData;

use bramble_matrix::Element;

#[cfg(target_arch = "x86_64")]
#[path = "tile_x86.rs"]
pub(super) mod x86;

/// A register tile of `MR` rows and `NR` columns.
pub(super) trait RegisterTile {
    /// Element of the product.
    type T: Element;
    /// Element of a packed panel.
    type Word: Copy;
    /// The sums of a tile.
    type Sums: AsMut<[Self::T]>;
    /// Words in an element.
    const WORDS: usize;
    /// Rows.
    const MR: usize;
    /// Columns.
    const NR: usize;

    /// Memory for the sums.
    fn sums() -> Self::Sums;

    /// Stores `x` as element `i` of a group of `width` elements.
    fn put(group: &mut [Self::Word], width: usize, i: usize, x: Self::T);

    /// Writes `sums[i][j] = Σ a[p][i] * b[p][j]` over k groups.
    ///
    /// # Safety
    /// `a` holds k groups of `MR` elements, `b` k groups of `NR`, `sums` has room for `MR * NR`; and the
    /// machine has the instructions of this tile.
    unsafe fn multiply(k: usize, a: *const Self::Word, b: *const Self::Word, sums: *mut Self::T);
}

/// A tile for any machine; the compiler vectorises it, since its sizes are constants.
pub(super) struct PortableTile<T>(PhantomData<T>);

impl<T: Element> RegisterTile for PortableTile<T> {
    type T = T;
    type Word = T;
    type Sums = [T; 4 * 8];
    const WORDS: usize = 1;
    const MR: usize = 4;
    const NR: usize = 8;

    fn sums() -> Self::Sums {
        [T::ZERO; 32]
    }

    #[inline(always)]
    fn put(group: &mut [T], _: usize, i: usize, x: T) {
        group[i] = x;
    }

    unsafe fn multiply(k: usize, a: *const T, b: *const T, sums: *mut T) {
        let mut acc = [[T::ZERO; 8]; 4];
        for d in 0..k {
            // SAFETY: the caller promises k groups of 4 and of 8 elements.
            let (a, b) = unsafe { (&*a.cast::<[T; 4]>().add(d), &*b.cast::<[T; 8]>().add(d)) };
            for (acc, &a) in acc.iter_mut().zip(a) {
                for (acc, &b) in acc.iter_mut().zip(b) {
                    *acc = acc.plus(a.times(b));
                }
            }
        }
        // SAFETY: the caller promises room for 4 × 8 sums.
        unsafe { sums.cast::<[[T; 8]; 4]>().write(acc) };
    }
}

/// A tile of `i64` for machines whose vector units multiply only 32-bit integers. With
/// `x = low + 2^32 high`, modulo 2^64: `x y = low low' + 2^32 (low high' + high low')`, where the sum in
/// brackets is needed modulo 2^32 only. Panels hold the low halves of a group, then the high halves.
#[cfg_attr(target_arch = "x86_64", allow(dead_code))] // There, its vectorised twin is used; tests run both.
pub(super) struct Halves;

impl RegisterTile for Halves {
    type T = i64;
    type Word = u32;
    type Sums = [i64; 4 * 4];
    const WORDS: usize = 2;
    const MR: usize = 4;
    const NR: usize = 4;

    fn sums() -> Self::Sums {
        [0; 16]
    }

    #[inline(always)]
    fn put(group: &mut [u32], width: usize, i: usize, x: i64) {
        group[i] = x as u32;
        group[width + i] = (x >> 32) as u32;
    }

    unsafe fn multiply(k: usize, a: *const u32, b: *const u32, sums: *mut i64) {
        let (mut low, mut cross) = ([[0u64; 4]; 4], [[0u32; 4]; 4]);
        for d in 0..k {
            // SAFETY: the caller promises k groups of 4 elements, each 4 low and 4 high halves.
            let (a, b) = unsafe { (&*a.cast::<[[u32; 4]; 2]>().add(d), &*b.cast::<[[u32; 4]; 2]>().add(d)) };
            for i in 0..4 {
                for j in 0..4 {
                    low[i][j] = low[i][j].wrapping_add(u64::from(a[0][i]) * u64::from(b[0][j]));
                    let mixed = a[0][i].wrapping_mul(b[1][j]).wrapping_add(a[1][i].wrapping_mul(b[0][j]));
                    cross[i][j] = cross[i][j].wrapping_add(mixed);
                }
            }
        }
        for i in 0..4 {
            for j in 0..4 {
                let sum = low[i][j].wrapping_add(u64::from(cross[i][j]) << 32);
                // SAFETY: the caller promises room for 4 × 4 sums.
                unsafe { sums.add(4 * i + j).write(sum as i64) };
            }
        }
    }
}
