//! Large floating-point products on x86-64: cut into blocks that fit the caches, packed, and multiplied a register tile at a
//! time.
//!
//! Place in the flow: [`super::float`] passes slices of k here first, and to the `gemm` crate what this module leaves. That is
//! all of a machine without AVX2, products with few rows or columns, for which packing does not pay, and a C that is contiguous
//! in neither direction.
//!
//! Invariant: the bits that `float` specifies, which are those of the `gemm` crate: one chain of fused multiply-adds for each
//! element, times alpha, added to C with one rounding. Edges of packed panels are zeros, so a tile is always whole; a tile at the
//! edge of C works on a copy.
//!
//! Deliberately absent: slices of k, and products of one row.
#![allow(unsafe_code)] // Tiles take pointers, and scratch memory is shared by types.

use bramble_matrix::{Element, View, ViewMut};

use super::float::DEPTH;
use super::inner::Fused;
use super::scratch::with_scratch;
use super::tile_float_x86::FloatTile;
use crate::parts::{part, part_mut, pieces};
use crate::prefetch::prefetch;

/// Rows of A packed together: at full depth 384 KiB of f64, for a second-level cache. A multiple of every tile's height.
pub(super) const ROWS: usize = 96;
/// Columns of B packed together: at full depth 4 MiB of f64. A multiple of every tile's width.
pub(super) const COLS: usize = 1024;
/// Products with fewer columns, or of less depth, are left to the library: packing costs more than it saves.
const LEAST: usize = 64;
/// So are those with fewer rows: all of B is packed for them.
const ROWS_LEAST: usize = 257;
/// So is a C of at most this many bytes, which stays in a cache: there the library is as fast or faster.
const C_BYTES_LEAST: usize = 4 << 20;
/// Panels that are packed side by side from lines that are contiguous across k: longer runs of memory are read.
const STRIP: usize = 8;
/// Places along k that packing asks for ahead: they are a column of the matrix apart, in pages of their own.
const PLACES_AHEAD: usize = 8;
/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;
/// Edge of the squares in which packing transposes.
const SQUARE: usize = 4;
/// Elements of the largest tile.
const TILE_MAX: usize = 12 * 32;

/// `c = alpha * a * b`, plus c if `read`, for one slice of k. Returns false, and does nothing, if the product is left to the
/// library.
pub(super) fn multiply<T: Fused>(
    alpha: T,
    a: View<'_, T>,
    b: View<'_, T>,
    read: bool,
    c: &mut ViewMut<'_, T>,
) -> bool {
    let (m, n) = (c.rows(), c.cols());
    let (a, b, c) = match (c.row_stride(), c.col_stride()) {
        (_, 1) => (a, b, part_mut(c, 0..m, 0..n)),
        (1, _) => (b.transposed(), a.transposed(), part_mut(c, 0..m, 0..n).transposed()),
        _ => return false,
    };
    let fits = takes::<T>(m, n, a.cols());
    if fits && <T::Tile512 as FloatTile>::is_here() {
        blocked::<T::Tile512>(alpha, a, b, read, c);
    } else if fits && <T::Tile256 as FloatTile>::is_here() {
        blocked::<T::Tile256>(alpha, a, b, read, c);
    } else {
        return false;
    }
    true
}

/// Whether products of this size are not left to the library.
pub(super) fn takes<T>(m: usize, n: usize, k: usize) -> bool {
    m >= ROWS_LEAST && n.min(k) >= LEAST && k <= DEPTH && m * n * size_of::<T>() > C_BYTES_LEAST
}

/// The product with one kind of tile. The caller has checked that the machine has its instructions, and that the rows of C are
/// contiguous.
fn blocked<K: FloatTile>(
    alpha: K::T,
    a: View<'_, K::T>,
    b: View<'_, K::T>,
    read: bool,
    mut c: ViewMut<'_, K::T>,
) {
    const {
        assert!(ROWS.is_multiple_of(K::MR) && COLS.is_multiple_of(K::NR));
        assert!(K::MR * K::NR <= TILE_MAX && size_of::<K::T>() <= 8);
    };
    let (m, n, k) = (c.rows(), c.cols(), a.cols());
    assert!(k <= DEPTH && a.rows() == m && b.rows() == k && b.cols() == n && c.col_stride() == 1);
    let pack_and_multiply = |elements: &mut [K::T]| {
        let (packed_a, packed_b) = elements.split_at_mut(DEPTH * ROWS);
        for cols in pieces(n, COLS) {
            pack(part(b, 0..k, cols.clone()).transposed(), K::NR, packed_b);
            for rows in pieces(m, ROWS) {
                pack(part(a, rows.clone(), 0..k), K::MR, packed_a);
                sweep::<K>((k, alpha, read), packed_a, packed_b, part_mut(&mut c, rows, cols.clone()));
            }
        }
    };
    // SAFETY: elements are floats.
    unsafe { with_scratch(DEPTH * (ROWS + COLS), pack_and_multiply) };
}

