//! Integer products: cut into blocks that fit the caches, packed, and multiplied a register tile at a time.
//!
//! Place in the flow: called by [`super::Simd`]; the register tiles are in [`super::tile`].
//!
//! Invariants: integers wrap, so every order of summation gives the same bits; edges of packed panels are padded
//! with zeros, so a tile is always whole, and only its part inside C is added to C.
//!
//! Deliberately absent: products of mixed types, saturation.
#![allow(unsafe_code)] // Rows of C are written through pointers, and scratch memory is shared by types.

use bramble_matrix::{Element, View, ViewMut};

use super::scratch::with_scratch;
use super::tile::{self, RegisterTile};
use crate::Product;
use crate::parts::{part, part_mut, pieces, scale};
use crate::prefetch::prefetch;

/// Depth of a block: a packed panel of B of this depth stays in the first-level cache.
const DEPTH: usize = 256;
/// Rows of A packed together: with 8-byte elements 192 KiB, for a second-level cache. A multiple of every
/// tile's height.
const ROWS: usize = 96;
/// Columns of B packed together: with 8-byte elements 1 MiB. A multiple of every tile's width.
const COLS: usize = 512;

/// One packed block of A and one of B, of 8-byte elements.
pub(super) const SCRATCH_BYTES: usize = DEPTH * (ROWS + COLS) * 8;

/// Computes a product of `i32`.
pub(super) fn multiply_i32(product: Product<'_, i32>) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::tile::x86;
        if x86::has_avx512() {
            return blocked::<x86::I32Avx512>(product);
        }
        if x86::has_avx2() {
            return blocked::<x86::I32Avx2>(product);
        }
    }
    blocked::<tile::PortableTile<i32>>(product);
}

/// Computes a product of `i64`.
pub(super) fn multiply_i64(product: Product<'_, i64>) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::tile::x86;
        if x86::has_avx512() {
            return blocked::<x86::I64Avx512>(product);
        }
        if x86::has_avx2() {
            return blocked::<x86::I64Avx2>(product);
        }
        blocked::<tile::PortableTile<i64>>(product);
    }
    // Elsewhere no vector unit multiplies 64-bit integers, but most multiply halves.
    #[cfg(not(target_arch = "x86_64"))]
    blocked::<tile::Halves>(product);
}

/// Computes a product with one kind of register tile. The caller has checked that the machine has its instructions.
pub(super) fn blocked<K: RegisterTile>(product: Product<'_, K::T>) {
    const { assert!(ROWS.is_multiple_of(K::MR) && COLS.is_multiple_of(K::NR) && size_of::<K::T>() <= 8) };
    let Some(p) = product.settle() else { return };
    let mut p = if p.c.row_stride() < p.c.col_stride() { p.transposed() } else { p };
    scale(&mut p.c, p.beta);
    let pack_and_multiply = |words: &mut [K::Word]| {
        let (packed_a, packed_b) = words.split_at_mut(DEPTH * ROWS * K::WORDS);
        for depth in pieces(p.k(), DEPTH) {
            for cols in pieces(p.n(), COLS) {
                pack::<K>(part(p.b, depth.clone(), cols.clone()).transposed(), K::NR, packed_b);
                for rows in pieces(p.m(), ROWS) {
                    pack::<K>(part(p.a, rows.clone(), depth.clone()), K::MR, packed_a);
                    let c = part_mut(&mut p.c, rows, cols.clone());
                    sweep::<K>(depth.len(), packed_a, packed_b, p.alpha, c);
                }
            }
        }
    };
    // SAFETY: words are integers.
    unsafe { with_scratch(DEPTH * (ROWS + COLS) * K::WORDS, pack_and_multiply) };
}

/// Packs lines (rows of A, columns of B) in panels of `width`: for each place along k, `width` elements
/// side by side. The last panel is filled with zeros.
fn pack<K: RegisterTile>(lines: View<'_, K::T>, width: usize, packed: &mut [K::Word]) {
    let k = lines.cols();
    let group = width * K::WORDS;
    let zero = <K::T as Element>::ZERO;
    for (panel, out) in pieces(lines.rows(), width).zip(packed.chunks_exact_mut(group * k)) {
        let (rs, cs) = (lines.row_stride(), lines.col_stride());
        let data = &lines.data()[panel.start * rs..];
        for (d, out) in out.chunks_exact_mut(group).enumerate() {
            if rs == 1 {
                let place = &data[d * cs..][..panel.len()];
                place.iter().enumerate().for_each(|(i, &x)| K::put(out, width, i, x));
            } else {
                (0..panel.len()).for_each(|i| K::put(out, width, i, data[i * rs + d * cs]));
            }
            (panel.len()..width).for_each(|i| K::put(out, width, i, zero));
        }
    }
}