/// Packs lines (rows of A, columns of B) in panels of `width`: for each place along k, `width` elements side by side. The last
/// panel is filled with zeros.
#[inline(always)]
pub(super) fn pack<T: Element>(lines: View<'_, T>, width: usize, packed: &mut [T]) {
    let (k, rs, cs) = (lines.cols(), lines.row_stride(), lines.col_stride());
    let whole = if rs == 1 { lines.rows() / width * width } else { 0 };
    for (strip, out) in pieces(whole, STRIP * width).zip(packed.chunks_mut(STRIP * width * k)) {
        for d in 0..k {
            let first = strip.start + d * cs;
            let later = lines.data().as_ptr().wrapping_add(first + PLACES_AHEAD * cs);
            (0..strip.len())
                .step_by(CACHE_LINE / size_of::<T>())
                .for_each(|at| prefetch(later.wrapping_add(at)));
            let place = &lines.data()[first..][..strip.len()];
            match width {
                6 => spread::<6, T>(place, out, k, d),
                8 => spread::<8, T>(place, out, k, d),
                12 => spread::<12, T>(place, out, k, d),
                16 => spread::<16, T>(place, out, k, d),
                32 => spread::<32, T>(place, out, k, d),
                _ => unreachable!("no tile is {width} wide"),
            }
        }
    }
    for (panel, out) in
        pieces(lines.rows() - whole, width).zip(packed[whole * k..].chunks_exact_mut(width * k))
    {
        let data = &lines.data()[(whole + panel.start) * rs..];
        if panel.len() < width {
            out.fill(T::ZERO);
        }
        let squares = if cs == 1 { panel.len() / SQUARE * SQUARE } else { 0 };
        for i in (0..squares).step_by(SQUARE) {
            transpose(std::array::from_fn(|line| &data[(i + line) * rs..][..k]), width, &mut out[i..]);
        }
        for i in squares..panel.len() {
            // Broadcast arrays have distances of 0.
            out.chunks_exact_mut(width).enumerate().for_each(|(d, out)| out[i] = data[i * rs + d * cs]);
        }
    }
}

/// Copies lines that are contiguous at place `d` along k to their panels of `WIDTH`.
#[inline(always)]
fn spread<const WIDTH: usize, T: Copy>(place: &[T], out: &mut [T], k: usize, d: usize) {
    for (panel, elements) in place.as_chunks::<WIDTH>().0.iter().enumerate() {
        out[(panel * k + d) * WIDTH..][..WIDTH].copy_from_slice(elements);
    }
}

/// Writes element d of each line side by side, to `out[d * width..]`. Squares are transposed in registers.
#[inline(always)]
fn transpose<T: Element>(lines: [&[T]; SQUARE], width: usize, out: &mut [T]) {
    let squares = lines.map(|line| line.as_chunks::<SQUARE>());
    for at in 0..squares[0].0.len() {
        let square = squares.map(|(whole, _)| whole[at]);
        for col in 0..SQUARE {
            out[(at * SQUARE + col) * width..][..SQUARE].copy_from_slice(&square.map(|line| line[col]));
        }
    }
    let first = squares[0].0.len() * SQUARE;
    for col in 0..squares[0].1.len() {
        out[(first + col) * width..][..SQUARE].copy_from_slice(&squares.map(|(_, rest)| rest[col]));
    }
}