/// Adds alpha times the product of two packed blocks to C.
fn sweep<K: RegisterTile>(
    k: usize,
    packed_a: &[K::Word],
    packed_b: &[K::Word],
    alpha: K::T,
    mut c: ViewMut<'_, K::T>,
) {
    let (m, n) = (c.rows(), c.cols());
    let mut sums = K::sums();
    let sums = sums.as_mut();
    for (cols, b) in pieces(n, K::NR).zip(packed_b.chunks_exact(K::NR * K::WORDS * k)) {
        for (rows, a) in pieces(m, K::MR).zip(packed_a.chunks_exact(K::MR * K::WORDS * k)) {
            let mut c = part_mut(&mut c, rows, cols.clone());
            fetch(&mut c);
            assert!(sums.len() == K::MR * K::NR);
            // SAFETY: the panels hold k groups and the sums a whole tile, as cut and checked here; our
            // caller has checked that the machine has the tile's instructions.
            unsafe { K::multiply(k, a.as_ptr(), b.as_ptr(), sums.as_mut_ptr()) };
            add(sums, K::NR, alpha, &mut c);
        }
    }
}

/// Prefetches the rows of C while the tile is computed: they are far apart, so the hardware does not predict them.
#[inline(always)]
fn fetch<T>(c: &mut ViewMut<'_, T>) {
    for i in 0..c.rows() {
        let row = c.as_mut_ptr().wrapping_add(i * c.row_stride());
        prefetch(row);
        prefetch(row.wrapping_add(c.cols() - 1));
    }
}

/// `c += alpha * sums`, where sums has rows of `width`.
fn add<T: Element>(sums: &[T], width: usize, alpha: T, c: &mut ViewMut<'_, T>) {
    let (m, n, cs) = (c.rows(), c.cols(), c.col_stride());
    for (i, sums) in sums.chunks_exact(width).enumerate().take(m) {
        // SAFETY: i < m, so this is the first element of row i.
        let row = unsafe { c.as_mut_ptr().add(i * c.row_stride()) };
        if cs == 1 {
            // SAFETY: row i has n consecutive elements, and C is ours alone.
            let row = unsafe { std::slice::from_raw_parts_mut(row, n) };
            for (x, &sum) in row.iter_mut().zip(sums) {
                *x = x.plus(alpha.times(sum));
            }
        } else {
            for (j, &sum) in sums.iter().enumerate().take(n) {
                // SAFETY: element (i, j) of C, which is ours alone.
                let x = unsafe { &mut *row.add(j * cs) };
                *x = x.plus(alpha.times(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    /// Numbers that use every bit.
    fn noise<T: Element>(len: usize, seed: u64) -> Vec<T> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_i64((state ^ state >> 29) as i64)
        };
        (0..len).map(|_| next()).collect()
    }

    fn check<K: RegisterTile>() {
        for (m, n, k) in [(1, 1, 1), (5, 9, 3), (13, 33, 17), (97, 35, 300), (3, 520, 2), (24, 64, 256)] {
            let (a, b) = (noise::<K::T>(m * k, 1), noise::<K::T>(k * n, 2));
            let (mut got, mut want) = (noise::<K::T>(m * n, 3), noise::<K::T>(m * n, 3));
            let (alpha, beta) = (K::T::from_i64(-3), K::T::from_i64(7));
            let (a, b) = (View::row_major(&a, m, k), View::row_major(&b, n, k).transposed());
            blocked::<K>(Product::new(alpha, a, b, beta, ViewMut::row_major(&mut got, m, n)));
            reference::multiply(Product::new(alpha, a, b, beta, ViewMut::row_major(&mut want, m, n)));
            assert_eq!(got, want, "{m}x{n}x{k}");
        }
    }

    #[test]
    fn every_tile_that_this_machine_can_run_is_exact() {
        check::<tile::PortableTile<i32>>();
        check::<tile::PortableTile<i64>>();
        check::<tile::Halves>();
        #[cfg(target_arch = "x86_64")]
        {
            use super::tile::x86;
            if x86::has_avx2() {
                check::<x86::I32Avx2>();
                check::<x86::I64Avx2>();
            }
            if x86::has_avx512() {
                check::<x86::I32Avx512>();
                check::<x86::I64Avx512>();
            }
        }
    }

    /// Not a check but a measurement: `cargo test --release -p bramble-kernel -- --ignored --nocapture tiles`.
    #[test]
    #[ignore = "prints rates; run it in release"]
    fn rates_of_tiles() {
        fn show<K: RegisterTile>(name: &str) {
            let n = 512;
            let (a, b, mut c) = (noise::<K::T>(n * n, 1), noise::<K::T>(n * n, 2), noise::<K::T>(n * n, 3));
            let mut best = f64::INFINITY;
            for _ in 0..40 {
                let (a, b) = (View::row_major(&a, n, n), View::row_major(&b, n, n));
                let c = ViewMut::row_major(&mut c, n, n);
                let start = std::time::Instant::now();
                blocked::<K>(Product::new(Element::ONE, a, b, Element::ONE, c));
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!("{name:12} {:7.1} Gop/s", 2.0 * (n as f64).powi(3) / best / 1e9);
        }
        show::<tile::PortableTile<i32>>("i32 plain");
        show::<tile::PortableTile<i64>>("i64 plain");
        show::<tile::Halves>("i64 halves");
        #[cfg(target_arch = "x86_64")]
        {
            use super::tile::x86;
            if x86::has_avx2() {
                show::<x86::I32Avx2>("i32 avx2");
                show::<x86::I64Avx2>("i64 avx2");
            }
            if x86::has_avx512() {
                show::<x86::I32Avx512>("i32 avx512");
                show::<x86::I64Avx512>("i64 avx512");
            }
        }
    }
}