/// Multiplies two packed blocks: `c = alpha * a * b`, plus c if `read`.
pub(super) fn sweep<K: FloatTile>(
    (k, alpha, read): (usize, K::T, bool),
    packed_a: &[K::T],
    packed_b: &[K::T],
    mut c: ViewMut<'_, K::T>,
) {
    let (m, n, stride) = (c.rows(), c.cols(), c.row_stride());
    for (cols, b) in pieces(n, K::NR).zip(packed_b.chunks_exact(K::NR * k)) {
        for (rows, a) in pieces(m, K::MR).zip(packed_a.chunks_exact(K::MR * k)) {
            let panels = (a.as_ptr(), b.as_ptr());
            let is_whole = rows.len() == K::MR && cols.len() == K::NR;
            let mut c = part_mut(&mut c, rows, cols.clone());
            if is_whole {
                // SAFETY: the panels hold k groups, C a whole tile whose rows are contiguous, as cut and checked here; our caller
                // has checked that the machine has the tile's instructions.
                unsafe { K::multiply(k, panels, alpha, read, (c.as_mut_ptr(), stride)) };
                continue;
            }
            let mut copy = [<K::T as Element>::ZERO; TILE_MAX];
            let (height, width) = (c.rows(), c.cols());
            for i in 0..if read { height } else { 0 } {
                (0..width).for_each(|j| copy[i * K::NR + j] = *c.at_mut(i, j));
            }
            // SAFETY: as above, and the copy has room for a whole tile.
            unsafe { K::multiply(k, panels, alpha, read, (copy.as_mut_ptr(), K::NR)) };
            for i in 0..height {
                (0..width).for_each(|j| *c.at_mut(i, j) = copy[i * K::NR + j]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::float::library;
    use super::*;
    use proptest::prelude::*;

    /// Numbers of many sizes, and of both signs.
    fn noise<T: Fused>(len: usize, seed: u64) -> Vec<T> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_i64(((state >> 20) as i64 - (1 << 43)) >> (state >> 60))
        };
        (0..len).map(|_| next()).collect()
    }

    /// A view of `lines` × `along` elements, in rows or in columns.
    fn view<T>(data: &[T], (rows, cols): (usize, usize), in_rows: bool, gap: usize) -> View<'_, T> {
        match in_rows {
            true => View::new(data, rows, cols, cols + gap, 1),
            false => View::new(data, rows, cols, 1, rows + gap),
        }
    }

    fn check<T: Fused + std::fmt::Debug>(
        (m, n, k): (usize, usize, usize),
        layouts: [bool; 3],
        gap: usize,
        alpha: i64,
        read: bool,
    ) {
        let room = |one: usize, other: usize| (one + gap) * (other + gap);
        let (a, b, old) = (noise::<T>(room(m, k), 1), noise::<T>(room(k, n), 2), noise::<T>(room(m, n), 3));
        let (a, b) = (view(&a, (m, k), layouts[0], gap), view(&b, (k, n), layouts[1], gap));
        let target = |data: &mut Vec<T>, by: &dyn Fn(&mut ViewMut<'_, T>)| {
            let (rs, cs) = if layouts[2] { (n + gap, 1) } else { (1, m + gap) };
            by(&mut ViewMut::new(data, m, n, rs, cs));
        };
        let (mut got, mut want, alpha) = (old.clone(), old, T::from_i64(alpha));
        target(&mut got, &|c| {
            let is_done = multiply(alpha, a, b, read, c);
            assert_eq!(is_done, super::super::is_fused() && takes::<T>(m, n, k), "{m} x {n} x {k}");
            if !is_done {
                library(alpha, a, b, read, c);
            }
        });
        target(&mut want, &|c| library(alpha, a, b, read, c));
        assert_eq!(got, want, "{m} x {n} x {k}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn the_bits_are_those_of_the_library(
            m in 600..1100usize, n in 600..1100usize, k in 60..80usize, layouts in any::<[bool; 3]>(), gap in 0..9usize,
            alpha in -3..4i64, read in any::<bool>(),
        ) {
            check::<f64>((m, n, k), layouts, gap, alpha, read);
            check::<f32>((m, n, k), layouts, gap, alpha, read);
        }
    }

    #[test]
    fn every_tile_that_this_machine_can_run_has_the_bits_of_the_library() {
        fn with<K: FloatTile>()
        where
            K::T: Fused + std::fmt::Debug,
        {
            for (m, n, k) in [(1, 1, 1), (5, 9, 3), (97, 1030, 30), (200, 70, DEPTH)] {
                let (a, b) = (noise::<K::T>(m * k, 1), noise::<K::T>(k * n, 2));
                let (a, b) = (View::row_major(&a, m, k), View::row_major(&b, k, n));
                let (mut got, mut want) = (noise::<K::T>(m * n, 3), noise::<K::T>(m * n, 3));
                let alpha = <K::T as Element>::from_i64(-3);
                if K::is_here() {
                    blocked::<K>(alpha, a, b, true, ViewMut::row_major(&mut got, m, n));
                    library(alpha, a, b, true, &mut ViewMut::row_major(&mut want, m, n));
                }
                assert!(k < 3 || got == want, "{m} x {n} x {k}");
            }
        }
        with::<<f32 as Fused>::Tile256>();
        with::<<f32 as Fused>::Tile512>();
        with::<<f64 as Fused>::Tile256>();
        with::<<f64 as Fused>::Tile512>();
    }

    #[test]
    fn operands_may_repeat_elements() {
        let (m, n, k) = (800, 700, 64);
        let (a, b) = (noise::<f64>(m.max(n), 1), noise::<f64>(k, 2));
        let of_a = [View::new(&a, m, k, 0, 0), View::new(&a, m, k, 1, 0), View::new(&a, m, k, 0, 1)];
        let of_b = [View::new(&b, k, n, 0, 0), View::new(&b, k, n, 1, 0), View::new(&a, k, n, 0, 1)];
        for (a, b) in of_a.into_iter().flat_map(|a| of_b.map(|b| (a, b))) {
            let (mut got, mut want) = (vec![0.0; m * n], vec![0.0; m * n]);
            let is_done = multiply(1.0, a, b, false, &mut ViewMut::row_major(&mut got, m, n));
            library(1.0, a, b, false, &mut ViewMut::row_major(&mut want, m, n));
            assert!(!is_done || got == want);
        }
    }

    /// A way to compute one product.
    type Way<'a, T> = &'a dyn Fn(&mut ViewMut<'_, T>);

    /// Not a check but a measurement: `cargo test --release -p bramble-kernel -- --ignored --nocapture packed`.
    #[test]
    #[ignore = "prints rates; run it in release"]
    fn rates_of_packed_products() {
        fn show<T: Fused>((m, n, k): (usize, usize, usize), wide: usize, in_rows: bool) {
            let (a, b, mut c) = (noise::<T>(m * k, 1), noise::<T>(k * n, 2), noise::<T>(m * wide, 3));
            let (a, b) = (view(&a, (m, k), in_rows, 0), View::row_major(&b, k, n));
            let tile = |way: fn(T, View<'_, T>, View<'_, T>, bool, ViewMut<'_, T>),
                        c: &mut ViewMut<'_, T>| {
                way(T::ONE, a, b, true, part_mut(c, 0..m, 0..n));
            };
            let ways: [Way<'_, T>; 3] =
                [&|c| library(T::ONE, a, b, true, c), &|c| tile(blocked::<T::Tile256>, c), &|c| {
                    tile(if T::Tile512::is_here() { blocked::<T::Tile512> } else { blocked::<T::Tile256> }, c)
                }];
            let mut taken = [const { Vec::new() }; 3];
            let repeats = (100_000_000 / (m * n * k)).max(1);
            for _ in 0..9 {
                for (way, taken) in ways.iter().zip(&mut taken) {
                    let start = std::time::Instant::now();
                    (0..repeats).for_each(|_| way(&mut ViewMut::new(&mut c, m, n, wide, 1)));
                    taken.push(start.elapsed().as_secs_f64() / repeats as f64);
                }
            }
            let rate = |taken: &mut Vec<f64>| {
                taken.sort_by(f64::total_cmp);
                2.0 * (m * n * k) as f64 / taken[taken.len() / 2] / 1e9
            };
            let [library, avx2, best] = taken.each_mut().map(rate);
            println!(
                "{} {m:5} x {n:4} x {k:3}, rows of {wide:4}, A in {}: library {library:6.1}, AVX2 {avx2:6.1} ({:.2}), \
                 best {best:6.1} ({:.2})",
                T::DTYPE,
                if in_rows { "rows" } else { "columns" },
                avx2 / library,
                best / library
            );
        }
        for side in [48, 96, 128, 256, 512, 1024, 2048] {
            show::<f64>((side, side, side.min(512)), side, true);
            show::<f32>((side, side, side.min(512)), side, true);
        }
        for (m, n, k) in [
            (32, 512, 512),
            (64, 256, 256),
            (64, 2048, 512),
            (2048, 64, 512),
            (6000, 128, 128),
            (6000, 256, 256),
            (2048, 2048, 128),
            (2048, 2048, 256),
        ] {
            show::<f64>((m, n, k), n, true);
            show::<f32>((m, n, k), n, true);
        }
        for k in [64, 128, 192, 256, 384, 512] {
            show::<f64>((6000, 768, k), 3080, false);
            show::<f32>((6000, 768, k), 3080, false);
        }
    }
}
